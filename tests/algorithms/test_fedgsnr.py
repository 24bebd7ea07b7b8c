from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from helpers import close, keys, make_clients, make_data, make_task, same, start
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_adapt as fa
from fedjax_adapt import models
from fedjax_adapt.algorithms import fedavg, fedgsnr, fedprox, scaffold
from fedjax_adapt.algorithms.fedgsnr import LARGEST, Measured
from fedjax_adapt.engine.cohort import with_num_steps
from fedjax_adapt.moments.sums import Moments, Products, second_moments

PLAN = fa.Plan(cohort_size=4, batch_size=4, lr=0.2, lr_decay=0.9, shuffle="none")


def examples_of(client, theta):
    """Per-example gradients on the client's first batch, [B, d]."""
    x, y = (part[: PLAN.batch_size] for part in client)
    return np.array(
        [oracle.gradient(theta, x[i : i + 1], y[i : i + 1]) for i in range(len(y))]
    )


def numpy_ratios(gradients, p, shifts=0.0, batch=None):
    """n_k, r_k from lists of per-example gradients [B_k, d], as the paper has them."""
    batch = list(map(len, gradients)) if batch is None else batch
    mu = np.array([g.mean(0) for g in gradients]) + shifts
    var = np.array([g.var(0) for g in gradients])
    mu_g = p @ mu
    var_g = p @ var + p @ (mu - mu_g) ** 2
    n, r = [], []
    for k, B in enumerate(batch):
        a = mu[k] @ mu_g + np.sqrt(var[k] * var_g).sum() / B
        b = mu[k] @ mu[k] + var[k].sum() / B
        b_g = mu_g @ mu_g + var_g.sum() / B
        n.append(max(0, a / b))
        r.append(max(0, a / np.sqrt(b * b_g - a**2)))
    return np.array(n), np.array(r)


def rounded(wanted):
    return np.where(wanted > 0, np.maximum(np.round(wanted), 1), 0).astype(int)


def sgd(theta, client, steps, lr):
    """`steps` local steps on the client's batches in order."""
    order = list(oracle.batches(*client, PLAN.batch_size, 1))
    for step in range(steps):
        theta = theta - lr * oracle.gradient(theta, *order[step % len(order)])
    return theta


def measured_of(mu, var, batch=1.0):
    """What clients would have measured, from [cohort, d] in NumPy."""
    mu, var = jnp.asarray(mu), jnp.asarray(var)
    return Measured(
        gradient=Moments(mu, var, jnp.full(len(mu), batch)),
        mean_square=(mu**2).sum(1),
        total_var=var.sum(1),
        batch=jnp.full(len(mu), batch),
        finite=jnp.isfinite(mu).all(1),
        draw=jnp.zeros(len(mu)),
    )


def cohort_of(sizes, round=0):
    sizes = jnp.asarray(sizes)
    return fa.Cohort(
        ids=jnp.arange(len(sizes)),
        num_examples=sizes,
        epoch_steps=sizes,
        num_steps=jnp.zeros_like(sizes),
        active=sizes > 0,
        round=jnp.int32(round),
        num_clients=len(sizes),
        num_holders=len(sizes),
        mean_epoch_steps=jnp.int32(1),
    )


@partial(jax.jit, static_argnames="weights")
def ratios(cohort, measured, weights="data"):
    """What the policy makes of a cohort's measurements, as the engine asks for it."""
    policy = fa.gsnr_steps(4, weights=weights)
    pooled = policy.measure.pool(cohort, measured)
    return jax.vmap(policy.measure.digest, (None, 0))(pooled, measured)


def steps_of(policy, measured, sizes):
    cohort = cohort_of(sizes)
    return np.asarray(jax.jit(policy.steps)((), cohort, ratios(cohort, measured)))


def report_on(cohort, measured):
    policy = fa.gsnr_steps(4)
    return jax.jit(policy.report)(jnp.int32(1), cohort, ratios(cohort, measured))


def test_follows_the_numpy_oracle_under_partial_participation(x64):
    sizes = (12, 5, 9, 12, 3, 7)  # two clients have less than a batch or little more
    data, clients = make_data(sizes, np.float64), make_clients(sizes, np.float64)
    plan = fa.Plan(**{**vars(PLAN), "cohort_size": None,
                      "participation": fa.bernoulli(0.6)})  # fmt: skip
    round_fn, state = start(fedgsnr(3), make_task(jnp.float64), data, plan)
    theta, step = oracle.flat(state.params), jax.jit(round_fn)
    seen = set()
    for round, key in enumerate(keys(4)):
        state, info = step(state, key)
        cohort = [int(i) for i in info.cohort if i < len(sizes)]
        here = np.asarray(info.cohort) < len(sizes)
        size = np.array(sizes, float)[cohort]
        n, r = numpy_ratios(
            [examples_of(clients[i], theta) for i in cohort], size / size.sum()
        )
        np.testing.assert_allclose(info.policy["optimal_steps"][here], n, rtol=1e-9)
        np.testing.assert_allclose(info.policy["gsnr"][here], r, rtol=1e-7)
        q = n[n > 0] / n.sum()
        np.testing.assert_allclose(info.policy["entropy"], -(q * np.log(q)).sum())
        wanted = rounded(len(cohort) * 3 * n / n.sum())
        np.testing.assert_array_equal(info.num_steps[here], np.minimum(wanted, 30))
        assert not np.asarray(info.num_steps)[~here].any()
        seen.add(len(cohort))
        trained = wanted > 0
        lr = plan.lr * plan.lr_decay**round
        ends = [
            sgd(theta, clients[i], int(t), lr)
            for i, t in zip(cohort, np.minimum(wanted, 30), strict=True)
        ]
        if trained.any():
            theta = np.average(ends, 0, size * trained)
        np.testing.assert_allclose(oracle.flat(state.params), theta, rtol=1e-9)
    assert len(seen) > 1  # cohorts of several sizes, so empty slots


@pytest.mark.slow
def test_who_is_left_out_neither_trains_nor_counts_but_is_waited_for(x64):
    """n_k = 0 of one client throughout, against the oracle in NumPy."""
    sizes, left_out = np.array([12, 9, 2, 7]), 2
    clients = make_clients(sizes, np.float64)
    # twice the same example, so no variance, and of a label that the others move away from
    mean = np.concatenate([x for x, _ in clients]).mean(0)
    clients[left_out] = np.tile(mean, (2, 1)), np.ones(2, np.int32)
    data = fa.FederatedDataset.from_clients(clients, num_classes=3)
    c, up = np.array([0.1, 0.2, 3.0, 0.1]), 1e4
    clock = fa.Clock(c, bandwidth=up, latency=0.5)
    plan = fa.Plan(batch_size=4, lr=0.02, lr_decay=0.9, shuffle="none", clock=clock)
    round_fn, state = start(fedgsnr(3), make_task(jnp.float64), data, plan)
    theta, step = oracle.flat(state.params), jax.jit(round_fn)
    model = 8 * len(theta)  # bytes
    for round, key in enumerate(keys(3)):
        state, info = step(state, key)
        n, _ = numpy_ratios(
            [examples_of(i, theta) for i in clients], sizes / sizes.sum()
        )
        assert n[left_out] == 0
        steps = rounded(4 * 3 * n / n.sum())
        np.testing.assert_array_equal(info.num_steps, steps)
        assert steps[left_out] == 0 and (np.delete(steps, left_out) > 0).all()
        assert info.loss[left_out] == 0 and int(info.num_active) == 3
        lr = plan.lr * plan.lr_decay**round
        ends = [sgd(theta, i, t, lr) for i, t in zip(clients, steps, strict=True)]
        theta = np.average(ends, 0, np.where(steps > 0, sizes, 0))
        np.testing.assert_allclose(oracle.flat(state.params), theta, rtol=1e-9)
        # it has measured, which takes long, and its 2M have arrived before tau is known
        known = c.max() + 8 * 2 * model / up + 0.5
        seconds = known + (steps * c).max() + 8 * model / up + 0.5
        np.testing.assert_allclose(info.seconds, seconds, rtol=1e-9)
        assert info.bytes_up == (4 * 2 + 3) * model
        assert info.bytes_down == 4 * (model + 4)


@pytest.mark.slow
def test_clients_alike_make_it_fedavg_to_the_bit(task):
    clients = make_clients((8,)) * 4
    data = fa.FederatedDataset.from_clients(clients, num_classes=3)
    plan = fa.Plan(batch_size=4, lr=0.2, shuffle="none")
    ends = []
    for algorithm in (fedgsnr(5), fa.with_steps(fedavg(), fa.constant_steps(5))):
        round_fn, state = start(algorithm, task, data, plan)
        state, info = jax.jit(round_fn)(state, keys(1)[0])
        ends.append((state.params, info.num_steps))
        if info.policy:
            close(info.policy["optimal_steps"], jnp.ones(4), atol=1e-5)
            close(info.policy["gsnr"], jnp.full(4, LARGEST))
            close(info.policy["entropy"], jnp.log(4.0))
    assert same(*ends)


def test_two_clients_of_the_specification():
    two = measured_of([[1.0], [3.0]], [[0.0], [0.0]])
    close(ratios(cohort_of((5, 5)), two).optimal, jnp.array([2, 2 / 3]))
    assert steps_of(fa.gsnr_steps(4), two, (5, 5)).tolist() == [6, 2]
    assert steps_of(fa.gsnr_steps(4, budget="raw"), two, (5, 5)).tolist() == [8, 3]
    half = fa.gsnr_steps(4, interpolation=0.5)
    assert steps_of(half, two, (5, 5)).tolist() == [5, 3]
    # data weights move mu_g to 1.5 and var_g to .75, and uniform ones do not
    close(ratios(cohort_of((3, 1)), two).optimal[0], jnp.array(1.5))
    close(ratios(cohort_of((3, 1)), two, "uniform").optimal[0], jnp.array(2.0))


def test_nobody_takes_more_than_ten_times_e_and_the_rest_is_counted():
    """local-steps.md 1.3: the cap, whose cut is reported and not given to others."""
    wanted, cohort = jnp.array([1000, 3]), cohort_of((5, 5))
    for policy, most in ((fa.gsnr_steps(4), 40), (fa.gsnr_steps(4, max_steps=7), 7)):
        taken, cut = with_num_steps(cohort, wanted, PLAN, policy)
        assert taken.num_steps.tolist() == [most, 3]
        assert cut.tolist() == [1000 - most, 0]
    assert fedgsnr().policy.max_steps == 200  # E is 20


def test_whoever_helps_at_all_takes_a_step():
    """local-steps.md 1.3: rounded to the nearest, at least 1 where n_k > 0."""
    two = measured_of([[1.0], [30.0]], np.zeros((2, 1)))
    close(ratios(cohort_of((5, 5)), two).optimal, jnp.array([15.5, 15.5 / 30]))
    assert steps_of(fa.gsnr_steps(4), two, (5, 5)).tolist() == [8, 1]


def test_without_variance_the_steps_are_a_projection():
    mu = np.array([[1.0, 0, 0], [0, 2, 0], [-1, 0, 0], [3, 0, 0.0]])
    alone = measured_of(mu, np.zeros_like(mu))
    p = np.array([1, 0, 1, 2]) / 4  # the second has no weight, and is orthogonal
    found = ratios(cohort_of((1, 0, 1, 2)), alone)
    expected = np.maximum(0, mu @ (p @ mu) / (mu**2).sum(1))
    close(found.optimal, jnp.array(expected, jnp.float32))
    assert expected[2] == 0  # which points the other way
    assert steps_of(fa.gsnr_steps(4), alone, (1, 0, 1, 2))[2] == 0


def test_an_orthogonal_gradient_takes_no_step_though_it_counts():
    mu = np.array([[2.0, 0], [-1, 1], [-1, 1], [1, -1]])  # the mean is (1/4, 1/4)
    mu = np.vstack([mu, [[1.0, -1], [-1, 1]]])  # orthogonal, and they cancel
    found = ratios(cohort_of([3] * 6), measured_of(mu, np.zeros_like(mu)))
    np.testing.assert_allclose(mu[4:] @ mu.mean(0), 0, atol=1e-12)
    assert found.optimal[0] > 0 and not found.optimal[4:].any()


def test_numbers_that_overflow_in_the_mean_alone_are_failures():
    large = measured_of([[1.5e19, 1], [-1.5e19, 1]], np.zeros((2, 2)))
    found = ratios(cohort_of((1, 9)), large)
    assert not found.usable.any()
    assert not found.optimal.any() and not found.gsnr.any()
    assert steps_of(fa.gsnr_steps(4), large, (1, 9)).tolist() == [4, 4]


@pytest.mark.slow
def test_who_failed_takes_e_steps_and_is_in_no_budget():
    three = measured_of([[1.0], [3.0], [0.0]], np.zeros((3, 1)))
    three = three._replace(finite=jnp.array([True, True, False]))
    assert steps_of(fa.gsnr_steps(4), three, (5, 5, 5)).tolist() == [6, 2, 4]
    report = report_on(cohort_of((5, 5, 5)), three)
    assert report["measured"].tolist() == [True, True, False]
    close(report["entropy"], -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    alone = measured_of([[1.0]], [[1.0]])  # whose gradient is everybody's
    assert not report_on(cohort_of((5,)), alone)["measured"].any()


sizes_of = st.lists(st.integers(1, 20), min_size=2, max_size=6)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    sizes=sizes_of,
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-10, 1e-4, 0.1, 50, 1e10]),
)
def test_scaling_the_loss_changes_nothing_and_the_bounds_hold(sizes, seed, scale):
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=(len(sizes), 4)) * rng.exponential(size=(len(sizes), 1))
    var = rng.exponential(size=mu.shape)
    cohort = cohort_of(sizes)
    found = ratios(cohort, measured_of(mu, var, 8.0))
    scaled = ratios(cohort, measured_of(scale * mu, scale**2 * var, 8.0))
    close(scaled, found, rtol=1e-3, atol=1e-5)
    p = np.array(sizes) / sum(sizes)
    mu_g = p @ mu
    var_g = p @ var + p @ (mu - mu_g) ** 2
    b_g = mu_g @ mu_g + var_g.sum() / 8
    b = (mu**2).sum(1) + var.sum(1) / 8
    assert (np.asarray(found.optimal) <= np.sqrt(b_g / b) * (1 + 1e-5)).all()
    assert (np.asarray(found.gsnr) >= 0).all()
    # a matched budget is kept but for rounding, and for what became 1
    policy = fa.gsnr_steps(20)
    steps = steps_of(policy, measured_of(mu, var, 8.0), sizes)
    n, m = np.asarray(found.optimal, float), len(sizes)
    raised = (m * 20 * n / n.sum() < 0.5) & (n > 0)
    assert abs(steps.sum() - m * 20) <= m / 2 + raised.sum()
    assert (steps[n > 0] >= 1).all() and (steps[n == 0] == 0).all()


def products_of(gradients):
    """Clients' measurements of one dense layer, from lists of x [B, in] and d [B, out]."""
    stack = lambda arrays: jnp.asarray(np.stack(arrays), jnp.float32)
    x, d = map(stack, zip(*gradients, strict=True))
    part = Products(x, d, jnp.ones(x.shape[:2]))
    square, var = jax.jit(jax.vmap(second_moments))(part)
    every = jnp.ones(len(x))
    batch = x.shape[1] * every
    return Measured({"w": part}, square, var, batch, every > 0, 0 * every)


@pytest.mark.parametrize(
    "scale", [*(pytest.param(s, marks=pytest.mark.slow) for s in (1, 1e-2)), 1e-4]
)
def test_a_small_gradient_has_the_ratios_it_should_in_float32(scale):
    rng = np.random.default_rng(0)
    direction = rng.normal(size=4)
    client = lambda of: (
        rng.random((8, 20)), of * (direction + rng.normal(size=(8, 4)))
    )  # fmt: skip
    clients = [client(of) for of in (1, 1, 1, scale)]
    gradients = [(x[:, :, None] * d[:, None]).reshape(8, -1) for x, d in clients]
    n, r = numpy_ratios(gradients, np.full(4, 0.25))
    found = ratios(cohort_of((8,) * 4), products_of(clients))
    np.testing.assert_allclose(found.optimal, n, rtol=1e-3)
    np.testing.assert_allclose(found.gsnr, r, rtol=1e-3)
    assert (r < 100).all() and (n > 0).all()


@pytest.mark.parametrize(
    "near", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 1e-2)), 1e-4, 0]
)
def test_clients_alike_have_the_largest_ratio_however_little_varies(near):
    rng = np.random.default_rng(0)
    x, d = (rng.normal(size=n) + near * rng.normal(size=(8, n)) for n in (20, 4))
    found = ratios(cohort_of((8, 8)), products_of([(x, d)] * 2))
    np.testing.assert_allclose(found.optimal, 1, rtol=1e-5)
    # sums are rounded in different orders
    assert (found.gsnr >= 3e5).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "batches, micro_batch, devices, lanes", [(2, 3, 4, 2), (3, 1, 1, 3)]
)
def test_a_model_s_ratios_are_the_oracle_s_on_devices_and_in_lanes(
    x64, batches, micro_batch, devices, lanes
):
    """Of several batches, with empty slots and clients of one example or none."""
    rng, sizes, B = np.random.default_rng(0), [12, 5, 9, 12, 1, 3, 7, 0], 4
    clients = [
        (rng.normal(size=(n, 6)) + 0.3 * i, rng.integers(0, 3, n).astype(np.int32))
        for i, n in enumerate(sizes)
    ]
    data = fa.FederatedDataset.from_clients(clients, num_classes=3)
    task = fa.classification(models.mlp((6,), 3, widths=(5,)), (6,))
    double = lambda key: jax.tree.map(lambda a: a.astype(float), init(key))
    init, task = task.init, task._replace(init=double)
    loss = lambda p, x, y: task.loss(task.apply(p, x[None]).logits, y[None])[0]
    gradients_of = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))

    def measured(params, client):  # gradients of the first batches in order
        x, y = clients[client]
        n = len(y)
        starts = [step % -(-n // B) * B for step in range(batches)]
        rows = [i for b in starts for i in range(b, min(b + B, n))]
        found = gradients_of(params, x[rows], y[rows])
        flat = [
            np.asarray(leaf).reshape(len(rows), -1) for leaf in jax.tree.leaves(found)
        ]
        return np.concatenate(flat, 1)

    plan = fa.Plan(
        participation=fa.bernoulli(0.7),
        batch_size=B,
        lr=0.1,
        shuffle="none",
        devices=devices,
        lanes=lanes,
    )
    algorithm = fedgsnr(5, probe_batches=batches, micro_batch=micro_batch)
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(2):
        params = jax.device_get(state.params)
        state, info = step(round_fn.placed(state), key)
        ids = np.asarray(info.cohort)
        here = [j for j, k in enumerate(ids) if k < len(sizes) and sizes[k] > 0]
        size = np.array([sizes[ids[j]] for j in here], float)
        n, r = numpy_ratios(
            [measured(params, ids[j]) for j in here],
            size / size.sum(),
            batch=np.minimum(size, B),
        )
        np.testing.assert_allclose(
            info.policy["optimal_steps"][np.array(here)], n, rtol=1e-9
        )
        np.testing.assert_allclose(info.policy["gsnr"][np.array(here)], r, rtol=1e-7)
        assert np.asarray(info.num_steps).sum() == info.num_steps[np.array(here)].sum()


def test_stochastic_rounding_has_the_right_mean():
    two = measured_of([[1.0], [3.0]], [[0.0], [0.0]])
    policy, cohort = (
        fa.gsnr_steps(4, budget="raw", rounding="stochastic"),
        cohort_of((5, 5)),
    )
    found = ratios(cohort, two)
    draws = jax.random.uniform(jax.random.key(0), (4000, 2))
    steps = jax.vmap(lambda draw: policy.steps((), cohort, found._replace(draw=draw)))(
        draws
    )
    np.testing.assert_allclose(steps.mean(0), [8, 8 / 3], atol=0.03)
    assert set(np.unique(steps[:, 1]).tolist()) == {2, 3}


def test_nobody_trains_where_all_gradients_are_zero():
    nothing = measured_of(np.zeros((2, 3)), np.zeros((2, 3)))
    found = ratios(cohort_of((5, 5)), nothing)
    assert not found.optimal.any() and not found.gsnr.any()
    assert not steps_of(fa.gsnr_steps(4), nothing, (5, 5)).any()
    report = report_on(cohort_of((5, 5)), nothing)
    assert report["entropy"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "probe", ["corrected", pytest.param("plain", marks=pytest.mark.slow)]
)
def test_the_probe_follows_what_scaffold_adds(x64, probe):
    data, clients = make_data(dtype=np.float64), make_clients(dtype=np.float64)
    algorithm = fedgsnr(3, base=scaffold(scale="none"), probe=probe, weights="uniform")
    round_fn, state = start(algorithm, make_task(jnp.float64), data, PLAN)
    step = jax.jit(round_fn)
    state, _ = step(state, keys(2)[0])
    after, info = step(state, keys(2)[1])
    theta, cohort = oracle.flat(state.params), np.asarray(info.cohort)
    gradients = [examples_of(clients[i], theta) for i in cohort]
    row = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
    shifts = [
        oracle.flat(state.server) - oracle.flat(row(state.clients, i)) for i in cohort
    ]
    assert np.abs(shifts).max() > 1e-3
    shifts = np.array(shifts) if probe == "corrected" else 0.0
    n, _ = numpy_ratios(gradients, np.full(4, 0.25), shifts)
    np.testing.assert_allclose(info.policy["optimal_steps"], n, rtol=1e-9)
    assert len({*np.asarray(info.num_steps).tolist()}) > 1


@pytest.mark.slow
def test_fedprox_measures_what_fedavg_does(task, data):
    found = []
    for base in (fedavg(), fedprox(1.0)):
        round_fn, state = start(fedgsnr(3, base=base), task, data, PLAN)
        found.append(jax.jit(round_fn)(state, keys(1)[0])[1].policy)
    close(*found)


@pytest.mark.slow
def test_a_measurement_that_is_not_finite_reaches_nobody(task):
    clients = make_clients()
    clients[2][0][0] = 1e30  # whose gradient's square no float32 holds
    data = fa.FederatedDataset.from_clients(clients, num_classes=3)
    plan = fa.Plan(batch_size=4, lr=0.2, shuffle="none")
    round_fn, state = start(fedgsnr(5, budget="raw"), task, data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    assert info.policy["nonfinite"] == 1 and info.num_steps[2] == 5
    others = [*clients[:2], *clients[3:]]
    data = fa.FederatedDataset.from_clients(others, num_classes=3)
    round_fn, state = start(fedgsnr(5, budget="raw"), task, data, plan)
    _, without = jax.jit(round_fn)(state, keys(1)[0])
    close(np.delete(info.policy["gsnr"], 2), without.policy["gsnr"], rtol=1e-4)
    assert info.policy["gsnr"][2] == 0


@pytest.mark.slow
def test_numbers_may_be_traced_and_full_interpolation_is_the_base(task, data):
    def end(num_steps, interpolation):
        algorithm = fedgsnr(num_steps, interpolation=interpolation)
        round_fn, state = start(algorithm, task, data, PLAN)
        return round_fn(state, keys(1)[0])[0].params

    both = jax.jit(jax.vmap(end))(jnp.array([5, 5]), jnp.array([0.0, 1.0]))
    base = fa.with_steps(fedavg(), fa.constant_steps(5))
    round_fn, state = start(base, task, data, PLAN)
    plain = jax.jit(round_fn)(state, keys(1)[0])[0].params
    row = lambda i: jax.tree.map(lambda leaf: leaf[i], both)
    close(row(1), plain)
    assert not np.allclose(row(0)["w"], plain["w"], atol=1e-4)


@pytest.mark.slow
def test_several_batches_and_the_slow_twin(task, data):
    algorithm = fedgsnr(3, probe_batches=2, rounding="stochastic")
    round_fn, state = start(algorithm, task, data, PLAN)
    step = jax.jit(round_fn)
    state, info = step(state, keys(1)[0])
    slow_state, slow_info = fa.debug_round(algorithm, task, data, PLAN)(
        start(algorithm, task, data, PLAN)[1], keys(1)[0]
    )
    close(slow_state, state, rtol=1e-4)
    close(slow_info.policy, info.policy, rtol=1e-3)


def test_every_wrong_option_is_refused():
    for name in ("budget", "rounding", "probe", "weights"):
        with pytest.raises(ValueError, match=f"{name}='wrong' is unknown"):
            fedgsnr(**{name: "wrong"})
    for name in ("num_steps", "max_steps", "probe_batches", "micro_batch"):
        with pytest.raises(ValueError, match=f"{name}=0 must be an integer >= 1"):
            fedgsnr(**{name: 0})
    with pytest.raises(ValueError, match=r"interpolation=2 must lie in \[0, 1\]"):
        fedgsnr(interpolation=2)


@pytest.mark.slow
def test_steps_along_the_first_gradient_see_none_of_the_others(x64):
    """tau gradients at w, each of the batch of its step, against the oracle in NumPy."""
    sizes = (12, 5, 9, 12)
    data, clients = make_data(sizes, np.float64), make_clients(sizes, np.float64)
    plan = fa.Plan(**{**vars(PLAN), "cohort_size": None})
    algorithm = fedgsnr(3, first_gradient=True)
    round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
    theta, lr = oracle.flat(state.params), plan.lr
    state, info = jax.jit(round_fn)(state, keys(1)[0])
    ends = []
    for client, num_steps in zip(clients, np.asarray(info.num_steps), strict=True):
        order = list(oracle.batches(*client, PLAN.batch_size, 1))
        wanted = [order[step % len(order)] for step in range(num_steps)]
        ends.append(theta - lr * sum(oracle.gradient(theta, *b) for b in wanted))
    steps = np.asarray(info.num_steps)
    assert (steps > 1).any()
    expected = np.average(ends, 0, np.array(sizes) * (steps > 0))
    np.testing.assert_allclose(oracle.flat(state.params), expected, rtol=1e-9)


@pytest.mark.slow
def test_one_step_has_no_other_gradient_than_the_first(x64):
    data, task = make_data(dtype=np.float64), make_task(jnp.float64)
    ends = []
    for first in (False, True):
        algorithm = fedgsnr(1, interpolation=1.0, first_gradient=first)
        round_fn, state = start(algorithm, task, data, PLAN)
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[0].params)
    close(*ends)
