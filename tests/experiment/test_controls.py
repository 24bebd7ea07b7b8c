"""`fedjax-adapt run --algorithm fnr --controls`: the run, its controls and their table."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from helpers import fedjax_adapt

from fedjax_adapt.experiment import files, read_run, store
from fedjax_adapt.experiment.config import to_settings, to_toml
from fedjax_adapt.experiment.controls import (
    sweep_with_controls,
    unfinished,
    with_controls,
)
from fedjax_adapt.experiment.folder import run_folder
from fedjax_adapt.experiment.sweeps import results
from fedjax_adapt.experiment.sweeps.grid import read_sweep

pytestmark = pytest.mark.usefixtures("elsewhere")

LINE = (
    "run --algorithm fnr --model linear --num-clients 4 --participation 1 --rounds 2 "
    "--epochs 1 --batch-size 100 --public-examples 30 --algorithm-epochs 2 "
    "--fraction 0.25 --variant literal --devices 1 --folder mine"
)
RUNNING = import_module("fedjax_adapt.cli.run")
FOLDERS = ("mine", *(f"mine-control-{x}" for x in ("weight0", "pubft", "public")))


@pytest.mark.slow
def test_one_flag_makes_the_controls_and_a_table_in_which_none_is_missing(
    capsys, elsewhere
):
    code, out, err = fedjax_adapt(capsys, f"{LINE} --controls")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(FOLDERS)
    runs = [read_run(name) for name in FOLDERS]
    methods = [record.summary["method"] for record in runs]
    work = "fraction=0.25, algorithm_epochs=2)"
    assert methods[2:] == [f"fedavg_pubft({work}", f"public_only({work}"]
    assert "weight=0.0" in methods[1] and "weight" not in methods[0]
    table = out[out.rindex("digits, test accuracy on 360 examples") :]
    assert all(f"{name}, seed 0" in table for name in FOLDERS[:1])
    assert "here without" not in table
    for name in ("data", "public_steps"):
        assert all(run.summary[name] == runs[0].summary[name] for run in runs)
    # the literal penalty has no gradient: it is its own control
    assert runs[0].summary["loss"] == runs[1].summary["loss"]
    code, again, err = fedjax_adapt(capsys, "run --folder mine --resume --controls")
    assert (code, err, again.lstrip()) == (0, "", table)


@pytest.fixture
def trained(monkeypatch):
    """The folders of the runs that would have been trained, which look finished."""
    folders = []

    def train(config, resume, report):
        folder = run_folder(config)
        assert resume or not folder.exists()
        folder.mkdir(exist_ok=True)
        files.write_text(folder / store.CONFIG, to_toml(config))
        summary = {
            **{"folder": str(folder), "accuracy": 0.5, "best_accuracy": 0.5},
            **{"rounds": 2, "seeds": {"seed": 0}, "data": {"name": "d", "test": 9}},
            "public": {"protocol": "holdout", "examples": 30, "used": True},
        }
        files.write_text(folder / store.SUMMARY, json.dumps(summary))
        folders.append(folder.name)

    monkeypatch.setattr(RUNNING, "train", train)
    monkeypatch.setattr(RUNNING, "_show", lambda *_: None)
    return folders


@pytest.mark.slow
def test_what_is_finished_stays_and_what_is_half_finished_goes_on(
    capsys, elsewhere, trained
):
    assert fedjax_adapt(capsys, LINE)[0] == 0 and trained == ["mine"]
    for _ in range(2):
        code, out, err = fedjax_adapt(capsys, f"{LINE} --controls")
        assert (code, err) == (0, "") and trained == list(FOLDERS)
        assert "d, test accuracy on 9 examples" in out and "here without" not in out
    (elsewhere / FOLDERS[2] / store.SUMMARY).unlink()
    code, _, err = fedjax_adapt(capsys, f"{LINE} --controls")
    assert code == 2 and f"folder={FOLDERS[2]} holds this run, half finished" in err
    code, _, err = fedjax_adapt(capsys, f"{LINE} --controls --lr 0.2")
    another = "folder=mine holds another run (lr=0.1, here lr=0.2); give another folder"
    assert code == 2 and another in err
    assert trained == list(FOLDERS)
    code, _, err = fedjax_adapt(capsys, "run --folder mine --resume --controls")
    assert (code, err) == (0, "") and trained == [*FOLDERS, FOLDERS[2]]


def test_each_run_is_held_against_controls_with_its_own_loss(
    capsys, elsewhere, trained
):
    assert fedjax_adapt(capsys, f"{LINE} --controls")[0] == 0
    line = f"{LINE.replace('mine', 'summed')} --batch-loss sum --controls"
    code, out, _ = fedjax_adapt(capsys, line)
    assert code == 0 and "here without" not in out
    others = " ".join(["summed", *FOLDERS[1:]])
    code, out, _ = fedjax_adapt(capsys, f"compare {others}")
    assert code == 0 and out.count("algorithm.batch_loss=mean, not sum") == 3


def test_controls_share_every_setting_but_the_method(tiny):
    options = {"base": "scaffold", "upload": "twice", "epochs": 3, "lr": 0.5}
    options |= {"batch_size": 8, "batch_loss": "sum"}
    config = tiny(algorithm="fnr", algorithm_options=options, seed=4)
    first, *others = (to_settings(one) for one in with_controls(config))
    assert first == to_settings(config)
    own = {"algorithm", "folder", "algorithm.weight"}
    for one in others:
        same = set(one) & set(first) - own
        assert all(one[name] == first[name] for name in same)
        for name in ("epochs", "lr", "batch_size", "batch_loss"):
            assert one[f"algorithm.{name}"] == options[name]
    assert [one["algorithm"] for one in others] == [
        "fnr",
        "fedavg_pubft",
        "public_only",
    ]
    assert (
        others[0]["algorithm.weight"] == 0 and others[1]["algorithm.base"] == "scaffold"
    )
    assert set(first) - set(others[0]) == set()
    names = [one["folder"].removeprefix(first["folder"]) for one in others]
    assert names == ["-control-weight0", "-control-pubft", "-control-public"]


def test_a_run_without_a_penalty_is_a_control_itself(tiny):
    config = tiny(algorithm="fnr", algorithm_options={"weight": 0.0})
    names = [one.algorithm for one in with_controls(config)]
    assert names == ["fnr", "fedavg_pubft", "public_only"]


def test_a_folder_that_is_taken_is_said_before_anything_is_run(tiny, elsewhere):
    configs = with_controls(tiny(algorithm="fnr"))
    assert unfinished(configs, False) == configs
    taken = Path(f"{configs[0].folder}-control-pubft")
    taken.mkdir()
    files.write_text(taken / store.CONFIG, to_toml(tiny(algorithm="fedavg")))
    with pytest.raises(ValueError, match="holds another run .algorithm=fedavg, here"):
        unfinished(configs, False)


def test_who_is_interrupted_in_a_control_is_told_to_go_on_with_all(
    capsys, monkeypatch, elsewhere
):
    def train(config, resume, report):
        run_folder(config).mkdir()
        if "pubft" in config.folder:
            raise KeyboardInterrupt

    monkeypatch.setattr(RUNNING, "train", train)
    monkeypatch.setattr(RUNNING, "_show", lambda *_: None)
    code, _, err = fedjax_adapt(capsys, f"{LINE} --controls")
    assert code == 130
    assert f"write fedjax-adapt {LINE} --controls --resume to begin" in err
    assert {path.name for path in elsewhere.iterdir()} == set(FOLDERS[:3])


SWEEP = {
    "run": {"algorithm": {"name": "fnr", "epochs": 2}, "public_examples": 30},
    "grid": {"algorithm.weight": [0.5, 1.0], "seed": [0, 1]},
}


def of_trials(asked):
    return [trial.config.algorithm for trial in asked.trials]


def test_controls_of_a_sweep_are_trials_of_it(tmp_path):
    asked = read_sweep(SWEEP)
    found = sweep_with_controls(asked)
    assert results.first_change(found._replace(trials=found.trials[:4]), asked) is None
    assert of_trials(found)[4:] == [
        *("fnr", "fnr", "fedavg_pubft", "fedavg_pubft", "public_only", "public_only")
    ]
    controls = [trial.config for trial in found.trials[4:]]
    assert [config.seed for config in controls] == [0, 1] * 3
    assert [c.algorithm_options.get("weight") for c in controls[:2]] == [0, 0]
    assert all(config.algorithm_options["epochs"] == 2 for config in controls)
    file = tmp_path / "sweep.toml"
    file.write_text(results.to_toml(found))
    again = sweep_with_controls(read_sweep(file))
    assert results.first_change(found, again) is None


@pytest.mark.parametrize(
    "grid, added",
    [
        ({"algorithm.weight": [0.0, 1.0]}, ["fedavg_pubft", "public_only"]),
        ({"algorithm": ["fnr", "public_only"]}, ["fnr", "fedavg_pubft"]),
        (
            [{"seed": [0]}, {"algorithm": ["fedavg"]}],
            ["fnr", "fedavg_pubft", "public_only"],
        ),
    ],
)
def test_a_sweep_gets_the_controls_that_it_lacks(grid, added):
    run = {"public_examples": 30, "algorithm": "fnr"}
    if "algorithm" in grid:
        del run["algorithm"]
    asked = read_sweep({"run": run, "grid": grid})
    found = of_trials(sweep_with_controls(asked))
    assert found == of_trials(asked) + added


def test_a_sweep_that_was_begun_with_controls_goes_on_with_them(capsys, elsewhere):
    asked = read_sweep(SWEEP)
    Path("sweep.toml").write_text(results.to_toml(asked))
    Path("mine").mkdir()
    (Path("mine") / "sweep.toml").write_text(
        results.to_toml(sweep_with_controls(asked))
    )
    code, _, err = fedjax_adapt(capsys, "sweep sweep.toml --folder mine --resume")
    assert (code, err) == (
        2,
        "fedjax-adapt: folder=mine holds this sweep with its controls; write --controls as "
        "well.\n",
    )
    changed = {**SWEEP, "grid": {**SWEEP["grid"], "seed": [0, 2]}}
    Path("sweep.toml").write_text(results.to_toml(read_sweep(changed)))
    code, _, err = fedjax_adapt(capsys, "sweep sweep.toml --folder mine --resume")
    assert code == 2 and "mine holds another sweep (its trial 1 has seed=1" in err


def test_a_sweep_without_fnr_has_no_controls():
    asked = read_sweep({"grid": {"seed": [0, 1]}})
    with pytest.raises(ValueError, match="algorithm=fnr, but algorithm=fedssg; leave"):
        sweep_with_controls(asked)


@pytest.mark.slow
def test_one_flag_makes_the_controls_of_a_sweep(capsys, elsewhere):
    run = {"model": "linear", "num_clients": 4, "rounds": 2, "epochs": 1}
    run |= {"public_examples": 30, "batch_size": 100, "partition_seed": 0}
    Path("sweep.toml").write_text(
        results.to_toml(
            read_sweep({"run": run | {"algorithm": "fnr"}, "grid": {"seed": [0, 1]}})
        )
    )
    line = "sweep sweep.toml --folder mine"
    code, out, err = fedjax_adapt(capsys, f"{line} --controls")
    assert (code, err) == (0, "") and "are not among the trials" not in out
    assert len(list((elsewhere / "mine" / "trials").iterdir())) == 8
