"""A model in float32, TF32 or bfloat16; all else in float32."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import (
    WIDTH,
    close,
    keys,
    linear_task,
    make_data,
    quadratic_task,
    same,
    start,
)
from jax.extend import core

import fedjax_adapt as fa
from fedjax_adapt.algorithms.fnr import feature_norms
from fedjax_adapt.core import clip
from fedjax_adapt.core.precision import products
from fedjax_adapt.engine.local import client_of, full_loss_and_gradient, train_loss
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.engine.steps import accumulator
from fedjax_adapt.experiment import Config, run
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.experiment.sweeps.groups import groups_of
from fedjax_adapt.models.dense import dense
from fedjax_adapt.models.layers import Conv, GroupNorm

PLAN = fa.Plan(cohort_size=3, batch_size=4, lr=0.05)
SHAPE = (8, 8, 1)


class Many(NamedTuple):
    """A task and many clients of one example each."""

    task: fa.Task
    data: fa.FederatedDataset
    plan: fa.Plan


def mlp():
    return fa.classification(fa.models.mlp((4,), 3, widths=(8,)), (4,))


def trained(task, algorithm=None, plan=PLAN, rounds=2):
    algorithm = fa.algorithms.fedavg() if algorithm is None else algorithm
    round_fn, state = start(algorithm, task, make_data(), plan)
    return fa.train(round_fn, state, keys(rounds))


def equations(jaxpr):
    """All operations of a program, those of loops and calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda v: isinstance(v, core.ClosedJaxpr)
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def multiplications(function, *arguments):
    """The products and convolutions of a program."""
    names = ("dot_general", "conv_general_dilated")
    found = equations(jax.make_jaxpr(function)(*arguments).jaxpr)
    return [equation for equation in found if equation.primitive.name in names]


def images():
    x = np.random.default_rng(0).integers(0, 255, (8, *SHAPE)).astype(np.uint8)
    y = np.arange(8, dtype=np.int32) % 3
    pairs = [(x[:4], y[:4]), (x[4:], y[4:])]
    return fa.FederatedDataset.from_clients(pairs, test=(x, y), num_classes=3)


def network(precision):
    task = fa.classification(fa.models.fedveca_cnn(SHAPE, 3), SHAPE, mean=9.0, std=4.0)
    return fa.with_precision(task, precision)


def round_of_network(precision, lanes):
    """The products of a network of convolutions: in a round, in an evaluation."""
    task, data = network(precision), images()
    plan = fa.Plan(batch_size=4, lanes=lanes)
    round_fn, state = start(fa.algorithms.fedavg(), task, data, plan)
    evaluated = lambda params: fa.evaluate(task, params, data.test)
    return (
        multiplications(round_fn, state, keys(1)[0]),
        multiplications(evaluated, state.params),
    )


@pytest.mark.slow
def test_on_a_cpu_float32_and_tf32_are_what_was_there_before():
    plain = mlp()
    outcomes = [trained(fa.with_precision(plain, p)) for p in ("float32", "tf32")]
    assert same(*outcomes)
    found = sum(round_of_network("tf32", lanes=1), [])
    assert found and not any(e.params["precision"] for e in found)


def test_what_is_asked_of_an_accelerator():
    assert products("float32", "gpu") == products("bf16", "gpu") == "float32"
    assert products("tf32", "gpu") == "default"
    assert products("tf32", "tpu") == "tensorfloat32"
    assert products("float32", "cpu") is products("tf32", "cpu") is None


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(
    "precision, level", [("float32", "HIGHEST"), ("tf32", "DEFAULT")]
)
def test_on_an_accelerator_every_product_is_told(monkeypatch, precision, level, lanes):
    """Convolutions, forward and backward, included."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    trained, evaluated = round_of_network(precision, lanes)
    assert len(trained) >= 10 and evaluated
    kinds = {equation.primitive.name for equation in trained}
    assert kinds == {"conv_general_dilated", "dot_general"}
    for equation in trained + evaluated:
        told = equation.params["precision"]
        told = told if isinstance(told, tuple) else (told,)
        assert {part.name for part in told} == {level}


@pytest.mark.slow
def test_bf16_multiplies_in_bfloat16_and_keeps_float32():
    trained, evaluated = round_of_network("bf16", lanes=2)
    assert len(trained) >= 10 and evaluated
    for equation in trained + evaluated:
        assert {v.aval.dtype for v in equation.invars} == {jnp.dtype(jnp.bfloat16)}
    task = network("bf16")
    x = jnp.asarray(images().x)
    params = task.init(jax.random.key(0))
    outputs = task.apply(params, x)
    assert outputs.logits.dtype == outputs.features.dtype == jnp.float32
    again = task.head(params, outputs.features)
    np.testing.assert_array_equal(again, outputs.logits)
    exact = network("float32").apply(params, x).logits
    assert 0 < abs(outputs.logits - exact).max() < 0.03 * abs(exact).max()


SSG = fa.algorithms.fedssg(total_rounds=2, participation=0.5)
GSNR = fa.algorithms.fedgsnr(num_steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm, lanes",
    [
        pytest.param(fa.algorithms.scaffold(), 1, id="scaffold"),
        pytest.param(SSG, 2, id="fedssg", marks=pytest.mark.slow),
        pytest.param(GSNR, 1, id="fedgsnr", marks=pytest.mark.slow),
    ],
)
def test_bf16_trains_with_states_in_float32(algorithm, lanes):
    task, plan = mlp(), replace(PLAN, lanes=lanes)
    exact, _ = trained(task, algorithm, plan)
    state, info = trained(fa.with_precision(task, "bf16"), algorithm, plan)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(exact), strict=True):
        assert a.dtype == b.dtype
    assert info.loss.dtype == jnp.float32
    assert not same(state.params, exact.params)
    near = lambda a, b: np.testing.assert_allclose(a, b, atol=0.03, rtol=0.03)
    jax.tree.map(near, (state.params, state.clients), (exact.params, exact.clients))


@pytest.mark.slow
def test_statistics_of_bfloat16_are_float32():
    norm = GroupNorm(4, 2)
    norm.scale, norm.bias = (nnx.Param(jnp.ones(4, jnp.bfloat16)) for _ in range(2))
    x = 100 + np.random.default_rng(0).normal(size=(4, 3, 3, 2)).astype(np.float32)
    x = jnp.asarray(x, jnp.bfloat16)
    found, exact = norm(x), norm(x.astype(jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=0.01, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["conv", "norm", "dense"])
def test_gradients_that_are_sums_over_pixels_are_summed_in_float32(layer):
    """Of 20,480 in bfloat16, all but the first hundreds would add nothing."""
    rngs, values = nnx.Rngs(0), np.random.default_rng(0)
    x = values.normal(size=(4, 32, 32, 20)).astype(np.float32)
    weight = values.normal(1, 1, size=x.shape).astype(np.float32)
    made = {
        "conv": lambda: Conv(4, 4, 1, rngs),
        "norm": lambda: GroupNorm(4, 2),
        "dense": lambda: dense(20, 20, rngs),
    }
    graph, exact = nnx.split(made[layer]())
    if layer == "dense":
        x, weight = x.reshape(-1, 20), weight.reshape(-1, 20)

    def gradient(dtype):
        loss = lambda p: (nnx.merge(graph, p)(x.astype(dtype)) * weight).sum()
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), exact)
        return jax.tree.map(lambda leaf: np.float32(leaf), jax.grad(loss)(params))

    rounded, right = (gradient(dtype) for dtype in (jnp.bfloat16, jnp.float32))
    for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * abs(b).max())


def sums_of_a_round(many):
    """The mean that a server adds to a model of zeros."""
    round_fn, state = start(fa.algorithms.fedavg(), many.task, many.data, many.plan)
    state = state._replace(params=jnp.zeros_like(state.params))
    return -jax.jit(round_fn)(state, jax.random.key(0))[0].params


def sums_over_batches(many):
    """The gradient of a client that has as many batches as there are clients."""
    setup = Setup(fa.algorithms.fedavg(), many.task, many.data.pooled(), many.plan)
    client = client_of(jnp.int32(0), (), jnp.int32(1), jax.random.key(0))
    gradient = full_loss_and_gradient(setup, client, 0.0)[1]
    return jax.jit(gradient)(jnp.zeros(WIDTH, jnp.bfloat16))


def sums_over_clients(many):
    """The gradient of the loss over all clients' examples."""
    setup = Setup(fa.algorithms.fedavg(), many.task, many.data, many.plan)
    loss = partial(train_loss, setup)
    return jax.jit(jax.grad(loss))(jnp.zeros(WIDTH, jnp.bfloat16))


@pytest.mark.parametrize(
    "sums",
    [
        pytest.param(sums_of_a_round, marks=pytest.mark.slow),
        sums_over_batches,
        sums_over_clients,
    ],
)
def test_sums_of_a_model_in_half_precision_are_in_float32(sums):
    """In bfloat16 a sum no longer grows by what is 1 / 512 of it."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (600, 1, WIDTH)).astype(np.float32)
    data = fa.FederatedDataset.from_clients([(one, np.zeros(1, int)) for one in x])
    plan = fa.Plan(batch_size=1, lr=1.0, lanes=1, shuffle="none")
    found = sums(Many(linear_task(jnp.bfloat16), data, plan))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(float), x.mean((0, 1)), rtol=0.01)


def test_the_loss_of_all_clients_has_a_gradient_wherever_it_stands(x64):
    data, plan = make_data(dtype=np.float64), fa.Plan(batch_size=4)
    setup = Setup(fa.algorithms.fedavg(), linear_task(jnp.float64), data, plan)
    doubled = jax.grad(lambda params: 2 * train_loss(setup, params))
    mean = np.asarray(data.x).mean(0)
    np.testing.assert_allclose(jax.jit(doubled)(jnp.zeros(WIDTH)), 2 * mean, rtol=1e-12)


LARGE = {
    "as it is": (fa.algorithms.fedavg(), None, 600),
    "clipped gradients": (fa.algorithms.fedavg(), 1.0, 1),
    "private": (fa.with_privacy(fa.algorithms.fedavg(), 1.0, 0.0), None, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm, clip_norm, norm", LARGE.values(), ids=LARGE)
def test_a_norm_of_float16_is_in_float32(algorithm, clip_norm, norm):
    """The square of 256 is infinite there."""
    x = np.full((4, WIDTH), 300, np.float32)
    data = fa.FederatedDataset.from_clients([(x, np.zeros(4, int))] * 2)
    plan = fa.Plan(batch_size=4, lr=1.0, clip_norm=clip_norm)
    task, key = linear_task(jnp.float16), keys(1)[0]
    round_fn, state = start(algorithm, task, data, plan)
    slow_twin = fa.debug_round(algorithm, task, data, plan)
    for one_round in (jax.jit(round_fn), slow_twin):
        _, info = one_round(state, key)
        np.testing.assert_allclose(info.delta_norm, norm, rtol=0.01)


def test_a_clip_and_a_geometric_median_of_float16_know_large_norms():
    large = jnp.full(100, 40, jnp.float16)
    clipped, _ = clip(large, 1.0)
    assert clipped.dtype == jnp.float16
    np.testing.assert_allclose(clipped.astype(float), 0.1, rtol=0.01)
    two = jnp.stack([large, large])
    of = jax.jit(fa.geometric_median())
    median = of(two, jnp.full(2, 0.5), jnp.ones(2, bool))
    np.testing.assert_allclose(median.astype(float), 40, rtol=0.01)


def show_of_large_moves(algorithm, dtype):
    """What is shown of rounds in which squares of norms are above float16's largest."""
    x = np.full((2, WIDTH), 80, np.float32)
    pairs = [(x, np.full(2, 4, np.float32)), (x / 2, np.ones(2, np.float32))]
    data = fa.FederatedDataset.from_clients(pairs)
    plan = fa.Plan(batch_size=1, lr=0.5)  # to the other side of the first one's optimum
    round_fn, state = start(algorithm, quadratic_task(dtype), data, plan)
    state = state._replace(params=jnp.zeros(WIDTH, dtype))
    _, infos = fa.train(round_fn, state, keys(3))
    return infos.clients, infos.policy, infos.server


once = partial(fa.with_steps, policy=fa.constant_steps(1))
SHOWING = {
    "fedexp": once(fa.algorithms.fedexp()),
    "compression": once(fa.with_compression(fa.algorithms.fedavg(), fa.top_k(0.5))),
    "fedveca": fa.algorithms.fedveca(max_steps=2),
    "afl": fa.algorithms.afl(budget=1e6, max_steps=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SHOWING.values(), ids=SHOWING)
def test_what_a_method_makes_of_norms_is_right_in_float16(algorithm):
    found, exact = (
        show_of_large_moves(algorithm, dtype) for dtype in (jnp.float16, jnp.float32)
    )
    assert max(float(jnp.max(leaf)) for leaf in jax.tree.leaves(exact)) > 0
    close(found, exact, rtol=0.02)


def test_a_distance_of_float16_is_known_where_its_square_is_not():
    far = {"w": jnp.full(WIDTH, 300, jnp.float16)}
    found = fa.diagnostics.distance(far, jax.tree.map(jnp.zeros_like, far))
    np.testing.assert_allclose(found, 300 * WIDTH**0.5, rtol=1e-6)


def test_a_norm_of_features_without_any_is_above_0_in_float16():
    """Such a label is there, and its gradient is a number."""
    norm, slope = jax.value_and_grad(lambda x: feature_norms(x).sum())(
        jnp.zeros((1, 2), jnp.float16)
    )
    assert norm > 0
    assert np.isfinite(slope).all()


def test_a_sum_of_integers_is_one_of_integers():
    found = accumulator({"count": jnp.int32(1), "move": jnp.ones(2, jnp.bfloat16)})
    assert (found["count"].dtype, found["move"].dtype) == (jnp.int32, jnp.float32)


def test_a_precision_that_is_none_is_one_sentence():
    with pytest.raises(ValueError, match="precision='fp16' is unknown; did you mean"):
        fa.with_precision(mlp(), "fp16")
    lower = fa.with_precision(mlp(), "bf16")
    assert fa.with_precision(lower, "bf16") is lower
    with pytest.raises(ValueError, match="precision=tf32 came to a task in bf16"):
        fa.with_precision(lower, "tf32")
    with pytest.raises(ValueError, match="precision='fp16'; write one of 'float32'"):
        Config(precision="fp16")


@pytest.mark.slow
def test_a_run_in_bf16_learns_the_digits(tmp_path):
    few = {"model": "linear", "num_clients": 6, "rounds": 6, "epochs": 2.0}
    few |= {"algorithm": "fedavg", "participation": 1.0, "evaluate_every": 3}
    made = lambda precision: Config(
        precision=precision, folder=str(tmp_path / precision), devices=1, **few
    )
    exact, lower = (run(made(precision)) for precision in ("float32", "bf16"))
    assert read_settings(tmp_path / "bf16" / "config.toml")["precision"] == "bf16"
    assert exact.config_hash != lower.config_hash
    assert exact.loss != lower.loss
    assert exact.accuracy > 0.8
    assert abs(exact.accuracy - lower.accuracy) < 0.03


@pytest.mark.slow
def test_in_a_sweep_each_precision_is_a_program():
    few = {"model": "linear", "num_clients": 4, "rounds": 1, "algorithm": "fedavg"}
    grid = {"precision": ["float32", "bf16"], "seed": [0, 1]}
    asked = read_sweep({"run": {"partition_seed": 0, **few}, "grid": grid})
    groups = groups_of(asked.trials)
    assert [len(group.trials) for group in groups] == [2, 2]
    told = [{t.config.precision for t in group.trials} for group in groups]
    assert told == [{"float32"}, {"bf16"}]
