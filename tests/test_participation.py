import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa


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
    margin = 5 * np.sqrt(rounds * expected * (1 - expected))
    np.testing.assert_allclose(counts, rounds * expected, atol=margin)
    sizes = np.bincount((cohorts < num_clients).sum(1), minlength=num_clients + 1)
    from math import comb

    for m in range(1, num_clients + 1):
        p = comb(num_clients, m) * q**m * (1 - q) ** (num_clients - m) / some
        margin = 5 * np.sqrt(rounds * p * (1 - p)) + 1e-9
        assert abs(sizes[m] - rounds * p) <= margin, (m, sizes[m], rounds * p)


def test_a_tiny_probability_still_ends_and_is_fair():
    cohorts = draws(fa.bernoulli(1e-6), 8, 8000)
    assert ((cohorts < 8).sum(1) == 1).all()
    counts = np.bincount(cohorts[:, 0], minlength=8)
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(1000))


def test_slots_suffice_but_do_not_waste():
    slots = fa.bernoulli(0.15).slots(100)
    assert 31 <= slots <= 45  # mean 15, standard deviation 3.6; tail below 1e-9
    assert fa.bernoulli(1.0).slots(7) == 7
    assert fa.bernoulli(1e-9).slots(500) == 1


@pytest.mark.parametrize("wrong", [0, -0.1, 1.5, float("nan")])
def test_a_probability_outside_its_range_is_refused(wrong):
    with pytest.raises(ValueError, match=r"participation=.* must lie in \(0, 1\]"):
        fa.bernoulli(wrong)


def test_empty_slots_train_nobody(task, data):
    from fedjax_adapt.algorithms import fedavg

    plan = fa.Plan(participation=fa.bernoulli(0.1), batch_size=4, lanes=2)
    state = fa.init_state(fedavg(), task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(fedavg(), task, data, plan))
    _, info = round_fn(state, jax.random.key(1))
    empty = np.asarray(info.cohort) == data.num_clients
    assert empty.any()
    assert (np.asarray(info.num_steps)[empty] == 0).all()
    assert (np.asarray(info.loss)[empty] == 0).all()
    assert int(info.num_active) == (~empty).sum() == jnp.sum(info.num_steps > 0)
