import csv
import io
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import relist
from rich.console import Console

from fedjax_adapt.cli import finished as cli_finished
from fedjax_adapt.cli import main
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import config, files, records, store, toml
from fedjax_adapt.report import compare
from fedjax_adapt.report.compare import groups, share_text, sheets
from fedjax_adapt.report.seeds import FOLLOWS, difference_text, sample, shared_settings
from fedjax_adapt.report.tables import as_text, comparison_tables, shortened

LABELS = ", labels=parity"


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A folder that looks like a finished run."""

    monkeypatch.chdir(tmp_path)

    def make(
        name,
        accuracy,
        trained=False,
        validated=False,
        test=360,
        base=None,
        given=(),
        dataset="d",
        folder=None,
        public=None,
        partition_seed=7,
        seed=7,
        curve=None,
        costs=(),
        best=None,
        **settings,
    ):
        folder = tmp_path / (folder or name)
        folder.mkdir()
        settings |= {"algorithm": name, "seed": seed, "partition_seed": partition_seed}
        settings |= {"base": base} if base else {}
        settings |= {"evaluate_on": "validation"} if validated else {}
        files.write_text(folder / store.CONFIG, toml.dumps(settings))
        found = {"accuracy": accuracy, "best_accuracy": best or accuracy, "rho": 1.25}
        named = store.TRAINED if trained else store.ACCURACY
        named = store.VALIDATED if validated else named
        summary = {
            **(found if named == store.ACCURACY else {named: found}),
            **{"folder": f"runs/{name}", "rounds": 3},
            "seeds": {"seed": seed, "partition_seed": partition_seed},
            **{"bytes_down": 2**20, "bytes_up": 2**20, "auxiliary": list(given)},
            "data": {"name": dataset, "test": test},
        }
        if public is not None:
            protocol, examples, used = public
            summary["public"] = {
                "protocol": protocol,
                "examples": examples,
                "used": used,
            }
        files.write_text(folder / store.SUMMARY, json.dumps(summary))
        if curve is not None:
            (folder / "metrics").mkdir()
            rows = {"round": [*curve], store.ACCURACY: [*curve.values()], **dict(costs)}
            pq.write_table(pa.table(rows), folder / "metrics" / "part-00000030.parquet")
        relist(folder)
        return folder.relative_to(tmp_path)

    return make


def printed(folders, width=200, **asked):
    console = Console(file=io.StringIO(), width=width)
    for table in comparison_tables(sheets(folders, **asked)):
        console.print(table)
    return console.file.getvalue()


def test_training_accuracy_stands_below_all_others_without_a_rank(finished):
    folders = [
        finished("leaks", 0.997, trained=True),
        finished("second", 0.60),
        finished("first", 0.61, base="moon", given=["labelled public examples (9)"]),
    ]
    text = printed(folders)
    lines = text.splitlines()
    place = lambda word: next(i for i, line in enumerate(lines) if word in line)
    assert place("first on moon") < place("second") < place("99.70 %")
    below = lines[place("second") + 1 :]
    assert "training accuracy on the public set" in "".join(below)
    assert "no test accuracy, compares with no table above" in text
    honest = "\n".join(lines[: place("second") + 2])
    assert "leaks" not in honest and "99.70" not in honest
    assert not any("rank" in line or "test accuracy " in line for line in below[3:])
    assert "1: first, seed 7; also given: labelled public examples (9)" in text
    assert re.search("a: leaks, seed 7 *\n", text) and "1.25" in honest


def test_an_accuracy_that_is_not_a_number_ranks_below_all_others(finished):
    odd, low = finished("odd", float("nan")), finished("low", 0.1)
    half = [
        finished("half", x, folder=f"half{x}", seed=i)
        for i, x in enumerate([0.5, float("nan")])
    ]
    high = finished("high", 0.6, seed=1)
    for folders in ([odd, low, *half, high], [high, *half, low, odd]):
        (sheet,) = sheets(folders)
        found = {line["method"]: line for line in sheet.numbers}
        assert [*found][:2] == ["high", "low"]
        assert found["odd"]["accuracy"] is found["half"]["accuracy"] is None
        assert {cells[2] for cells in sheet.cells[2:]} == {"-"}
        assert found["half"]["difference_points"] is None
    assert "NaN" not in as_text([sheet], "json")


def test_settings_have_columns_in_place_of_costs(finished):
    """As a sweep prints it; what is not alike within a line has none."""
    iid = {"partition": "iid"}
    folders = [
        finished(
            "fedavg", x, folder=f"{lr}-{i}", lr=lr, seed=i, partition_seed=i, **iid
        )
        for lr, shares in ((0.012346, (0.5, 0.7)), (0.2, (0.8, 0.6)))
        for i, x in enumerate(shares)
    ]
    given = ["labelled public examples (9)"]
    for alpha in (0.9, 0.3):
        skewed = {"partition": "dirichlet", "partition.concentration": alpha}
        name = f"fnr-{alpha}"
        folders.append(
            finished("fnr", alpha, folder=name, lr=0.2, given=given, **skewed)
        )
    (sheet,) = sheets(folders, settings_in_columns=True)
    assert sheet.head == [
        *("rank", "method", "lr", "partition", "concentration"),
        *("test accuracy", "n", "best"),
    ]
    assert [cells[:7] for cells in sheet.cells] == [
        ["1", "fnr", "0.2", "dirichlet", "0.9", "90.00 %", "1"],
        ["2", "fedavg", "0.2", "iid", "-", "70.00 % ± 14.14", "2"],
        ["3", "fedavg", "0.01235", "iid", "-", "60.00 % ± 14.14", "2"],
        ["4", "fnr", "0.2", "dirichlet", "0.3", "30.00 %", "1"],
    ]
    assert sheet.notes[:2] == [
        "1, 4: also given: labelled public examples (9)",
        "mean over n seeds, ± their standard deviation",
    ]
    assert not any("seed 0" in note for note in sheet.notes)
    assert sheet.numbers == sheets(folders)[0].numbers


def test_settings_of_one_name_or_of_a_columns_have_their_full_names_in_columns():
    settings = {"model.lr": ["1"], "refine.lr": ["2"], "seed": ["0", "1"]}
    settings |= {"model.rank": ["4"], "model.width": ["8"]}
    assert compare._columns([settings]) == {
        "model.lr": "model.lr",
        "refine.lr": "refine.lr",
        "model.rank": "model.rank",
        "model.width": "width",
    }


def test_trials_without_figures_are_one_sentence():
    said = lambda *lost: compare._without_figures(Path("s"), lost)
    assert said(3) == "s: trial 3 diverged and has no figures"
    assert said(3, 4) == "s: trials 3, 4 diverged and have no figures"


def test_a_method_breaks_at_words_where_the_table_is_narrow(finished):
    names = ["fedgsnr(budget=raw) on scaffold", "fnr(variant=published, epochs=2)"]
    folders = [finished(name, 0.5, folder=name[:3]) for name in names]
    text = printed(folders, width=80)
    assert max(map(len, text.splitlines())) == 80
    cells = [line.split("│")[2].strip() for line in text.splitlines() if "│" in line]
    assert cells == [
        *("fedgsnr(", "budget=", "raw) on", "scaffold"),
        *("fnr(", "variant=", "published,", "epochs=2)"),
    ]


def test_numbers_in_names_are_short_where_that_keeps_lines_apart(finished):
    pairs = [(0.2087604, 0.01), (0.123456, 0.0312345678), (0.123449, 0.0312345679)]
    folders = [
        finished("fedprox", 0.5, folder=f"mu-{i}", mu=mu, lr=lr)
        for i, (mu, lr) in enumerate(pairs)
    ]
    (sheet,) = sheets(folders)
    names = [cells[1] for cells in sheet.cells]
    assert names == ["fedprox"] * 3  # which have no method in their summaries
    said = [re.search("lr=(.*)", note)[1] for note in sheet.notes[:3]]
    assert said == ["0.01", "0.0312345678", "0.0312345679"]
    names = [
        "f(mu=0.20876048516627943)",
        "f(mu=0.123456)",
        "f(mu=0.123461)",
        "v1.23456",
    ]
    assert list(shortened(names).values()) == ["f(mu=0.2088)", *names[1:]]
    for full, short in [
        ("lr=1.23456e-07, a=-0.512345", "lr=1.235e-07, a=-0.5123"),
        ("momentum=0.99999", "momentum=0.99999"),
        ("mu=12345.678", "mu=12345.678"),
        ("mu=12345.678901", "mu=12345.678901"),
        ("public=lr-0.123456/x.npz", "public=lr-0.123456/x.npz"),
        ("public=0.123456.npz", "public=0.123456.npz"),
        ("[0.123456, 0.5]", "[0.1235, 0.5]"),
    ]:
        assert shortened([full]) == {full: short}


def test_settings_in_which_runs_differ_are_named(finished):
    same = dict(num_clients=5, lanes=1)
    folders = [
        finished("first", 0.61, lr=0.05, batch_size="none", **same),
        finished("second", 0.60, lr=0.1, batch_size=20, **same | {"lanes": 2}),
    ]
    text = printed(folders)
    assert "1: first, seed 7, lr=0.05, batch_size=none" in text
    assert "2: second, seed 7, lr=0.1, batch_size=20" in text


def test_methods_and_seeds_are_not_among_the_settings_that_differ():
    shared = {"batch_size": 20, "lanes": 2}
    one = {"algorithm": "fedavg", "seed": 0, "lr": 0.1, **shared}
    other = {
        "algorithm": "fedprox",
        "algorithm.mu": 0.1,
        "seed": 1,
        "lr": 0.2,
        **shared,
    }
    assert config.differing([one, other | {"lanes": 1}]) == [{"lr": 0.1}, {"lr": 0.2}]


def test_only_what_was_tested_on_the_same_examples_is_ranked_together(finished):
    folders = [
        finished("a", 0.5),
        finished("b", 0.9, test=180),
        finished("c", 0.7, dataset="other"),
        finished("d", 0.6),
    ]
    found = groups(folders)
    names = [[config["algorithm"] for config, _ in group.runs] for group in found]
    assert sorted(names) == [["b"], ["c"], ["d", "a"]]
    assert all(group.ranked for group in found)


def test_other_labels_and_other_halves_of_the_test_set_are_tables_of_their_own(
    finished,
):
    half = {"public": ("split_test", 180, False), "test": 180}
    folders = [
        finished("plain", 0.5),
        finished("even", 0.9, labels="parity"),
        finished("own", 0.6, labels="own"),
        finished("half", 0.7, **half),
        finished("user", 0.8, **half | {"public": ("split_test", 180, True)}),
        finished("otherwise", 0.7, partition_seed=8, **half),
        finished("fewer", 0.7, **half | {"public": ("split_test", 90, False)}),
        finished("held", 0.7, public=("holdout", 180, False), partition_seed=8),
    ]
    found = groups(folders)
    names = [[config["algorithm"] for config, _ in group.runs] for group in found]
    expected = [["held", "own", "plain"], ["even"], ["user", "half"], ["otherwise"]]
    assert names == [*expected, ["fewer"]]
    titles = [group.title for group in found]
    assert len(set(titles)) == len(titles)
    assert titles[:2] == [f"d, test accuracy on 360 examples{x}" for x in ("", LABELS)]
    for title, left in zip(titles[2:], ((180, 7), (180, 8), (90, 7)), strict=True):
        said = "by {} public examples drawn with partition_seed={})".format(*left)
        assert title.endswith(said)
    leaks = [
        finished(name, 0.99, trained=True, labels=labels)
        for name, labels in (("leak", "own"), ("leakier", "parity"))
    ]
    assert [LABELS in group.title for group in groups(leaks)] == [False, True]


HELD = ("holdout", 143, True)
WORK = {"fraction": 0.5, "algorithm_epochs": 5}


def test_a_table_says_which_controls_are_missing_from_it(finished):
    fnr = finished("fnr", 0.6, public=HELD, weight=0.1, **WORK)
    bare = finished("fnr", 0.6, folder="bare", public=HELD, weight=0.0, **WORK)
    tuned = finished("fedavg_pubft", 0.6, public=HELD, **WORK)
    alone = finished("public_only", 0.6, public=HELD, **WORK)
    plain = finished("fedavg", 0.6, public=("holdout", 143, False))
    said = lambda *folders: " ".join(printed(folders).split())
    tail = "what public data alone are worth is not known."
    text = said(fnr, bare, plain)
    assert (
        f"fnr stands here without its controls fedavg_pubft, public_only: {tail}"
        in text
    )
    assert text.count("stands here") == 1
    assert "here without" not in said(fnr, bare, tuned, alone)
    assert "here without" not in said(bare, tuned, alone, plain)
    feddf = finished("feddf", 0.5, public=HELD)
    assert f"feddf stands here without its controls public_only: {tail}" in said(
        feddf, tuned, plain
    )
    both = said(fnr, feddf, alone, finished("fedgen", 0.5))
    assert "fnr stands here without its controls fnr(weight=0), fedavg_pubft:" in both
    assert "feddf stands here without its controls fedavg_pubft:" in both


@pytest.mark.parametrize(
    "change, says",
    [
        ({"fraction": 0.3}, "algorithm.fraction=0.3, not 0.5"),
        ({"algorithm_epochs": 1}, "algorithm.epochs=1, not 5"),
        ({"algorithm_batch_size": 20}, "algorithm.batch_size=20, not 32"),
        ({"batch_loss": "mean"}, "algorithm.batch_loss=mean, not sum"),
        ({"base": "scaffold"}, "algorithm.base=scaffold, not none"),
        ({"public": ("holdout", 20, True)}, "public examples=20, not 143"),
        ({"epochs": 5.0, "lr": 0.2}, "epochs=5.0, not 1.0, lr=0.2, not 0.1"),
        ({"batch_size": "none"}, "batch_size=none, not 20"),
        ({"clip_norm": 1.0}, "clip_norm=1.0, not 10.0"),  # the default is not written
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_a_control_with_another_setting_is_none_and_the_setting_is_named(
    finished, change, says
):
    run = {**WORK, "algorithm_batch_size": 32, "batch_loss": "sum", "public": HELD}
    run |= {"epochs": 1.0, "lr": 0.1, "batch_size": 20}
    fnr = finished("fnr", 0.6, weight=0.1, variant="sq", targets=[0.5], **run)
    own = {"fnr": {"weight": 0.0}, "fedavg_pubft": {}, "public_only": {}}

    def controls(folder, change):
        return [
            finished(name, 0.6, folder=f"{folder}-{name}", **run | options | change)
            for name, options in own.items()
        ]

    if "base" in change:
        del own["public_only"]  # which has none
    others = controls("control", change)
    if "base" in change:
        others.append(finished("public_only", 0.6, **run))
    text = " ".join(printed([fnr, *others]).split())
    lacks = ", ".join({"fnr": "fnr(weight=0)"}.get(name, name) for name in own)
    assert f"fnr stands here without its controls {lacks}:" in text
    for name in own:
        shown = {"fnr": "fnr(weight=0)"}.get(name, name)
        said = f"control-{name}, {shown}, is not a control of fnr: it has {says}."
        assert said in text
    also = finished("fnr", 0.4, folder="also", weight=1.0, variant="linear", **run)
    files.write_listed(
        also / store.SUMMARY,
        (also / store.SUMMARY)
        .read_text()
        .replace("{", '{"method": "fnr(linear)", ', 1),
    )
    text = " ".join(printed([fnr, also, *others]).split())
    assert f"fnr, fnr(linear) stand here without their controls {lacks}:" in text
    right = controls("right", {})
    text = printed([fnr, also, *others, *right])
    assert "here without" not in text and "no control" not in text


def test_controls_of_an_earlier_version_averaged_over_a_public_batch(finished):
    """And had as many public examples in it as clients take."""
    old = {"public": HELD, **WORK}
    new = old | {"algorithm_batch_size": "none"}
    run = finished("fnr", 0.6, folder="run", **new | {"batch_loss": "sum"})
    alike = finished("fnr", 0.6, folder="alike", **new | {"batch_loss": "mean"})
    controls = [
        finished("fnr", 0.6, folder="bare", weight=0.0, **old),
        finished("fedavg_pubft", 0.6, **old),
        finished("public_only", 0.6, **old),
    ]
    text = " ".join(printed([run, *controls]).split())
    says = "is not a control of run: it has algorithm.batch_loss=mean, not sum."
    assert text.count(says) == 3
    assert "control" not in printed([alike, *controls])


def test_the_command_prints_and_draws_it(finished, capsys, tmp_path):
    one = str(finished("only", 0.5))
    assert main(["compare", one]) == 0
    assert "50.00 %" in capsys.readouterr().out
    for wrong, sentence in [
        ([], "compare got 0 folders before its flags"),
        ([one, "--rank"], "--rank"),
        ([one, "--against", "round"], "write --plot FILE as well"),
        ([one, "--plot", "p.png", "--against", "steps"], "against"),
    ]:
        assert main(["compare", *wrong]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["compare", "--help"]) == 0
    capsys.readouterr()
    assert main(["compare", "nowhere"]) == 2
    assert "nowhere holds no run" in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_not_compared(finished):
    folder = finished("half", 0.5)
    (folder / store.SUMMARY).unlink()
    relist(folder)
    with pytest.raises(ValueError, match="half holds a run that is not finished"):
        groups([folder])
    with pytest.raises(ValueError, match="half holds a run that is not finished"):
        groups(["."])
    other = finished("whole", 0.6)
    assert [run[1]["folder"] for run in groups(["."])[0].runs] == ["whole"]
    (sheet,) = sheets(["."])
    assert "half: not finished, or it diverged" in sheet.notes
    with pytest.raises(ValueError, match="half holds a run that is not finished"):
        groups([folder, other])


def cells_of(text):
    """The cells of each line of a printed table, by method."""
    rows = [line.split("│")[1:-1] for line in text.splitlines() if "│" in line]
    return {row[1].strip(): [cell.strip() for cell in row[2:]] for row in rows}


@pytest.fixture
def seeds(finished):
    """Runs of several seeds, by method."""
    accuracies = {
        "fedavg": {0: 0.50, 1: 0.52, 2: 0.54},
        "fedprox": {0: 0.53, 1: 0.56, 2: 0.56},
        "moon": {0: 0.53, 1: 0.53},
        "fednova": {2: 0.50},
        "scaffold": {9: 0.49},
    }
    return {
        name: [
            finished(name, accuracy, folder=f"{name}-{seed}", seed=seed, lr=0.1)
            for seed, accuracy in of.items()
        ]
        for name, of in accuracies.items()
    }


def test_runs_that_differ_in_the_seed_alone_are_one_line(seeds, finished):
    other = finished("fedavg", 0.57, folder="other", seed=1, lr=0.2)
    text = printed([*seeds["fedavg"], other, *seeds["fedprox"]])
    (group,) = groups([other, *seeds["fedavg"], *seeds["fedprox"]])
    named = [[run[1]["folder"] for run in line.values()] for line in group.lines]
    of = lambda name: [f"{name}-{seed}" for seed in range(3)]
    assert named == [["other"], of("fedprox"), of("fedavg")]  # 57, 55 and 52 %
    lines = [line for line in text.splitlines() if "│" in line]
    # by hand: the deviations are the roots of (4 + 1 + 1) / 2 and of (4 + 0 + 4) / 2
    shown = [[cell.strip() for cell in line.split("│")[2:5]] for line in lines]
    assert shown == [
        ["fedavg", "57.00 %", "1"],
        ["fedprox", "55.00 % ± 1.73", "3"],
        ["fedavg", "52.00 % ± 2.00", "3"],
    ]
    of_seeds = lambda name: f"{{{name}-0,{name}-1,{name}-2}}, seeds 0, 1, 2, lr=0.1"
    (sheet,) = sheets([other, *seeds["fedavg"], *seeds["fedprox"]])
    assert sheet.notes[:-1] == [
        "1: other, seed 1, lr=0.2",
        f"2: {of_seeds('fedprox')}",
        f"3: {of_seeds('fedavg')}",
        "mean over n seeds, ± their standard deviation",
    ]


def test_many_seeds_are_one_note(finished):
    folders = []
    for seed in range(12):
        given = [] if seed else ["public examples (9)"]
        one = finished("moon", 0.5, seed=seed, partition_seed=seed, given=given)
        place = Path("all") / f"{seed:02}"
        place.mkdir(parents=True)
        folders.append(one.rename(place / "run"))
        summary = json.loads((place / "run" / store.SUMMARY).read_text())
        summary |= {"wasted_steps": 100 * seed, "wasted_bytes": 2**20}
        files.write_listed(place / "run" / store.SUMMARY, json.dumps(summary))
    (sheet,) = sheets(folders)
    assert sheet.notes[0] == (  # (0 + 100 + ... + 1100) / 12 steps
        "1: all/{00/run,01/run,...,11/run}, seeds 0, 1, ..., 11, partition_seed=0, 1, ..., "
        "11; also given: public examples (9) or nothing; not counted: 550 local steps, "
        "1 MiB of late clients"
    )
    assert len(sheet.notes) == 2
    (sheet,) = sheets([folders[0], folders[1].absolute()])
    assert sheet.notes[0].startswith(
        f"1: {{all/00/run,{Path.cwd()}/all/01/run}}, seeds"
    )


def test_a_line_is_named_by_the_partition_that_all_its_seeds_share():
    """One that follows the seed is no name; without a fixed one lines would look alike."""
    of = lambda *partitions: [{"lr": 0.1, FOLLOWS: split} for split in partitions]
    assert shared_settings(of(0, 1, 2)) == {"lr": 0.1}
    assert shared_settings(of(20, 20, 20)) == {"lr": 0.1, FOLLOWS: 20}
    assert shared_settings(of(0)) == {"lr": 0.1, FOLLOWS: 0}


def test_what_a_run_does_not_learn_from_parts_no_lines(finished):
    folders = [
        finished("fedavg", 0.5, folder="a", seed=0, lanes=1, clip_norm=10.0),
        finished("fedavg", 0.6, folder="b", seed=1, lanes=2, targets=[0.5]),
    ]
    (group,) = groups(folders)  # the default of clip_norm is written in one of them
    assert [list(line) for line in group.lines] == [[0, 1]]
    apart = finished("fedavg", 0.6, folder="c", seed=2, clip_norm=1.0)
    assert len(groups([*folders, apart])[0].lines) == 2


def test_a_difference_to_the_base_is_of_the_seeds_of_both(seeds):
    folders = [folder for of in seeds.values() for folder in of]
    for base in ("fedavg", str(seeds["fedavg"][1])):
        text = printed(folders, base=base)
        shown = {name: cells[2] for name, cells in cells_of(text).items()}
        # by hand: fedprox 3, 4 and 2 points, of deviation 1, and t of two degrees of
        # freedom 4.3027; moon 3 and 1 points, deviation the root of 2, and t 12.706
        assert shown == {
            "fedprox": "+3.00 ± 2.48",
            "moon": "none (+2.00 ± 12.71)",
            "fedavg": "base",
            "fednova": "-4.00 (n = 1)",
            "scaffold": "no seed in common with the base",
        }
    shown = {name: cells[2] for name, cells in cells_of(printed(folders)).items()}
    assert shown["fedprox"] == "base" and shown["fedavg"] == "-3.00 ± 2.48"
    # 0 and 3 points, of three seeds the two that moon has
    text = printed(folders, base="moon")
    assert cells_of(text)["fedprox"][2] == "none (+1.50 ± 19.06) (n = 2)"
    assert "to base: difference to moon of moon-0, in points of accuracy" in text


def test_no_difference_is_taken_where_accuracy_is_of_other_examples(seeds, finished):
    others = [
        finished(name, accuracy, test=180, folder=f"few-{name}")
        for name, accuracy in (("moon", 0.9), ("fedgen", 0.8))
    ]
    leaks = [
        finished(name, 0.99, trained=True, folder=f"leaks-{name}")
        for name in ("fedavg", "fedprox")
    ]
    folders = [*seeds["fedavg"], *seeds["fedprox"], *others, *leaks]
    text = printed(folders, base="fedavg")
    assert text.count("no difference: fedavg was not tested on these examples") == 1
    assert text.count("to base") == 2  # one head and the note below that table
    with pytest.raises(SettingError, match="base=leaks-fedavg is not a ranked run"):
        printed(folders, base="leaks-fedavg")


def test_a_base_that_is_not_there_or_means_several_lines_is_refused(seeds, finished):
    folders = [*seeds["fedavg"], *seeds["moon"]]
    known = (
        "base=fedprx is not a ranked run .*; write one of moon, fedavg, or the folder"
    )
    with pytest.raises(SettingError, match=known):
        printed(folders, base="fedprx")
    other = finished("fedavg", 0.51, folder="other", lr=0.2)
    several = (
        "base=fedavg means 2 lines of a table, and no other line has the settings "
    )
    with pytest.raises(SettingError, match=f"{several}.* as in --base fedavg-0"):
        printed([*seeds["fedavg"], other], base="fedavg")
    spaced = [finished("fedavg", 0.5, folder=f"my {lr}", lr=lr) for lr in (0.3, 0.4)]
    with pytest.raises(SettingError, match=f"{several}.* as in --base 'my 0.3'"):
        printed(spaced, base="fedavg")
    of_other = cells_of(printed([*folders, other], base="other"))
    assert of_other["moon"][2] == "no seed in common with the base"  # which has 7
    based = [
        finished("fedgsnr", accuracy, folder=f"gsnr-{base}", seed=1, base=base)
        for base, accuracy in ((None, 0.4), ("moon", 0.3))
    ]
    shown = cells_of(printed([*folders, *based], base="fedgsnr"))
    assert shown["fedgsnr"][2] == "base"  # and not the one on another base
    assert shown["fedgsnr on moon"][2] == "-10.00 (n = 1)"


@pytest.mark.parametrize("follows", [False, True], ids=["fixed", "follows"])
def test_a_base_of_several_lines_is_that_with_the_same_settings(finished, follows):
    accuracies = {
        ("fedavg", 0.1): {0: 0.50, 1: 0.52, 2: 0.54},
        ("fedavg", 0.2): {0: 0.40, 1: 0.42, 2: 0.44},
        ("fedprox", 0.1): {0: 0.53, 1: 0.56},
        ("fedprox", 0.2): {0: 0.44, 1: 0.48, 2: 0.46},
        ("moon", 0.3): {0: 0.30},
    }
    folders = []
    for (name, lr), of in accuracies.items():
        own = {"mu": 0.1} if name == "fedprox" else {}
        curve = {10: 0.2, 20: 0.2, 30: 0.2}
        curve[(20 if name == "fedavg" else 10) + (10 if lr == 0.2 else 0)] = 0.9
        for seed, share in of.items():
            partition = seed if follows else 7
            own |= {"curve": curve, "partition_seed": partition, "lr": lr}
            folder = f"{name}-{lr}-{seed}"
            folders.append(finished(name, share, folder=folder, seed=seed, **own))
    (sheet,) = sheets(folders, base="fedavg", targets=(0.9,))
    at = sheet.head.index
    shown = {
        (line["method"], *cells[at("method") + 1 : at("to base")]): [
            cells[at("to base")],
            cells[at("speed-up to 0.9")],
            line["base"],
        ]
        for cells, line in zip(sheet.cells, sheet.numbers, strict=True)
    }
    # by hand, of lr=0.2: 4, 6 and 2 points, of deviation 2, and t 4.3027 of two degrees
    assert shown == {
        ("fedprox", "54.50 % ± 2.12", "2"): [
            "none (+3.50 ± 6.35)",
            "2.00 ± 0.00",
            2,
        ],
        ("fedavg", "52.00 % ± 2.00", "3"): ["base", "base", 2],
        ("fedprox", "46.00 % ± 2.00", "3"): ["none (+4.00 ± 4.97)", "1.50 ± 0.00", 4],
        ("fedavg", "42.00 % ± 2.00", "3"): ["base", "base", 4],
        ("moon", "30.00 %", "1"): ["-", "-", None],
    }
    assert "line of fedavg with the same settings (1 to 2, 3 to 4)," in sheet.notes[-3]
    assert (
        sheet.notes[-2] == "no difference of 5: no line of fedavg has the same settings"
    )
    own = {"lr": 0.2, "mu": 1.0, "partition_seed": 0 if follows else 7}
    also = finished("fedprox", 0.5, folder="my mu", seed=0, **own)
    several = "base=fedprox means 2 lines with the settings of fedavg-0.2-0; write the"
    with pytest.raises(SettingError, match=f"{several}.* as in --base 'my mu'"):
        sheets([*folders, also], base="fedprox")
    elsewhere = finished("fedavg", 0.1, folder="else", seed=0, lr=0.1, partition_seed=8)
    (with_it,) = sheets([*folders, elsewhere], base="fedavg")
    assert [line["base"] for line in with_it.numbers] == [2, 2, 4, 4, None, 6]
    one = sheets(folders, base="fedavg-0.2-1")[0]  # a folder is one base for all
    assert [line["base"] for line in one.numbers] == [4] * 5


@pytest.fixture
def chosen_from(finished):
    """chosen_from(name, {setting: accuracy}): validated runs of two seeds of each lr."""

    def make(name, accuracies, **own):
        return [
            finished(
                name,
                accuracy + 0.01 * seed,
                validated=True,
                test=143,
                folder=f"{name}-{lr}-{seed}",
                seed=seed,
                lr=lr,
                **own,
            )
            for lr, accuracy in accuracies.items()
            for seed in (0, 1)
        ]

    return make


def lines_of(sheet):
    return [(x["method"], [Path(f).name for f in x["folders"]]) for x in sheet.numbers]


def test_the_best_settings_of_a_method_are_those_of_validation_never_of_test(
    finished, chosen_from, capsys
):
    folders = chosen_from("fedavg", {0.1: 0.70, 0.2: 0.80, 0.4: 0.75})
    folders += chosen_from("moon", {0.1: 0.72, 0.2: 0.71})
    # the worse by validation is the better by test
    tested = {("fedavg", 0.1): 0.99, ("fedavg", 0.2): 0.60, ("fedprox", 0.7): 0.50}
    for (name, lr), accuracy in tested.items():
        folders += [
            finished(
                name, accuracy, folder=f"test-{name}-{lr}-{seed}", seed=seed, lr=lr
            )
            for seed in (5, 6)
        ]
    test, validation = sheets(folders, best=True)
    assert lines_of(test) == [
        ("fedavg", ["test-fedavg-0.2-5", "test-fedavg-0.2-6"]),
        ("fedprox", ["test-fedprox-0.7-5", "test-fedprox-0.7-6"]),
    ]
    assert lines_of(validation) == [("moon", ["moon-0.1-0", "moon-0.1-1"])]
    why = "settings by mean validation accuracy"
    assert f"1: the best of 3 {why}, 80.50 %, lr=0.2" in test.notes
    assert f"1: the best of 2 {why}, 72.50 %, lr=0.1" in validation.notes
    assert sum(why in note for note in test.notes) == 1
    assert test.numbers[0]["is_base"] and test.numbers[1]["base"] == 1
    assert main(["compare", *map(str, folders), "--best", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert "0.99" not in as_text([test, validation], "json")


def test_the_best_settings_are_those_of_the_last_round_not_of_the_best(finished):
    pairs = {0.1: (0.7, 0.9), 0.2: (0.8, 0.8)}  # after the last round, and the best
    folders = [
        finished("fedavg", last, best=best, validated=True, folder=f"lr-{lr}", lr=lr)
        for lr, (last, best) in pairs.items()
    ]
    assert lines_of(sheets(folders, best=True)[0]) == [("fedavg", ["lr-0.2"])]


def test_nothing_is_chosen_by_test(finished, capsys):
    folders = [
        finished("fedprox", 0.5 + mu, folder=f"mu-{mu}", mu=mu) for mu in (0.1, 0.2)
    ]
    folders.append(finished("fedavg", 0.5))
    refused = "best=true cannot choose among 2 settings of fedprox, of mu-0.[12] and "
    with pytest.raises(SettingError, match=f"{refused}.* --evaluate-on validation"):
        sheets(folders, best=True)
    assert main(["compare", *map(str, folders), "--best"]) == 2
    assert "or leave out --best" in capsys.readouterr().err
    (sheet,) = sheets(folders)  # nor is a base
    assert "to base" not in sheet.head and "base" not in sheet.numbers[0]
    assert sheet.notes[-1] == (
        "no difference: fedprox has several lines, and the best by test accuracy is not a "
        "base; name one with compare --base"
    )
    (of_one,) = sheets(folders[:2])  # with nothing to differ from nothing is said
    assert not any("no difference" in note for note in of_one.notes)
    assert "to base" not in of_one.head
    assert "to base" in sheets(folders, base="fedavg")[0].head
    assert "to base" in sheets([folders[0], folders[2]])[0].head
    leaks = [
        finished("fnr", 0.9, trained=True, folder=f"leak-{lr}", lr=lr)
        for lr in (0.1, 0.2)
    ]
    with pytest.raises(SettingError, match="cannot choose among 2 settings of fnr"):
        sheets(leaks, best=True)


def test_a_base_that_was_not_chosen_is_said_to_be_left_out(finished, chosen_from):
    folders = [finished("fedprox", 0.6), *chosen_from("fedavg", {0.1: 0.7, 0.2: 0.8})]
    says = (
        "base=fedavg-0.1-0 is a run that --best leaves out; write one of fedprox, fedavg, "
        "or the folder of a run that it shows, or leave out --best."
    )
    with pytest.raises(SettingError, match=re.escape(says)):
        sheets(folders, base="fedavg-0.1-0", best=True)
    assert sheets(folders, base="fedavg-0.1-0")[1].numbers[1]["is_base"]


def test_settings_without_validation_accuracy_are_named_where_they_are_left_out(
    finished, chosen_from
):
    one = finished("fedavg", 0.7, validated=True, folder="a", lr=0.1)
    folders = [one, finished("fedavg", 0.6, folder="a1", lr=0.1)]
    for name, lr, seed in [("b", 0.05, 7), ("c", 0.2, 7), ("c1", 0.2, 8)]:
        folders.append(finished("fedavg", 0.9, folder=name, lr=lr, seed=seed))
    (sheet,) = sheets(folders, best=True)
    assert lines_of(sheet) == [("fedavg", ["a1"])]
    without = "left out for want of validation accuracy: b, {c,c1}"
    assert f"1: {without}" in sheet.notes  # and nothing of a choice
    (sheet,) = sheets([*folders, *chosen_from("fedavg", {0.4: 0.5})], best=True)
    assert [note for note in sheet.notes if "validation" in note] == [
        "1: the best of 2 settings by mean validation accuracy, 70.00 %, lr=0.1; "
        + without
    ]


def test_what_is_to_be_learned_is_not_chosen(chosen_from):
    """Nor how long; and the base of a method makes another method of it."""
    folders = chosen_from("fedgsnr", {0.1: 0.9, 0.2: 0.8})
    changes = [
        {"num_clients": 9},
        {"rounds": 9},
        {"base": "moon"},
        {"partition": "iid"},
        {"partition_seed": 8},
        {"momentum": 0.9},  # which is chosen
    ]
    for change in changes:
        ((name, value),) = change.items()
        for folder in chosen_from("fedgsnr", {0.3: 0.6, 0.4: 0.7}, **change):
            folders.append(folder.rename(f"{name}-{folder.name}"))
    (sheet,) = sheets(folders, best=True)
    names = {folder.rpartition("fedgsnr-")[0] for _, (folder, _) in lines_of(sheet)}
    assert names == {"", *(f"{name}-" for c in changes[:-1] for name in c)}
    settings = {folder.split("fedgsnr-")[1] for _, (folder, _) in lines_of(sheet)}
    assert settings == {"0.1-0", "0.4-0"}


def test_a_run_that_was_made_twice_has_two_lines(seeds, finished):
    again = finished("fedavg", 0.52, folder="again", seed=1, lr=0.1)
    (group,) = groups([*seeds["fedavg"], again])
    folders = [[Path(run[1]["folder"]).name for run in x.values()] for x in group.lines]
    assert sorted(folders) == [["again"], [Path(x).name for x in seeds["fedavg"]]]


@pytest.mark.parametrize("first", [(), (0,)])
def test_a_partition_that_follows_the_seed_is_no_difference(finished, first):
    """One that a run was given is, also where it happens to be a run's seed."""
    make = lambda name, n, of: finished(
        "fedavg", 0.5, folder=f"{name}{n}", seed=n, partition_seed=of
    )
    follows = [make("f", n, n) for n in (1, 2)]
    fixed = [make("p", n, 0) for n in (*first, 1, 2)]
    (group,) = groups([*follows, *fixed])
    folders = [[Path(run[1]["folder"]).name for run in x.values()] for x in group.lines]
    assert sorted(folders) == [["f1", "f2"], [f"p{n}" for n in (*first, 1, 2)]]


@pytest.mark.parametrize("fixed", [False, True])
def test_seeds_that_match_a_run_each_are_one_line(finished, fixed):
    """Of runs that differ in the seed alone; what matches another one has its own."""
    make = lambda folder, algorithm, n, **settings: finished(
        algorithm,
        0.5,
        folder=f"{folder}-{n}",
        seed=n,
        partition_seed=0 if fixed else n,
        **settings,
    )
    first = [make("first", "fedveca", n, lr=0.1) for n in (1, 2)]
    other = [make("other", "fedveca", n, lr=0.2) for n in (1, 2)]
    of = lambda name, folders: [
        make(name, "fedavg", n, match=str(at.absolute()))
        for n, at in zip((1, 2), folders, strict=True)
    ]
    matched = [*of("a", first), *of("b", other)]
    (group,) = groups([*first, *matched])
    folders = [[Path(run[1]["folder"]).name for run in x.values()] for x in group.lines]
    assert sorted(folders) == [["a-1", "a-2"], ["b-1", "b-2"], ["first-1", "first-2"]]
    broken = Path(first[1], store.CONFIG)
    broken.write_text(broken.read_text() + "nothing = 1\n")
    shutil.rmtree(first[0])
    shutil.rmtree(other[0])
    # what cannot be read, or is there no more, is told by its folder
    (group,) = groups(matched)
    assert [len(line) for line in group.lines] == [1, 1, 1, 1]


def test_what_matches_a_run_that_matches_another_is_one_line_too(finished, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    make = lambda name, n, **settings: finished(
        "fedavg", 0.5, folder=f"{name}-{n}", seed=n, partition_seed=n, **settings
    )
    for n in (1, 2):
        make("first", n)
    middle = [make("middle", n, match=f"~/first-{n}") for n in (1, 2)]
    last = [make("last", n, match=str(Path(f"middle-{n}").absolute())) for n in (1, 2)]
    (group,) = groups([*middle, *last])
    assert [len(line) for line in group.lines] == [2, 2]


def test_rounds_to_a_target_and_the_speed_up_seed_by_seed(finished):
    first = {
        "fedavg": {0: 10, 1: 30},
        "fedprox": {0: 5, 1: 10},
        "moon": {0: 20, 1: None},
        "scaffold": {0: None, 1: None},
    }
    folders = []
    for name, of in first.items():
        for seed, reached in of.items():
            curve = {r: 0.9 if r == reached else 0.2 for r in (5, 10, 20, 30)}
            folder = f"{name}-{seed}"
            folders.append(finished(name, 0.5, folder=folder, seed=seed, curve=curve))
    text = printed(folders, base="fedavg", targets=(0.9, 0.95))
    assert "rounds to 0.9" in text and "speed-up to 0.95" in text
    shown = {name: cells[3:5] for name, cells in cells_of(text).items()}
    assert shown == {
        "fedavg": ["20 ± 14.14", "base"],
        "fedprox": ["7.5 ± 3.54", "2.50 ± 0.71"],  # of 10 / 5 and 30 / 10
        "moon": ["1 of 2 seeds", "1 of 2 seeds"],
        "scaffold": ["not reached", "-"],
    }
    assert cells_of(text)["fedprox"][5:7] == ["not reached", "-"]
    bare = finished("fednova", 0.5)
    with pytest.raises(SettingError, match="fednova has no evaluation in its metrics"):
        printed([*folders, bare], targets=(0.9,))
    for wrong in (0.0, 1.0, 90.0, float("nan")):
        with pytest.raises(SettingError, match="target=.* is not an accuracy to reach"):
            printed(folders, targets=(0.9, wrong))


def test_what_a_target_cost_is_that_of_its_round(finished):
    curve = {5: 0.2, 10: 0.8, 20: 0.9}
    costs = {
        "local_steps": [50, 100, 250],
        "bytes_up": [2**20, 2**21, 2**22],
        "bytes_down": [0, 2**20, 2**21],
        "simulated_seconds": [0.0, 0.0, 0.0],  # no clock
    }
    ticks = costs | {"simulated_seconds": [1.5, 3.0, 6.0]}
    folders = [
        finished("fedavg", 0.5, folder="a", seed=0, curve=curve, costs=costs),
        finished(
            "fedavg", 0.5, folder="b", seed=1, curve={**curve, 10: 0.5}, costs=costs
        ),
    ]
    (sheet,) = sheets(folders, targets=(0.7, 0.95))
    (cells,) = sheet.cells
    shown = dict(zip(sheet.head, cells, strict=True))
    assert shown["rounds to 0.7"] == "15 ± 7.07"
    assert (
        shown["steps to 0.7"] == "175 ± 106.07" and shown["MiB to 0.7"] == "4.5 ± 2.12"
    )
    assert shown["rounds to 0.95"] == "not reached"
    assert not {"seconds to 0.7", "steps to 0.95"} & {*shown}
    (numbers,) = sheet.numbers
    assert numbers["MiB_to.0.7"] == 4.5 and numbers["seconds_to.0.7.reached"] == 0
    timed = finished("moon", 0.5, seed=0, curve=curve, costs=ticks)
    (sheet,) = sheets([*folders, timed], targets=(0.7,))
    column = [cells[sheet.head.index("seconds to 0.7")] for cells in sheet.cells]
    assert sorted(column) == ["-", "3"]


def test_measured_seconds_to_a_target_are_of_runs_and_not_of_trials(finished):
    curve, seconds = {5: 0.2, 10: 0.8, 20: 0.9}, [2.5, 5.25, 10.0]
    costs = {"seconds": seconds}
    one = finished("fedavg", 0.6, seed=0, curve=curve, costs=costs)
    slow = {"seconds": [3 * x for x in seconds]}
    slow["simulated_seconds"] = [1.0, 2.0, 4.0]
    again = finished("fedavg", 0.6, folder="b", seed=1, curve=curve, costs=slow)
    trial = finished("moon", 0.5, folder="trial", seed=0, curve=curve, costs=costs)
    for name in ("sweep/trials", "sweep/groups"):
        Path(name).mkdir(parents=True)
    files.write_text(Path("sweep/sweep.toml"), "")
    trial = trial.rename("sweep/trials/0000")
    (sheet,) = sheets([one, again, trial], targets=(0.7, 0.95))
    at = sheet.head.index("measured seconds to 0.7")
    assert [cells[at] for cells in sheet.cells] == [
        "10.5 ± 7.42",
        "-",
    ]  # 5.25 and 15.75
    assert sheet.cells[0][sheet.head.index("seconds to 0.7")] == "1 of 2 seeds"
    assert "measured seconds to 0.95" not in sheet.head
    assert sheet.numbers[0]["measured_seconds_to.0.7"] == 10.5
    assert sheet.numbers[1]["measured_seconds_to.0.7"] is None
    assert sheet.notes[-2].startswith("measured seconds: of training, on the machine")
    assert sheet.notes[-1].startswith("no measured seconds of 2: trials of a sweep run")
    assert not any("measured" in x for x in sheets([one, trial])[0].notes)
    (sheet,) = sheets([trial], targets=(0.7,))
    assert not any("measured" in name for name in sheet.head)
    assert sum("measured" in note for note in sheet.notes) == 1


def test_a_folder_of_runs_is_all_that_lie_below_it(finished, capsys):
    one = finished("fedavg", 0.5)
    place = one.parent / "all" / "row" / "method"
    place.mkdir(parents=True)
    one.rename(place / "one")
    other = finished("moon", 0.6)
    other.rename(place.parent / "other")
    assert [len(group.runs) for group in groups(["all"])] == [2]
    assert main(["compare", "all"]) == 0
    assert main(["compare", "all", "all/row/other"]) == 2
    assert "other is given more than once" in capsys.readouterr().err
    deep = place.parents[1].joinpath(*"abcde")
    deep.mkdir(parents=True)
    (place / "one").rename(deep / "one")
    assert [len(group.runs) for group in groups(["all"])] == [1]  # not the whole disk
    (place / "empty").mkdir()
    assert main(["compare", str(place / "empty")]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize("name", [store.CONFIG, store.SUMMARY])
def test_a_run_below_a_folder_that_lost_a_file_is_not_passed_over(finished, name):
    finished("fedavg", 0.5)
    lost = finished("moon", 0.6) / name
    lost.unlink()
    with pytest.raises(SettingError, match=f"^{lost} is missing .*; put it back as it"):
        groups(["."])


@pytest.mark.parametrize("name", [store.SWEEP, store.CONFIG])
def test_a_file_of_that_name_alone_makes_no_sweep_and_no_run(finished, capsys, name):
    """The file that a sweep was given, or one of another program."""
    finished("fedavg", 0.5, folder="mine")
    Path("others").mkdir()
    files.write_text(Path("others") / name, "title = 'foreign'\n")
    assert [len(group.runs) for group in groups(["."])] == [1]
    settings = "[grid]\nlr = [0.1]\n" if name == store.SWEEP else "lr = 0.1\n"
    files.write_text(Path(name), settings)
    assert [len(group.runs) for group in groups(["."])] == [1]
    below = Path("shard-1-of-2"), Path("trials-0000", "rounds-4")
    for path in below:
        path.mkdir(parents=True)
        for own in (store.SWEEP, files.SUMS):
            files.write_text(path / own, "")
    files.write_text(Path(store.TUNE), "[run]\nrounds = 8\n")
    _, shards, pruned = records.parts_below(".")
    assert pruned == [below[1]] and [sweep.left for sweep in shards] == [[1, 2]]
    lacks = "no config" if name == store.SWEEP else "nothing of one but its config"
    for command in ("compare", "report"):
        assert main([command, "others"]) == 2
        assert f"others holds no run: it has {lacks}" in capsys.readouterr().err


def test_the_command_takes_a_base_and_targets(seeds, capsys):
    folders = [str(folder) for name in ("fedavg", "moon") for folder in seeds[name]]
    assert main(["compare", *folders, "--base", "moon"]) == 0
    assert "to base: difference to moon" in capsys.readouterr().out
    picture = Path("refused.png")
    for wrong, sentence in [
        (
            ["--base", "nowhere", "--plot", str(picture)],
            "base=nowhere is not a ranked run",
        ),
        (["--target", "0.5", "90"], "target=90 is not an accuracy to reach"),
    ]:
        assert main(["compare", *folders, *wrong]) == 2
        assert sentence in capsys.readouterr().err
    assert not picture.exists()


def test_other_programs_read_it(seeds, finished):
    folders = [*seeds["fedavg"], *seeds["fedprox"]]
    finished("a_b|c", 0.3, trained=True)
    found = sheets([*folders, "a_b|c"], base="fedavg", targets=())
    first, second = json.loads(as_text(found, "json"))
    fedprox, fedavg = first["numbers"]
    assert (fedprox["method"], fedprox["rank"]) == ("fedprox", 1)
    assert fedprox["seeds"] == [0, 1, 2]
    assert fedprox["accuracy"] == pytest.approx(0.55)
    assert fedprox["accuracy.std"] == pytest.approx(0.03**0.5 / 10)
    assert fedprox["difference_points"] == pytest.approx(3)  # of 3, 4 and 2
    # Student's t of two degrees of freedom, by hand: 4.303 / sqrt(3)
    assert fedprox["half_interval_95"] == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert fedavg["is_base"] and not fedprox["is_base"]
    assert fedavg["difference_points"] == 0 and second["ranked"] is False
    assert second["numbers"][0]["rank"] is None
    rows = list(csv.DictReader(io.StringIO(as_text(found, "csv"))))
    assert [row["method"] for row in rows] == ["fedprox", "fedavg", "a_b|c"]
    assert rows[0]["seeds"] == "0 1 2" and rows[2]["difference_points"] == ""
    assert float(rows[0]["accuracy"]) == fedprox["accuracy"]
    assert rows[2]["table"] == second["title"] != rows[0]["table"]
    text = as_text(found, "md")
    assert "| 1 | fedprox | 55.00 % ± 1.73 | 3 | none (+3.00 ± 2.48)" not in text
    assert "| 1 | fedprox | 55.00 % ± 1.73 | 3 | +3.00 ± 2.48 |" in text
    assert r"| a | a_b\|c | 30.00 % |" in text
    text = as_text(found, "latex")
    assert r"1 & fedprox & 55.00 \% $\pm$ 1.73 & 3 & +3.00 $\pm$ 2.48 &" in text
    assert r"a & a\_b|c & 30.00 \% & 1" in text
    bare = [line for line in text.splitlines() if not line.startswith("%")]
    assert not re.search(r"(?<!\\)[%_#]", "\n".join(bare))
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_what_a_program_reads_names_the_settings_in_which_lines_differ(finished):
    partitions = [("slow", 3, 3), ("slower", 4, 4), ("fast", 3, 3)]
    folders = [
        finished(
            "fedavg",
            0.5,
            folder=name,
            seed=seed,
            partition_seed=split,
            lr=1.0 if name == "fast" else 0.1,
            participation=0.5,
        )
        for name, seed, split in partitions
    ]
    found = sheets(folders)
    (sheet,) = json.loads(as_text(found, "json"))
    assert [line["settings"] for line in sheet["numbers"]] == [
        {"lr": 0.1, "partition_seed": [3, 4]},
        {"lr": 1.0, "partition_seed": 3},
    ]
    rows = list(csv.DictReader(io.StringIO(as_text(found, "csv"))))
    assert [row["settings.lr"] for row in rows] == ["0.1", "1.0"]
    assert [row["settings.partition_seed"] for row in rows] == ["3 4", "3"]
    assert not {"settings", "settings.participation"} & set(rows[0])
    assert [row["also_given"] for row in rows] == ["nothing", "nothing"]


def test_a_setting_that_a_run_does_not_have_is_compared_by_its_default():
    default = {"algorithm": "fedavg", "lr": 0.1, "partition": "iid"}
    differ = lambda **changes: config.differing([default, default | changes])
    assert differ(num_steps=5) == [{"num_steps": None}, {"num_steps": 5}]
    assert differ(num_steps=None) == [{}, {}]
    # an option of another choice is none of the first run's
    skewed = {"partition": "dirichlet", "partition.concentration": 0.5}
    expected = [{"partition": "iid"}, {"partition": "dirichlet"}]
    assert differ(**skewed) == expected


@pytest.mark.parametrize(
    "difference, interval, says",
    [
        (-0.004, 3.01, "none (+0.00 ± 3.01)"),
        (-0.006, None, "-0.01"),
        (-0.0, None, "+0.00"),
        (2.5, 1.0, "+2.50 ± 1.00"),
    ],
)
def test_a_difference_that_rounds_to_nothing_has_no_minus(difference, interval, says):
    assert difference_text(difference, interval, "{:.2f}".format) == says


def test_what_a_program_reads_is_alone_on_standard_output(seeds, capsys, monkeypatch):
    monkeypatch.setattr(cli_finished, "comparison_curves", lambda *_: None)
    words = ["--format", "json", "--plot", "p.png"]
    assert cli_finished.compare([*map(str, seeds["fedavg"]), *words]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["numbers"][0]["method"] == "fedavg"
    assert "picture  " in said.err
    assert cli_finished.compare([*map(str, seeds["fedavg"]), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "mean over n seeds" in said.err and "also given" not in said.err


def test_no_column_is_cut_off_where_the_terminal_is_narrow(
    finished, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "60")
    folders = [
        finished(name, 0.5, seed=1, curve={5: 0.4, 10: 0.5}) for name in ("moon", "afl")
    ]
    words = ["--target", "0.4", "0.5", "0.6"]
    assert cli_finished.compare([*map(str, folders), *words]) == 0
    shown = capsys.readouterr().out
    assert shown.count("speed-up") == 3 and "MiB" in shown and "rho" in shown


def test_a_mean_share_that_is_not_known_is_a_dash():
    for values, text in ([None], "-"), ([0.5, None], "-"), ([0.5], "50.00 %"):
        assert share_text(sample(values)) == text
    assert share_text(sample([0.5, 0.6])) == "55.00 % ± 7.07"
