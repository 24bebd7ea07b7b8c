"""A callback of a run and of a sweep: what it hears, and what it stops."""

import errno
import importlib
from pathlib import Path

import jax
import numpy as np
import pytest
from test_run import Stop, files, final_state, numbers, stop_after
from test_sweep import RUN
from tiny_runs import MADE

from fedjax_adapt.experiment import checkpoint as checkpoints
from fedjax_adapt.experiment import files as listed
from fedjax_adapt.experiment import read_run, run, store, sweep
from fedjax_adapt.experiment.store import read_table
from fedjax_adapt.report.compare import sheets
from fedjax_adapt.report.tables import summary_table

pytestmark = pytest.mark.usefixtures("shared_programs")

# `sweep` of the package is the function
sweeps = importlib.import_module("fedjax_adapt.experiment.sweeps.sweep")
TOTALS = ("local_steps", "bytes_up", "bytes_down", "simulated_seconds")
GRID = {"run": RUN, "grid": [{"lr": [0.03, 0.1, 0.3]}]}


@pytest.mark.slow
def test_it_hears_every_round_and_a_run_is_the_same_with_it(tiny, whole):
    heard = []
    config = tiny()
    run(config, callback=heard.append)
    assert numbers(config.folder) == numbers(whole.folder)
    rows = read_run(whole.folder).metrics.to_pylist()
    assert len(heard) == len(rows) == 7
    for figures, row in zip(heard, rows, strict=True):
        assert {
            n: v for n, v in row.items() if n not in ("class_accuracy", "seconds")
        } == {n: v for n, v in figures.items() if n != "seconds"}


@pytest.mark.slow
def test_rounds_between_evaluations_are_heard_without_accuracy(tiny, whole):
    heard = []
    config = tiny(evaluate_every=3)
    run(config, callback=heard.append)
    assert [figures["round"] for figures in heard] == [1, 2, 3, 4, 5, 6, 7]
    assert ["accuracy" in figures for figures in heard] == [
        n in (3, 6, 7) for n in range(1, 8)
    ]
    rows = read_run(whole.folder).metrics.to_pylist()
    for name in (*TOTALS, "train_loss", "delta_norm", "cohort"):
        ours, theirs = ([row[name] for row in table] for table in (heard, rows))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_run_stops_where_it_is_asked_to(tiny, whole):
    """Early stopping, as a user would write it."""
    rows = read_run(whole.folder).metrics.to_pylist()

    def patience():
        best, since = [np.inf], [0]

        def no_better_for_two(figures):
            better = figures["loss"] < best[0] - 0.5
            best[0] = figures["loss"] if better else best[0]
            since[0] = 0 if better else since[0] + 1
            return since[0] == 2

        return no_better_for_two

    config = tiny(checkpoint_every=None)
    summary, stops = run(config, callback=patience()), patience()
    rounds = next(row["round"] for row in rows if stops(row))
    assert summary.rounds == summary.stopped_round == rounds < 7
    record, losses = read_run(config.folder), [row["loss"] for row in rows]
    assert record.summary["stopped_round"] == rounds
    assert record.metrics["loss"].to_pylist() == losses[:rounds]
    assert set(record.clients["round"].to_pylist()) == set(range(1, rounds + 1))
    state, done = final_state(config)
    assert done == state.round == rounds  # the state is that of the round
    assert "where a callback ended it" in str(
        summary_table(config.folder).columns[1]._cells
    )
    before = files(config.folder)
    assert run(config, resume=True).stopped_round == rounds  # and runs nothing
    assert files(config.folder) == before
    assert read_run(whole.folder).summary["stopped_round"] is None


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_between_evaluations_stops_at_the_next(tiny):
    config = tiny(evaluate_every=3)
    summary = run(config, callback=lambda figures: figures["round"] == 4)
    assert summary.rounds == summary.stopped_round == 6
    assert read_run(config.folder).metrics["round"].to_pylist() == [3, 6]


@pytest.mark.slow
def test_what_it_raises_leaves_a_run_that_goes_on(tiny, whole):
    heard, broken = [], tiny(checkpoint_every=None)

    def failing(figures):
        heard.append(figures["round"])
        if figures["round"] == 3:
            raise RuntimeError("the tracker is gone")

    with pytest.raises(RuntimeError, match="the tracker is gone"):
        run(broken, callback=failing)
    assert read_run(broken.folder).summary is None
    folder = final_state(broken)
    assert folder[1] == 3  # nothing is lost
    run(broken, resume=True, callback=failing)
    assert heard == [1, 2, 3, 4, 5, 6, 7]
    assert numbers(broken.folder)[1:] == numbers(whole.folder)[1:]


@pytest.mark.parametrize("of_callback", [RuntimeError, KeyboardInterrupt])
def test_what_it_raises_is_told_with_rounds_that_cannot_be_saved(
    tiny, monkeypatch, of_callback
):
    def failing(figures):
        raise of_callback("the tracker is gone")

    def full(self, state, round):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints.Saver, "save", full)
    told = OSError if of_callback is KeyboardInterrupt else of_callback
    with pytest.raises((OSError, of_callback)) as raised:
        run(tiny(), callback=failing)
    assert raised.type is told
    said = [str(raised.value), *getattr(raised.value, "__notes__", ())]
    both = ["the tracker is gone"] * (told is of_callback) + ["No space left on device"]
    assert len(said) == len(both)
    assert all(text in one for text, one in zip(both, said, strict=True))


@pytest.mark.slow
def test_without_one_nothing_is_different(tiny, monkeypatch):
    """The same program, and groups of rounds that nobody waits for one by one."""
    compiled, compile_ = [], jax.stages.Lowered.compile
    fetched, get = [], jax.device_get

    def noted(self, *options):
        compiled.append(self.as_text())
        return compile_(self, *options)

    def counted(tree):
        fetched.append(tree)
        return get(tree)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    monkeypatch.setattr(jax, "device_get", counted)
    few = {"rounds": 60, "checkpoint_every": None, "evaluate_clients": False}
    MADE.clear()
    run(tiny("without", **few, devices=1))
    without = len(fetched)
    MADE.clear()
    run(tiny("with", **few, devices=1), callback=lambda figures: None)
    assert len(compiled) == 2 and compiled[0] == compiled[1]
    assert without < 30 < 60 <= len(fetched) - without


@pytest.mark.slow
@pytest.mark.parametrize(
    "callback, says",
    [
        ("stop", "run got 'stop' for callback; write run(config, callback=callback)."),
        (
            lambda figures: "stop",
            "callback returned 'stop'; return True to stop, or not",
        ),
    ],
)
def test_what_is_no_callback_is_refused(tiny, callback, says):
    with pytest.raises(ValueError, match=".") as error:
        run(tiny(rounds=2), callback=callback)
    assert says in str(error.value)


def test_what_is_no_progress_or_resume_is_refused_before_a_folder_is_made(tiny):
    config = tiny(rounds=2)
    with pytest.raises(ValueError, match="run got 3 for progress; write run"):
        run(config, progress=3)
    with pytest.raises(ValueError, match="run got 'no' for resume; write run"):
        run(config, resume="no")
    with pytest.raises(ValueError, match="sweep got 3 for progress; write sweep"):
        sweep({"grid": {"lr": [0.1]}}, progress=3)
    assert not Path(config.folder).exists()


# --- sweeps --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "whole"
    return sweep(GRID, folder, side_by_side=2)


def rows_of(found):
    drop = ("seconds",)
    return found.metrics.drop_columns(drop).to_pylist()


@pytest.mark.slow
def test_a_sweep_is_pruned_trial_by_trial(tmp_path, whole_sweep):
    """Successive halving's first rung, as a user would write it."""
    heard = []

    def prune(figures):
        heard.append((figures["trial"], figures["round"], figures["settings"]["lr"]))
        return figures["round"] == 3 and figures["settings"]["lr"] < 0.2

    found = sweep(GRID, tmp_path / "pruned", side_by_side=2, callback=prune)
    rates = (0.03, 0.1, 0.3)
    assert heard == [
        *((trial, n, rates[trial]) for n in (1, 2, 3) for trial in (0, 1)),
        *((2, n, 0.3) for n in range(1, 8)),
    ]
    results = found.results.to_pylist()
    assert [row["stopped_round"] for row in results] == [3, 3, None]
    assert [row["rounds"] for row in results] == [3, 3, 7]
    for ours in rows_of(found):
        theirs = next(
            row
            for row in rows_of(whole_sweep)
            if (row["trial"], row["round"]) == (ours["trial"], ours["round"])
        )
        stopped = 3 if ours["trial"] < 2 and ours["round"] == 3 else 0
        assert ours == theirs | {"stopped_round": stopped}
    assert results[0]["client_accuracy_mean"] is not None  # nobody went on
    said = sheets([found.folder], settings_in_columns=True)[0].notes
    stopped = f"{found.folder / 'trials'}/{{0000,0001}}"
    assert f"stopped before the last round by a callback: {stopped}" in said


@pytest.mark.slow
def test_one_that_is_stopped_ends_and_the_others_of_its_program_go_on(
    tmp_path, whole_sweep
):
    stop = lambda figures: figures["trial"] == 0 and figures["round"] >= 2
    unsaved = {"run": {**RUN, "checkpoint_every": None}, "grid": GRID["grid"]}
    found = sweep(unsaved, tmp_path / "one", side_by_side=3, callback=stop)
    results, whole = found.results.to_pylist(), whole_sweep.results.to_pylist()
    assert [row["stopped_round"] for row in results] == [2, None, None]
    assert results[0]["client_accuracy_mean"] is None
    assert results[1]["client_accuracy_mean"] == pytest.approx(
        whole[1]["client_accuracy_mean"], abs=1e-5
    )
    assert results[2]["loss"] == pytest.approx(whole[2]["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_pruned_sweep_is_resumed_as_it_was(tmp_path, whole_sweep):
    """It is broken off after a trial was stopped, and stays so."""
    heard = []

    def prune(figures):
        heard.append((figures["trial"], figures["round"]))
        if len(heard) == 6:
            raise Stop
        return figures["trial"] == 0 and figures["round"] == 2

    with pytest.raises(Stop):
        sweep(GRID, tmp_path / "broken", side_by_side=2, callback=prune)
    assert heard[-1] == (1, 4)
    found = sweep(GRID, tmp_path / "broken", resume=True, callback=prune)
    assert heard[6:] == [(1, 5), (1, 6), (1, 7), *((2, n) for n in range(1, 8))]
    results, whole = found.results.to_pylist(), whole_sweep.results.to_pylist()
    assert [row["stopped_round"] for row in results] == [2, None, None]
    assert [row["loss"] for row in results[1:]] == [row["loss"] for row in whole[1:]]


@pytest.mark.slow
def test_what_a_try_has_left_that_was_killed_at_its_end_is_not_a_trials(
    tmp_path, monkeypatch
):
    """It was killed before the state of the group, and then a trial ends earlier."""
    unsaved = {**RUN, "checkpoint_every": None}
    only = {"run": unsaved, "grid": {"lr": [0.03, 0.1]}}
    save, place = checkpoints.Saver.save, tmp_path / "cut"

    def fails(self, state, round):
        if "groups" in self._folder.parts:
            raise OSError(errno.ENOSPC, "no space left")
        return save(self, state, round)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Saver, "save", fails)
        with pytest.raises(OSError, match="no space left"):
            sweep(only, place, side_by_side=2)
    first = place / "trials" / "0000"
    assert (first / "checkpoints").exists() and any(place.glob("groups/*/last/0"))
    stop = lambda figures: figures["trial"] == 0 and figures["round"] == 2
    found = sweep(only, place, resume=True, side_by_side=2, callback=stop)
    rows = found.results.to_pylist()
    assert [row["stopped_round"] for row in rows] == [2, None]
    assert [row["client_accuracy_mean"] is None for row in rows] == [True, False]
    assert not (first / "checkpoints").exists()
    assert read_table(first, "partition").column_names == ["client", "label_counts"]


@pytest.mark.slow
def test_a_program_whose_trials_are_all_over_is_not_begun_again(tmp_path):
    only = {"run": RUN, "grid": {"lr": [0.03, 0.1]}}
    heard = []

    def prune(figures):
        heard.append((figures["trial"], figures["round"]))
        return figures["round"] == 2

    found = sweep(only, tmp_path / "all", callback=prune)
    assert [row["rounds"] for row in found.results.to_pylist()] == [2, 2]
    assert len(found.metrics) == 4 and len(heard) == 4
    assert not list((found.folder / "groups").glob("*/checkpoints"))


@pytest.mark.slow
def test_a_run_that_was_killed_after_a_stop_of_progress_hears_the_rest(tiny):
    config = tiny()
    with pytest.raises(Stop):
        run(config, progress=stop_after(4), callback=lambda figures: None)
    saved = checkpoints.rounds(Path(config.folder) / "checkpoints")[-1]
    heard = []
    run(config, resume=True, callback=lambda figures: heard.append(figures["round"]))
    assert heard == list(range(saved + 1, 8))


class Killed(BaseException):
    """As kill -9: nothing of the package handles it."""


@pytest.mark.slow
def test_a_kill_while_a_trial_is_finished_loses_no_accuracy_of_clients(
    tmp_path, monkeypatch
):
    """Its table is being replaced: off the list of the folder, and not yet on it."""
    only, place = {"run": RUN, "grid": {"lr": [0.03, 0.1]}}, tmp_path / "cut"
    append = store.append

    def killed(folder, name, rows, last_round):
        append(folder, name, rows, last_round)
        if name == store.PARTITION:
            listed.strike(folder, list((folder / name).iterdir()))
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", killed)
        with pytest.raises(Killed):
            sweep(only, place, side_by_side=2)
    rows = sweep(only, place, resume=True, side_by_side=2).results.to_pylist()
    assert all(row["client_accuracy_mean"] is not None for row in rows)
    assert not any(place.glob("groups/*/last"))


@pytest.mark.slow
def test_trials_that_were_stopped_keep_their_end_where_nobody_listens_any_more(
    tmp_path, monkeypatch
):
    only, place = {"run": RUN, "grid": {"lr": [0.03, 0.1]}}, tmp_path / "cut"

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "write_trials", killed)
        with pytest.raises(Killed):
            stop = lambda figures: figures["round"] == 2
            sweep(only, place, side_by_side=2, callback=stop)
    rows = sweep(only, place, resume=True, side_by_side=2).results.to_pylist()
    assert [row["stopped_round"] for row in rows] == [2, 2]
    assert all(row["client_accuracy_mean"] is not None for row in rows)
    assert (place / "trials" / "0000" / "checkpoints").exists()


@pytest.mark.slow
def test_a_summary_that_is_gone_is_said_when_its_sweep_goes_on(tmp_path):
    place = tmp_path / "cut"
    only = {"run": RUN, "grid": {"lr": [0.03, 0.1]}}
    sweep(only, place, side_by_side=2)
    listed.strike(place, [place / "summary.json"])
    for path in (place, place / "trials" / "0001"):
        (path / "summary.json").unlink()
    with pytest.raises(ValueError, match="trials/0001/summary.json is missing"):
        sweep(only, place, resume=True, side_by_side=2)
