"""`fedjax-adapt reproduce`: a table's runs, made once, and published beside measured."""

import csv
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from helpers import relist

from fedjax_adapt.cli import main
from fedjax_adapt.cli import reproduce as cli_reproduce
from fedjax_adapt.engine import step_time
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, items, preview, reproduce
from fedjax_adapt.experiment.build import build, load_source, seen_by_clients
from fedjax_adapt.experiment.config import read_config
from fedjax_adapt.experiment.items import read_item
from fedjax_adapt.experiment.records import read_run
from fedjax_adapt.experiment.reproduce import (
    cells_of,
    made_below,
    make_runs,
    runs_of,
)
from fedjax_adapt.experiment.run import Progress
from fedjax_adapt.experiment.store import read_summary
from fedjax_adapt.experiment.summary import commit
from fedjax_adapt.experiment.sweeps.grid import seed_hint
from fedjax_adapt.report import panels
from fedjax_adapt.report.panels import picture
from fedjax_adapt.report.reproduce import (
    Measured,
    changes,
    measured,
    of_summary,
    tables,
)

TABLE = """
title = "Accuracy"
place = "Table 1"
figures = ["accuracy", "rounds_to.0.01", "speed_up.0.01", "rounds_to.1.0"]
chosen = ["batches of 20"]
[run]
dataset = "digits"
train_examples = 200
model = "linear"
num_clients = 4
participation = 1.0
rounds = 2
batch_size = 20
targets = [0.01, 1.0]
partition_seed = 0
clip_norm = "none"
[rows.iid]
partition = "iid"
[rows.skewed]
partition = "dirichlet"
concentration = 0.3
[methods.fedveca]
algorithm = "fedveca"
shuffle = "replacement"
[methods.fedavg]
algorithm = "fedavg"
steps_of = "fedveca"
[methods.central]
algorithm = "fedavg"
num_clients = 1
partition = "iid"
steps_of = "fedveca"
[cells.skewed.fedveca]
alpha = 0.5
[scales.cpu]
rows = ["skewed"]
methods = ["fedveca"]
seeds = 2
[scales.cpu.run]
lr = 0.05
[published.iid]
fedveca = { accuracy = 90.0, "rounds_to.1.0" = ">100" }
"""
CURVES = """
title = "Curves"
place = "Fig. 1"
of = "table1"
only = { rows = ["iid"], methods = ["fedveca"] }
draw = ["accuracy"]
"""


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    place = tmp_path_factory.mktemp("papers")
    (place / "some").mkdir()
    (place / "some" / "table1.toml").write_text(TABLE)
    (place / "some" / "fig1.toml").write_text(CURVES)
    (place / "some" / items.CHOSEN).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "PAPERS", place)
        yield place
    for known in (read_item, reproduce._settings):
        known.cache_clear()


def make(cells, **more):
    """`make_runs`, quickly."""
    make_runs(cells, devices=1, **more)


@pytest.fixture(scope="module")
def made(papers, tmp_path_factory):
    """A folder with the runs of one row, of one seed."""
    folder = tmp_path_factory.mktemp("reproduce")
    make(cells_of(read_item("some-table1"), folder, rows=["iid"]))
    return folder


@pytest.fixture
def unchanging(monkeypatch):
    """No sweep may be run."""

    def refuse(asked, folder, **_):
        raise AssertionError(f"{folder} is run again")

    monkeypatch.setattr(reproduce, "sweep", refuse)


def iid(folder, **more):
    return cells_of(read_item("some-table1"), folder, rows=["iid"], **more)


def runs(cells):
    return {(cell.row, cell.method): runs_of(cell) for cell in cells}


def test_settings_of_a_cell_are_those_of_run_row_method_cell_and_scale(
    papers, tmp_path
):
    item = read_item("some-table1")
    config = lambda scale, at: cells_of(item, tmp_path, scale)[at].configs[0]
    assert [c.row for c in cells_of(item, tmp_path)] == ["iid"] * 3 + ["skewed"] * 3
    assert config("full", 0).lr == 0.1 and config("cpu", 0).lr == 0.05
    assert config("full", 3).algorithm_options == {"alpha": 0.5}
    assert config("full", 0).algorithm_options == {}
    (cell,) = cells_of(item, tmp_path, "cpu")
    assert (cell.row, cell.method, list(cell.configs)) == ("skewed", "fedveca", [0, 1])
    assert config("smoke", 0).train_examples == 300
    assert [config("smoke", at).num_clients for at in range(3)] == [10, 10, 1]


@pytest.mark.slow
def test_local_steps_are_those_of_the_other_methods_run(made):
    veca, avg, central = (runs_of(cell)[0] for cell in iid(made))
    total = read_summary(veca)["local_steps"]
    sizes = np.array([50, 50, 50, 50])  # iid
    # floor(E_avg n_i / B) of each client in each round, E_avg = tau_all B / (K n)
    by_hand = 2 * np.maximum(np.floor(total / 2 * sizes / 200), 1).sum()
    assert read_summary(avg)["local_steps"] == by_hand
    assert read_summary(central)["local_steps"] == 2 * round(total / 2)
    assert read_summary(central)["data"]["clients"] == 1


def test_runs_that_are_there_are_not_made_again(made, unchanging):
    make(iid(made))
    figure = cells_of(read_item("some-fig1"), made)  # of the same runs
    make(figure)
    assert [runs_of(c) for c in figure] == [runs_of(iid(made)[0])]


@pytest.mark.slow
def test_more_seeds_make_the_runs_that_lack(made, tmp_path, monkeypatch):
    made = shutil.copytree(made, tmp_path / "copy")  # others count the runs of theirs
    before, real, run = runs_of(iid(made)[0])[0], reproduce.sweep, []

    def note(asked, folder, **more):
        run.append((folder.name, asked.grids))
        return real(asked, folder, **more)

    monkeypatch.setattr(reproduce, "sweep", note)
    cells = iid(made, methods=["fedveca"], seeds=3)
    make(cells)
    assert run == [("seed-1-2", [{"seed": [1, 2]}])]
    found = runs_of(cells[0])
    assert list(found) == [0, 1, 2] and found[0] == before
    assert [read_run(path).config["seed"] for path in found.values()] == [0, 1, 2]


@pytest.mark.slow
def test_an_interrupted_item_goes_on(papers, tmp_path, made):
    def stop(progress):
        if progress.accuracy is not None:
            raise KeyboardInterrupt

    cells = iid(tmp_path, methods=["fedveca"])
    with pytest.raises(KeyboardInterrupt):
        make(cells, progress=stop)
    assert runs_of(cells[0]) == {}
    make(cells)
    again, whole = (read_run(runs_of(c)[0]) for c in (cells[0], iid(made)[0]))
    for name in ("accuracy", "loss", "local_steps"):
        np.testing.assert_array_equal(again.metrics[name], whole.metrics[name])


def test_runs_of_another_protocol_are_refused(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    cell = iid(tmp_path / "copy")[0]
    (old,) = (tmp_path / "copy").rglob("iid/fedveca/seed-0/trials/0000/config.toml")
    old.write_text(old.read_text().replace("batch_size = 20", "batch_size = 10"))
    relist(old.parent)
    with pytest.raises(
        SettingError, match="batch_size=10, here batch_size=20; give anoth"
    ):
        make([cell])


def test_figures_are_those_published_of_the_row_and_of_models_that_are_there(made):
    published = {
        "iid": {"fedavg": {"accuracy": 1.0}},
        "skewed": {"fedavg": {"loss": 1}},
    }
    figures = ["accuracy", "loss", "local_steps", "models.sel.last_mean"]
    found = measured(figures, published, runs(iid(made)[:1]))
    assert [cell.figure for cell in found] == ["accuracy", "local_steps"]
    found = measured(figures, {}, runs(iid(made)[:1]))
    assert [cell.figure for cell in found] == ["accuracy", "loss", "local_steps"]


def test_rounds_and_speed_up_may_be_those_of_another_model(tmp_path):
    folders = {}
    for method, rounds in {"fedavg": 9, "fedssg": 3}.items():
        folders["iid", method] = {0: tmp_path / method}
        (tmp_path / method).mkdir()
        of_all = {"all": {"rounds_to": {"0.97": rounds, "0.99": None}}}
        here = {"rounds_to": {"0.97": 5}, "models": of_all}
        (tmp_path / method / "summary.json").write_text(json.dumps(here))
    names = ["rounds_to", "speed_up"]
    figures = [f"models.all.{name}.{t}" for t in (0.97, 0.99) for name in names]
    base = lambda method: "fedavg"
    found = measured(["speed_up.0.97", *figures], {}, folders, base)
    values = {(cell.method, cell.figure): cell.values for cell in found}
    assert values == {
        ("fedavg", "speed_up.0.97"): [1.0],
        ("fedavg", "models.all.rounds_to.0.97"): [9.0],
        ("fedavg", "models.all.speed_up.0.97"): [1.0],
        ("fedssg", "speed_up.0.97"): [1.0],
        ("fedssg", "models.all.rounds_to.0.97"): [3.0],
        ("fedssg", "models.all.speed_up.0.97"): [3.0],
    } | {(method, name): [] for _, method in folders for name in figures[2:]}
    assert all(cell.lacking for cell in found if not cell.values)  # not reached
    # of a model that was not tested there is a line where the paper has a figure
    published = {"iid": {"fedssg": {"models.sel.rounds_to.0.99": ">300"}}}
    (cell,) = measured(["models.sel.rounds_to.0.99"], published, folders, base)
    assert (cell.method, cell.values, cell.published) == ("fedssg", [], ">300")
    assert not measured(["models.sel.rounds_to.0.99"], {}, folders, base)


def test_a_figure_that_no_summary_has_is_the_last_of_its_column(made):
    cells = iid(made)[:2]  # fedveca shows tau_bar, fedavg does not
    found = measured(["tau_bar", "delta_norm"], {}, runs(cells))
    at = {(cell.method, cell.figure): cell for cell in found}
    for cell in cells:
        last = read_run(runs_of(cell)[0]).metrics.to_pylist()[-1]
        assert at[cell.method, "delta_norm"].values == [last["delta_norm"]]
        if cell.method == "fedveca":
            assert at[cell.method, "tau_bar"].values == [last["tau_bar"]]
    assert at["fedavg", "tau_bar"].values == []


def test_a_scale_without_the_items_rows_is_refused(papers, tmp_path):
    item = read_item("some-fig1")  # of the row iid, and scale cpu has skewed
    with pytest.raises(
        SettingError, match="scale=cpu has none of the rows of some-fig1"
    ):
        cells_of(item, tmp_path, "cpu")
    assert cells_of(item, tmp_path, "cpu", rows=["iid"])[0].row == "iid"


def test_a_method_brings_the_one_whose_steps_it_takes(papers, tmp_path):
    cells = iid(tmp_path, methods=["fedavg"])
    assert [cell.method for cell in cells] == ["fedveca", "fedavg"]


def summary(accuracy=0.9, rounds=3):
    return {
        "accuracy": accuracy,
        "client_accuracy": {"mean": 0.5, "std": 0.25},
        "rounds_to": {"0.97": rounds, "0.5": None},
        "models": {"sel": {"last_mean": 0.75, "rounds_to": {"0.97": 7}}},
        "loss": 0.3,
        "last_std": 0.01,
        "class_accuracy": [0.5, None, 0.625],
    }


@pytest.mark.parametrize(
    "name, value",
    [
        ("accuracy", 90.0),
        ("client_accuracy.std", 25.0),
        ("rounds_to.0.97", 3.0),
        ("rounds_to.0.5", None),
        ("models.sel.last_mean", 75.0),
        ("models.sel.rounds_to.0.97", 7.0),
        ("loss", 0.3),
        ("last_std", 1.0),
        ("class_accuracy.2", 62.5),
        ("class_accuracy.1", None),
        ("class_accuracy.3", None),
        ("class_accuracy", None),
        ("nothing", None),
        ("nothing.at.all", None),
    ],
)
def test_a_figure_is_found_by_its_name_and_a_share_is_in_percent(name, value):
    found = of_summary(summary(), name)
    assert found == (value if value is None else pytest.approx(value))


def test_training_accuracy_is_found_where_a_summary_has_it():
    trained = {"training_accuracy_on_the_public_set": {"accuracy": 0.5}, "rounds": 4}
    assert of_summary(trained, "accuracy") == 50.0
    assert of_summary(trained, "rounds") == 4.0


@pytest.mark.parametrize(
    "values, measured, difference",
    [
        ([36.0, 37.0, 36.0], "36.33 ± 0.58", "none (-0.67 ± 1.43)"),
        ([36.9, 37.0, 37.1], "37 ± 0.1", "none (+0 ± 0.25)"),
        ([36.999, 37.0, 37.001], "37 ± 0.001", "none (+0 ± 0.0025)"),
        ([0.2251, 0.2253, 0.2261], "0.2255 ± 0.0005", "-36.7745 ± 0.0013"),
    ],
)
def test_a_deviation_has_the_digits_of_its_mean(values, measured, difference):
    cell = Measured(values, 0, "row", "method", "rounds_to.0.9", 37)
    assert tables([cell])["row"][0][3:5] == (measured, difference)


def test_a_difference_inside_its_interval_is_none():
    few = Measured([89.0, 90.0, 92.0], 0, "row", "method", "accuracy", 90.0)
    # by hand: mean 90.333, deviation 1.5275, t of 2 degrees of freedom at 97.5 % 4.3027
    assert few.mean == pytest.approx(90.3333, abs=1e-4)
    assert few.std == pytest.approx(1.5275, abs=1e-4)
    assert few.interval == pytest.approx(4.3027 * 1.5275 / 3**0.5, abs=1e-3)
    assert tables([few])["row"][0][4].startswith("none (+0.33 ± 3.79")
    assert tables([few])["row"][0][0] == "accuracy (%)"
    far = replace(few, published=80.0)
    assert tables([far])["row"][0][4] == "+10.33 ± 3.79"
    large = replace(few, published=1e6)
    assert tables([large])["row"][0][4] == "-999909.67 ± 3.79"
    one = replace(few, values=[89.0])
    assert tables([one])["row"][0][3:] == ("89.00", "-1.00", "1")


def test_a_published_figure_is_not_rounded_and_a_share_has_two_digits():
    loss = Measured([1.769828], 0, "row", "method", "loss", 1.6032)
    share = Measured([97.123], 0, "row", "method", "accuracy", 97.5)
    (of_loss, of_share) = tables([loss, share])["row"]
    assert of_loss[2:5] == ("1.6032", "1.77", "+0.17")
    assert of_share[2:5] == ("97.50", "97.12", "-0.38")


def test_a_target_that_not_all_seeds_reach_has_no_mean():
    some = Measured([10.0], 1, "row", "method", "rounds_to.0.97", ">300")
    assert some.mean is None and some.difference is None
    assert tables([some])["row"][0][2:] == (">300", "1 of 2 seeds", "", "2")
    none = replace(some, values=[], lacking=2)
    assert tables([none])["row"][0][2:] == (">300", "no seed", "", "2")


@pytest.mark.slow
def test_speed_up_is_the_first_methods_rounds_by_the_others(made, monkeypatch):
    from fedjax_adapt.report import reproduce as report

    rounds = {"fedveca": 12, "fedavg": 4, "central": 3}
    of = lambda path: summary(rounds=rounds[path.parents[2].name])
    monkeypatch.setattr(report, "read_summary", of)
    found = measured(["speed_up.0.97"], {}, runs(iid(made)), lambda _: "fedveca")
    assert [cell.values for cell in found] == [[1.0], [3.0], [4.0]]
    over = lambda _: "fedveca"
    assert measured(["speed_up.0.97"], {}, runs(iid(made)[1:]), over) == []


@pytest.mark.slow
def test_pictures_of_curves_of_clients_and_of_points(made):
    here = runs(iid(made))
    found = measured(["accuracy"], {}, here)
    for draw in ([], ["accuracy", "tau_bar"], ["clients.num_steps"]):
        path = picture(made / f"{len(draw)}.png", "title", here, found, draw)
        assert path is not None and path.read_bytes()[:4] == b"\x89PNG"
    assert picture(made / "none.png", "title", {}, []) is None
    assert picture(made / "none.png", "title", here, [], ["clients.gsnr"]) is None


def test_the_command_prints_published_beside_measured(made, capsys):
    told = ["reproduce", "some-table1", "--rows", "iid", "--folder", str(made)]
    assert main(told) == 0
    shown = capsys.readouterr().out
    assert "3 runs, of which 3 are there." in shown
    assert "Table 1, iid" in shown and ">100" in shown and "90" in shown
    place = made / "some-table1" / "full"
    rows = list(csv.DictReader((place / "table.csv").read_text().splitlines()))
    assert len(rows) == 3 * 4
    here = {(row["method"], row["figure"].removesuffix(" (%)")): row for row in rows}
    folders = runs_of(iid(made)[0], any_seed=True).values()
    accuracy = 100 * np.mean([read_summary(path)["accuracy"] for path in folders])
    line = here["fedveca", "accuracy"]
    assert float(line["mean"]) == pytest.approx(accuracy)
    assert float(line["difference"]) == pytest.approx(accuracy - 90)
    assert "Chosen here: batches of 20" in (place / "table.md").read_text()
    record = json.loads((place / "record.json").read_text())
    assert record["seeds"][0] == 0 and record["commits"] and record["hardware"]
    assert record["versions"][0]["jax"]


def test_an_item_without_numbers_says_so_and_shows_the_last_of_what_it_draws(
    made, capsys
):
    told = ["reproduce", "some-fig1", "--folder", str(made)]
    assert main(told) == 0
    shown = capsys.readouterr().out
    assert "accuracy (%)" in shown and "has no numbers of it but its picture" in shown
    assert "not all the paper's" not in shown


@pytest.mark.slow
def test_smoke_is_beside_nothing_published(papers, tmp_path, capsys):
    told = ["reproduce", "some-table1", "--folder", str(tmp_path), "--scale", "smoke"]
    assert main([*told, "--methods", "central"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs, of which 0 are there; less than" in shown
    assert "compare with nothing" in shown and ">100" not in shown


@pytest.mark.slow
def test_what_lacks_is_counted_where_the_steps_of_others_are_there(
    made, tmp_path, capsys
):
    made = shutil.copytree(made, tmp_path / "copy")
    told = ["reproduce", "some-table1", "--rows", "iid", "--folder", str(made)]
    told += ["--devices", "1"]
    assert main([*told, "--methods", "fedveca", "--seeds", "4"]) == 0
    assert main([*told, "--methods", "fedavg", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "4 runs, of which 3 are there; less than 0.01 core-hours" in shown


def test_a_dry_run_says_which_runs_there_are(made, capsys, unchanging):
    files = sorted(made.rglob("*"))
    words = ["some-table1", "--folder", str(made), "--rows", "iid", "--seeds", "9"]
    assert main(["reproduce", *words, "--dry-run"]) == 0
    out, cells = capsys.readouterr().out, iid(made, seeds=9)
    there = [len(runs_of(cell)) for cell in cells]  # by other tests, some more
    assert out.startswith(f"27 runs, of which {sum(there)} are there; less than ")
    for cell, number in zip(cells, there, strict=True):
        said = f"9 runs, of which {number} there; {cell.folder}\n"
        assert 0 < number < 9 and f"iid, {cell.method}: {said}" in out
    assert sorted(made.rglob("*")) == files


def test_list_says_what_was_run(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["reproduce", "list", "--folder", str(made)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (table,) = (line for line in lines if "some-table1" in line)
    assert "3 of 6" in table
    (figure,) = (line for line in lines if "some-fig1" in line)
    assert "done" in figure


@pytest.mark.parametrize(
    "words, said",
    [
        (["some-tabel1"], "did you mean 'some-table1'"),
        ([], "give one, as in fedjax-adapt reproduce list"),
        (["some-table1", "--rows", "idi"], "rows='idi' is unknown; did you mean 'iid'"),
        (["some-table1", "--methods", "x"], "write one of fedveca, fedavg, central"),
        (["some-table1", "--seeds", "0"], "seeds=0 must be an integer >= 1"),
        (["some-table1", "--scale", "half"], "scale"),
        (["list", "--row", "x"], "--row"),
        (["list", "--rows", "x"], "takes --folder alone; leave --rows out"),
    ],
)
def test_mistakes_are_one_sentence(papers, tmp_path, capsys, words, said):
    assert main(["reproduce", *words, "--folder", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_the_files_have_what_earlier_calls_made(made):
    told = ["reproduce", "some-table1", "--folder", str(made), "--rows", "iid"]
    assert main(told) == 0 and main([*told, "--methods", "fedveca"]) == 0
    place = made / "some-table1" / "full"
    rows = list(csv.DictReader((place / "table.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {"fedveca", "fedavg", "central"}
    line = next(row for row in rows if row["figure"] == "accuracy (%)")
    values = [float(value) for value in line["values"].split()]
    assert int(line["seeds"]) == len(values) >= 1
    assert float(line["mean"]) == pytest.approx(np.mean(values))
    if len(values) > 1:
        assert float(line["std"]) == pytest.approx(np.std(values, ddof=1))


def test_a_title_says_how_many_seeds_methods_have(made, monkeypatch):
    real, titles = cli_reproduce.runs_of, []

    def runs_of(cell, made=None, any_seed=False):
        found = real(cell, made, any_seed)
        seeds = (0, 1) if cell.method == "central" and any_seed else (0,)
        return {seed: found[0] for seed in seeds} if found else {}

    monkeypatch.setattr(cli_reproduce, "runs_of", runs_of)
    bases = []

    def note(path, title, *_, base_of, **__):
        titles.append(title)
        bases.append(base_of("fedavg"))  # that gaps are of

    monkeypatch.setattr(cli_reproduce, "picture", note)
    told = ["reproduce", "some-table1", "--folder", str(made), "--rows", "iid"]
    assert main(told) == 0
    assert titles == ["Table 1: Accuracy (scale full, n = 1 to 2)"]
    assert bases == ["fedveca"]


def test_every_seed_takes_the_steps_of_its_own(papers, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(
        reproduce, "_run", lambda cell, configs, *_: ran.extend(configs)
    )
    monkeypatch.setattr(reproduce, "_with_steps", lambda config, folder: folder)
    known = {0: tmp_path / "first", 1: tmp_path / "second"}
    monkeypatch.setattr(
        reproduce, "runs_of", lambda cell, _: known if cell.method == "fedveca" else {}
    )
    make(iid(tmp_path, methods=["fedavg"], seeds=2))
    assert ran == list(known.values())
    known[0] = None  # it diverged: the other seed goes on
    ran.clear()
    make(iid(tmp_path, methods=["fedavg"], seeds=2))
    assert ran == [tmp_path / "second"]


TRIAL = """
title = "AFL"
place = "Fig. 2"
figures = ["accuracy", "simulated_seconds_to.0.01", "traffic_mib"]
[run]
dataset = "digits"
train_examples = 200
model = "linear"
num_clients = 4
participation = 1.0
rounds = 2
batch_size = 20
clip_norm = "none"
step_seconds = 0.5
bandwidth = 1e6
[rows.iid]
partition = "iid"
[methods.trial]
algorithm = "afl"
trial_steps = 3
rounds = 4
[methods.afl]
algorithm = "afl"
constants_of = "trial"
budget = 1000.0
[methods.fedavg]
algorithm = "fedavg"
num_steps = 5
"""


@pytest.mark.slow
def test_a_method_takes_afls_constants_from_its_trial(papers, tmp_path):
    (papers / "some" / "fig3.toml").write_text(TRIAL)
    try:
        cells = cells_of(read_item("some-fig3"), tmp_path, methods=["afl"])
        assert [cell.method for cell in cells] == ["trial", "afl"]
        make(cells)
        trial, afl = (read_run(runs_of(cell)[0]) for cell in cells)
        shown = trial.metrics
        assert shown["estimates"].to_pylist() == [0, 1, 2, 3]
        for name in ("beta", "delta", "rho"):  # the first round has no estimate
            mean = np.mean(shown[name].to_numpy()[1:])
            assert afl.config[f"algorithm.{name}"] == pytest.approx(mean, rel=1e-6)
        # it is its own run, and no other's
        assert runs_of(cells[1]) == {0: afl.folder}
        with pytest.raises(SettingError, match="algorithm.budget=1000.0, here"):
            other = replace(cells[1].config, algorithm_options={"budget": 9.0})
            runs_of(cells[1]._replace(configs={0: other}))
        wrong = {at: {0: afl.folder} for at in [("iid", "afl")]}
        (time,) = measured(["simulated_seconds_to.0.01"], {}, wrong)
        first = shown_first(afl.metrics, 0.01)
        assert time.values == [afl.metrics["simulated_seconds"][first].as_py()]
        assert time.values[0] > 0
        (traffic,) = measured(["traffic_mib"], {}, wrong)
        model = 4 * (64 * 10 + 10)  # bytes, to and from 4 clients, 2 rounds
        assert traffic.values == [pytest.approx(2 * 4 * 2 * model / 2**20)]
    finally:
        (papers / "some" / "fig3.toml").unlink()


def shown_first(metrics, target):
    return int(np.argmax(metrics["accuracy"].to_numpy() >= target))


def test_a_run_that_another_item_has_made_is_not_made_again(
    made, papers, unchanging, capsys
):
    twin = TABLE.replace('title = "Accuracy"', 'title = "The same"')
    (papers / "some" / "table9.toml").write_text(twin)
    try:
        item = read_item("some-table9")
        (cell,) = cells_of(item, made, rows=["iid"], methods=["fedveca"])
        there = made_below(made, "full")
        assert runs_of(cell) == {}
        assert runs_of(cell, there) == runs_of(iid(made)[0])
        told = ["reproduce", "some-table9", "--folder", str(made), "--rows", "iid"]
        assert main([*told, "--methods", "fedveca"]) == 0
        said = capsys.readouterr().out
        assert "1 run, of which 1 is there" in said
        assert "and of some-table1, which has the same runs" in said
        assert main(["reproduce", "list", "--folder", str(made)]) == 0
        (line,) = (x for x in capsys.readouterr().out.splitlines() if "table9" in x)
        assert "1 of 6" in line
        # what another setting makes is no such run; steps of others are each item's own
        apart = replace(cell.config, lr=0.2)
        assert runs_of(cell._replace(configs={0: apart}), there) == {}
        steps = cells_of(item, made, rows=["iid"], methods=["fedavg"])[1]
        assert runs_of(steps, there) == {}
        assert made_below(made, "cpu") == {}
    finally:
        (papers / "some" / "table9.toml").unlink()


@pytest.mark.parametrize("seeds, whose", [(2, " of all seeds"), (1, "")])
def test_progress_says_whose_rounds_it_counts(monkeypatch, tmp_path, seeds, whose):
    seen, configs = [], [Config(seed=seed) for seed in range(seeds)]
    now = Progress(150, 600, rounds_per_second=40.0, whose=" of all trials")
    trained = lambda *given, progress, **options: progress(now)
    monkeypatch.setattr(reproduce, "sweep", trained)
    reproduce._sweep(tmp_path, configs, 1, seen.append)
    assert seen == [now._replace(whose=whose)]


def test_no_hint_says_to_write_what_an_item_has_said(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reproduce, "sweep", lambda sweep, *_, **__: asked.append(sweep))
    of = dict(public="holdout", algorithm="feddf", partition_seed=0)
    reproduce._sweep(tmp_path, [Config(seed=seed, **of) for seed in (0, 1)], 1, print)
    assert seed_hint(asked[0]) is None


DIVERGES = TABLE.replace(
    'algorithm = "fedveca"', 'algorithm = "fedavg"\nlr = 1e30'
).replace("alpha = 0.5", "momentum = 0.5")


@pytest.mark.slow
def test_what_diverges_has_no_figures_and_the_rest_goes_on(papers, tmp_path, capsys):
    (papers / "some" / "table7.toml").write_text(DIVERGES)
    try:
        told = ["reproduce", "some-table7", "--rows", "iid", "--folder", str(tmp_path)]
        told += ["--devices", "1"]
        assert main([*told, "--methods", "fedveca", "fedavg"]) == 1
        error = capsys.readouterr().err
        assert "runs of iid, fedveca diverged" in error
        assert "those of iid, fedavg had no run to take settings from" in error
        item = read_item("some-table7")
        cell = cells_of(item, tmp_path, rows=["iid"], methods=["fedveca"])[0]
        assert runs_of(cell) == {0: None}
        assert (tmp_path / "some-table7" / "full" / "record.json").exists()
    finally:
        (papers / "some" / "table7.toml").unlink()


def test_costs_are_of_three_passes_over_the_examples_and_of_tests(
    papers, tmp_path, monkeypatch
):
    (cell, *_), item = iid(tmp_path), read_item("some-table1")
    two_layers = {"model": "mlp", "model_options": {"widths": (8,)}}
    untested = replace(cell.configs[0], evaluate_every=10**9, **two_layers)
    tested, cell = cell, cell._replace(configs={0: untested})
    # 8 x 8 pixels, 8 hidden, 10 labels: 2 operations a weight, as far as XLA counts
    weights = 64 * 8 + 8 * 10
    steps, batch, cohort = 2 * 2, 20, 4  # two rounds of the first two steps
    monkeypatch.setattr(preview, "START", 0)
    least = 3 * 2 * weights * steps * batch * cohort / preview.CORE / 3600
    floor = steps * preview.STEP / 3600
    assert preview.cost([cell]).core_hours == pytest.approx(max(least, floor), rel=0.2)
    moving = 6 * 4 * (weights + 8 + 10) * cohort * steps / step_time.BANDWIDTH
    minutes = (steps * step_time.STEP + moving) / 60
    assert preview.cost([cell]).gpu_minutes == pytest.approx(minutes)
    config = replace(untested, ideal_steps=1000)
    passes = 2 * 1000 * 200  # two rounds, 200 examples
    more = preview.cost([cell._replace(configs={0: config})]).core_hours
    expected = 3 * 2 * weights * passes / preview.CORE / 3600
    assert more == pytest.approx(expected, rel=0.2)
    twice = cells_of(item, tmp_path, rows=["iid"], methods=["fedveca"], seeds=2)
    one = preview.cost([tested]).core_hours
    assert preview.cost(twice).core_hours == pytest.approx(2 * one)
    with monkeypatch.context() as patch:  # and what a program takes to be compiled
        patch.setattr(preview, "START", 36.0)
        assert preview.cost([tested]).core_hours == pytest.approx(one + 0.01)
        assert preview.cost(twice).core_hours == pytest.approx(2 * one + 0.01)
        assert preview.cost(twice, lambda cell: 0).core_hours == 0
    monkeypatch.setattr(preview, "STEP", 0)
    # the server's model and another see all 360 examples in both rounds
    often = replace(untested, evaluate_every=1, evaluate_also=("all",))
    more = preview.cost([cell._replace(configs={0: often})]).core_hours
    least += 2 * weights * 2 * 360 * 2 / preview.CORE / 3600
    assert more == pytest.approx(least, rel=0.2)


def test_items_are_in_the_order_of_the_paper(papers):
    for name in ("table10", "table2", "fig10", "fig2"):
        (papers / "some" / f"{name}.toml").write_text(TABLE)
    try:
        assert items.names() == [
            *("some-table1", "some-table2", "some-table10"),
            *("some-fig1", "some-fig2", "some-fig10"),
        ]
    finally:
        for name in ("table10", "table2", "fig10", "fig2"):
            (papers / "some" / f"{name}.toml").unlink()


def test_only_who_takes_steps_of_others_may_have_other_steps(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    fedveca, _, central = iid(tmp_path / "copy")
    for cell in (fedveca, central):
        old = cell.folder / "seed-0" / "trials" / "0000" / "config.toml"
        text = old.read_text()
        assert "num_steps" in text or cell is fedveca
        old.write_text("num_steps = 7\n" + text.replace("num_steps = ", "# "))
        relist(old.parent)
    assert list(runs_of(central)) == [0]
    with pytest.raises(SettingError, match="with num_steps=7, here num_steps=None"):
        runs_of(fedveca)


def test_curves_and_points_are_in_percent(made):
    from matplotlib.figure import Figure

    folder = runs_of(iid(made)[0])[0]
    axes = Figure().subplots()
    panels._curves({"fedveca": {0: folder}}, "accuracy", "round", axes)
    rows = read_run(folder).metrics
    np.testing.assert_allclose(
        axes.lines[0].get_ydata(), 100 * rows["accuracy"].to_numpy()
    )
    axes = Figure().subplots()
    some = Measured([89.0, 90.0, 92.0], 0, "row", "method", "accuracy", 90.0)
    panels._dots([some], axes)
    (bars,) = axes.collections
    low, high = bars.get_segments()[0][:, 0]
    np.testing.assert_allclose((high - low) / 2, some.interval)


def test_curves_of_other_models_are_in_percent_too(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    columns = ["accuracy_all", "accuracy_sel", "loss_all"]
    metrics = pa.table({"round": [1, 2]} | {name: [0.25, 0.5] for name in columns})
    record = SimpleNamespace(metrics=metrics)
    monkeypatch.setattr(panels, "read_run", lambda path: record)
    monkeypatch.setattr(panels, "saved", lambda figure, path: figure)
    here = {("iid", "fedavg"): {0: tmp_path}}
    shown = panels.picture(tmp_path / "a.png", "title", here, [], columns)
    assert isinstance(shown, Figure)
    labels = ["accuracy_all (%)", "accuracy_sel (%)", "loss_all"]
    assert [axes.get_ylabel() for axes in shown.axes] == labels
    values = [axes.lines[0].get_ydata().tolist() for axes in shown.axes]
    assert values == [[25, 50], [25, 50], [0.25, 0.5]]


def test_classes_are_drawn_by_label_after_the_last_round(made):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    folders = {
        cell.method: {s: p for s, p in runs_of(cell).items() if p is not None}
        for cell in iid(made)[:2]
    }
    panels._classes(folders, 1, axes)
    assert axes.get_xlabel() == "label; after round 2"
    for line, paths in zip(axes.lines, folders.values(), strict=True):
        shares = [read_summary(path)["class_accuracy"] for path in paths.values()]
        np.testing.assert_allclose(
            line.get_ydata(), 100 * np.mean(np.array(shares, float), 0)
        )
    drawn = picture(made / "c.png", "title", runs(iid(made)), [], ["class_accuracy"])
    assert drawn == made / "c.png"


@pytest.mark.parametrize(("share", "after"), [(0.05, 1), (0.5, 1), (0.51, 2), (1, 2)])
def test_classes_may_be_those_of_an_earlier_round(made, share, after):
    from matplotlib.figure import Figure

    axes, (path,) = Figure().subplots(), runs_of(iid(made)[0], any_seed=False).values()
    panels._drawing(
        f"class_accuracy@{share}", {"m": {0: path}}, "round", lambda _: None
    )(axes)
    assert axes.get_xlabel() == f"label; after round {after}"
    row = read_run(path).metrics.to_pylist()[after - 1]
    wanted = 100 * np.array(row["class_accuracy"], float)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), wanted)


def record_of(**tables):
    """What `read_run` returns, of tables of numbers."""
    empty = {"metrics": pa.table({"round": [1]}), "clients": pa.table({"client": [0]})}
    tables = {name: pa.table(columns) for name, columns in tables.items()}
    return SimpleNamespace(accuracy="accuracy", **(empty | tables))


def test_changes_are_from_one_round_of_a_client_to_its_next():
    """By hand: client 3 goes 5, 4, 2, 1; client 7 has two rounds, client 9 one."""
    record = record_of(
        clients={
            "round": [1, 1, 2, 3, 3, 4, 4],
            "client": [3, 7, 3, 3, 9, 7, 3],
            "loss": [5.0, 9.0, 4.0, 2.0, 8.0, 3.0, 1.0],
        },
        metrics={"round": [1, 2, 3, 4], "loss": [2.0, 1.0, 3.0, 3.5]},
    )
    assert changes(record, "clients.loss").tolist() == [[-1, -2], [-2, -1]]
    assert changes(record, "loss").tolist() == [[-1, 2], [2, 0.5]]
    assert (
        changes(record, "losses").shape == changes(record, "clients.x").shape == (0, 2)
    )
    short = record_of(metrics={"round": [1], "loss": [2.0]})
    assert changes(short, "loss").shape == (0, 2)


def test_changes_and_columns_of_a_client_are_figures(tmp_path, monkeypatch):
    from fedjax_adapt.report import reproduce as report

    record = record_of(
        clients={
            "client": [0, 1, 0, 1, 0],
            "A": [1.0, 10.0, 3.0, 20.0, 40.0],
            "clipped": [0.1, 0.2, 0.3, 0.4, 0.5],
        },
        # (-1, 2), (2, 0) and (0, 9)
        metrics={"round": [1, 2, 3, 4, 5], "loss": [2.0, 1.0, 3.0, 3.0, 12.0]},
    )
    monkeypatch.setattr(report, "read_run", lambda path: record)
    here = {("iid", "fedveca"): {0: tmp_path, 1: None}}
    names = ["clients.A.0", "clients.A.1", "clients.A.2", "clients.B.0"]
    found = measured([*names, "changes.loss", "changes.clients.A"], {}, here)
    values = {cell.figure: cell.values for cell in found}
    assert values == {
        "clients.A.0": [3.0],
        "clients.A.1": [15.0],
        "clients.A.2": [],
        "clients.B.0": [],
        "changes.loss": [pytest.approx(np.sqrt(1 + 4))],
        "changes.clients.A": [pytest.approx(np.hypot(2, 37))],  # of client 0
    }


def test_changes_are_drawn_with_the_one_before_across(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    records = {
        "fedavg-0": record_of(
            metrics={"round": [1, 2, 3], "accuracy": [0.1, 0.2, 0.5]}
        ),
        "fedavg-1": record_of(
            metrics={"round": [1, 2, 3], "accuracy": [0.9, 0.2, 0.5]}
        ),
    }
    monkeypatch.setattr(panels, "read_run", lambda path: records[path.name])
    methods = {"fedavg": {seed: tmp_path / f"fedavg-{seed}" for seed in (0, 1)}}
    axes = Figure().subplots()
    panels._drawing("changes.accuracy", methods, "round", lambda _: None)(axes)
    (dots,) = axes.lines  # of the first seed, in %
    np.testing.assert_allclose(dots.get_xydata(), [[10, 30]])
    assert axes.get_ylabel() == "change of the server model's accuracy (%)"
    assert axes.get_xlim()[1] > 30
    # axes reach to 98 % of the dots, of those that are finite
    walk = np.cumsum([0, *[1] * 90, *[3] * 9, 1000, np.inf])
    metrics = {"round": range(len(walk)), "loss": walk}
    records["fedavg-0"] = record_of(metrics=metrics)
    axes = Figure().subplots()
    with np.errstate(invalid="ignore"):
        panels._drawing("changes.loss", methods, "round", lambda _: None)(axes)
    assert axes.get_xlim() == axes.get_ylim() == pytest.approx((-3.15, 3.15))
    axes = Figure().subplots()
    panels._drawing("changes.clients.loss", methods, "round", lambda _: None)(axes)
    assert axes.get_ylabel() == "change of a client's loss"
    assert "no dot" in axes.texts[0].get_text()


def test_gaps_are_of_the_same_seed_and_round(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    losses = {
        **{"base-1": [5.0, 4.0], "base-2": [50.0, 40.0], "base-3": [7.0, 7.0]},
        **{"other-0": [9.0, 9.0], "other-1": [1.0, 2.0], "other-2": [20.0, 30.0]},
    }
    read = lambda path: record_of(
        metrics={
            "round": [1, 2][: len(losses[path.name])],
            "loss": losses[path.name],
        }
    )
    monkeypatch.setattr(panels, "read_run", read)
    methods = {
        "base": {seed: tmp_path / f"base-{seed}" for seed in (1, 2, 3)},
        "other": {seed: tmp_path / f"other-{seed}" for seed in (0, 1, 2)},
    }
    axes, drawn = Figure().subplots(), []
    monkeypatch.setattr(axes, "boxplot", lambda boxes, **_: drawn.extend(boxes))
    panels._drawing("gaps.loss", methods, "round", lambda method: "base")(axes)
    assert [gaps.tolist() for gaps in drawn] == [[4.0, 2.0, 30.0, 10.0]]
    losses["other-1"] = [1.0]  # of the first round alone
    drawn.clear()
    panels._drawing("gaps.loss", methods, "round", lambda method: "base")(axes)
    assert [gaps.tolist() for gaps in drawn] == [[4.0, 30.0, 10.0]]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["base - other"]
    drawn.clear()
    for column, base in [("loss", None), ("loss", "none"), ("losses", "base")]:
        panels._drawing(f"gaps.{column}", methods, "round", lambda _, b=base: b)(axes)
        assert drawn == []


def test_curves_and_classes_are_of_all_seeds_and_lines_of_the_first(
    tmp_path, monkeypatch
):
    of = lambda seed: record_of(
        metrics={
            "round": [1, 2],
            "premise": [1.0 + seed, 2.0 + seed],
            "class_accuracy": [[0.1, 0.2], [0.2 + 0.2 * seed, 0.4]],
        },
        clients={"round": [1, 1, 2], "client": [3, 4, 3], "A": [1.0 + seed, 2.0, 3.0]},
    )
    monkeypatch.setattr(panels, "read_run", lambda path: of(int(path.name)))
    monkeypatch.setattr(panels, "saved", lambda figure, path: figure)
    here = {("iid", "fedveca"): {seed: tmp_path / str(seed) for seed in (0, 1)}}
    columns = ["premise", "class_accuracy", "clients.A"]
    shown = panels.picture(tmp_path / "a.png", "title", here, [], columns)
    curve, classes, lines = shown.axes
    np.testing.assert_allclose(curve.lines[0].get_ydata(), [1.5, 2.5])
    bound = curve.lines[1].get_ydata()  # of Theorem 1
    assert list(bound) == [1, 1]
    np.testing.assert_allclose(classes.lines[0].get_ydata(), [30, 40])
    assert [line.get_xydata().tolist() for line in lines.lines] == [
        [[1, 1], [2, 3]],
        [[1, 2]],
    ]
    assert [line.get_label() for line in lines.lines] == ["client 3", "client 4"]
    monkeypatch.setattr(panels, "MOST_NAMED", 1)
    lines = panels.picture(tmp_path / "a.png", "title", here, [], columns).axes[2]
    assert lines.get_legend() is None
    # a method that does not show a column has no curve
    names = ["premise", "loss"]
    shown = panels.picture(tmp_path / "a.png", "title", here, [], names)
    assert [len(axes.lines) for axes in shown.axes] == [2, 0]


def test_points_have_room_where_one_interval_is_wide():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    cells = [
        Measured(values, 0, "row", str(at), "accuracy", 90.0)
        for at, values in enumerate([[89, 90.5], [88, 90.5], [10, 99]])
    ]
    panels._dots(cells, axes)
    low, high = axes.get_xlim()
    assert low < 54.5 and 90 < high < 250
    (_, label) = (text.get_text() for text in axes.get_legend().get_texts())
    assert label == "measured, 95 %, some cut off"
    axes = Figure().subplots()
    panels._dots(cells[:1], axes)
    (_, label) = (text.get_text() for text in axes.get_legend().get_texts())
    assert label == "measured, 95 %"


HELD = """
title = "Labels"
place = "Fig. 8"
draw = ["partition", "inputs"]
chosen = ["no data are stated"]
[run]
dataset = "digits"
num_clients = 4
partition_seed = 5
feature_noise = 0.3
[rows.iid]
partition = "iid"
[rows.skewed]
partition = "dirichlet"
concentration = 0.3
"""


@pytest.fixture
def held(papers):
    path = papers / "some" / "fig8.toml"
    path.write_text(HELD)
    yield "some-fig8"
    path.unlink()
    for known in (read_item, reproduce._settings):
        known.cache_clear()


def test_an_item_without_methods_draws_data(held, tmp_path, capsys, monkeypatch):

    told, drawn = ["reproduce", held, "--folder", str(tmp_path)], {}
    real = cli_reproduce.picture

    def note(path, *rest, data):
        drawn.clear()
        drawn.update(data)
        return real(path, *rest, data=data)

    monkeypatch.setattr(cli_reproduce, "picture", note)
    assert main([*told, "--dry-run"]) == 0
    assert "iid: a picture, no run" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main(told) == 0
    place = tmp_path / held / "full"
    assert {path.name for path in place.iterdir()} == {"picture.png", "record.json"}
    record = json.loads((place / "record.json").read_text())
    assert record["rows"] == ["iid", "skewed"] and record["scale"] == "full"
    assert record["datasets"] == ["digits"] * 2 and record["partition_seeds"] == [5] * 2
    assert record["hardware"] and record["versions"][0]["numpy"] == np.__version__
    assert record["commits"] == [commit() or cli_reproduce.INSTALLED]
    assert record["notes"] == ["Chosen here: no data are stated"]
    assert "Chosen here: no data are stated" in capsys.readouterr().out
    counts = drawn["partition"]
    assert list(counts) == ["iid", "skewed"]
    config = Config(num_clients=4, partition_seed=5, partition="iid")
    assert counts["iid"].tolist() == build(config).skew.label_counts.tolist()
    assert counts["iid"].sum() == counts["skewed"].sum() == 1437
    assert counts["skewed"].std() > 2 * counts["iid"].std()
    seen, noise = drawn["inputs"]["iid"]
    assert seen.shape == (4, 8, 8, 3) and seen.min() >= 0 and seen.max() <= 1
    # client 0 is clean, pixels reach to 16, and noise grows
    first = load_source(config).x_train[0].reshape(8, 8) / 16
    np.testing.assert_allclose(seen[0], np.repeat(first[..., None], 3, 2), rtol=1e-6)
    np.testing.assert_allclose(noise, [0, 0.1, 0.2, 0.3], rtol=1e-6)
    away = np.abs(seen - seen[0]).mean((1, 2, 3))
    assert away[0] == 0 and (np.diff(away) > 0).all()
    other = seen_by_clients(replace(config, partition_seed=6, feature_noise=0.3))[0]
    assert not np.array_equal(seen[1:], other[1:])
    assert main(["reproduce", "list", "--folder", str(tmp_path)]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if held in x)
    assert "drawn" in line and "cpu" not in line
    assert main(told) == 0  # again, over its own
    shutil.rmtree(place)
    assert main([*told, "--scale", "cpu"]) == 0
    capsys.readouterr()
    assert main(["reproduce", "list", "--folder", str(tmp_path)]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if held in x)
    assert "drawn (cpu)" in line
    assert main([*told, "--scale", "smoke"]) == 0
    assert list(drawn["partition"]) == ["iid"]
    assert "compare with nothing" in capsys.readouterr().out
    assert (tmp_path / held / "smoke" / "picture.png").exists()


def test_a_dry_run_of_drawn_data_loads_them(held, tmp_path, capsys, papers):
    path = papers / "some" / "fig8.toml"
    path.write_text(HELD.replace('"digits"', '"mnist"'))
    told = ["reproduce", held, "--folder", str(tmp_path), "--data-dir", "nowhere"]
    for more in ([], ["--dry-run"]):
        assert main([*told, *more]) == 2
        assert "data_dir=nowhere does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_is_no_items_is_kept(held, tmp_path, capsys):
    mine = tmp_path / held / "full" / "picture.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main(["reproduce", held, "--folder", str(tmp_path)]) == 2
    assert f"{mine} is there, which {held} has not drawn" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_data_are_not_drawn_into_a_file(held, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["reproduce", held, "--folder", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_inputs_that_are_no_pictures_are_refused():
    config = Config(dataset="synthetic", num_clients=4, partition="natural")
    with pytest.raises(SettingError, match="are no pictures; write dataset=cifar10"):
        seen_by_clients(config)


def test_pictures_of_clients_stand_in_order():
    from matplotlib.figure import Figure

    axes, shades = Figure().subplots(), np.array([0, 0.5])
    pictures = np.broadcast_to(shades[:, None, None, None], (2, 3, 4, 3))
    panels._inputs((pictures, np.array([0, 0.25])), axes)
    (image,) = axes.images
    assert image.get_array()[1, [1, 7], 0].tolist() == [0, 0.5]
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels == ["0\n0", "1\n0.25"]


@pytest.mark.parametrize("flag", ["rows", "methods", "seeds", "devices"])
def test_flags_of_runs_are_refused_where_nothing_is_trained(
    held, tmp_path, capsys, flag
):
    told = ["reproduce", held, "--folder", str(tmp_path / "none"), f"--{flag}", "3"]
    assert main(told) == 2
    said = f"{held} draws data and trains nothing; leave --{flag} out."
    assert said in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_picture_of_runs_has_the_labels_of_their_clients(made, monkeypatch):
    monkeypatch.setattr(panels, "saved", lambda figure, path: figure)
    here = runs(iid(made))
    draw = ["accuracy", "partition"]
    curves, labels = picture(made / "p.png", "title", here, [], draw).axes[:2]
    assert len(curves.lines) == 3
    config = read_config(here["iid", "fedveca"][0] / "config.toml")
    counts = build(config).skew.label_counts
    (image,) = labels.images
    np.testing.assert_array_equal(image.get_array(), counts)
    assert image.norm.vmax == counts.max()
    assert labels.get_xlabel() == f"label; the darkest is {counts.max()} examples"


def test_files_of_earlier_calls_are_counted(made, capsys):
    told = ["reproduce", "some-table1", "--folder", str(made), "--rows", "iid"]
    assert main(told) == 0 and "more runs" not in capsys.readouterr().out
    assert main([*told, "--methods", "fedveca"]) == 0
    assert (
        "the files below have 2 more runs, of earlier calls" in capsys.readouterr().out
    )
