"""Runs of equal work: as many local steps in all as another run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import relist
from hypothesis import given
from hypothesis import strategies as st

from fedjax_adapt.core import scheduled_steps
from fedjax_adapt.experiment import Config, files, read_run, run, store
from fedjax_adapt.experiment.algorithm import matching_steps, schedule
from fedjax_adapt.experiment.build import build, build_algorithm

TRAIN = 1437  # examples of the digits


@pytest.fixture
def matched(tiny, whole):
    """The tiny config, told to match the finished one; keywords change it."""
    there = {"match": whole.folder, "epochs": Config.epochs}
    return lambda **changes: tiny(**{**there, **changes})


class Seen:
    """What a policy reads of a cohort."""

    def __init__(self, num_examples, batch_size):
        self.num_examples, self.batch_size = num_examples, batch_size
        self.ids = num_examples


@pytest.mark.slow
def test_average_epochs_give_the_total_within_a_step_per_visit(matched, whole):
    clients = read_run(whole.folder).clients
    wanted = sum(clients["num_steps"].to_pylist())
    for seed in range(5):
        sizes = np.random.default_rng(seed).integers(60, 400, 6)
        policy = matching_steps(matched(batch_size=20), sizes, TRAIN)
        visits = sizes[clients["client"].to_numpy()]
        total = int(policy.steps((), Seen(visits, 20), ()).sum())
        assert wanted - len(visits) <= total <= wanted


def test_full_batches_are_of_the_largest_client(matched, whole):
    """E_avg n_i / B with B the size of the largest: its share of the mean steps."""
    sizes = np.array([100, 100, 100, 100, 100, 1])
    policy = matching_steps(matched(batch_size=None), sizes, TRAIN)
    clients = read_run(whole.folder).clients
    visits = sizes[clients["client"].to_numpy()]
    expected = sum(clients["num_steps"].to_pylist()) * 100 / visits.sum()
    taken = policy.steps((), Seen(np.array([100]), 100), ())
    assert int(taken[0]) == int(expected + 1e-4)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60).flatmap(
        lambda cohorts: st.tuples(
            st.just(cohorts), st.integers(1, 10**4 * sum(cohorts))
        )
    )
)
def test_a_schedule_gives_the_total_within_half_a_step_per_client(case):
    cohorts, total = np.array(case[0]), case[1]
    steps = schedule(total, cohorts)
    mean = total // cohorts.sum()
    assert set(steps) <= {mean, mean + 1}
    given = np.cumsum(steps * cohorts)
    due = np.cumsum(cohorts) * (total / cohorts.sum())
    assert (np.abs(given - due) <= cohorts.max() / 2 + 1e-6).all()


def test_equal_cohorts_of_a_whole_mean_all_take_it():
    np.testing.assert_array_equal(schedule(60, np.full(5, 4)), 3)
    np.testing.assert_array_equal(schedule(8, np.full(4, 4)), [0, 1, 0, 1])


def test_a_schedule_is_what_clients_take_round_by_round():
    policy, seen = scheduled_steps(np.array([2, 0, 3])), Seen(np.array([7, 9]), 1)
    taken = []
    for seen.round in range(4):
        taken.append(policy.steps((), seen, ()).tolist())
    assert taken == [[2, 2], [0, 0], [3, 3], [3, 3]]


@pytest.mark.slow
def test_a_run_matched_by_steps_takes_as_many(matched, whole, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(whole.folder, other)
    theirs = read_run(other).clients
    store.drop(other, "clients")
    more = np.array(theirs["num_steps"]) + (np.arange(len(theirs)) == 0) * 7
    columns = {**theirs.to_pydict(), "num_steps": more}
    store.append(other, "clients", columns, 7)
    result = run(matched(algorithm="fedavg", match_by="steps", match=str(other)))
    ours = read_run(result.folder).clients
    for name in ("round", "client"):
        assert ours[name].to_pylist() == theirs[name].to_pylist()
    cohorts = np.bincount(ours["round"].to_numpy())
    assert abs(result.local_steps - more.sum()) <= cohorts.max() / 2
    assert set(ours["num_steps"].to_pylist()) == {3, 4}


def test_what_cannot_be_matched_is_one_sentence(matched, whole, tmp_path):
    half, gone, lacking = tmp_path / "half", tmp_path / "gone", tmp_path / "lacking"
    half.mkdir()
    shutil.copy(Path(whole.folder) / "config.toml", half)
    for copy in (gone, lacking):
        shutil.copytree(whole.folder, copy)
    shutil.rmtree(gone / "clients")
    max((lacking / "clients").iterdir()).unlink()
    for folder in (half, gone, lacking):
        relist(folder)
    sizes = np.full(6, 100)
    for changes, says in (
        ({"match": str(tmp_path)}, "holds no run; write the folder of a finished one"),
        ({"match": str(half)}, "holds a run that is not finished; resume it first"),
        (
            {"match": str(gone)},
            "holds a run whose table of clients is gone; give the f",
        ),
        (
            {"match": str(lacking)},
            "holds a run whose table of clients lacks rounds; gi",
        ),
        ({"rounds": 8}, "holds a run with rounds=7, not rounds=8; only runs of one"),
        ({"num_clients": 5}, "with num_clients=6, not num_clients=5"),
        ({"seed": 3}, "with partition_seed=0, not partition_seed=3"),
        ({"partition_options": {"concentration": 9.0}}, "concentration=0.3, not"),
    ):
        with pytest.raises(ValueError, match=says) as error:
            matching_steps(matched(**changes), sizes, TRAIN)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_whose_clients_hold_other_examples_is_not_matched(
    matched, whole, tmp_path
):
    """Where nothing else differs a public set takes them out, a default one too."""
    own = matched(public="holdout", public_examples=37, validation_examples=0)
    with pytest.raises(ValueError, match="clients share 1437 examples .no public set"):
        build(own)
    other = tmp_path / "other"
    shutil.copytree(whole.folder, other)
    summary = json.loads((other / store.SUMMARY).read_text())
    summary["data"]["train"] = 1294
    summary["public"] = {"protocol": "holdout", "examples": 143, "validation": 0}
    files.write_listed(other / store.SUMMARY, json.dumps(summary))
    says = (
        r"1294 examples \(public=holdout, public_examples=143, validation_examples=0\), "
        r"but here they share 1400 \(public=holdout, public_examples=37, validation_"
    )
    with pytest.raises(ValueError, match=says) as error:
        build(replace(own, match=str(other)))
    assert "\n" not in str(error.value)
    build(replace(own, match=str(other), public_examples=143))
    build(matched(public="published"))  # which takes nothing out of the training set


def test_an_algorithm_that_chooses_its_steps_cannot_be_matched(matched, monkeypatch):
    from fedjax_adapt.algorithms import ALGORITHMS
    from fedjax_adapt.core import Algorithm, constant_steps

    own = lambda: Algorithm(policy=constant_steps(5))
    monkeypatch.setitem(ALGORITHMS, "fedavg", own)
    with pytest.raises(ValueError, match="algorithm=fedavg chooses them itself; leave"):
        build_algorithm(matched(algorithm="fedavg"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(algorithm="fedgsnr", num_steps=3), "num_steps=3 sets the local steps"),
        (dict(algorithm="gift", epochs=2.0), "algorithm=gift chooses them itself"),
        (
            dict(algorithm="gift", algorithm_options={"base": "fedveca"}),
            "base=fedveca chooses the local steps of clients, and so does algorithm=gi",
        ),
        (
            dict(algorithm="adacomm", algorithm_options={"every_seconds": 60.0}),
            "every_seconds=60 needs a simulated clock",
        ),
    ],
)
def test_two_answers_to_how_many_steps_are_refused(changes, says):
    with pytest.raises(ValueError, match=says) as error:
        build_algorithm(Config(**changes))
    assert "\n" not in str(error.value)
