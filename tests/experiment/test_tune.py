"""Settings that are chosen by validation accuracy, sweep after sweep."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import fedjax_adapt
from test_run import Stop

from fedjax_adapt.cli import main
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, read_run, records, run, tune
from fedjax_adapt.experiment.config import common_options, read_config
from fedjax_adapt.experiment.preview import preview_search
from fedjax_adapt.experiment.sweeps import groups
from fedjax_adapt.experiment.sweeps import space as space_module
from fedjax_adapt.experiment.sweeps import tune as module
from fedjax_adapt.experiment.sweeps.grid import Trial
from fedjax_adapt.experiment.sweeps.space import read_search, rungs, to_toml
from fedjax_adapt.report.compare import sheets

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("shared_programs")

RUN = {
    "algorithm": "fedprox",
    "model": "linear",
    "num_clients": 4,
    "participation": 0.5,
    "rounds": 6,
    "evaluate_every": 3,
    "num_steps": 2,
    "devices": 1,
}
RATE = {"low": 0.001, "high": 1, "log": True}
SPACE = {"lr": RATE, "algorithm.mu": {"low": 0.01, "high": 10.0, "log": True}}
SEARCH = {"run": RUN, "space": SPACE}
HALVED = {"trials": 5, "at_once": 3, "halve": 3, "seed": 4}


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """A search of two batches by halving, never interrupted; only to be read."""
    return tune(SEARCH, tmp_path_factory.mktemp("searches") / "halved", **HALVED)


def runs_of(folder, rounds):
    """The runs of the sweep of so many rounds of a batch."""
    trials = sorted((folder / f"rounds-{rounds}" / "trials").iterdir())
    return [read_run(trial) for trial in trials]


@pytest.mark.slow
def test_the_best_of_a_batch_go_on_and_have_all_rounds(halved):
    rows = halved.trials.to_pylist()
    assert [row["trial"] for row in rows] == [0, 1, 2, 3, 4]
    first = runs_of(halved.folder / "trials-0000", 2)  # 6 rounds / 3
    (last,) = runs_of(halved.folder / "trials-0000", 6)
    assert [r.config["rounds"] for r in first] == [2, 2, 2]
    reached = [r.summary["validation_accuracy"]["accuracy"] for r in first]
    winner = int(np.argmax(reached))
    for i, (row, record) in enumerate(zip(rows, first, strict=False)):
        assert (
            row["lr"] == record.config["lr"]
            and row["mu"] == record.config["algorithm.mu"]
        )
        whole = last if i == winner else record
        assert row["rounds"] == (6 if i == winner else 2)
        assert row["outcome"] == ("finished" if i == winner else "pruned")
        accuracy = whole.summary["validation_accuracy"]["accuracy"]
        assert row["validation_accuracy"] == accuracy
    assert last.config["lr"] == rows[winner]["lr"]
    # two trials are too few for a rung of a third of them
    assert [p.name for p in (halved.folder / "trials-0003").iterdir()] == ["rounds-6"]
    assert [row["outcome"] for row in rows[3:]] == ["finished"] * 2


def test_the_best_is_of_those_that_finished_and_its_file_trains_it(halved, tmp_path):
    whole = [row for row in halved.trials.to_pylist() if row["outcome"] == "finished"]
    best = max(whole, key=lambda row: row["validation_accuracy"])
    assert halved.accuracy == best["validation_accuracy"]
    assert halved.best == {"lr": best["lr"], "algorithm.mu": best["mu"]}
    config = read_config(halved.folder / "best.toml")
    assert (config.lr, config.algorithm_options["mu"]) == (best["lr"], best["mu"])
    assert (config.rounds, config.evaluate_on, config.folder) == (6, "test", None)
    table = pq.read_table(halved.folder / "results.parquet")
    assert table.equals(halved.trials)


def test_proposals_follow_from_what_came_of_those_before(halved):
    """An Optuna study that is told all of the first batch proposes the second."""
    rows, spaces = halved.trials.to_pylist(), {}
    for name, (low, high) in {"algorithm.mu": (0.01, 10.0), "lr": (0.001, 1.0)}.items():
        spaces[name] = optuna.distributions.FloatDistribution(low, high, log=True)
    study = optuna.create_study(direction="maximize")
    for row in rows[:3]:
        finished = row["outcome"] == "finished"
        state = optuna.trial.TrialState
        trial = optuna.trial.create_trial(
            params={"lr": row["lr"], "algorithm.mu": row["mu"]},
            distributions=spaces,
            state=state.COMPLETE if finished else state.PRUNED,
            value=row["validation_accuracy"] if finished else None,
            intermediate_values={row["rounds"]: row["validation_accuracy"]},
        )
        study.add_trial(trial)
    for number in (3, 4):
        seed = int(np.random.SeedSequence([4, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        proposed = study.ask(spaces).params
        assert proposed == {
            "lr": rows[number]["lr"],
            "algorithm.mu": rows[number]["mu"],
        }
    assert len({row["lr"] for row in rows}) == 5


@pytest.mark.parametrize(
    ("rounds", "trials", "halve", "found"),
    [
        (81, 27, 3, [3, 9, 27, 81]),
        (81, 26, 3, [9, 27, 81]),
        (100, 8, 2, [12, 25, 50, 100]),
        (2, 8, 2, [1, 2]),
        (100, 2, 3, [100]),
        (100, 8, None, [100]),
    ],
)
def test_rungs_are_those_of_successive_halving(rounds, trials, halve, found):
    assert rungs(rounds, trials, halve) == found


@pytest.mark.slow
@pytest.mark.parametrize("after", [2, 7, 9, 12])
def test_a_search_that_was_stopped_goes_on_as_it_would_have(tmp_path, halved, after):
    seen = []

    def stop(now):
        seen.append(now)
        if len(seen) >= after:
            raise Stop

    with pytest.raises(Stop):
        tune(SEARCH, tmp_path / "search", progress=stop, **HALVED)
    found = tune(tmp_path / "search" / "tune.toml", tmp_path / "search", True)
    assert found.trials.equals(halved.trials) and found.best == halved.best


@pytest.mark.slow
def test_a_search_goes_on_for_more_trials(tmp_path, halved):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    said = []
    more = tune(SEARCH, folder, True, said.append, **HALVED | {"trials": 6})
    assert more.trials.slice(0, 5).equals(halved.trials) and len(more.trials) == 6
    assert [p.note for p in said if p.note] == ["trial 5: 1 of them, up to round 6"]
    shown = {p.accuracy_name for p in said if p.accuracy is not None}
    assert shown == {"000-fedprox, trial 5: validation accuracy"}
    with pytest.raises(SettingError, match="of 6 trials; write trials=6 or more"):
        tune(folder / "tune.toml", folder, True)  # which is for 5


@pytest.mark.slow
def test_what_was_tried_is_not_trained_again(tmp_path):
    """Two choices in four trials: two runs."""
    search = {"run": RUN, "space": {"lr": [0.1, 0.3]}}
    found = tune(search, tmp_path / "search", trials=6, at_once=2, seed=1)
    rows = found.trials.to_pylist()
    trained = [*(tmp_path / "search").glob("trials-*/rounds-6/trials/*")]
    assert len(trained) == len({row["lr"] for row in rows}) == 2
    of = {row["lr"]: row["validation_accuracy"] for row in rows}
    assert all(of[row["lr"]] == row["validation_accuracy"] for row in rows)


def test_trials_have_the_numbers_of_the_search(tmp_path, monkeypatch):
    """Those that are trained, in every rung."""
    told = []

    def results(asked, place, note, progress):
        told.append((place.name, [trial.shown for trial in asked.trials]))
        assert [trial.number for trial in asked.trials] == [*range(len(asked.trials))]
        rates = [trial.config.lr for trial in asked.trials]
        columns = {"diverged_round": [None] * len(rates), "validation_accuracy": rates}
        return pa.table(columns)

    monkeypatch.setattr(module, "_swept", results)
    search = read_search(SEARCH, trials=8, at_once=4, halve=2)
    proposed = [{"lr": x, "algorithm.mu": 0.1} for x in (0.1, 0.2, 0.1, 0.3)]
    monkeypatch.setattr(module, "proposals", lambda *_: proposed)
    came = {"rounds": 6, "validation_accuracy": 0.5, "outcome": "finished"}
    before = [module._Row(proposed[0], came)] * 4
    module._batch(search, tmp_path, before, print)
    assert told == [("rounds-3", [5, 7]), ("rounds-6", [7])]
    trial = Trial(0, {"lr": 0.1}, Config(), in_search=5)
    with pytest.raises(SettingError, match=r"^trial 5 \(lr=0.1\): no$"):
        with groups._about(trial):
            raise SettingError("no")


@pytest.mark.slow
def test_what_diverges_is_the_worst(tmp_path, capsys):
    space = tmp_path / "space.toml"
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in RUN.items())
    space.write_text(f"[run]\n{settings}[space]\nlr = [0.1, 1e12]\n")
    line = f"tune {space} --folder {tmp_path / 'search'} --trials 4 --at-once 4"
    code, out, _ = fedjax_adapt(capsys, f"{line} --json")
    found = json.loads(out)
    assert code == 0 and found["status"] == "finished" and found["best"] == {"lr": 0.1}
    came = {row["lr"]: row for row in found["trials"]}
    assert came[1e12]["outcome"] == "diverged"
    assert came[1e12]["validation_accuracy"] is None
    assert came[0.1]["outcome"] == "finished"
    code, out, err = fedjax_adapt(
        capsys, f"tune --folder {tmp_path / 'search'} --resume"
    )
    assert code == 0 and "the best of 4 trials" in out and not err
    assert f"settings  {tmp_path / 'search' / 'best.toml'}" in out
    (tmp_path / "all.toml").write_text(f"[run]\n{settings}[space]\nlr = [1e11, 1e12]\n")
    line = f"tune {tmp_path / 'all.toml'} --folder {tmp_path / 'all'} --trials 2"
    code, _, err = fedjax_adapt(capsys, line)
    assert code == 1 and "all 2 trials diverged; write lower numbers for lr" in err
    assert not (tmp_path / "all" / "best.toml").exists()


@pytest.mark.slow
def test_rounds_may_be_chosen(tmp_path):
    search = {"run": {n: v for n, v in RUN.items() if n != "rounds"}}
    search["space"] = {"rounds": [1, 2]}
    found = tune(search, tmp_path / "search", trials=3, at_once=3)
    for row in found.trials.to_pylist():
        assert row["outcome"] == "finished" and row["rounds"] in (1, 2)


def test_of_what_kind_a_setting_is_says_the_setting():
    space = {
        "lr": {"low": 1, "high": 2},  # a float, though it is written without a point
        "num_steps": {"low": 1, "high": 9, "step": 2},
        "algorithm": {"mu": [0, 0.1]},
        "momentum": {"low": 0.0, "high": 0.5, "step": 0.25},
    }
    run = {name: value for name, value in RUN.items() if name != "num_steps"}
    found = read_search({"run": run, "space": space}).space
    of = optuna.distributions
    assert found == {
        "algorithm.mu": of.CategoricalDistribution([0, 0.1]),
        "lr": of.FloatDistribution(1.0, 2.0),
        "momentum": of.FloatDistribution(0.0, 0.5, step=0.25),
        "num_steps": of.IntDistribution(1, 9, step=2),
    }


BAD = [  # what is in the file in place of the space, and what is said of it
    ({"space": {}}, "there is no space; write [space] and below it"),
    (
        {"space": {"lr": 0.1}},
        "lr=0.1 is nothing to choose from; write two values or more",
    ),
    ({"space": {"lr": [0.1]}}, "lr=[0.1] is nothing to choose from"),
    ({"space": {"lr": [0.1, 0.1]}}, "is nothing to choose from"),
    ({"space": {"lr": {"low": 0.1}}}, "is not a range; write two numbers, as in lr ="),
    ({"space": {"lr": {"low": 1, "high": 0.1}}}, "lr: low=1 must be below high=0.1."),
    ({"space": {"lr": {**RATE, "low": 0}}}, "lr: log is of numbers above 0"),
    ({"space": {"lr": {**RATE, "step": 0.1}}}, "lr: log is of numbers above 0 without"),
    (
        {"space": {"lr": {**RATE, "hihg": 1}}},
        "lr: the key='hihg' is unknown; did you mean",
    ),
    ({"space": {"lr": {"low": -1, "high": 1}}}, "lr=-1.0 must be a finite number"),
    ({"space": {"lrr": RATE}}, "lrr is unknown; did you mean"),
    ({"space": {"model": RATE}, "run": {}}, "model=0.001"),
    (
        {"space": {"seed": [0, 1]}},
        "seed is not a setting to choose, as the best would be luck",
    ),
    (
        {"space": {"mu": [0, 1], "algorithm": ["fedprox", "fedavg"]}, "run": {}},
        "fedprox, moon; leave it out, or tune what has it by itself.",
    ),
    (
        {"space": {"num_steps": {"low": 1, "high": 2.5}}, "run": {}},
        "num_steps=2.5; write an integer",
    ),
    (
        {"space": {"lr": RATE}, "run": {**RUN, "evaluate_on": "test"}},
        "evaluate_on=test would",
    ),
    (
        {"space": {"lr": RATE}, "run": {**RUN, "lr": 0.1}},
        "lr stands below [run] and below [space]; leave",
    ),
    ({"space": {"lr": RATE}, "grid": {}}, "the table='grid' is unknown; write one of"),
    ({"space": {"lr": RATE}, "tune": {"trails": 3}}, "did you mean 'trials'?"),
    (
        {"space": {"lr": RATE}, "tune": {"trials": 0}},
        "trials=0 must be an integer >= 1.",
    ),
    ({"space": {"lr": RATE}, "tune": {"halve": 1}}, "halve=1 must be an integer >= 2."),
    (
        {"space": {"rounds": [1, 2]}, "run": {}, "tune": {"halve": 2}},
        "halve is about the",
    ),
    ({"space": [1]}, "space is not a table; write [space]"),
    (
        {"space": {"lr": RATE}, "tune": {"trials": 10**8}},
        "trials=100000000 must be at most",
    ),
    ({"space": {"lr": RATE}, "tune": {"seed": True}}, "seed=True is not a number"),
    (
        {"space": {"lr": RATE}, "tune": {"halve": 9}},
        "halve=9 leaves no trial of at_once=8",
    ),
    ({"space": {"lr": RATE | {"log": "yes"}}}, "lr: log='yes'; write log = true"),
    (
        {"space": {"lr": {"low": 0.1, "high": 0.2, "step": 0.3}}},
        "lr: step=0.3 does not lead from low=0.1 to high=0.2; write a step that does.",
    ),
    (
        {"space": {"evaluate_on": ["test", "validation"]}},
        "evaluate_on is not a setting to",
    ),
    ({"space": {"lr": RATE}, "folder": 3}, "folder=3; write a text."),
    (
        {"space": {"lr": RATE}, "run": RUN | {"public": "published"}},
        "public=published takes the test set, but evaluate_on=validation leaves it alone",
    ),
    (
        {"space": {"num_clients": [4, 10**6]}, "run": {"partition": "iid"}},
        "num_clients=1000000",
    ),
]


@pytest.mark.parametrize("tables, says", BAD)
def test_a_mistake_is_one_sentence(tables, says, tmp_path):
    with pytest.raises(SettingError) as error:
        tune({"run": RUN, **tables}, tmp_path / "search")
    said = str(error.value)
    assert says in said and "\n" not in said and said[-1] in ".?", said
    assert "grid" not in said.replace("'grid' is", ""), said
    assert not (tmp_path / "search").exists()


def test_a_mistake_in_a_file_names_the_file(elsewhere, capsys):
    Path("space.toml").write_text("[run]\nrounds = 1\n[space]\nlrr = [1, 2]\n")
    code, _, err = fedjax_adapt(capsys, "tune space.toml")
    assert code == 2 and err.startswith("fedjax-adapt: space.toml: lrr is unknown"), err
    assert [path.name for path in elsewhere.iterdir()] == ["space.toml"]
    for line, says in {
        "tune": "tune got 0 files before its flags; give one, as in",
        "tune nothing.toml": "tune=nothing.toml cannot be read (No such file",
        "tune --folder a --resume": "--folder a holds no search to resume: it has no tune",
        "tune space.toml --trials 0": "trials=0 must be an integer >= 1.",
    }.items():
        code, _, err = fedjax_adapt(capsys, line)
        assert code == 2 and says in err and err.count("\n") == 1, err


def test_a_folder_of_something_else_is_refused(tmp_path, halved):
    with pytest.raises(SettingError, match="holds this search; write --resume"):
        tune(SEARCH, halved.folder, **HALVED)
    for other, says in {
        "at_once": "with at_once=3, here at_once=4; write what it has",
        "halve": "with halve=3, here halve=2;",
        "seed": "with seed=4, here seed=5;",
    }.items():
        with pytest.raises(SettingError, match=says):
            number = 2 if other == "halve" else HALVED[other] + 1
            tune(SEARCH, halved.folder, True, **HALVED | {other: number})
    with pytest.raises(SettingError, match="with num_steps=2, here num_steps=3;"):
        tune({**SEARCH, "run": RUN | {"num_steps": 3}}, halved.folder, True, **HALVED)
    with pytest.raises(SettingError, match=r"with lr=\{.*\}, here lr=\[0.1, 1\];"):
        space = SPACE | {"lr": [0.1, 1]}
        tune({"run": RUN, "space": space}, halved.folder, True, **HALVED)
    (tmp_path / "notes").touch()
    with pytest.raises(SettingError, match="holds files that are no search"):
        tune(SEARCH, tmp_path)


@pytest.mark.parametrize("name", ["tune.toml", "trials-0000.json"])
def test_a_file_that_is_damaged_is_named(tmp_path, halved, name):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("0", "1", 1))
    with pytest.raises(SettingError, match=f"{name} is not as it was written"):
        tune(SEARCH, folder, True, **HALVED)


def test_a_trial_that_is_gone_is_said(tmp_path, halved):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    shutil.rmtree(folder / "trials-0000" / "rounds-2" / "trials" / "0001")
    with pytest.raises(SettingError, match="trials/0001/files.sha256 is missing"):
        tune(SEARCH, folder, True, **HALVED)


@pytest.mark.parametrize("flag", ["--json", "--quiet"])
def test_ctrl_c_says_how_to_go_on(elsewhere, capsys, monkeypatch, flag):
    from fedjax_adapt.cli import tune as command

    def stop(search, folder, resume, report):
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_tune", stop)
    Path("my space.toml").write_text("[space]\nlr = [0.1, 0.3]\n")
    words = ["tune", "my space.toml", "--folder", "my search", "--at-once", "4", flag]
    assert main(words) == 130
    again = f"{shlex.join(['fedjax-adapt', *words])} --resume"
    said = f"interrupted, my search has what is finished; write {again} to go on.\n"
    assert capsys.readouterr().err.endswith(said)


def test_without_optuna_the_package_is_named(monkeypatch):
    monkeypatch.setattr(space_module, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"write pip install 'fedjax-adapt\[tune\]'"):
        read_search(SEARCH)


@pytest.mark.slow
def test_objects_are_tuned_as_names_are(tmp_path):
    from fedjax_adapt.algorithms import fedavg

    search = {"run": {n: v for n, v in RUN.items() if n != "algorithm"}}
    search["space"] = {"lr": [0.1, 0.3]}
    found = tune(search, tmp_path / "search", algorithm=fedavg(), trials=2)
    named = tune(
        search | {"run": search["run"] | {"algorithm": "fedavg"}},
        tmp_path / "named",
        trials=2,
    )
    assert found.trials.equals(named.trials)


@pytest.mark.slow
def test_a_trial_is_the_run_with_its_settings(tmp_path, halved):
    """All rounds, on the same validation examples."""
    whole = [row for row in halved.trials.to_pylist() if row["outcome"] == "finished"]
    row = whole[-1]
    options = {name: value for name, value in RUN.items() if name != "algorithm"}
    config = Config(
        folder=str(tmp_path / "run"),
        algorithm="fedprox",
        algorithm_options={"mu": row["mu"]},
        evaluate_on="validation",
        lr=row["lr"],
        **options,
    )
    accuracy = run(config).accuracy
    assert accuracy == pytest.approx(row["validation_accuracy"], abs=0.01)


@pytest.mark.slow
def test_a_dry_run_says_how_many_are_tried_in_how_many_rounds(elsewhere, capsys):
    (elsewhere / "space.toml").write_text(to_toml(read_search(SEARCH, **HALVED)))
    line = "tune space.toml --folder mine --dry-run"
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, err) == (0, "")
    assert "000-fedprox, 3 trials" in out and "4, 2.1 expected in a round" in out
    trials = "5 trials, 3 at once: 3 up to round 2, of which 1 up to round 6;"
    assert trials in out and out.splitlines()[-1].split() == ["folder", "mine"]
    code, out, _ = fedjax_adapt(capsys, f"{line} --json")
    said = json.loads(out)
    assert (said["status"], said["trials"], said["proposed"]) == ("dry run", 5, 0)
    assert said["rungs"] == {"2": 3, "6": 1}
    assert [path.name for path in elsewhere.iterdir()] == ["space.toml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "trials", "found"),
    [([0.1, 0.3], 9, {3: 2, 6: 1}), (RATE, 3, {3: 3, 6: 1}), (RATE, 1, {6: 1})],
)
def test_a_dry_run_counts_what_is_trained(tmp_path, lr, trials, found):
    """Not what is proposed twice, nor more than there are trials."""
    search = {"run": RUN, "space": {"lr": lr}}
    search = read_search(search, trials=trials, at_once=8, halve=2)
    said = preview_search(search, tmp_path / "mine")
    assert said.rungs == found
    (group,) = said.first.groups
    assert len(group.trials) == max(found.values())


@pytest.mark.slow
def test_a_dry_run_of_a_search_that_has_begun(halved, capsys):
    line = f"tune --folder {halved.folder} --resume --dry-run"
    code, out, err = fedjax_adapt(capsys, f"{line} --trials 9")
    assert (code, err) == (0, "")
    assert "9 trials, 5 of them proposed already, 3 at once" in out
    code, _, err = fedjax_adapt(capsys, f"{line} --trials 3")
    assert code == 2 and "holds a search of 5 trials" in err


@pytest.mark.slow
def test_the_guide_searches(elsewhere, capsys):
    page = Path(__file__).parents[2] / "docs" / "guides" / "choosing-settings.md"
    (space,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    (elsewhere / "space.toml").write_text(space)
    assert [*read_search("space.toml").space] == ["algorithm.mu", "lr"]
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(compile(code, "choosing-settings.md", "exec"), names)
    found = names["found"]
    assert capsys.readouterr().out == f"{found.best} {found.accuracy}\n"
    assert len(found.trials) == 4 and (elsewhere / "runs/search/best.toml").exists()


def test_a_pruned_trial_is_never_the_best(tmp_path, monkeypatch):
    """However accurate it was after the rounds that it had."""

    def batch(search, place, before, progress):
        came = [
            (0.3, 2, "pruned", 0.9),
            (0.1, 6, "finished", 0.5),
            (0.2, 6, "finished", 0.5),
        ]
        names = ("rounds", "outcome", "validation_accuracy")
        return [
            module._Row({"lr": rate}, dict(zip(names, others, strict=True)))
            for rate, *others in came
        ]

    monkeypatch.setattr(module, "_batch", batch)
    search = {"run": RUN, "space": {"lr": [0.1, 0.2, 0.3]}}
    found = tune(search, tmp_path / "search", trials=3)
    assert (found.best, found.accuracy) == ({"lr": 0.1}, 0.5)  # of equals the first
    assert read_config(tmp_path / "search" / "best.toml").lr == 0.1


def test_a_trial_whose_accuracy_is_not_a_number_is_never_the_best(
    tmp_path, monkeypatch
):
    def results(asked, place, note, progress):
        mine = [trial.config.lr for trial in asked.trials]
        shares = [float("nan") if rate == 0.1 else rate for rate in mine]
        lost = pa.nulls(len(mine), pa.int64())
        return pa.table({"diverged_round": lost, "validation_accuracy": shares})

    monkeypatch.setattr(module, "_swept", results)
    points = [{"lr": rate} for rate in (0.1, 0.3, 0.2)]
    monkeypatch.setattr(module, "proposals", lambda *_: points)
    search = {"run": RUN, "space": {"lr": [0.1, 0.2, 0.3]}}
    found = tune(search, tmp_path / "search", trials=3, at_once=3)
    assert (found.best, found.accuracy) == ({"lr": 0.3}, 0.3)
    assert found.trials["validation_accuracy"].to_pylist() == [None, 0.3, 0.2]


@pytest.mark.parametrize(
    ("at_once", "halve", "went_on"),
    [(9, 3, [9, 3, 1]), (8, 2, [8, 4, 2, 1]), (8, 3, [8, 2])],
)
def test_the_best_of_each_rung_go_on(tmp_path, monkeypatch, at_once, halve, went_on):
    """Accuracy is lr here; the highest two diverge in the first rung."""
    swept, rates = [], np.linspace(0.1, 0.9, at_once).tolist()

    def results(asked, place, note, progress):
        mine = [trial.config.lr for trial in asked.trials]
        swept.append(mine)
        lost = [rate in rates[-2:] for rate in mine]
        columns = {
            "diverged_round": [1 if gone else None for gone in lost],
            "validation_accuracy": [
                None if gone else rate for rate, gone in zip(mine, lost, strict=True)
            ],
        }
        return pa.table(columns)

    monkeypatch.setattr(module, "_swept", results)
    search = read_search({"run": RUN | {"rounds": 27}, "space": SPACE}, halve=halve)
    points = {i: {"lr": rate, "algorithm.mu": 0.1} for i, rate in enumerate(rates)}
    came = module._train(search, tmp_path, points, "", print)
    assert [len(rung) for rung in swept] == went_on
    assert [one["outcome"] for one in came[-2:]] == ["diverged"] * 2
    for rung in swept[1:]:
        assert rung == rates[-2 - len(rung) : -2]  # the best of those that are left
    assert [one["outcome"] for one in came].count("finished") == 1 or went_on[-1] > 1
    assert came[-3]["outcome"] == "finished" and came[-3]["rounds"] == 27


def test_what_no_run_may_have_is_not_proposed(monkeypatch):
    """A combination that the ends of no range show, as the settings of a run refuse it."""
    search = read_search(SEARCH, seed=2, at_once=6, trials=6)
    free = module.proposals(search, [])
    real, limit = module.sweep_of, float(np.median([point["lr"] for point in free]))

    def refusing(search, points, rounds):
        if points[0]["lr"] > limit:
            raise SettingError(f"lr={points[0]['lr']} is too much.")
        return real(search, points, rounds)

    monkeypatch.setattr(module, "sweep_of", refusing)
    found = module.proposals(search, [])
    assert len(found) == 6 and all(point["lr"] <= limit for point in found)
    assert found == module.proposals(search, [])  # they follow from the seed
    limit = 0.0
    says = (
        "write a smaller space: none of 100 proposals for trial 0 is allowed, the last"
    )
    with pytest.raises(
        SettingError, match=rf"^{says} [^.]*: lr=[\d.e-]* is too much\.$"
    ):
        module.proposals(search, [])


def test_what_only_a_first_rung_refuses_is_not_proposed(monkeypatch):
    search = read_search(SEARCH, seed=2, at_once=6, trials=6, halve=3)
    free = module.proposals(search, [])
    limit = float(np.median([point["lr"] for point in free]))

    def refusing(search, points, rounds):
        if rounds == 2 and points[0]["lr"] > limit:
            raise SettingError("no.")

    monkeypatch.setattr(module, "sweep_of", refusing)
    found = module.proposals(search, [])
    assert len(found) == 6 and all(point["lr"] <= limit for point in found)


def test_proposals_that_are_damaged_are_said(tmp_path, halved):
    folder = shutil.copytree(halved.folder, tmp_path / "copy")
    (folder / "files.sha256").unlink()
    (folder / "trials-0003.json").write_text("{}")
    with pytest.raises(
        SettingError, match=r"trials-0003.json is damaged: it holds no p"
    ):
        tune(SEARCH, folder, resume=True, **HALVED)


def test_what_optuna_is_told():
    search = read_search(SEARCH)
    point = {"lr": 0.1, "algorithm.mu": 1.0}
    names = ("rounds", "validation_accuracy", "outcome")
    told = lambda *came: module._frozen(
        search, module._Row(point, dict(zip(names, came, strict=True)))
    )
    state = optuna.trial.TrialState
    for came, (value, of_rounds, wanted) in {
        (6, 0.7, "finished"): (0.7, {6: 0.7}, state.COMPLETE),
        (2, 0.4, "pruned"): (None, {2: 0.4}, state.PRUNED),
        (6, None, "diverged"): (0.0, {6: 0.0}, state.COMPLETE),
    }.items():
        trial = told(*came)
        assert (trial.value, trial.state) == (value, wanted)
        assert trial.intermediate_values == of_rounds and trial.params == point


def test_a_search_never_gets_smaller(tmp_path, halved):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    with pytest.raises(SettingError, match="of 5 trials; write trials=5 or more"):
        tune(SEARCH, folder, True, **HALVED | {"trials": 4})
    assert pq.read_table(folder / "results.parquet").equals(halved.trials)


@pytest.mark.parametrize("name", ["best.toml", "results.parquet"])
def test_what_was_changed_by_hand_is_not_overwritten(tmp_path, halved, name):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    (folder / name).write_text("mine")
    with pytest.raises(SettingError, match=f"{name} is not as it was written"):
        tune(SEARCH, folder, True, **HALVED)
    assert (folder / name).read_text() == "mine"
    (folder / name).unlink()
    assert tune(SEARCH, folder, True, **HALVED).best == halved.best
    assert (folder / name).exists()


def test_trials_of_fewer_rounds_are_not_compared_with_others(
    tmp_path, halved, monkeypatch
):
    folder = halved.folder
    (sheet,) = sheets([folder])
    whole = [row for row in halved.trials.to_pylist() if row["outcome"] == "finished"]
    assert len(sheet.numbers) == len(whole) == 3
    assert {line["rounds"] for line in sheet.numbers} == {6}
    pruned = folder / "trials-0000" / "rounds-2"
    assert sheet.notes[-1].startswith(f"{pruned}: its trials are not here, they have")
    assert len(sheets([pruned])[0].numbers) == 3  # where they are asked for
    batch = pruned.parent
    assert len(sheets([batch])[0].numbers) == 1
    monkeypatch.chdir(batch)
    assert len(sheets(["."])[0].numbers) == 1
    # no number is longer than four digits, in full for other programs
    for line, cells in zip(sheet.numbers, sheet.cells, strict=True):
        mu = float(re.fullmatch(r"fedprox\(mu=(.*)\)", line["method"])[1])
        assert cells[1] == f"fedprox(mu={mu:.4g})"
    assert not re.search(r"=\d+\.\d{7}", " ".join(sheet.notes))
    begun = tmp_path / "begun"
    shutil.copytree(folder, begun)
    shutil.rmtree(begun / "trials-0003")
    shutil.rmtree(begun / "trials-0000" / "rounds-6")
    (begun / "files.sha256").unlink()
    says = (
        "holds a search with no trial of all rounds; resume it first, or give one of "
    )
    place = begun / "trials-0000" / "rounds-2"
    with pytest.raises(SettingError, match=rf"{says}its sweeps, as {place}\.$"):
        sheets([begun])


def test_a_search_without_settings_of_runs_is_said(tmp_path, halved, capsys):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    (folder / "files.sha256").unlink()
    (folder / "tune.toml").write_text("[space]\nlr = [0.1, 0.3]\n")
    for place in (folder, folder / "trials-0000"):
        code, _, err = fedjax_adapt(capsys, f"compare {place}")
        says = f"{folder / 'tune.toml'} is damaged: it has no [run]; put back what was"
        assert code == 2 and says in err and err.count("\n") == 1, err


def test_rounds_that_are_not_written_are_those_of_any_run(tmp_path):
    rounds = common_options()["rounds"].default
    assert read_search({"space": {"lr": RATE}}).rounds == rounds
    for name in (f"rounds-{rounds}", "rounds-2"):
        place = tmp_path / "trials-0000" / name
        (place / "groups").mkdir(parents=True)
        (place / "sweep.toml").touch()
    (tmp_path / "tune.toml").write_text("[run]\n[space]\nlr = [0.1, 0.3]\n")
    assert records.parts_below(tmp_path)[2] == [tmp_path / "trials-0000" / "rounds-2"]


def test_a_batch_that_is_gone_is_said(tmp_path, halved, capsys):
    folder = tmp_path / "search"
    shutil.copytree(halved.folder, folder)
    shutil.rmtree(folder / "trials-0000")
    for line in (f"compare {folder}", f"tune --folder {folder} --resume"):
        code, out, err = fedjax_adapt(capsys, line)
        assert code == 2 and "trials-0000/rounds-2/files.sha256 is missing" in err, err


def test_no_search_begins_within_another(halved, capsys):
    with pytest.raises(SettingError, match="which holds a search; give another folder"):
        tune(SEARCH, halved.folder / "sub", **HALVED)
    assert not (halved.folder / "sub").exists()


def test_a_flag_is_not_said_to_stand_in_the_file(elsewhere, capsys):
    Path("space.toml").write_text("[space]\nlr = [0.1, 0.2]\n")
    code, _, err = fedjax_adapt(capsys, "tune space.toml --seed -1")
    assert code == 2 and err.startswith("fedjax-adapt: seed=-1 must be"), err
    code, _, err = fedjax_adapt(capsys, "tune --resume")
    assert code == 2 and err.startswith("fedjax-adapt: --folder runs/tuned holds no"), (
        err
    )


def test_what_came_of_earlier_trials_decides_the_next():
    """From the eleventh on, as the first ten are random."""
    search = read_search(SEARCH, trials=20, at_once=1)
    rates = np.geomspace(0.001, 1, 12).tolist()

    def proposed(accuracies):
        came = [
            {"rounds": 6, "validation_accuracy": value, "outcome": "finished"}
            for value in accuracies
        ]
        points = [{"lr": rate, "algorithm.mu": 0.1} for rate in rates]
        rows = [module._Row(*pair) for pair in zip(points, came, strict=True)]
        return module.proposals(search, rows)[0]["lr"]

    rising = [0.1 + 0.05 * i for i in range(12)]
    assert proposed(rising) > proposed(rising[::-1])


def test_a_space_of_numpy_is_that_of_its_file():
    space = {
        "lr": np.logspace(-2, -1, 2),
        "momentum": {"low": np.float32(0), "high": 0.5},
    }
    space["num_steps"] = list(np.arange(1, 3))
    tables = {"run": {"rounds": np.int64(2)}, "space": space}
    search = read_search(tables, trials=np.int64(4))
    assert "lr = [0.01, 0.1]" in to_toml(search)
    assert read_search(tomllib.loads(to_toml(search))) == search


@pytest.mark.slow
def test_none_and_tuples_are_those_of_the_file(tmp_path):
    run = RUN | {"clip_norm": None}
    tune({"run": run, "space": {"lr": (0.1, 0.3)}}, tmp_path / "search", trials=1)
    again = tune(tmp_path / "search" / "tune.toml", tmp_path / "search", True, trials=1)
    assert len(again.trials) == 1
    assert read_search(tmp_path / "search" / "tune.toml").run["clip_norm"] == "none"
    assert read_config(tmp_path / "search" / "best.toml").clip_norm is None


def test_a_setting_that_a_rung_does_not_allow_is_said_before_anything_is_written(
    tmp_path,
):
    run = {"rounds": 9, "later_steps": [5, 1], "algorithm": "fedavg", "num_steps": 2}
    with pytest.raises(SettingError, match="with halve=3 trials first have 3 rounds: "):
        tune({"run": run, "space": {"lr": RATE}}, tmp_path / "a", at_once=3, halve=3)
    assert not (tmp_path / "a").exists()
