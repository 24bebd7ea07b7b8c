import io
import re
import shutil

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import relist, replace_in
from matplotlib.figure import Figure
from rich.console import Console
from tiny_runs import TINY

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.experiment import files, read_run, run, store
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.run import Progress
from fedjax_adapt.report import plots, progress, tables
from fedjax_adapt.report.page import report_page
from fedjax_adapt.report.plots import comparison_curves, draw_mean, learning_curve
from fedjax_adapt.report.progress import live
from fedjax_adapt.report.tables import summary_table


def test_a_run_has_a_picture(whole, tmp_path):
    picture = learning_curve(whole.folder, tmp_path / "curve.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5000


def test_a_folder_is_no_list_of_folders_and_a_picture_has_a_format(whole, tmp_path):
    for draw in (report_page, lambda one: comparison_curves(one, tmp_path / "a.png")):
        with pytest.raises(ValueError, match=r"got '.*' for folders; write \w+\(\["):
            draw(str(whole.folder))
    with pytest.raises(ValueError, match="a.foo must end in .png, .pdf or .svg"):
        learning_curve(whole.folder, tmp_path / "a.foo")


@pytest.mark.slow
def test_several_runs_make_one_picture(whole, tmp_path):
    path = tmp_path / "new" / "both.png"
    one, both = (
        comparison_curves(some, path, against="local_steps").read_bytes()
        for some in ([whole.folder], [whole.folder] * 2)
    )
    assert one != both and both.startswith(b"\x89PNG")
    for against, sentence in [
        ("steps", "against='steps' is unknown; write one of round, local_steps"),
        ("simulated_seconds", "has no simulated clock; train with --step-seconds"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            comparison_curves([whole.folder], path, against)


def test_a_legend_names_the_settings_in_which_runs_differ(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "saved", lambda figure, path: figure)
    other = tmp_path / "lr-0.234567"
    shutil.copytree(whole.folder, other)
    config = (other / "config.toml").read_text()
    changed = config.replace("lr = 0.1\n", "lr = 0.234567\n").replace(
        "seed = 0\n", "seed = 3\n", 1
    )
    (other / "config.toml").write_text(changed)
    relist(other)
    figure = comparison_curves([whole.folder, other], tmp_path / "both.png")
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text.partition(" (")[2] for text in said] == [
        "whole, lr=0.1, seed=0)",
        "lr-0.234567, lr=0.2346, seed=3)",
    ]


SEED_3 = (
    ("config.toml", "seed = 0\n", "seed = 3\n"),
    ("summary.json", '"seed": 0', '"seed": 3'),
)


def test_seeds_of_a_setting_are_one_curve_in_a_band(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "saved", lambda figure, path: figure)
    other, lower = tmp_path / "other", 0.25
    shutil.copytree(whole.folder, other)
    replace_in(other, *SEED_3)
    for part in (other / "metrics").iterdir():
        rows = pq.read_table(part)
        at = rows.column_names.index("accuracy")
        less = pa.array(rows["accuracy"].to_numpy() - lower)
        pq.write_table(rows.set_column(at, "accuracy", less), part)
    relist(other)
    figure = comparison_curves([whole.folder, other], tmp_path / "both.png")
    accuracy = read_run(whole.folder).metrics["accuracy"].to_numpy()
    axes = figure.axes[0]
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_ydata(), 100 * (accuracy - lower / 2))
    (band,) = axes.collections
    low, high = (f(band.get_paths()[0].vertices[:, 1]) for f in (np.min, np.max))
    assert low == pytest.approx(100 * (accuracy.min() - lower))
    assert high == pytest.approx(100 * accuracy.max())
    (text,) = figure.legends[0].get_texts()
    assert text.get_text().endswith("(n = 2)")


def test_a_mean_is_of_rounds_in_which_all_seeds_were_tested(
    whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(plots, "saved", lambda figure, path: figure)
    other = tmp_path / "other"
    shutil.copytree(whole.folder, other)
    every_3 = ("config.toml", "evaluate_every = 1\n", "evaluate_every = 3\n")
    replace_in(other, *SEED_3, every_3)
    for part in (other / "metrics").iterdir():
        rows = pq.read_table(part)
        pq.write_table(rows.filter(np.isin(rows["round"], [3, 6, 7])), part)
    relist(other)
    for order in [whole.folder, other], [other, whole.folder]:
        figure = comparison_curves(order, tmp_path / "both.png")
        accuracy = read_run(whole.folder).metrics["accuracy"].to_numpy()
        (line,) = figure.axes[0].lines
        assert line.get_xdata().tolist() == [3, 6, 7]
        np.testing.assert_allclose(line.get_ydata(), 100 * accuracy[[2, 5, 6]])
        (text,) = figure.legends[0].get_texts()
        assert text.get_text().endswith(" (n = 2)")  # no one of them has both settings


def test_a_mean_is_drawn_at_the_mean_of_what_it_is_drawn_against():
    rounds, axes = np.array([1, 2]), Figure().subplots()
    draw_mean(axes, [(rounds, scale * rounds, scale * rounds) for scale in (1, 3)])
    (line,) = axes.lines
    assert line.get_xdata().tolist() == line.get_ydata().tolist() == [2, 4]


def test_the_best_point_is_of_the_tests_that_have_a_number(
    whole, tmp_path, monkeypatch
):
    monkeypatch.setattr(plots, "saved", lambda figure, path: figure)
    other = tmp_path / "other"
    shutil.copytree(whole.folder, other)
    for part in (other / "metrics").iterdir():
        rows = pq.read_table(part)
        values = np.where(np.equal(rows["round"], 1), np.nan, rows["accuracy"])
        at = rows.column_names.index("accuracy")
        pq.write_table(rows.set_column(at, "accuracy", pa.array(values)), part)
    relist(other)
    most = np.nanmax(read_run(other).metrics["accuracy"])
    said = learning_curve(other, tmp_path / "curve.png").axes[0].texts[0].get_text()
    assert said.startswith(f"best {100 * most:.2f} %")


@pytest.mark.slow
def test_a_finished_run_has_a_table(tiny):
    config = tiny(rounds=1, targets=(0.01, 1.0))
    result = run(config)
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(config.folder))
    text = console.file.getvalue()
    assert f"{100 * result.accuracy:.2f} % after 1 round, on 360 examples" in text
    assert "1 %: 1, 100 %: not reached" in text
    assert "6 with 239 to 240 of 1437 examples" in text
    assert f"{result.bytes_up / 2**20:,.4g} MiB from them" in text
    assert "simulated time" not in text
    assert "last round" not in text  # this method shows nothing of its own


@pytest.mark.slow
def test_the_table_has_what_a_method_shows_of_the_last_round(tmp_path):
    of_gift = {"algorithm": "gift", "initial_steps": 2, "rounds": 2}
    kept = {name: value for name, value in TINY.items() if name != "epochs"}
    config = from_settings({**kept, **of_gift, "folder": str(tmp_path / "run")})
    run(config)
    last = read_run(config.folder).metrics.to_pylist()[-1]
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table(config.folder))
    (line,) = (x for x in console.file.getvalue().splitlines() if "last round" in x)
    own = ("consistency", "nonfinite", "tau", "triggers")
    said = ", ".join(f"{name} {last[name]:.4g}" for name in own)
    assert line.split("│")[2].strip() == said
    summary = read_run(config.folder).summary
    assert summary["reported"] == {name: last[name] for name in own}
    for size, said in ((6_000_000, "5.72 MiB"), (3 * 2**30, "3.00 GiB")):
        rows = tables.summary_rows(summary | {"client_state_bytes": size})
        assert rows["client state"] == f"{said} of memory"
    summary["reported"]["tau"] = None  # it was no finite number
    assert ", tau -, " in tables.summary_rows(summary)["last round"]
    for seconds, said in (
        (0.05, "to compile"),
        (0.52, ", 0.5 s to try what is fastest"),
    ):
        summary["calibrate_seconds"] = seconds
        assert tables.summary_rows(summary)["time"].endswith(said)


@pytest.mark.slow
def test_other_models_are_in_the_table_and_the_picture(also, whole, tmp_path):
    result = read_run(also.folder).summary
    console = Console(file=io.StringIO(), width=140)
    console.print(summary_table(also.folder))
    text = console.file.getvalue()
    for name, what in {"sel": "cohort mean", "all": "mean of all clients"}.items():
        share = 100 * result["models"][name]["accuracy"]
        assert f"{name}: {what}" in text and f"{share:.2f} %, last 7" in text
    worst = 100 * result["client_accuracy"]["worst_tenth"]
    assert f"{worst:.2f} % for the worst tenth" in text
    pictures = [
        learning_curve(config.folder, tmp_path / "curve.png").read_bytes()
        for config in (also, whole)
    ]
    assert pictures[0] != pictures[1]


@pytest.mark.slow
def test_the_curve_of_an_unfinished_run_can_be_drawn_and_its_table_cannot(tiny):
    config = tiny()
    with pytest.raises(KeyboardInterrupt):
        run(config, progress=interrupt_after(3))
    assert learning_curve(config.folder).exists()
    with pytest.raises(ValueError, match="is not finished; resume it first"):
        summary_table(config.folder)


def interrupt_after(round):
    def progress(now):
        if now.round >= round:
            raise KeyboardInterrupt

    return progress


def test_a_run_without_rows_has_no_curve(tmp_path):
    files.write_listed(tmp_path / store.CONFIG, "")
    with pytest.raises(ValueError, match="no evaluation yet"):
        learning_curve(tmp_path)


@pytest.mark.slow
def test_drawing_leaves_pyplot_alone(whole, tmp_path):
    import matplotlib.pyplot as plt

    learning_curve(whole.folder, tmp_path / "curve.png")
    assert plt.get_fignums() == []


def at(round, rounds=100):
    return Progress(round, rounds, 0.5, 1.0, 0.01)


def test_away_from_a_terminal_every_tenth_of_the_rounds_is_a_line():
    console = Console(file=io.StringIO(), width=40)  # narrower than a line
    with live(console) as show:
        show(Progress(0, 100))
        for round in range(1, 101):
            show(at(round))
    lines = console.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [
        f"{r}/100" for r in range(10, 101, 10)
    ]
    assert "accuracy 50.00 %  loss 1.0000  0.01 rounds/s  2:30:00 left" in lines[0]


def test_away_from_a_terminal_slow_rounds_are_lines_too(monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), width=100)
    with live(console) as show:
        show(at(1))
        show(at(2))
    assert len(console.file.getvalue().splitlines()) == 2


def test_away_from_a_terminal_what_comes_before_the_rounds_is_said_once():
    console = Console(file=io.StringIO(), width=100)
    with live(console) as show:
        for doing in (
            "trying lanes",
            "trying lanes: 5 96 ms",
            "compiling",
            "compiling",
        ):
            show(Progress(0, 100, doing=doing))
    assert console.file.getvalue().splitlines() == ["trying lanes", "compiling"]


def test_away_from_a_terminal_the_time_to_compile_is_said():
    console = Console(file=io.StringIO(), width=100)
    with live(console) as show:
        for doing in ("a: tracing", "a: compiling, about 6 s", "b: tracing"):
            show(Progress(0, 100, doing=doing))
    said = console.file.getvalue().splitlines()
    assert said == ["a: tracing", "a: compiling, about 6 s", "b: tracing"]


@pytest.mark.slow
def test_train_shows_a_bar_where_it_is_asked_for(task, data, capsys):
    plan = fa.Plan(batch_size=4)
    state = fa.init_state(fedavg(), task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(fedavg(), task, data, plan)
    keys = jax.random.split(jax.random.key(1), 8)
    shown = []
    for some in (keys[:4], keys[4:]):  # rounds count from the call on
        with fa.progress_bar(4) as callback:
            state, infos = fa.train(round_fn, state, some, 2, callback)
        shown.append(capsys.readouterr().out.splitlines())
    for lines in shown:
        assert lines[0] == "compiling" and re.match(r"round 4/4  loss \d", lines[-1])
        assert lines[-1].endswith("0:00 left") and "accuracy" not in lines[-1]
    loss = float(infos.loss[-1][infos.num_steps[-1] > 0].mean())
    assert f"loss {loss:.4f}" in shown[1][-1]
    with pytest.raises(fa.SettingError, match="rounds=0 must be an integer >= 1"):
        fa.progress_bar(0).__enter__()


@pytest.mark.parametrize("terminal", [True, False])
def test_rounds_of_more_than_a_run_say_whose_they_are(terminal):
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    with live(console) as show:
        show(at(50)._replace(whose=" of all trials"))
    assert "round 50/100 of all trials" in console.file.getvalue()


def test_a_name_breaks_where_a_word_of_it_ends():
    name = "fedopt(server_optimizer=adam, lr=0.1) on scaffold"
    for width, lines in [
        (60, [name]),
        (20, ["fedopt(server_", "optimizer=adam,", "lr=0.1) on scaffold"]),
        (10, ["fedopt(", "server_", "optimizer=", "adam,", "lr=0.1) on", "scaffold"]),
    ]:
        console = Console(file=io.StringIO(), width=width)
        console.print(tables.Name(name))
        assert [line.rstrip() for line in console.file.getvalue().splitlines()] == lines


def test_in_a_terminal_there_is_a_bar():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with live(console) as show:
        show(Progress(0, 100))
        show(at(40))
    assert "round 40/100" in console.file.getvalue()
    assert "0:00:0" in console.file.getvalue()  # the time that has passed


def test_what_comes_before_the_rounds_is_shown_in_the_bar():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with live(console) as show:
        doing = "trying lanes: 5 96 ms"
        show(Progress(0, 100, doing=doing))
    assert doing in console.file.getvalue()
