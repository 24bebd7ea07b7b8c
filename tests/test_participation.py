from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import keys, make_data, make_task

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.costs import end_times, round_seconds
from fedjax_adapt.engine.cohort import (
    first_to_end,
    gather_cohort,
    rows_of,
    sample_cohort,
    with_num_steps,
)
from fedjax_adapt.engine.round import checked


def draws(participation, num_clients, rounds, seed=0):
    sample = jax.jit(
        jax.vmap(lambda key: participation.sample(key, num_clients)),
    )
    return np.asarray(sample(jax.random.split(jax.random.key(seed), rounds)))


def test_everyone_comes_in_client_order():
    np.testing.assert_array_equal(draws(fa.everyone(), 5, 2), [range(5)] * 2)


def test_uniform_cohorts_are_distinct_and_fair():
    cohorts = draws(fa.uniform(3), 10, 4000)
    assert all(len(set(cohort)) == 3 for cohort in cohorts.tolist())
    counts = np.bincount(cohorts.ravel(), minlength=10)
    np.testing.assert_allclose(counts, 1200, atol=5 * np.sqrt(4000 * 0.3 * 0.7))


@pytest.mark.parametrize("num_clients, q", [(100, 0.15), (6, 0.1), (500, 0.02), (4, 1)])
def test_bernoulli_cohorts_are_never_empty_distinct_and_padded_at_the_end(
    num_clients, q
):
    cohorts = draws(fa.bernoulli(q), num_clients, 2000)
    present = cohorts < num_clients
    assert present[:, 0].all()
    assert (cohorts[~present] == num_clients).all()
    rising = np.diff(cohorts, axis=1) > 0
    assert (rising | ~present[:, 1:]).all()
    if q == 1:
        assert present.all() and cohorts.shape[1] == num_clients


@pytest.mark.parametrize("num_clients, q", [(6, 0.1), (3, 0.5), (20, 0.02)])
def test_bernoulli_is_the_conditional_distribution(num_clients, q):
    """Against drawing coins until somebody comes, as the published codes do."""
    rounds = 20_000
    cohorts = draws(fa.bernoulli(q), num_clients, rounds)
    some = 1 - (1 - q) ** num_clients
    counts = np.bincount(cohorts.ravel(), minlength=num_clients + 1)[:num_clients]
    expected = q / some
    assert fa.bernoulli(q).rate(num_clients) == pytest.approx(expected, rel=1e-9)
    margin = 5 * np.sqrt(rounds * expected * (1 - expected))
    np.testing.assert_allclose(counts, rounds * expected, atol=margin)
    sizes = np.bincount((cohorts < num_clients).sum(1), minlength=num_clients + 1)
    for m in range(1, num_clients + 1):
        p = comb(num_clients, m) * q**m * (1 - q) ** (num_clients - m) / some
        margin = 5 * np.sqrt(rounds * p * (1 - p)) + 1e-9
        assert abs(sizes[m] - rounds * p) <= margin, (m, sizes[m], rounds * p)


def test_a_tiny_probability_still_ends_and_is_fair():
    cohorts = draws(fa.bernoulli(1e-6), 8, 8000)
    assert ((cohorts < 8).sum(1) == 1).all()
    counts = np.bincount(cohorts[:, 0], minlength=8)
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(1000))
    assert fa.bernoulli(1e-12).rate(8) == pytest.approx(1 / 8)
    assert fa.bernoulli(1.0).rate(8) == 1
    with pytest.raises(ValueError, match="participation is traced, but a cohort has a"):
        jax.vmap(lambda q: fa.bernoulli(q).rate(8))(jnp.ones(2))


def test_slots_suffice_but_do_not_waste():
    slots = fa.bernoulli(0.15).slots(100)
    assert 31 <= slots <= 45  # mean 15, standard deviation 3.6; tail below 1e-9
    assert fa.bernoulli(1.0).slots(7) == 7
    assert fa.bernoulli(1e-9).slots(500) == 1


@pytest.mark.parametrize("wrong", [0, -0.1, 1.5, float("nan")])
def test_a_probability_outside_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match=r"participation=.* must lie in \(0, 1\]"):
        fa.bernoulli(wrong)
    with pytest.raises(ValueError, match=r"participation=.* must lie in \(0, 1\]"):
        fa.earliest(wrong)


def early(data, clock, rounds, fraction=0.5):
    """Who is kept in each round, [rounds, m], and when the last of them ends."""
    plan = fa.Plan(batch_size=4, clock=clock, participation=fa.earliest(fraction))
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(3))
    algorithm = checked(algorithm, make_task(), data, plan)
    params = jnp.zeros(10)

    def one(key):
        cohort = gather_cohort(data, sample_cohort(data, plan, key), jnp.int32(0), 4)
        cohort, _ = with_num_steps(
            cohort, algorithm.policy.steps((), cohort, ()), plan, algorithm.policy
        )
        times = end_times(clock, algorithm, params, cohort, key)
        rows = first_to_end(data, plan, cohort, times, key)
        return (
            cohort.ids[rows],
            round_seconds(algorithm, rows_of(cohort, rows), times[rows]),
            times,
        )

    return map(np.asarray, jax.jit(jax.vmap(one))(keys(rounds)))


@pytest.mark.slow
def test_with_like_clients_the_earliest_are_a_uniform_draw():
    """Spec E4; whatever the clients hold, and though all steps and messages are equal."""
    rounds, m, n = 6000, 3, 6
    clock = fa.Clock(0.1, delay=fa.costs.exponential(2.0))
    cohorts, seconds, times = early(make_data(), clock, rounds)
    assert cohorts.shape == (rounds, m) and (np.diff(cohorts) > 0).all()
    np.testing.assert_array_equal(seconds, np.sort(times, 1)[:, m - 1])
    counts = np.bincount(cohorts @ [36, 6, 1], minlength=216)
    subsets, expected = np.flatnonzero(counts), rounds / comb(n, m)
    assert len(subsets) == comb(n, m)
    margin = 5 * np.sqrt(expected * (1 - 1 / comb(n, m)))
    np.testing.assert_allclose(counts[subsets], expected, atol=margin)


def test_a_tie_is_broken_by_chance():
    cohorts, *_ = early(make_data(), fa.Clock(0.1), 4000)
    counts = np.bincount(cohorts.ravel(), minlength=6)
    np.testing.assert_allclose(counts, 2000, atol=5 * np.sqrt(1000))


def test_clients_that_are_late_for_good_never_come():
    clock = fa.Clock(0.1, delay=fa.costs.exponential(2.0), delay_persists=True)
    cohorts, *_ = early(make_data(), clock, 50)
    assert (cohorts == cohorts[0]).all()


def test_the_earliest_hold_examples_and_their_number_is_rounded_up():
    clock = fa.Clock(0.1, delay=fa.costs.uniform(1.0))
    cohorts, *_ = early(make_data((5, 0, 4, 3, 0, 6)), clock, 100, fraction=0.3)
    assert cohorts.shape[1] == 2  # of four
    assert set(cohorts.ravel()) == {0, 2, 3, 5}
    assert [fa.earliest(q).slots(100) for q in (0.07, 0.4, 0.401, 1e-9, 1)] == [
        *(7, 40, 41, 1, 100)
    ]


@pytest.mark.slow
def test_empty_slots_train_nobody(task, data):
    plan = fa.Plan(participation=fa.bernoulli(0.1), batch_size=4, lanes=2)
    state = fa.init_state(fedavg(), task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(fedavg(), task, data, plan))
    _, info = round_fn(state, jax.random.key(1))
    empty = np.asarray(info.cohort) == data.num_clients
    assert empty.any()
    assert (np.asarray(info.num_steps)[empty] == 0).all()
    assert (np.asarray(info.loss)[empty] == 0).all()
    assert int(info.num_active) == (~empty).sum() == jnp.sum(info.num_steps > 0)
