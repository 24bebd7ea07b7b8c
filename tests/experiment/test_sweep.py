import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import benchmark, fedjax_adapt, relist, same, unlist
from test_damaged import damage_one, flipped
from test_run import Stop, stop_after
from tiny_runs import TINY

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.cli.sweep import parse
from fedjax_adapt.core import Algorithm, epochs
from fedjax_adapt.engine import memory
from fedjax_adapt.engine.xla import compiler_options
from fedjax_adapt.experiment import (
    Config,
    build,
    files,
    load_run,
    read_run,
    read_swept,
    records,
    run,
    store,
    sweep,
)
from fedjax_adapt.experiment.checkpoint import rounds
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.preview import preview_sweep
from fedjax_adapt.experiment.store import read_table
from fedjax_adapt.experiment.sweeps import compiled_group
from fedjax_adapt.experiment.sweeps.differences import (
    traced_names,
    value_of,
    with_traced,
)
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.experiment.sweeps.groups import groups_of
from fedjax_adapt.experiment.sweeps.results import flat, table_of, to_toml
from fedjax_adapt.report.clients import contributions, draw_contributions
from fedjax_adapt.report.compare import groups, sheets
from fedjax_adapt.report.page import report_page
from fedjax_adapt.report.plots import comparison_curves, learning_curve
from fedjax_adapt.report.tables import comparison_tables

pytestmark = pytest.mark.usefixtures("shared_programs")

# three trials of one group, two at a time: the second time one and a copy of it
RUN = TINY
THREE = {"run": RUN, "grid": [{"lr": [0.03, 0.1]}, {"seed": [5]}]}
FIGURES = ("accuracy", "loss", "best_accuracy", "best_round", "last_mean", "rounds_to")
COSTS = ("area_under_curve", "local_steps", "bytes_up", "bytes_down", "rho")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A finished sweep, never interrupted; only to be read."""
    folder = tmp_path_factory.mktemp("sweeps") / "three"
    return sweep(THREE, folder, side_by_side=2)


@pytest.mark.slow
def test_it_is_shown_in_one_line(three):
    assert repr(three) == f"Swept({three.folder}: 3 trials over lr, seed)"
    run = three.folder / "trials" / "0000"
    assert str(read_run(run)) == f"Record({run}: scaffold, {TINY['rounds']} rounds)"


def metrics(swept, group="000-scaffold"):
    table = read_table(swept.folder / "groups" / group, "metrics")
    return table.drop_columns(["seconds"]).to_pydict()


def check_trial_is_a_run(row, summary):
    """The row of a trial and the summary of the run with the same settings."""
    assert row["config_hash"] == summary["config_hash"]
    kept = (*FIGURES, *COSTS, "accuracy_name", "class_accuracy", "client_accuracy")
    for name, value in flat({name: summary[name] for name in kept}).items():
        if isinstance(value, float | list):
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
        else:
            assert row[name] == value, name


def test_a_trial_is_the_run_with_its_settings(three, whole):
    row = three.results.to_pylist()[1]
    check_trial_is_a_run(row, read_run(whole.folder).summary)
    theirs = read_run(whole.folder).metrics.to_pydict()
    ours = metrics(three)
    mine = [i for i, trial in enumerate(ours["trial"]) if trial == 1]
    for name in set(theirs) - {"seconds"}:
        own = [ours[name][i] for i in mine]
        np.testing.assert_allclose(own, theirs[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_trial_alone_is_its_run_to_the_bit(tmp_path, tiny):
    """Its clients share the devices, by the program of a run."""
    config = tiny(devices=2)
    run(config)
    asked = {"run": TINY, "grid": {"seed": [0]}}
    found = sweep(asked, tmp_path / "sweep", devices=2)
    ours, theirs = metrics(found), read_run(config.folder).metrics.to_pydict()
    for name in set(theirs) - {"seconds"}:
        assert ours[name] == theirs[name]


def test_each_trial_has_the_folder_of_a_run(three, whole):
    """Tables, figures and evidence, but for its states."""
    folders = three.folder / "trials" / "0001", whole.folder
    record, theirs = map(read_run, folders)
    how = {"lanes": "auto", "convolutions": "auto", "devices": 1}  # as the sweep says
    assert record.config == theirs.config | how
    for ours, other in (
        (record.metrics, theirs.metrics),
        (record.clients, theirs.clients),
    ):
        assert ours.column_names == other.column_names and len(ours) == len(other)
        for name in set(ours.column_names) - {"seconds"}:
            values = (ours[name].to_pylist(), other[name].to_pylist())
            np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5)
    ours, other = (read_table(Path(folder), "partition") for folder in folders)
    assert ours.drop_columns("client_accuracy") == other.drop_columns("client_accuracy")
    each = [table["client_accuracy"].to_numpy() for table in (ours, other)]
    np.testing.assert_allclose(*each, atol=1e-5)
    assert set(record.summary) == set(theirs.summary)
    same = ("method", "config_hash", "seeds", "data", "public", "auxiliary", "bytes_up")
    for name in (*same, "client_state_bytes", "stopped_round", "own", "rounds"):
        assert record.summary[name] == theirs.summary[name], name
    # more than one model side by side
    options = record.summary["hardware"]["xla_options"]
    assert options == (compiler_options(2) or {})


@pytest.mark.slow
def test_what_reads_runs_reads_the_trials_of_a_sweep(three, tmp_path):
    (table,) = comparison_tables(sheets([three.folder]))
    ranked = [three.folder / "trials" / f"000{trial}" for trial in range(3)]
    accuracy = lambda folder: read_run(folder).summary["accuracy"]
    # trials 1 and 2 differ in the seed alone, which each has its partition of
    lines = [ranked[:1], ranked[1:]]
    lines.sort(key=lambda line: -np.mean([accuracy(folder) for folder in line]))
    assert table.row_count == 2
    trials = three.folder / "trials"
    for place, (line, note) in enumerate(
        zip(lines, table.caption.splitlines(), strict=False), 1
    ):
        alone = len(line) == 1
        said = "0000, seed 0, lr=0.03" if alone else "{0001,0002}, seeds 0, 5, lr=0.1"
        assert note.startswith(f"{place}: {trials / said}")
    assert "lr=0.03" in table.caption
    assert comparison_curves([three.folder], tmp_path / "all.png").exists()
    curve = learning_curve(ranked[2], tmp_path / "one.png")
    assert curve.exists()
    with pytest.raises(ValueError, match="0001 is given more than once"):
        sheets([three.folder, ranked[1]])
    shutil.copytree(ranked[0], tmp_path / "trials" / "0000")
    shutil.rmtree(tmp_path / "trials" / "0000" / "checkpoints")  # of an earlier version
    with pytest.raises(
        ValueError, match="has no checkpoint: it diverged, .* by itself"
    ):
        load_run(tmp_path / "trials" / "0000")
    with pytest.raises(ValueError, match="holds a sweep, no run; .* each is a run in"):
        read_run(three.folder)


def test_a_trial_is_found_by_a_path_that_goes_up(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    up = Path(os.path.relpath(three.folder))
    assert ".." in up.parts
    trial = up / "trials" / "0001"
    assert read_run(trial).summary == read_run(three.folder / "trials/0001").summary
    assert load_run(trial).state.round == RUN["rounds"]
    assert comparison_tables(sheets([up]))


@pytest.mark.slow
def test_the_curves_of_pages_are_the_means_over_seeds(tmp_path):
    grid = {"algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}
    run = {name: value for name, value in RUN.items() if name != "algorithm"}
    found = sweep({"run": run | {"rounds": 2}, "grid": grid}, tmp_path / "sweep")
    script = benchmark("methods")
    rows = script.curves(found.folder).to_dict("records")
    assert [(row["algorithm"], row["round"]) for row in rows] == [
        (name, round) for name in ("fedavg", "fedprox") for round in (1, 2)
    ]
    table = found.metrics.to_pylist()
    for row in rows:
        first = 0 if row["algorithm"] == "fedavg" else 2
        own = [r for r in table if r["round"] == row["round"]]
        own = [r for r in own if r["trial"] in (first, first + 1)]
        shares = [r["accuracy"] for r in own]
        assert row["n"] == 2 and row["accuracy"] == pytest.approx(np.mean(shares), 1e-4)
        assert row["deviation"] == pytest.approx(np.std(shares, ddof=1), abs=1e-5)
        for name in script.COSTS:
            assert row[name] == round(np.mean([r[name] for r in own]))
    assert f"jax {jax.__version__}" in script.origin(found.folder)


@pytest.mark.slow
def test_a_trial_is_loaded_as_a_run_is(three, whole):
    loaded, theirs = load_run(three.folder / "trials" / "0001"), load_run(whole.folder)
    assert repr(theirs) == "Loaded(scaffold, 7 rounds)"
    assert int(loaded.state.round) == int(theirs.state.round) == 7
    for trial in ("0000", "0001", "0002"):
        assert rounds(three.folder / "trials" / trial / "checkpoints") == [7]
    ours, others = map(jax.tree.leaves, (loaded.state, theirs.state))
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    task, data = loaded.federation.task, loaded.federation.data
    accuracy = fa.evaluate(task, loaded.state.params, data.test).accuracy
    assert float(accuracy) == pytest.approx(loaded.summary["accuracy"])
    round_fn = fa.make_round(*loaded.federation[:4])
    state, _ = fa.train(round_fn, loaded.state, loaded.keys(2))
    assert int(state.round) == 9


@pytest.mark.slow
def test_a_run_takes_as_many_steps_as_a_trial(three, tmp_path):
    """`match`, which reads the clients' steps of a run."""
    trial = three.folder / "trials" / "0000"
    settings = {name: value for name, value in RUN.items() if name != "epochs"}
    settings |= {"lr": 0.03, "match": str(trial), "algorithm": "fedavg"}
    found = run(from_settings(settings | {"folder": str(tmp_path / "matched")}))
    wanted = sum(read_run(trial).clients["num_steps"].to_pylist())
    visits = len(read_run(trial).clients)
    assert wanted - visits <= found.local_steps <= wanted


@pytest.mark.slow
def test_a_trial_that_diverges_has_the_folder_of_such_a_run(tmp_path):
    grid = {"lr": [0.1, 1e12], "momentum": [0.0]}
    found = sweep({"run": RUN, "grid": grid}, tmp_path / "sweep")
    assert found.diverged == [1]
    record = read_run(found.folder / "trials" / "0001")
    assert record.summary is None
    table = found.metrics.to_pydict()
    pairs = list(zip(table["trial"], table["diverged_round"], strict=True))
    assert len(record.metrics) == pairs.count((1, 0))
    (table,) = comparison_tables(sheets([found.folder]))
    assert table.row_count == 1 and "trial 1 diverged" in table.caption
    shutil.rmtree(found.folder / "trials" / "0000")
    unlist(found.folder)
    with (
        pytest.warns(UserWarning, match="lists none of its trials"),
        pytest.raises(ValueError, match="no trial to show: all diverged"),
    ):
        sheets([found.folder])


@pytest.mark.slow
def test_trials_share_a_program_though_each_has_a_partition_of_its_own(tmp_path):
    """Clients of unlike sizes, split by labels they never see; clocks of the seed."""
    common = {**RUN, "partition": "dirichlet_classes", "algorithm": "feddisco"}
    common |= {"rounds": 2, "evaluate_every": 2, "checkpoint_every": 2}
    common |= {"step_seconds": "lognormal(0.05, 0.5)", "labels": "parity"}
    grid = {"concentration": [0.3, 30.0], "seed": [0, 1]}
    asked = read_sweep({"run": common, "grid": grid})
    found = sweep(asked, tmp_path / "sweep", side_by_side=2, devices=2)
    rows = found.results.to_pylist()
    assert {row["group"] for row in rows} == {"000-feddisco"}
    # the last, whose largest client is smaller than that of others
    result = run(
        replace(asked.trials[3].config, folder=str(tmp_path / "run"))
    ).to_dict()
    check_trial_is_a_run(rows[3], result)
    for name in ("simulated_seconds", "kappa"):
        assert rows[3][name] == pytest.approx(result[name], rel=1e-5)
    trial = read_run(found.folder / "trials" / "0003").summary
    assert trial["data"] == result["data"]  # its own partition
    assert trial["data"] != read_run(found.folder / "trials" / "0000").summary["data"]


@pytest.mark.slow
def test_clients_of_a_trial_are_ranked_by_what_they_contribute(tmp_path):
    settings = {name: value for name, value in RUN.items() if name != "epochs"}
    settings |= {"algorithm": "fedgsnr", "rounds": 2}
    found = sweep({"run": settings, "grid": {"seed": [0, 1]}}, tmp_path / "sweep")
    trial = found.folder / "trials" / "0001"
    rows = read_run(trial).clients
    clients = rows["client"].to_numpy()[rows["measured"].to_numpy() > 0]
    assert {one.client for one in contributions(trial)} == set(clients.tolist())
    assert draw_contributions(trial) == trial / "contributions.png"


def test_the_folder_of_a_sweep_holds_what_it_should(three):
    files = {p.name for p in three.folder.iterdir()}
    assert files == {
        *("sweep.toml", "results.parquet", "groups", "trials", "summary.json"),
        "files.sha256",
    }
    group = three.folder / "groups" / "000-scaffold"
    assert {p.name for p in group.iterdir()} == {
        # its checkpoints are gone
        *("group.toml", "metrics", "summary.json", "files.sha256")
    }
    table = pq.read_table(three.folder / "results.parquet").to_pydict()
    assert np.shape(table["class_accuracy"]) == (3, 10)
    assert table["trial"] == [0, 1, 2]
    assert (table["lr"], table["seed"]) == ([0.03, 0.1, 0.1], [0, 0, 5])
    assert table["diverged_round"] == [None] * 3 and three.diverged == []
    assert len(set(table["loss"])) == 3
    again = read_sweep(three.folder / "sweep.toml")
    assert [t.config.lr for t in again.trials] == table["lr"]
    said = json.loads((three.folder / "summary.json").read_text())
    assert (said["trials"], said["groups"]) == (3, 1)


def begun_otherwise(folder):
    """A copy of the folder of a sweep, with the same trials in other groups."""
    copy = folder.with_name("other")
    shutil.copytree(folder, copy)
    told = copy / "groups" / "000-scaffold" / "group.toml"
    told.write_text(told.read_text().replace("trials = [0, 1, 2]", "trials = [0]"))
    relist(told.parent)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("stop", [8, pytest.param(18, marks=pytest.mark.slow)])
def test_a_resumed_sweep_equals_an_uninterrupted_one_to_the_bit(tmp_path, three, stop):
    """Stopped among the first two trials, and while the third runs."""
    folder, seen = tmp_path / "sweep", []
    with pytest.raises(Stop):
        sweep(THREE, folder, side_by_side=2, progress=stop_after(stop))
    assert not (folder / "summary.json").exists()
    with pytest.raises(ValueError, match="this sweep, half finished; write --resume"):
        sweep(THREE, folder)
    with pytest.raises(ValueError, match="was begun by a fedjax-adapt that put other"):
        sweep(THREE, begun_otherwise(folder), resume=True)
    (folder / "groups" / "000-scaffold" / "trials").mkdir()  # as earlier versions did
    with pytest.raises(ValueError, match="kept the accuracy on clients elsewhere"):
        sweep(THREE, folder, resume=True)
    (folder / "groups" / "000-scaffold" / "trials").rmdir()
    found = sweep(THREE, folder, resume=True, side_by_side=3, progress=seen.append)
    assert found.results.equals(three.results)
    assert metrics(found) == metrics(three)
    for trial in ("trials/0000", "trials/0002"):
        states = [load_run(swept.folder / trial).state for swept in (found, three)]
        jax.tree.map(np.testing.assert_array_equal, *states)
    rounds = [now.round for now in seen if now.doing is None]
    assert rounds[2] > stop - 4 and rounds[-1] == seen[-1].rounds == 21
    shown = {now.accuracy_name for now in seen if now.accuracy is not None}
    assert shown - {"000-scaffold, trials 0, 1: mean accuracy"} == {
        "000-scaffold, trial 2: accuracy"
    }
    assert {now.whose for now in seen if now.accuracy is not None} == {" of all trials"}
    told = [now.warning for now in seen if now.warning is not None]
    assert len(told) == 1 and "begun with 2 trials at once and goes on so" in told[0]


@pytest.mark.slow
@pytest.mark.campaign
def test_no_damage_to_a_sweep_is_silent(tmp_path, three):
    """It is refused, or said, or the results are those of a whole sweep."""
    half, outcomes = tmp_path / "half", []
    with pytest.raises(Stop):
        sweep(THREE, half, side_by_side=2, progress=stop_after(18))
    for seed in range(20):
        folder, said = tmp_path / f"damaged{seed}", []
        shutil.copytree(half, folder)
        how = damage_one(folder, half, random.Random(seed))
        try:
            found = sweep(*(THREE, folder, True), side_by_side=2, progress=said.append)
        except ValueError as error:
            assert str(folder) in str(error) and "\n" not in str(error), how
            outcomes.append("refused")
        else:
            outcomes.append("same")
            assert found.results.equals(three.results), how
            assert metrics(found) == metrics(three), how
        shutil.rmtree(folder)
    assert outcomes.count("refused") > 5 and outcomes.count("same") > 3, outcomes


@pytest.mark.slow
def test_a_group_of_another_sweep_is_refused(tmp_path):
    """It has its own list, which is whole."""
    for name, rate in (("a", 0.1), ("b", 0.2)):
        asked = {"run": {**RUN, "lr": rate}, "grid": {"seed": [0, 1]}}
        with pytest.raises(Stop):
            sweep(asked, tmp_path / name, side_by_side=2, progress=stop_after(8))
    shutil.rmtree(tmp_path / "b" / "groups")
    shutil.copytree(tmp_path / "a" / "groups", tmp_path / "b" / "groups")
    with pytest.raises(ValueError, match="b/groups/000-scaffold is of another sweep"):
        sweep(asked, tmp_path / "b", resume=True, side_by_side=2)


def test_a_damaged_file_of_a_sweep_is_named(tmp_path, three):
    for name in ("results.parquet", "sweep.toml", "trials/0000/summary.json"):
        folder = tmp_path / "copy"
        shutil.copytree(three.folder, folder)
        flipped(folder / name, None, random.Random(0))
        with pytest.raises(ValueError, match=f"{name} is not as it was written"):
            read_run(folder / "trials" / "0000")
            read_swept(folder)
        shutil.rmtree(folder)


def swapped(trials):
    (trials / "0000").rename(trials / "x")
    (trials / "0001").rename(trials / "0000")
    (trials / "x").rename(trials / "0001")


def linked(trials):
    shutil.rmtree(trials / "0001")
    (trials / "0001").symlink_to("nowhere")


OTHERS = {  # what was done to the trials, and what is said of it
    "deleted": (
        lambda trials: shutil.rmtree(trials / "0001"),
        "trials/0001/files.sha256 is missing",
    ),
    "all deleted": (shutil.rmtree, "trials/0000/files.sha256 is missing"),
    "without a summary": (
        lambda trials: (trials / "0001" / "summary.json").unlink(),
        "trials/0001/summary.json is missing",
    ),
    "swapped": (swapped, "trials/0000/files.sha256 is not as it was written"),
    "linked": (linked, "trials/0001/files.sha256 is missing"),
    "copied": (
        lambda trials: shutil.copytree(trials / "0001", trials / "0003"),
        "trials/0003 is not in .*files.sha256, so it is not a trial of this sweep",
    ),
}


@pytest.mark.parametrize("how", OTHERS)
def test_a_trial_that_is_missing_or_exchanged_is_said(tmp_path, three, how, capsys):
    folder, (damage, says) = tmp_path / "copy", OTHERS[how]
    shutil.copytree(three.folder, folder)
    damage(folder / "trials")
    commands = [f"compare {folder}", f"report {folder} --out {tmp_path / 'page.html'}"]
    commands.append(f"sweep --folder {folder} --resume")
    if how == "copied":
        commands.append(f"compare {folder / 'trials' / '0003'}")
    if how in ("without a summary", "swapped"):
        number = "0001" if how == "without a summary" else "0000"
        commands.append(f"compare {folder / 'trials' / number}")
    for line in commands:
        code, out, err = fedjax_adapt(capsys, line)
        assert (code, out, err.count("\n")) == (2, "", 1) and re.search(says, err), err


def test_what_is_gone_of_a_finished_sweep_is_said_when_it_is_resumed(
    tmp_path, three, capsys
):
    for name in ("results.parquet", "trials/0002/config.toml", "groups/000-scaffold"):
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(three.folder, folder)
        (folder / name).rename(folder / "gone")
        code, _, err = fedjax_adapt(capsys, f"sweep --folder {folder} --resume")
        assert code == 2 and f"{folder / name}" in err and "is missing" in err, err


def test_a_group_of_another_sweep_has_no_rows_of_this(tmp_path, three):
    for name in ("a", "b"):
        shutil.copytree(three.folder, tmp_path / name)
    sums = tmp_path / "b" / "groups" / "000-scaffold" / "files.sha256"
    files.strike(sums.parent, [sums.parent / "summary.json"])  # whole, but another list
    with pytest.raises(ValueError, match="files.sha256 is not as it was written"):
        assert not read_swept(tmp_path / "b").metrics
    assert len(read_swept(tmp_path / "a").metrics)


def test_no_run_begins_or_goes_on_among_the_trials_of_a_sweep(tmp_path, three, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(three.folder, folder)
    for name in ("0001", "new"):
        config = folder / "trials" / "0000" / "config.toml"
        place = folder / "trials" / name
        code, _, err = fedjax_adapt(capsys, f"run --config {config} --folder {place}")
        assert code == 2 and f"folder={place} lies among the trials of {folder}" in err


def test_a_trial_that_is_gone_is_said_when_its_sweep_goes_on(tmp_path, three):
    folder = tmp_path / "copy"
    shutil.copytree(three.folder, folder)
    files.strike(folder, [folder / "summary.json"])
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "trials" / "0001")
    with pytest.raises(ValueError, match="trials/0001/files.sha256 is missing"):
        sweep(THREE, folder, resume=True, side_by_side=2)
    assert not (folder / "trials" / "0001").exists()


def test_a_sweep_whose_trials_no_list_names_is_read_with_a_warning(tmp_path, three):
    """As earlier versions left theirs; when one is resumed they are listed."""
    folder = tmp_path / "copy"
    shutil.copytree(three.folder, folder)
    known = files.listed(folder)
    strange = [folder / name for name in known if name.startswith(("trials", "groups"))]
    assert len(strange) == 4
    files.strike(folder, [*strange, folder / "summary.json"])
    (folder / "summary.json").rename(tmp_path / "summary.json")
    found = sweep(THREE, folder, resume=True, side_by_side=2)
    assert set(known) == set(files.listed(folder))
    assert found.results.equals(three.results)
    files.strike(folder, strange)
    with pytest.warns(UserWarning, match="copy lists none of its trials"):
        assert len(groups([folder])[0].runs) == 3


@pytest.mark.slow
@pytest.mark.campaign
def test_a_killed_sweep_goes_on_with_the_same_command(tmp_path):
    """SIGKILL while its trials run, once among the first two and once at the third."""
    asked = read_sweep({**THREE, "run": {**RUN, "rounds": 400, "evaluate_every": 4}})
    (tmp_path / "sweep.toml").write_text(to_toml(asked))
    command = [sys.executable, "-m", "fedjax_adapt", "sweep", "sweep.toml"]
    command += ["--side-by-side", "2", "--resume", "--folder"]
    begin = lambda name: subprocess.Popen([*command, name], cwd=tmp_path)
    assert begin("whole").wait() == 0
    for least in (40, 440):
        killed = begin("killed")
        checkpoints = tmp_path / "killed" / "groups" / "000-scaffold" / "checkpoints"
        while killed.poll() is None and max(rounds(checkpoints), default=0) < least:
            time.sleep(0.01)
        killed.kill()
        assert killed.wait() == -signal.SIGKILL
    assert begin("killed").wait() == 0
    found, whole = (read_swept(tmp_path / name) for name in ("killed", "whole"))
    assert found.results.equals(whole.results)
    assert metrics(found) == metrics(whole)
    for trial in ("trials/0000", "trials/0001", "trials/0002"):
        ours, theirs = (read_run(swept.folder / trial) for swept in (found, whole))
        assert ours.clients.equals(theirs.clients)
        states = [load_run(swept.folder / trial).state for swept in (found, whole)]
        jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.slow
@pytest.mark.parametrize("what", [("metrics", 7), ("last/0", 0)])
def test_where_rows_cannot_be_written_no_state_of_a_trial_is(
    tmp_path, three, monkeypatch, what
):
    """A full disk, at the end of the first two trials."""
    append, folder = store.append, tmp_path / "sweep"

    def full(folder, name, columns, done):
        if (name, done) == what:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(folder, name, columns, done)

    monkeypatch.setattr(store, "append", full)
    with pytest.raises(OSError, match="No space left"):
        sweep(THREE, folder, side_by_side=2)
    assert (folder / "trials").exists() == (what[0] == "last/0")
    assert not list(folder.glob("trials/*/checkpoints"))
    monkeypatch.undo()
    found = sweep(THREE, folder, resume=True, side_by_side=2)
    assert found.results.equals(three.results) and metrics(found) == metrics(three)


class Rows:
    """An array of which not all may come to the host."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, i):
        return self.rows[i]

    def __array__(self, *_, **__):
        raise AssertionError("all trials at once")


@pytest.mark.slow
def test_the_state_of_a_trial_comes_to_the_host_without_the_others():
    config = Config(**RUN)
    configs, layout = [config, replace(config, seed=1)], compiled_group.Layout(2, 1)
    group = compiled_group.compile_group(configs, build(config), [], layout)
    state = group.program_of([0, 1]).init()
    leaves, structure = jax.tree.flatten(state)
    guarded = structure.unflatten(Rows(leaf) for leaf in leaves)
    for i in (0, 1):
        assert same(
            group.of_trial(guarded, i), jax.tree.map(lambda x, i=i: x[i], state)
        )


@pytest.mark.slow
def test_a_sweep_gives_the_warnings_of_its_runs(tmp_path):
    given = RUN | {"algorithm": "gift", "initial_steps": 2, "warmup": 50}
    del given["epochs"]
    asked = {"run": given, "grid": {"seed": [0, 1, 2]}}
    said = []
    sweep(asked, tmp_path / "gift", progress=lambda now: said.append(now.warning))
    (text,) = [text for text in said if text and "warmup" in text]
    assert text.startswith("trials 0, 1 and 2: with warmup=50 gift changes no local")
    (group,) = preview_sweep(read_sweep(asked), tmp_path / "other").groups
    assert group.notes == [text]
    given = RUN | {"algorithm": "fedavg", "epochs": 3.0, "max_local_steps": 1}
    asked = {"run": given, "grid": {"lr": [0.1, 0.2]}}
    hear = lambda now: said.append(now.warning)
    sweep(asked, tmp_path / "cut", side_by_side=2, progress=hear)
    (text,) = [text for text in said if text and "cut" in text]
    assert text.startswith("trials 0 and 1: max_local_steps=1 cut ")


def no_warning(now):
    assert now.warning is None


@pytest.mark.slow
def test_a_sweep_goes_on_where_there_are_more_devices(tmp_path, three):
    """Each of the two trials at once has a device of its own then."""
    folder = tmp_path / "sweep"
    with pytest.raises(Stop):
        sweep(THREE, folder, side_by_side=2, progress=stop_after(8))
    found = sweep(
        THREE, folder, resume=True, devices=2, side_by_side=1, progress=no_warning
    ).results.to_pydict()
    for name, values in three.results.to_pydict().items():
        if isinstance(values[0], float | list):
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
        else:
            assert found[name] == values


def test_a_finished_group_is_never_run_again(tmp_path, three, monkeypatch):
    folder = tmp_path / "sweep"
    shutil.copytree(three.folder, folder)
    for name in ("summary.json", "results.parquet"):
        (folder / name).unlink()
    module = sys.modules["fedjax_adapt.experiment.sweeps.sweep"]
    monkeypatch.setattr(module, "compile_group", None)
    found = sweep(THREE, folder, resume=True)
    assert found.results.equals(three.results)


def test_the_trials_of_an_unfinished_sweep_are_compared_and_it_is_said(tmp_path, three):
    folder = tmp_path / "sweep"
    shutil.copytree(three.folder, folder)
    (whole,) = sheets([folder.parent])
    assert not any("not finished" in note for note in whole.notes)
    shutil.rmtree(folder / "groups")  # without which its trials are trials
    (lacking,) = sheets([folder], targets=[0.01])
    assert any("no measured seconds of" in note for note in lacking.notes)
    with pytest.raises(ValueError, match="groups/000-scaffold/.*sha256 is missing"):
        sheets([folder / "groups" / "000-scaffold"])
    shutil.copytree(three.folder / "groups", folder / "groups")
    (folder / "summary.json").unlink()
    lost = (
        f"{folder / 'summary.json'} is missing ({folder / files.SUMS} has its checksum)"
    )
    (lacking,) = sheets([folder])
    assert lacking.notes == [
        *whole.notes,
        f"{lost}; put it back as it was, or resume the sweep",
    ]
    relist(folder)
    (begun,) = sheets([folder])
    assert begun.cells == whole.cells
    note = f"{folder}: not finished, and trials to come are not here"
    assert begun.notes == [*whole.notes, note]
    # killed after it wrote the trials of its first group, or about to write on
    (folder / "results.parquet").unlink()
    relist(folder)
    (first,) = sheets([folder.parent])
    assert first.cells == whole.cells and first.notes[-1] == note
    shutil.rmtree(folder / "trials")
    with pytest.raises(
        ValueError, match="holds a sweep with no finished trial; resume"
    ):
        sheets([folder])


@pytest.mark.slow
def test_a_group_stands_for_its_trials(tmp_path, monkeypatch):
    grid = [{"lr": [0.1, 0.03]}, {"batch_size": [50], "lr": [0.1, 1e12]}]
    found = sweep({"run": RUN | {"rounds": 2}, "grid": grid}, tmp_path / "sweep")
    first, second = sorted((found.folder / "groups").iterdir())
    trials = found.folder / "trials"
    of = lambda folder: {run[1]["folder"] for run in groups([folder])[0].runs}
    assert of(first) == {str(trials / "0000"), str(trials / "0001")}
    assert of(second) == {str(trials / "0002")}
    (sheet,) = sheets([second])
    assert f"{second}: trial 3 diverged and has no figures" in sheet.notes
    assert not any("diverged" in note for note in sheets([first])[0].notes)
    monkeypatch.chdir(first)  # where it has no name
    assert of(".") == of(first) and "trials/0001" in report_page(["."])
    monkeypatch.chdir(tmp_path)
    assert "sweep/trials/0000" in of("sweep/groups/" + first.name)
    for wrong, says in {
        "groups/000-fedag": "is not a group .*: its groups are 000-scaffold, "
        "001-scaffold[.]",
        "trials/0099": "is not in .*, so it is not a trial of this sweep; write "
        "one that is",
    }.items():
        with pytest.raises(ValueError, match=says):
            sheets([f"sweep/{wrong}"])
    with pytest.raises(ValueError, match="is given more than once"):
        sheets([found.folder, first])
    with pytest.raises(ValueError, match="holds a group of a sweep, no run; .* in"):
        read_run(first)
    unlist(second)
    (second / "summary.json").unlink()
    with pytest.raises(ValueError, match="files.sha256 is missing .*sha256 has its"):
        sheets([second])  # which the sweep has in its list
    unlist(found.folder)
    (found.folder / "summary.json").unlink()
    with pytest.raises(
        ValueError, match="group of a sweep with no .*; resume the sweep"
    ):
        sheets([second])


def test_a_folder_belongs_to_one_sweep(tmp_path, three):
    with pytest.raises(
        ValueError, match="holds this sweep, finished; a finished sweep"
    ):
        sweep(THREE, three.folder)
    before = {path: path.stat().st_mtime_ns for path in three.folder.rglob("*")}
    assert sweep(THREE, three.folder, resume=True).results == three.results
    assert {p: p.stat().st_mtime_ns for p in three.folder.rglob("*")} == before
    other = {**THREE, "run": {**RUN, "momentum": 0.5}}
    with pytest.raises(
        ValueError, match="another sweep .its trial 0 has momentum=0.0,"
    ):
        sweep(other, three.folder, resume=True)
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="holds files that are no sweep; give a new"):
        sweep(THREE, tmp_path)
    with pytest.raises(ValueError, match="is a file; give the path of a folder"):
        sweep(THREE, tmp_path / "x")


@pytest.mark.slow
def test_what_does_not_fit_is_found_before_anything_is_written(tmp_path):
    bad = {"run": RUN, "grid": [{"lr": [0.1]}, {"num_clients": [3, 10_000]}]}
    with pytest.raises(ValueError, match=r"^trial 2 \(num_clients=10000\): .*10000"):
        sweep(bad, tmp_path / "sweep")
    bad = {"run": {**RUN, "algorithm": "fnr"}, "grid": {"fraction": [0.5, 0.01]}}
    with pytest.raises(
        ValueError, match=r"^trial 1 \(fraction=0.01\): .* is no client;"
    ):
        sweep(bad, tmp_path / "sweep")  # which would be traced
    bad = {"run": RUN, "grid": {"lr": [0.1, 0.2]}}
    with pytest.raises(ValueError, match="devices=99 but JAX sees 4"):
        sweep(bad, tmp_path / "sweep", devices=99)
    with pytest.raises(ValueError, match="side_by_side=0 must be an integer >= 1"):
        sweep(bad, tmp_path / "sweep", side_by_side=0)
    assert not (tmp_path / "sweep").exists()
    with pytest.raises(ValueError, match="folder='' is empty; write the path of a f"):
        sweep(bad, "")


def grouped(run, grid):
    run = {name: value for name, value in {**TINY, **run}.items() if name not in grid}
    groups = groups_of(read_sweep({"run": run, "grid": grid}).trials)
    return [([t.number for t in group.trials], group.traced) for group in groups]


@pytest.mark.slow
def test_trials_share_a_program_if_numbers_and_seeds_are_all_that_varies():
    fixed = {"partition_seed": 0}
    both = {"lr": [0.1, 0.2], "seed": [0, 1]}
    assert grouped(fixed, both) == [([0, 1, 2, 3], ["lr"])]
    # seeds that make other examples
    plain = {"algorithm": "fedavg"}
    corrupted = grouped(plain | {"corrupt": "random_labels"}, both)
    assert corrupted == [([0, 2], ["lr"]), ([1, 3], ["lr"])]
    # a local step of all that the largest client has
    whole = plain | {"partition": "dirichlet_classes", "batch_size": "none"}
    assert grouped(whole, {"seed": [0, 1]}) == [([0], []), ([1], [])]
    # what is no number
    assert grouped({}, {"clip_norm": [1, 2, "none"]}) == [
        ([0, 1], ["clip_norm"]),
        ([2], []),
    ]
    longer = {"epochs": [1.0, 2.0], "weight_decay": [0.0, 1e-3]}
    assert grouped(fixed, longer) == [
        ([0, 1], ["weight_decay"]),
        ([2, 3], ["weight_decay"]),
    ]


@pytest.mark.slow
def test_options_that_cannot_be_traced_are_looped(monkeypatch):
    def picky(mu: float = 0.5, alpha: float = 0.5):
        return Algorithm(policy=epochs(2 if alpha > 0.5 else mu))

    monkeypatch.setitem(ALGORITHMS, "fedprox", picky)
    # it has steps of its own
    run = {"algorithm": "fedprox", "epochs": Config.epochs, "partition_seed": 0}
    found = grouped(run, {"mu": [0.1, 0.2], "alpha": [0.3, 0.4]})
    assert found == [([0, 2], ["algorithm.mu"]), ([1, 3], ["algorithm.mu"])]


def test_numbers_of_a_config_are_read_and_set():
    options = {"mu": 0.3}
    config = Config(algorithm="fedprox", algorithm_options=options, clip_norm=None)
    assert traced_names(config) == ["lr", "lr_decay", "momentum", "weight_decay"] + [
        "algorithm.mu"
    ]
    changed = with_traced(config, {"algorithm.mu": 0.7, "lr": "traced"})
    assert (value_of(changed, "algorithm.mu"), changed.lr) == (0.7, "traced")
    assert (value_of(config, "algorithm.mu"), config.lr) == (0.3, 0.1)
    assert "clip_norm" in traced_names(Config(algorithm="fedprox"))


@pytest.mark.slow
def test_a_program_that_is_too_large_has_fewer_trials_at_once(monkeypatch):
    needs, too_large = [], memory.too_large

    def weighed(program, num_devices):
        found = program.memory_analysis()
        needs.append(found.temp_size_in_bytes + found.output_size_in_bytes)
        return too_large(program, num_devices)

    monkeypatch.setattr(memory, "too_large", weighed)
    config = Config(**{**RUN, "algorithm": "fedavg"})
    federation = build(config)

    def width(layout, free):
        monkeypatch.setattr(memory, "free_memory", lambda: free)
        return compiled_group.compile_group(
            [config, config], federation, [], layout
        ).width

    assert width(compiled_group.Layout(1, 2), None) == 2
    assert width(compiled_group.Layout(1, 2), needs[0] - 1) == 1
    assert needs[1] == needs[0] > needs[2]
    # cores share one memory
    assert width(compiled_group.Layout(2, 1), 2 * needs[2] - 1) == 1
    with pytest.raises(ValueError, match="a single trial does not fit into memory; wr"):
        width(compiled_group.Layout(1, 1), needs[2] - 1)


def test_trials_side_by_side_take_the_place_of_clients_on_a_cpu():
    config = Config(**{**RUN, "algorithm": "fedavg", "batch_size": 10})
    federation = build(config)
    key = jax.random.key(0)
    state = SimpleNamespace(params=jax.eval_shape(federation.task.init, key))
    lanes = lambda config, each: compiled_group.lanes_of(
        config, federation, state, compiled_group.Layout(1, each)
    )
    assert [lanes(config, each) for each in (1, 2, 4, 50)] == [6, 3, 1, 1]
    told = replace(config, lanes=4)
    assert [lanes(told, each) for each in (1, 4)] == [4, 4]


@pytest.mark.slow
def test_a_trial_that_diverges_stops_no_other_and_is_exit_code_1(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    diverging = {"clip_norm": "none", "algorithm": "fedavg", "rounds": 4}
    grid = {"lr": [0.1, 1e38], "seed": [0, 1]}
    asked = read_sweep({"run": {**RUN, **diverging}, "grid": grid})
    Path("sweep.toml").write_text(to_toml(asked))
    line = "sweep sweep.toml --folder mine --side-by-side 4"
    code, out, err = fedjax_adapt(capsys, line)
    assert code == 1
    assert err == (
        "fedjax-adapt: 2 of 4 trials diverged (trial 2, 3, see diverged_round in "
        "mine/results.parquet); lower lr or clip_norm there.\n"
    )
    found = read_swept("mine")
    rows = found.results.to_pylist()
    assert found.diverged == [2, 3]
    assert [row["diverged_round"] for row in rows] == [None, None, 1, 1]
    assert rows[2]["accuracy"] is None and rows[0]["rounds"] == 4
    table = metrics(found, "000-fedavg")
    assert table["trial"] == [0, 1, 2, 3, 0, 1, 0, 1, 0, 1]
    assert "mine: trials 2, 3 diverged and have no figures" in " ".join(out.split())
    assert out.count("±") > 1 and "results  mine/results.parquet" in out

    said = "mine holds this sweep, finished; nothing is left to run.\n"
    for again in (f"{line} --resume", "sweep --folder mine --resume"):
        assert fedjax_adapt(capsys, again) == (1, said, err)  # as it ended
    code, out, told = fedjax_adapt(capsys, f"{again} --json")
    assert (code, told) == (1, said + err)
    shown = json.loads(out)
    assert (shown["status"], shown["folder"]) == ("finished", "mine")
    assert (shown["diverged"], shown["results"]) == ([2, 3], rows)

    asked = read_sweep({"run": {**RUN, **diverging}, "grid": {"lr": [1e37, 1e38]}})
    Path("all.toml").write_text(to_toml(asked))
    code, out, err = fedjax_adapt(capsys, "sweep all.toml --folder all")
    assert code == 1 and err.startswith("fedjax-adapt: 2 of 2 trials diverged (trial 0")
    assert "results  all/results.parquet" in out and "┃" not in out


@pytest.mark.parametrize(
    "line, says",
    [
        ("sweep", "sweep got 0 files before its flags; give one, as in"),
        ("sweep a.toml b.toml", "sweep got 2 files before its flags; give one, as in"),
        (
            "sweep a.toml --folder=",
            "--folder '' is empty; write a value, or leave --fol",
        ),
        ("sweep none.toml", "sweep=none.toml cannot be read"),
        (
            "sweep --folder nosuch",
            "sweep got 0 files before its flags; give one, as in",
        ),
        (
            "sweep --folder nosuch --resume",
            "--folder nosuch holds no sweep to resume: it has no sweep.toml; write the fol",
        ),
        (
            "sweep a.toml --devices x",
            "--devices x: write an integer or 'auto' or none.",
        ),
        ("sweep a.toml --side-by-side", "--side-by-side: it needs a value; write an"),
        (
            "sweep a.toml --lr 0.1",
            "--lr is a setting of runs; write lr below [run] of SWEEP.toml, or a list of "
            "values below [grid].",
        ),
        (
            "sweep a.toml --num-labels 3",
            "--num-labels is a setting of runs; write num_l",
        ),
        (
            "sweep a.toml --no-gate-alignment",
            "--no-gate-alignment is a setting of runs",
        ),
        (
            "sweep a.toml --data-dir x",
            "--data-dir is a setting of runs; write data_dir below [run] of SWEEP.toml.\n",
        ),
        (
            "sweep a.toml --xyz",
            "--xyz is not a flag of this sweep; fedjax-adapt sweep --help shows what there",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    tmp_path, capsys, monkeypatch, line, says
):
    monkeypatch.chdir(tmp_path)
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fedjax-adapt: " + says)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_sweep_is_enough_to_resume_it(tmp_path):
    (tmp_path / "sweep.toml").write_text("[grid]\nlr = [0.1]\n")
    request = parse(["--resume", "--folder", str(tmp_path), "--devices", "1"])
    assert request.file == tmp_path / "sweep.toml"
    assert (request.folder, request.devices) == (str(tmp_path), 1)


def test_figures_of_a_run_that_trained_on_its_test_set_are_called_so():
    from fedjax_adapt.experiment.store import TRAINED

    own = {"accuracy": 0.5, "loss": 1.0, "rounds_to": {"0.9": None}}
    own["models"] = {"sel": {"accuracy": 0.4, "rounds_to": {"0.9": 2}}}
    others = {"local_steps": 3, "accuracy_name": "test accuracy", "seconds": 1.0}
    tested = flat(own | others)
    assert tested == {
        "accuracy": 0.5,
        "loss": 1.0,
        "rounds_to_0.9": None,
        "local_steps": 3,
        "accuracy_sel": 0.4,
        "rounds_to_0.9_sel": 2,
    }
    others["accuracy_name"] = TRAINED.replace("_", " ")
    trained = flat({TRAINED: own} | others)
    assert trained == {
        TRAINED: 0.5,
        f"{TRAINED}.loss": 1.0,
        f"{TRAINED}.rounds_to_0.9": None,
        "local_steps": 3,
        f"{TRAINED}.accuracy_sel": 0.4,
        f"{TRAINED}.rounds_to_0.9_sel": 2,
    }


def test_tables_of_sweeps_can_be_joined():
    reached = {"diverged_round": None, "rounds_to_0.9": 7, "kappa": None}
    diverged = {"diverged_round": 3, "class_accuracy": None}
    first = table_of([{"batch_size": None} | reached], ["batch_size"])
    second = table_of([{"batch_size": 10} | diverged], ["batch_size"])
    joined = pa.concat_tables([first, second], promote_options="default")
    assert joined["diverged_round"].to_pylist() == [None, 3]
    assert joined["batch_size"].to_pylist() == [None, 10]
    kinds = {field.name: str(field.type) for field in joined.schema}
    assert kinds["diverged_round"] == kinds["rounds_to_0.9"] == "int64"
    assert kinds["kappa"] == "double" and kinds["class_accuracy"].startswith("list<")


CASES = {
    "fedavg": {"seed": [0, 1], "lr": [0.1, 0.05]},
    "scaffold": {"seed": [1], "lr": [0.05], "server_lr": [0.5, 1.0]},
    "fedprox": {"seed": [0, 1], "mu": [0.1, 1.0], "lr": [0.05]},
    "fedssg": {"seed": [0, 1], "alpha": [0.02, 0.1], "lr": [0.05]},
    "fedgsnr": {"seed": [0, 1], "interpolation": [0.3, 0.7]},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", CASES)
def test_every_trial_is_the_run_with_its_settings(tmp_path, algorithm):
    """Its last trial, two at a time or each on a device of its own."""
    common = {name: v for name, v in RUN.items() if name != "epochs"}
    common |= {"algorithm": algorithm, "evaluate_every": 3, "rounds": 3}
    grid = CASES[algorithm]
    asked = read_sweep({"run": common, "grid": grid})
    side = {"devices": 2, "side_by_side": 1} if algorithm == "fedssg" else {}
    found = sweep(asked, tmp_path / "sweep", **({"side_by_side": 2} | side))
    assert {row["group"] for row in found.results.to_pylist()} == {f"000-{algorithm}"}
    last = asked.trials[-1]
    result = run(replace(last.config, folder=str(tmp_path / "run")))
    check_trial_is_a_run(found.results.to_pylist()[-1], result.to_dict())


@pytest.mark.slow
def test_clients_of_trials_are_measured_on_their_own_test_sets(tmp_path):
    """One that has no test set counts in a run as little as in a trial."""
    rng = np.random.default_rng(0)

    def some(n):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        return x, rng.integers(0, 3, n)

    clients = [some(n) for n in (8, 9, 7)]
    tests = [some(n) for n in (5, 0, 6)]
    given = {
        "task": fa.classification(fa.models.linear((4,), 3), (4,)),
        "data": fa.FederatedDataset.from_clients(
            clients, test=some(30), num_classes=3, client_tests=tests
        ),
    }
    common = {"algorithm": "fedavg", "rounds": 1, "num_clients": 3, "devices": 1}
    alone = run(Config(**common, folder=str(tmp_path / "run")), **given)
    grid = {"run": common, "grid": {"lr": [0.1, 0.05]}}
    found = sweep(grid, tmp_path / "sweep", **given).results.to_pylist()[0]
    for figure, value in alone.client_accuracy.items():
        assert found[f"client_accuracy_{figure}"] == pytest.approx(value, abs=1e-5)
    ours = read_table(tmp_path / "sweep" / "trials" / "0000", "partition").to_pydict()
    theirs = read_table(tmp_path / "run", "partition").to_pydict()
    assert ours["client_accuracy"][1] is theirs["client_accuracy"][1] is None
    held = [table["client_accuracy"][::2] for table in (ours, theirs)]
    np.testing.assert_allclose(*held, atol=1e-5)


def test_a_folder_of_trials_next_to_a_file_of_a_sweep_is_no_sweep(tmp_path):
    """The file that a user gives may be called sweep.toml too."""
    (tmp_path / "sweep.toml").write_text(to_toml(read_sweep(THREE)))
    assert records.sweep_of(tmp_path / "trials" / "mine") is None
    (tmp_path / "groups").mkdir()
    assert records.sweep_of(tmp_path / "trials" / "mine") == tmp_path
    assert records.sweep_of(tmp_path / "trials" / "0000" / ".." / "0009") == tmp_path
