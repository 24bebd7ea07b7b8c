"""Which way a convolution is computed: by a rule, as told, or what was timed as fastest."""

import math
import time

import jax
import jax.numpy as jnp
import pytest

import fedjax_adapt as fa
from fedjax_adapt.models import timing, with_ways
from fedjax_adapt.models.pure import read_model
from fedjax_adapt.models.ways import Layer, by_rule, can, chosen, layers_of

LAYER = Layer((14, 14), 64, 50, (5, 5), 64, (1, 1), "float32")
SMALL = Layer((5, 5), 2, 2, (3, 3), 2, (1, 1), "float32")
SHAPE = (8, 8, 1)


@pytest.fixture(scope="module")
def network():
    return fa.classification(fa.models.fedveca_cnn(SHAPE, 10), SHAPE)


def test_a_model_that_is_only_looked_at_is_traced_with_xlas_convolutions():
    ways = []
    apply = lambda params, x: (ways.append(chosen(LAYER)), x)[1]
    made, _ = read_model("classification", (lambda key: {}, apply), (3,), True)
    assert {*ways} == {"lax"}
    made.apply({}, jnp.zeros((2, 3)))
    assert ways[-1] == by_rule(LAYER) != "lax"


def batch(size=4):
    return jax.ShapeDtypeStruct((size, *SHAPE), jnp.float32)


def xlas_own(task, size=4):
    """How many of XLA's own convolutions there are, forward and in both gradients."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    loss = lambda params, x: task.apply(params, x).logits.sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(params, batch(size)))
    return text.count("conv_general_dilated[")


def test_the_rule_on_a_cpu_is_what_was_measured_there():
    on_cpu = lambda **other: by_rule(LAYER._replace(**other), backend="cpu")
    assert on_cpu() == "winograd"
    assert on_cpu(images=1) == "shifts"
    assert on_cpu(channels=3) == "patches"
    assert on_cpu(strides=(2, 2)) == "patches"
    assert on_cpu(size=(3, 5)) != "winograd"
    assert on_cpu(dtype="bfloat16") != "winograd"


def test_the_rule_on_an_accelerator_is_xlas_own():
    for other in ({}, {"channels": 3}, {"strides": (2, 2)}, {"size": (1, 1)}):
        for backend in ("gpu", "tpu"):
            assert by_rule(LAYER._replace(**other), backend) == "lax"


def test_winograds_way_is_not_tried_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert timing.ways_to_try(LAYER, 2) == ["lax", "shifts", "patches"]


def test_winograds_way_is_for_some_layers_alone():
    assert can("winograd", LAYER)
    for other in ({"strides": (2, 1)}, {"size": (1, 1)}, {"dtype": "bfloat16"}):
        assert not can("winograd", LAYER._replace(**other))
        assert can("lax", LAYER._replace(**other))


@pytest.mark.slow
def test_layers_are_those_of_local_training(network):
    first, second = layers_of(network, batch())
    assert first == Layer((12, 12), 1, 4, (5, 5), 32, (1, 1), "float32")
    assert second == Layer((8, 8), 32, 4, (5, 5), 32, (1, 1), "float32")
    assert str(first) == "4 x 12 x 12 x 1, 5 x 5 x 32 by 1 x 1, float32"


@pytest.mark.slow
def test_a_task_computes_its_layers_as_it_is_told(network):
    assert xlas_own(network) == 0
    # the second needs both gradients, the first that of its kernel
    everywhere = xlas_own(with_ways(network, "lax"))
    assert everywhere >= 5
    second = layers_of(network, batch())[1]
    one_of_them = with_ways(network, {second: "lax"})
    assert 0 < xlas_own(one_of_them) < everywhere
    assert xlas_own(one_of_them, size=3) == 0  # another batch was not told of
    assert xlas_own(network) == 0


def test_a_way_that_cannot_be_is_one_sentence(network):
    with pytest.raises(ValueError, match="ways='fast' is unknown; write one of winog"):
        with_ways(network, "fast")
    with pytest.raises(ValueError, match="is unknown; did you mean 'patches'"):
        with_ways(network, {LAYER: "patch"})
    strided = LAYER._replace(strides=(2, 2))
    with pytest.raises(ValueError, match="winograd is not a way to compute 50 x 14"):
        with_ways(network, {strided: "winograd"})


def test_the_fastest_way_is_the_one_that_took_least():
    assert timing.fastest(LAYER, {"shifts": 2.0, "lax": 1.0, "patches": 3.0}) == "lax"
    no_room = {"shifts": math.inf, "patches": math.inf}
    assert timing.fastest(LAYER, no_room) == by_rule(LAYER)


def test_ways_are_tried_with_that_of_the_rule_first():
    assert timing.ways_to_try(LAYER, 1) == ["winograd", "shifts", "patches", "lax"]
    assert timing.ways_to_try(SMALL, 2)[0] == by_rule(SMALL)
    assert "lax" not in timing.ways_to_try(SMALL, 2)  # for seconds, on a CPU


def test_fastest_ways_are_a_task_s_own(network, monkeypatch):
    took = lambda layer, *rest: {"shifts": layer.channels, "patches": 2.0}
    monkeypatch.setattr(timing, "milliseconds", took)
    first, second = layers_of(network, batch())
    found = timing.fastest_ways(network, batch())
    assert found == {first: "shifts", second: "patches"}


def test_a_way_that_xla_refuses_takes_forever(monkeypatch):
    def refuse(layer, way, *rest):
        if way == "patches":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")
        return lambda count: jnp.zeros(()), []

    monkeypatch.setattr(timing, "compiled", refuse)
    taken = timing.milliseconds(SMALL, ways=["patches", "shifts"])
    assert taken["patches"] == math.inf
    assert 0 < taken["shifts"] < math.inf
    no_room = timing.milliseconds(SMALL, ways=["shifts"], too_large=lambda _: True)
    assert no_room == {"shifts": math.inf}


def test_a_hopeless_way_is_not_timed_again(monkeypatch):
    calls = []

    def steps(layer, way, *rest):
        def call(count):
            calls.append((way, count))
            time.sleep(0.02 if way == "patches" else 0.0)
            return jnp.zeros(())

        return call, []

    monkeypatch.setattr(timing, "compiled", steps)
    taken = timing.milliseconds(SMALL, ways=["shifts", "patches"])
    assert taken["patches"] >= 20 > taken["shifts"]
    assert calls.count(("patches", 1)) == 1
    assert ("patches", timing.STEPS) not in calls
    assert ("shifts", timing.STEPS) in calls


@pytest.mark.parametrize("lanes, devices", [(1, 1), (2, 2)])
def test_a_layer_is_timed(lanes, devices):
    taken = timing.milliseconds(SMALL, lanes, devices, ways=["patches"])
    assert 0 < taken["patches"] < math.inf
