from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from helpers import broken, close, keys, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, scaffold


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_client_and_step(task):
    data = make_data(sizes=(4, 8))
    poisoned = data.x.at[10].set(jnp.inf)  # the second client's second batch, in order
    data = replace(data, x=poisoned)  # which from_rows would refuse
    plan = fa.Plan(batch_size=4, shuffle="none")
    round_fn = fa.debug_round(fedavg(), task, data, plan)
    _, state = start(fedavg(), task, data, plan)
    with pytest.raises(FloatingPointError, match="client 1, local step 1: the loss is"):
        round_fn(state, keys(1)[0])


@pytest.mark.slow
def test_it_leaves_out_the_same_clients(task, data):
    policy = fa.StepPolicy(
        steps=lambda state, cohort, measured: cohort.ids + 1,
        init=lambda params, num_clients: jnp.zeros(()),
        send=lambda run: run.loss,
        update=lambda state, cohort, runs, outcome: outcome.sent + cohort.num_active,
    )
    algorithm = fa.with_steps(scaffold(), policy)
    data = broken(data, 1, 4)
    plan = fa.Plan(cohort_size=5, batch_size=4, lanes=2, nonfinite_updates="leave_out")
    round_fn, state = start(algorithm, task, data, plan)
    slow = fa.debug_round(algorithm, task, data, plan)
    for key in keys(2):
        expected, expected_info = slow(state, key)
        state, info = jax.jit(round_fn)(state, key)
        close(state, expected)
        close(info, expected_info)
        assert info.num_left_out > 0


@pytest.mark.slow
def test_an_exception_in_the_task_names_client_and_step(task, data):
    def loss(logits, y):
        raise TypeError("labels are strings")

    broken = task._replace(loss=loss)
    round_fn = fa.debug_round(fedavg(), broken, data, fa.Plan(batch_size=4))
    _, state = start(fedavg(), task, data)
    with pytest.raises(
        RuntimeError, match="client 0, local step 0: .*labels are strings"
    ):
        round_fn(state, keys(1)[0])


@pytest.mark.slow
def test_it_agrees_on_policies_refinements_and_padded_cohorts(task, data):
    policy = fa.StepPolicy(
        steps=lambda state, cohort, measured: (state[cohort.ids % 6] + measured).astype(
            int
        ),
        init=lambda params, num_clients: jnp.ones(num_clients),
        measure=lambda view, key: (view.batch.y[0] + 1).astype(float),
        update=lambda state, cohort, runs, outcome: state.at[cohort.ids].add(
            runs.loss, mode="drop"
        ),
    )
    refine = lambda params, view, key: {**params, "b": view.runs.params["b"].sum(0)}
    algorithm = fa.with_refinement(fa.with_steps(fedavg(), policy), refine)
    plan = fa.Plan(participation=fa.bernoulli(0.4), batch_size=4, lanes=2)
    round_fn, state = start(algorithm, task, data, plan)
    slow = fa.debug_round(algorithm, task, data, plan)
    for key in keys(2):
        expected, expected_info = slow(state, key)
        state, info = round_fn(state, key)
        close(state, expected)
        close(info, expected_info)


@pytest.mark.parametrize(
    "part, where",
    [
        ("prepare", "before its first local step"),
        ("finish", "after its local steps"),
        ("measure", "measurement"),
    ],
)
def test_an_exception_beside_the_steps_names_the_client(task, data, part, where):
    def broken(*_):
        raise KeyError("memory")

    algorithm = fedavg()
    if part == "measure":
        policy = algorithm.policy._replace(measure=broken)
        algorithm = fa.with_steps(algorithm, policy)
    else:
        algorithm = algorithm._replace(local=fa.LocalRule(**{part: broken}))
    round_fn = fa.debug_round(algorithm, task, data, fa.Plan(batch_size=4))
    _, state = start(fedavg(), task, data)
    with pytest.raises(
        RuntimeError, match=f"client 0, .*{where}: .*KeyError .*'memory'"
    ):
        round_fn(state, keys(1)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_model_in_float32_stays_so_beside_64_bits(task):
    with jax.enable_x64():
        data, plan = make_data(), fa.Plan(cohort_size=3, batch_size=4)
        round_fn, state = start(scaffold(), task, data, plan)
        expected, _ = fa.debug_round(scaffold(), task, data, plan)(state, keys(1)[0])
        close(round_fn(state, keys(1)[0])[0], expected)
        assert all(leaf.dtype != float for leaf in jax.tree.leaves(expected))
