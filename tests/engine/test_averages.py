"""What the server sends, the cohort's mean and everyone's mean, told apart."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, clocked, close, constructed, keys, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    fedacg,
    fedavg,
    feddisco,
    feddyn,
    fednova,
    fedssg,
    fnr,
)
from fedjax_adapt.averaging import Averaged

BOTH = dict(cohort=True, clients=True)
PLAN = fa.Plan(cohort_size=3, batch_size=4, lr=0.2, clip_norm=5.0, weight_decay=1e-3)


def own(state):
    """The wrapped state as the algorithm itself would keep it."""
    return state._replace(server=state.server.inner, clients=state.clients.inner)


def but_the_first(num_clients):
    """Two clients a round, never client 0."""
    sample = lambda key, n: 1 + fa.uniform(2).sample(key, n - 1)
    return fa.Participation(lambda n: 2, sample)


def telling(algorithm, slots):
    """The same algorithm, whose policy state is who trained and with what result."""
    rows = lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype)
    policy = algorithm.policy._replace(
        init=lambda params, num_clients: (
            jnp.zeros(slots, int),
            jnp.zeros(slots, bool),
            jax.tree.map(rows, params),
        ),
        update=lambda state, cohort, runs, outcome: (
            cohort.ids,
            cohort.active,
            runs.params,
        ),
    )
    return fa.with_steps(algorithm, policy)


def mean_of(models, weights):
    weights = np.asarray(weights, float) / np.sum(weights)
    total = lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True))
    return jax.tree.map(total, *models)


def check_unchanged(algorithm, task, data, **changes):
    """Rounds with and without averages, the former under another plan."""
    plan = clocked(algorithm, PLAN)
    plain_round, plain = start(algorithm, task, data, plan)
    plan = fa.Plan(**{**vars(plan), **changes})
    round_fn, state = start(fa.with_averages(algorithm, **BOTH), task, data, plan)
    ends = fa.train(round_fn, state, keys(3)), fa.train(plain_round, plain, keys(3))
    (state, infos), (plain, plain_infos) = jax.device_get(ends)
    close(own(state)._replace(origin=()), plain._replace(origin=()))
    close(infos, plain_infos)


@pytest.mark.slow
def test_what_is_kept_beside_it_does_not_change_fedssg(task, data):
    check_unchanged(fedssg(total_rounds=300), task, data, devices=2)


# one for each kind of part: client states, a policy, refinement, a public set, a
# generator, personal leaves, a server's optimiser, uploads that wait
KINDS = "scaffold gift fnr feddf fedgen ditto fedadam fedbuff".split()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_what_is_kept_beside_it_changes_no_algorithm(task, data, name):
    check_unchanged(constructed(name), task, data, devices=2, lanes=2)


@pytest.mark.slow
def test_a_rule_that_weighs_parts_of_what_it_sends_by_themselves_can_be_kept(
    task, data
):
    check_unchanged(feddisco(base=feddyn()), task, data)


@pytest.mark.slow
@pytest.mark.parametrize("build", [fednova, partial(fedssg, total_rounds=3), fedacg])
def test_they_are_the_means_of_the_local_models(task, build):
    """Three rounds by hand, the means in float64."""
    data = make_data((*SIZES, 0))
    plan = fa.Plan(batch_size=4, lr=0.2, participation=fa.bernoulli(0.4))
    plain_round, plain = start(telling(build(), len(SIZES)), task, data, plan)
    kept = fa.with_averages(build(), **BOTH)
    round_fn, state = start(kept, task, data, plan)
    plain_step, step = jax.jit(plain_round), jax.jit(round_fn)
    size = np.array(data.size)
    weight = lambda ids: [size[i] if build is fednova else 1 for i in ids]
    last = [plain.params] * len(SIZES)
    for key in keys(3):
        plain, _ = plain_step(plain, key)
        state, _ = step(state, key)
        ids, active, models = plain.policy
        for slot in np.flatnonzero(active):
            own_model = lambda leaf, slot=slot: leaf[slot]
            last[ids[slot]] = jax.tree.map(own_model, models)
        cohort = ids[active].tolist()
        read = fa.averages(kept, state, data)
        close(read["sel"], mean_of([last[i] for i in cohort], weight(cohort)))
        close(read["all"], mean_of(last, weight(range(len(SIZES)))))
        close(state.params, plain.params)


@pytest.fixture(scope="module")
def partly(task, data):
    """FedAvg, of whose clients the first never comes: (algorithm, states, infos)."""
    kept = fa.with_averages(fedavg(), **BOTH)
    plan = fa.Plan(batch_size=4, participation=but_the_first(len(SIZES)))
    round_fn, begin = start(kept, task, data, plan)
    return kept, begin, *fa.train(round_fn, begin, keys(2))


@pytest.mark.slow
def test_sel_is_the_server_of_fedavg_to_the_bit(partly, data):
    kept, _, state, _ = partly
    assert same(fa.averages(kept, state, data)["sel"], state.params)


def test_a_client_that_never_came_keeps_the_initial_model_to_the_bit(partly):
    _, begin, state, infos = partly
    came = set(np.unique(infos.cohort).tolist())
    assert 0 not in came
    for i in range(len(SIZES)):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], state.clients.model)
        assert same(row, begin.params) == (i not in came)


def test_before_the_first_round_all_are_the_initial_model(partly, data):
    kept, begin, *_ = partly
    read = fa.averages(kept, begin, data)
    assert same(read["sel"], begin.params)
    close(read["all"], begin.params)


def test_kept_twice_all_is_the_same_mean(partly, data):
    kept, _, state, _ = partly
    again = fa.with_averages(kept, **BOTH)
    outer = lambda inner: Averaged(inner, inner.model)
    wrapped = state._replace(server=outer(state.server), clients=outer(state.clients))
    close(fa.averages(again, wrapped, data), fa.averages(kept, state, data))


def test_only_what_is_asked_for_is_kept(task, data):
    for asked, name in ({"clients": False}, "sel"), ({"cohort": False}, "all"):
        kept = fa.with_averages(fedavg(), **{**BOTH, **asked})
        _, state = start(kept, task, data)
        assert list(fa.averages(kept, state, data)) == [name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("sel", marks=pytest.mark.slow), "all"])
def test_refined_models_count_in_either_mean_alone(name, task, data):
    kept = fa.with_averages(fnr(fraction=1.0), name == "sel", name == "all")
    round_fn, state = start(kept, task, data, fa.Plan(batch_size=4))
    state, _ = jax.jit(round_fn)(state, keys(1)[0])
    close(fa.averages(kept, state, data), {name: state.params})


@pytest.mark.slow
def test_with_everyone_and_equal_sizes_all_is_sel(task):
    data = make_data((8,) * 4)
    kept = fa.with_averages(fedssg(total_rounds=300), **BOTH)
    round_fn, state = start(kept, task, data, fa.Plan(batch_size=4))
    state, _ = fa.train(round_fn, state, keys(2))
    read = fa.averages(kept, state, data)
    close(read["all"], read["sel"])
    assert not np.allclose(read["sel"]["w"], state.params["w"], atol=1e-3)


@pytest.mark.slow
def test_a_round_nobody_trains_in_keeps_the_means(task, data):
    nobody = fa.StepPolicy(steps=lambda state, cohort, measured: 0 * cohort.ids)
    idle = fa.with_averages(fa.with_steps(fedavg(), nobody), **BOTH)
    round_fn, state = start(idle, task, data, PLAN)
    number = iter(range(99))
    state = jax.tree.map(lambda leaf: leaf + next(number), state)  # no two alike
    after, _ = jax.jit(round_fn)(state, keys(1)[0])
    assert same(fa.averages(idle, after, data), fa.averages(idle, state, data))


@pytest.mark.slow
def test_policies_refinements_and_own_combines_see_their_own_states(task, data):
    """A rule of every kind, whose parts all read client and server state."""

    def measure(view, key):
        return view.client + view.server + view.batch.y[0]

    def learn(state, cohort, runs, outcome):
        assert runs.client.shape == cohort.ids.shape
        return state + outcome.server + outcome.upload.extra + runs.server

    def median(uploads, cohort):
        assert set(uploads.delta) == {"w", "b"}
        middle = jax.tree.map(lambda leaf: jnp.median(leaf, 0), uploads.delta)
        return fa.Upload(middle, uploads.extra.sum())

    algorithm = fa.Algorithm(
        local=fa.LocalRule(
            init=lambda params: jnp.zeros(()),
            prepare=lambda view: view.client + view.server,
            correct=lambda grads, view: jax.tree.map(
                lambda g: g + 0.01 * (view.prepared + view.server), grads
            ),
            objective=lambda params, view, key: (
                (
                    view.task.loss(
                        view.task.apply(params, view.batch.x).logits, view.batch.y
                    )
                    * view.batch.weight
                ).mean()
                + 0.01 * view.client * params["b"].sum()
            ),
            finish=lambda run: (
                fa.Upload(
                    jax.tree.map(jnp.subtract, run.params, run.anchor),
                    run.probe + run.server,
                ),
                run.client + 1.0,
            ),
        ),
        policy=fa.StepPolicy(
            steps=lambda state, cohort, measured: 1 + (measured > 1),
            init=lambda params, num_clients: jnp.zeros(()),
            measure=measure,
            probe=fa.Probe(
                lambda view: jnp.zeros(()),
                lambda probe, grads, view: probe + view.client + view.server,
            ),
            update=learn,
        ),
        server=fa.ServerRule(
            init=lambda params: jnp.zeros(()),
            combine=median,
            update=lambda params, server, upload, cohort: (
                jax.tree.map(jnp.add, params, upload.delta),
                0.1 * server + 0.1,
            ),
        ),
        refine=lambda params, view, key: {
            **params,
            "b": params["b"] + 0.01 * (view.runs.client.sum() + view.runs.server),
        },
    )
    check_unchanged(algorithm, task, data)


def test_a_state_without_averages_is_one_sentence(task, data):
    _, state = start(fedavg(), task, data)
    with pytest.raises(ValueError, match=r"keeps no averages; build state .* with_ave"):
        fa.averages(fedavg(), state, data)
