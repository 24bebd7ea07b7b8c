"""What the server sends, the cohort's mean and everyone's mean, told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, close, keys, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS, fedavg, fednova, fedssg, scaffold
from fedjax_adapt.engine import mesh

BOTH = dict(cohort=True, clients=True)
PLAN = fa.Plan(cohort_size=3, batch_size=4, lr=0.2, clip_norm=5.0, weight_decay=1e-3)
FIRST = 0  # the client that `but_the_first` never draws


def own(state):
    """The wrapped state as the algorithm itself would keep it."""
    return state._replace(server=state.server.inner, clients=state.clients.inner)


def but_the_first(num_clients):
    """Two clients a round, never client 0."""
    sample = lambda key, n: 1 + fa.uniform(2).sample(key, n - 1)
    return fa.Participation(lambda n: 2, sample)


def local_models(algorithm, task, data, plan, state, key):
    """client -> the model it ends the round with, from a policy's view of the runs."""
    seen = {}

    def look(state, cohort, runs, outcome):
        for slot, i in enumerate(np.asarray(cohort.ids)):
            if cohort.active[slot]:
                row = jax.tree.map(lambda leaf: leaf[slot], runs.params)  # noqa: B023
                seen[int(i)] = jax.tree.map(np.float64, row)
        return state

    watched = fa.with_steps(algorithm, algorithm.policy._replace(update=look))
    after, _ = fa.debug_round(watched, task, data, plan)(state, key)
    return seen, after


def mean_of(models, weights):
    weights = np.asarray(weights, float) / np.sum(weights)
    total = lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True))
    return jax.tree.map(total, *models)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_kept_beside_it_does_not_change_an_algorithm(task, data, name):
    algorithm = ALGORITHMS[name]()
    kept = fa.with_averages(algorithm, **BOTH)
    plain_round, plain = start(algorithm, task, data, PLAN)
    plain, plain_infos = fa.train(plain_round, plain, keys(3))
    for changes in ({"lanes": 1}, {"devices": 2}):
        plan = fa.Plan(**{**vars(PLAN), **changes})
        round_fn, state = start(kept, task, data, plan)
        state, infos = jax.device_get(fa.train(round_fn, state, keys(3)))
        close(own(state), plain)
        close(infos, plain_infos)


@pytest.mark.parametrize("build", [fedavg, fednova, scaffold, fedssg])
def test_they_are_the_means_of_the_local_models(task, build):
    """Three rounds by hand: local models from the slow twin, means in float64."""
    data = make_data((*SIZES, 0))
    algorithm = build()
    kept = fa.with_averages(algorithm, **BOTH)
    plan = fa.Plan(
        **{**vars(PLAN), "participation": fa.bernoulli(0.4)} | {"cohort_size": None}
    )
    _, plain = start(algorithm, task, data, plan)
    round_fn, state = start(kept, task, data, plan)
    step = jax.jit(round_fn)
    sized = build in (fedavg, fednova)
    size = np.array(data.size)
    last = [jax.tree.map(np.float64, plain.params)] * len(SIZES)
    everyone = lambda: mean_of(last, size[:-1] if sized else np.ones(len(SIZES)))
    close(fa.averages(kept, state, data)["all"], everyone())
    for key in keys(3):
        models, plain = local_models(algorithm, task, data, plan, plain, key)
        state, _ = step(state, key)
        for i, model in models.items():
            last[i] = model
        weights = [size[i] if sized else 1 for i in models]
        read = fa.averages(kept, state, data)
        close(read["sel"], mean_of(list(models.values()), weights), atol=2e-6)
        close(read["all"], everyone(), atol=2e-6)
        close(state.params, plain.params, atol=2e-6)


def test_sel_is_the_server_where_the_server_is_a_mean(task, data):
    for algorithm in (fedavg(), ALGORITHMS["fedprox"](0.1), scaffold()):
        kept = fa.with_averages(algorithm)
        round_fn, state = start(kept, task, data, PLAN)
        state, _ = fa.train(round_fn, state, keys(2))
        read = fa.averages(kept, state, data)
        assert list(read) == ["sel"] and same(read["sel"], state.params)


def test_with_everyone_and_equal_sizes_all_is_sel(task):
    data = make_data((8,) * 4)
    kept = fa.with_averages(fedssg(), **BOTH)
    round_fn, state = start(kept, task, data, fa.Plan(batch_size=4))
    state, _ = fa.train(round_fn, state, keys(2))
    read = fa.averages(kept, state, data)
    close(read["all"], read["sel"])
    assert not np.allclose(read["sel"]["w"], state.params["w"], atol=1e-3)


def test_a_client_that_never_came_keeps_the_initial_model_to_the_bit(task, data):
    kept = fa.with_averages(fedavg(), clients=True)
    plan = fa.Plan(batch_size=4, participation=but_the_first(len(SIZES)))
    round_fn, begin = start(kept, task, data, plan)
    state, infos = fa.train(round_fn, begin, keys(2))
    row = lambda state, i: jax.tree.map(lambda leaf: leaf[i], state.clients.model)
    assert same(row(state, FIRST), begin.params)
    absent = set(range(len(SIZES))) - set(np.unique(infos.cohort).tolist())
    for i in range(len(SIZES)):
        assert same(row(state, i), begin.params) == (i in absent)


def test_a_round_nobody_trains_in_keeps_the_means(task, data):
    nobody = fa.StepPolicy(steps=lambda state, cohort, measured: 0 * cohort.ids)
    kept = fa.with_averages(fedssg(), **BOTH)
    idle = fa.with_averages(fa.with_steps(fedssg(), nobody), **BOTH)
    round_fn, state = start(kept, task, data, PLAN)
    state, _ = fa.train(round_fn, state, keys(2))
    after, _ = jax.jit(fa.make_round(idle, task, data, PLAN))(state, keys(1)[0])
    assert same(fa.averages(idle, after, data), fa.averages(kept, state, data))


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
                lambda anchor: jnp.zeros(()),
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
    kept = fa.with_averages(algorithm, **BOTH)
    plain_round, plain = start(algorithm, task, data, PLAN)
    round_fn, begin = start(kept, task, data, PLAN)
    plain, plain_infos = fa.train(plain_round, plain, keys(3))
    state, infos = fa.train(round_fn, begin, keys(3))
    close(own(state), plain)
    close(infos, plain_infos)
    slow = fa.debug_round(kept, task, data, PLAN)
    for key in keys(3):
        begin, _ = slow(begin, key)
    close(begin, state)


def test_means_are_kept_on_every_device_and_hyper_parameters_may_be_traced(task, data):
    plan = fa.Plan(cohort_size=4, batch_size=4, devices=2)

    def last(mu):
        kept = fa.with_averages(ALGORITHMS["fedprox"](mu), **BOTH)
        round_fn, state = start(kept, task, data, plan)
        return fa.averages(kept, fa.train(round_fn, state, keys(2))[0], data)

    assert mesh.count(2, 4) == 2
    together = jax.jit(jax.vmap(last))(jnp.array([0.0, 1.0]))
    close(jax.tree.map(lambda leaf: leaf[1], together), jax.device_get(last(1.0)))


def test_a_state_without_averages_is_one_sentence(task, data):
    _, state = start(fedavg(), task, data)
    with pytest.raises(ValueError, match=r"keeps no averages; build state .* with_ave"):
        fa.averages(fedavg(), state, data)
