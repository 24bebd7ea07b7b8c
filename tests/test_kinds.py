"""Arguments in the wrong order, or of the wrong kind, end in one sentence."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers import make_data, make_task

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg

KEY = jax.random.key(0)
TASK, DATA, PLAN = make_task(), make_data(), fa.Plan()
PARAMS = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(3)}
STATE = jax.eval_shape(lambda key: fa.init_state(fedavg(), TASK, DATA, PLAN, key), KEY)
ARGUMENTS = {  # right ones, by the names of parameters
    "algorithm": fedavg(),
    "task": TASK,
    "data": DATA,
    "plan": PLAN,
    "state": STATE,
    "params": PARAMS,
    "deltas": jax.tree.map(lambda leaf: leaf[None], PARAMS),
    "test": DATA.test,
    "batch": fa.Batch(DATA.x[:2], DATA.y[:2], jnp.ones(2)),
    "key": KEY,
    "keys": jax.random.split(KEY, 2),
    "weights": jnp.ones(1),
    "round_fn": fa.make_round,
    "measure": fa.evaluate,
    "num_classes": 3,
    "policy": fa.epochs(1),
    "refine": fa.Refinement(),
    "optimizer": optax.sgd(0.1),
    "precision": "bf16",
    "compressor": fa.sign(),
    "rule": fa.median(),
    "clip": 1.0,
    "noise_multiplier": 1.0,
    "personal": "b",
    "input_shape": (4,),
    "model": fa.models.linear((4,), 3),
}
ALIKE = (  # a number is a tree as well
    {"params", "deltas"},
    {"params", "num_classes"},
    {"key", "keys", "weights"},
    {"round_fn", "measure"},
    {"clip", "noise_multiplier"},
)
OTHERWISE = {
    "num_classes",
    "model",
    "precision",
    "personal",
    "clip",
    "noise_multiplier",
}


def required(function):
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


FUNCTIONS = {
    name: required(getattr(fa, name))
    for name in fa.__all__
    if inspect.isfunction(getattr(fa, name))
    and set(required(getattr(fa, name))) & {*ARGUMENTS}
}


def mistaken(names):
    """Argument lists with two of them exchanged, or one that is a name."""
    right = [ARGUMENTS[name] for name in names]
    for i, j in itertools.combinations(range(len(names)), 2):
        if not any({names[i], names[j]} <= alike for alike in ALIKE):
            changed = list(right)
            changed[i], changed[j] = right[j], right[i]
            yield changed
    for i, name in enumerate(names):
        if name not in OTHERWISE:
            yield [*right[:i], "mnist", *right[i + 1 :]]


def test_the_entry_points_are_found():
    assert {"fastest_lanes", "memory_needed", "make_round", "train"} <= {*FUNCTIONS}
    assert len(FUNCTIONS) >= 18, sorted(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_mistaken_call_is_one_sentence_that_names_the_call(name):
    names = [n for n in FUNCTIONS[name] if n in ARGUMENTS]
    for arguments in mistaken(names):
        with pytest.raises(ValueError) as refused:
            getattr(fa, name)(*arguments)
        said = str(refused.value)
        assert said.startswith(f"{name} got ") and said.endswith("."), said
        assert "\n" not in said and len(said) < 400, said


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda: fa.make_round(fedavg, TASK, DATA, PLAN),
            "make_round got the function fedavg for algorithm; call it: "
            "algorithm=fedavg().",
        ),
        (
            lambda: fa.make_round(lambda: 0, TASK, DATA, PLAN),
            "make_round got the function <lambda> for algorithm; write "
            "make_round(algorithm, task, data, plan).",
        ),
        (
            lambda: fa.make_round(fedavg(), TASK.loss, DATA, PLAN),
            f"make_round got the function {TASK.loss.__name__} for task; write "
            "make_round(algorithm, task, data, plan).",
        ),
        (
            lambda: fa.evaluate(TASK, STATE, DATA.test),
            "evaluate got a State for params; write evaluate(task, params, test).",
        ),
        (
            lambda: fa.evaluate(TASK, PARAMS, DATA),
            "evaluate got a FederatedDataset for test; write evaluate(task, params, test).",
        ),
        (
            lambda: fa.train(fa.make_round, STATE, KEY),
            "keys is one key, for no number of rounds; write jax.random.split(key, "
            "rounds).",
        ),
        (
            lambda: fa.with_steps(fedavg(), 5),
            "with_steps got 5 for policy; write epochs(5) or constant_steps(20).",
        ),
        (
            lambda: fa.with_steps(fedavg(), fa.gsnr_steps),
            "with_steps got the function gsnr_steps for policy; call it, as in "
            "gsnr_steps(20), or give a function of your own as StepPolicy(steps), where "
            "steps(state, cohort, measurement) returns the local steps of each client.",
        ),
        (
            lambda: fa.afl_best(STATE),
            "afl_best got a State that is not a state of afl; write "
            "afl_best(state) with what "
            "train returned for afl(budget=15.0) or so.",
        ),
        (
            lambda: fa.afl_constants(STATE),
            "afl_constants got a State without afl's estimates; write afl_constants(infos) "
            "with what train returned for afl(trial_steps=5) or so.",
        ),
    ],
)
def test_the_sentence_says_what_came_and_what_to_write(call, says):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == says
