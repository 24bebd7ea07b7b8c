"""Events against a NumPy simulation of them, and what the methods become at the edges."""

import heapq
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, fast, keys, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    fedadam,
    fedasync,
    fedavg,
    fedbuff,
    feddyn,
    fedgsnr,
    fednova,
    fedprox,
    scaffold,
)
from fedjax_adapt.costs import lognormal

STEP = np.array([0.31, 1.7, 0.53, 2.9, 0.11, 0.97])  # c_i, all sums of them differ
BANDWIDTH = 3e3
MODEL = 8 * (4 * 3 + 3)  # bytes of the tiny task's model in float64
CLOCK = fa.Clock(step_seconds=STEP, bandwidth=BANDWIDTH)
TWO = replace(PLAN, cohort_size=2, clock=CLOCK)
ROUNDS = 12

S = {
    "constant": lambda x: 1.0,
    "polynomial": lambda x: (1 + x) ** -0.5,
    "hinge": lambda x: 1 / (3.0 * (x - 1) + 1) if x > 1 else 1.0,
}


class Events:
    """An event-driven server: a heap of who ends when, written from the papers."""

    def __init__(self, clients, theta, concurrency, size, take):
        self.clients, self.theta, self.take = clients, theta, take
        self.most, self.size, self.now = concurrency, size, 0.0
        self.heap, self.updates, self.models = [], 0, [theta]
        self.seconds, self.staleness, self.arrived = [], [], []

    def __call__(self, round, cohort):
        assert not {i for _, i, *_ in self.heap} & set(cohort.tolist())
        for i in cohort:
            x, y = self.clients[i]
            end = oracle.sgd(self.theta, (x, y), PLAN, round)
            steps = oracle.num_batches(len(y), PLAN.batch_size, 2)
            takes = steps * STEP[i] + 8 * MODEL / BANDWIDTH
            heapq.heappush(self.heap, (self.now + takes, i, self.updates, end))
        before, arrivals = self.now, []
        while len(self.heap) > self.most - self.size:
            self.now, *arrival = heapq.heappop(self.heap)
            arrivals.append(arrival)
        if arrivals:
            stale = [self.updates - version for _, version, _ in arrivals]
            self.theta = self.take(self, arrivals, stale)
            self.updates += 1
            self.models.append(self.theta)
        self.seconds.append(self.now - before)
        self.staleness.append(np.mean(stale) if arrivals else 0)
        self.arrived.append(len(arrivals))
        return self.theta


def buffered(s, server_lr):
    def take(server, arrivals, stale):
        sent = [end - server.models[version] for _, version, end in arrivals]
        weighted = [s(x) * delta for x, delta in zip(stale, sent, strict=True)]
        return server.theta + server_lr * np.sum(weighted, 0) / len(arrivals)

    return take


def mixed(s, alpha):
    def take(server, arrivals, stale):
        ((_, _, end),), (x,) = arrivals, stale
        share = alpha * s(x)
        return (1 - share) * server.theta + share * end

    return take


def check_events(algorithm, plan, concurrency, take):
    clients, theta, history = run(algorithm, plan, rounds=ROUNDS)
    events = Events(clients, theta, concurrency, plan.cohort_size, take)
    assert_follows(history, events)
    shown = lambda name: [float(info.server[name]) for _, info in history]
    seconds = [float(info.seconds) for _, info in history]
    np.testing.assert_allclose(seconds, events.seconds, atol=1e-12)
    np.testing.assert_allclose(shown("staleness"), events.staleness)
    assert shown("arrived") == events.arrived
    assert max(events.staleness) > 1
    assert shown("in_flight")[-1] == concurrency - plan.cohort_size


@pytest.mark.parametrize(
    "staleness, concurrency",
    [("polynomial", 4), ("constant", 5), ("hinge", 6)],
)
def test_fedbuff_follows_the_event_driven_oracle(x64, staleness, concurrency):
    a = 3.0 if staleness == "hinge" else 0.5
    algorithm = fedbuff(concurrency, 1.3, staleness, a, b=1.0)
    check_events(algorithm, TWO, concurrency, buffered(S[staleness], 1.3))


@pytest.mark.parametrize("staleness, concurrency", [("polynomial", 5), ("hinge", 3)])
def test_fedasync_follows_the_event_driven_oracle(x64, staleness, concurrency):
    a = 3.0 if staleness == "hinge" else 0.5
    algorithm = fedasync(concurrency, 0.7, staleness, a, b=1.0)
    plan = replace(TWO, cohort_size=1)
    check_events(algorithm, plan, concurrency, mixed(S[staleness], 0.7))


PLAIN = fa.Plan(cohort_size=3, batch_size=4, clock=CLOCK)


SYNCHRONOUS = {
    "fedavg": lambda: None,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fednova": fednova,
}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(SYNCHRONOUS, "fedavg", "feddyn"))
def test_waiting_for_all_is_the_synchronous_base(task, data, build):
    """M = K: nobody is stale, and a round lasts as long as its slowest client."""
    ends, base = [], build()
    for algorithm in (fedbuff(3, base=base), base or fedavg("uniform")):
        round_fn, state = start(algorithm, task, data, PLAIN)
        ends.append(fa.train(round_fn, state, keys(4)))
    (state, infos), (plain, plain_infos) = ends
    close(state.params, plain.params)
    close(state.clients, plain.clients)
    close(state.server.inner, plain.server)
    close(infos._replace(server=()), plain_infos._replace(server=()))
    assert not infos.server["staleness"].any()
    assert infos.server["arrived"].tolist() == [3] * 4


@pytest.mark.slow
def test_everyone_at_once_mixed_in_by_half_goes_half_as_far(task, data):
    plan = replace(PLAIN, cohort_size=6)
    ends = []
    for algorithm in (fedasync(6, alpha=0.5), fedbuff(6, server_lr=0.5)):
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(fa.train(round_fn, state, keys(3))[0].params)
    close(*ends)


@pytest.mark.slow
def test_one_client_after_the_other_is_fedavg_with_cohorts_of_one(task, data):
    plan = replace(PLAIN, cohort_size=1)
    ends = []
    for algorithm in (fedasync(1, alpha=1.0), fedavg()):
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(fa.train(round_fn, state, keys(5))[0].params)
    close(*ends)


@pytest.mark.slow
def test_nobody_is_drawn_who_is_under_way_and_all_are_drawn(task, data):
    round_fn, state = start(fedbuff(5), task, data, replace(PLAIN, cohort_size=2))
    step, seen = jax.jit(round_fn), set()
    for key in keys(12):
        away = set(np.asarray(state.server.clients.ids).tolist()) - {-1}
        state, info = step(state, key)
        drawn = np.asarray(info.cohort).tolist()
        assert len(set(drawn)) == 2 and not away & set(drawn)
        seen |= set(drawn)
    assert len(away) == 3 and seen == set(range(6))


@pytest.mark.slow
def test_the_first_rounds_only_send_clients_off(task, data):
    algorithm = fedbuff(6, base=fedadam())  # which forgets a little even without a move
    round_fn, state = start(algorithm, task, data, replace(PLAIN, cohort_size=2))
    step, infos, states = jax.jit(round_fn), [], [state]
    for key in keys(3):
        state, info = step(states[-1], key)
        states.append(state)
        infos.append(info)
    kept = [(state.params, state.server.inner) for state in states]
    assert same(kept[2], kept[0]) and not same(kept[3], kept[0])
    shown = lambda name: [int(info.server[name]) for info in infos]
    assert shown("arrived") == [0, 0, 2] and shown("in_flight") == [2, 4, 4]
    assert [float(info.seconds) > 0 for info in infos] == [False, False, True]
    assert int(state.server.updates) == 1


@pytest.mark.slow
def test_an_optimizer_around_takes_no_step_where_nobody_arrives(task, data):
    plan = replace(PLAIN, cohort_size=2)
    around = fedadam(base=fedbuff(6, base=fedavg("uniform")))
    inside = fedbuff(6, staleness="constant", base=fedadam(base=fedavg("uniform")))
    ends = []
    for algorithm in around, inside:
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(fa.train(round_fn, state, keys(3))[0])  # the first to arrive
    close(ends[0].params, ends[1].params)
    close(ends[0].server.optimizer, ends[1].server.inner.optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency, taken", [(2, (3, 1, 2)), (3, (1, 2, 3))])
def test_those_that_tie_go_in_the_order_in_which_they_began(task, concurrency, taken):
    """In float32 0.3 s less 0.1 s is more than 0.2 s, but who began first goes first."""
    data, steps = make_data((4,) * 6), jnp.array(taken)
    clock = fa.Clock(step_seconds=0.1, bandwidth=1e15)
    plan = replace(PLAIN, cohort_size=1, clock=clock)
    policy = fa.StepPolicy(steps=lambda _, cohort, __: steps[cohort.round % 3][None])
    algorithm = fa.with_steps(fedasync(concurrency), policy)
    round_fn, state = start(algorithm, task, data, plan)
    step, queue, now = jax.jit(round_fn), [], 0
    for round, key in enumerate(keys(12)):
        state, info = step(state, key)
        queue.append((now + taken[round % 3], round, int(info.cohort[0])))
        if len(queue) == concurrency:
            first = min(queue)
            queue.remove(first)
            np.testing.assert_allclose(info.seconds, 0.1 * (first[0] - now), atol=1e-6)
            now = first[0]
        away = {client for _, _, client in queue}
        assert set(np.asarray(state.server.clients.ids).tolist()) - {-1} == away


@pytest.mark.slow
def test_the_control_of_scaffold_is_the_mean_over_those_who_arrived(task, data):
    algorithm = fedbuff(4, base=scaffold(scale="none"))
    round_fn, state = start(algorithm, task, data, replace(PLAIN, cohort_size=2))
    step = jax.jit(round_fn)
    for key in keys(6):
        state, _ = step(state, key)
    server = state.server
    present = np.asarray(server.clients.ids) >= 0
    coming = jax.tree.map(lambda leaf: leaf[present].sum(0) / 6, server.extra)
    known = jax.tree.map(lambda c, more: c + more, server.inner, coming)
    close(known, jax.tree.map(lambda leaf: leaf.mean(0), state.clients), atol=1e-5)
    assert present.sum() == 2 and float(jnp.abs(coming["w"]).max()) > 1e-3


@pytest.mark.slow
def test_what_feddyn_remembers_is_not_discounted(task, data):
    algorithm = fedbuff(4, staleness="polynomial", a=2.0, base=feddyn())
    round_fn, state = start(algorithm, task, data, replace(PLAIN, cohort_size=2))
    state, infos = fa.train(round_fn, state, keys(6))
    server = state.server
    present = np.asarray(server.clients.ids) >= 0
    coming = jax.tree.map(lambda leaf: leaf[present].sum(0) / 6, server.delta)
    known = jax.tree.map(lambda h, more: h + more, server.inner, coming)
    close(known, jax.tree.map(lambda leaf: leaf.mean(0), state.clients), atol=1e-5)
    assert infos.server["staleness"].max() >= 1


COMPOSED = {
    "adaptive steps": lambda: fedgsnr(num_steps=4, base=fedbuff(4)),
    "on scaffold": lambda: fedbuff(5, base=scaffold()),
    "mixed": lambda: fedasync(4, base=fedprox(0.1)),
    "an optimizer and averages": lambda: fa.with_averages(
        fedadam(base=fedbuff(4)), clients=True
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(COMPOSED, "on scaffold"))
def test_neither_lanes_nor_devices_nor_loops_change_it(task, data, build):
    clock = fa.Clock(step_seconds=lognormal(0.05, 1.0), delay=lognormal(0.02, 1.0))
    plan = replace(PLAIN, clock=clock, lanes=2)  # packed, as three clients take turns
    round_fn, state = start(build(), task, data, plan)
    expected = [jax.tree.map(jnp.copy, state)]
    for key in keys(5):
        expected.append(jax.jit(round_fn)(expected[-1], key)[0])
    other = fa.make_round(build(), task, data, replace(plan, lanes=3, devices=2))
    end, _ = fa.train(other, jax.tree.map(jnp.copy, expected[0]), keys(5))
    close(end, expected[-1], rtol=1e-5)
    again, _ = fa.train(other, jax.tree.map(jnp.copy, expected[0]), keys(5))
    assert same(again, end)
    slow = fa.debug_round(build(), task, data, plan)
    close(slow(expected[4], keys(5)[4])[0], expected[5], rtol=1e-5)


@pytest.mark.slow
def test_a_round_of_some_lets_as_many_arrive(task, data):
    """A policy that leaves clients out sends fewer off, and M - K stay under way."""
    policy = fa.StepPolicy(steps=lambda state, cohort, _: cohort.ids % 2 * 3)
    algorithm = fa.with_steps(fedbuff(4), policy)
    round_fn, state = start(algorithm, task, data, replace(PLAIN, cohort_size=2))
    _, infos = fa.train(round_fn, state, keys(12))
    begun = np.cumsum(infos.num_active)
    assert {0, 1} <= set(infos.num_active.tolist())
    ended = np.cumsum(infos.server["arrived"])
    np.testing.assert_array_equal(ended, np.maximum(begun - 2, 0))
    assert not infos.seconds[np.asarray(infos.num_active) == 0].any()


@pytest.mark.slow
def test_fastest_lanes_are_found(task, data):
    plan = replace(PLAIN, cohort_size=2)
    assert fa.fastest_lanes(fedbuff(6, base=scaffold()), task, data, plan) in (1, 2)


REFUSED = {
    "no clock": (
        lambda: fedbuff(4),
        {"clock": None},
        r"the plan has no clock; write Plan\(clock=Clock\(step_seconds=0.05\)\)",
    ),
    "coins": (
        lambda: fedbuff(6),
        {"cohort_size": None, "participation": fa.bernoulli(0.5)},
        r"the plan's participation cannot; write Plan\(cohort_size=10\)",
    ),
    "everyone": (lambda: fedbuff(6), {"cohort_size": None}, "participation cannot"),
    "the earliest": (
        lambda: fedasync(6),
        {"cohort_size": None, "participation": fa.earliest(0.5)},
        "participation cannot",
    ),
    "too few": (
        lambda: fedbuff(2),
        {},
        "concurrency=2 but 3 clients begin in a round; write a concurrency of at least 3",
    ),
    "too many": (
        lambda: fedasync(7),
        {},
        "concurrency=7 but 6 clients hold examples, .*; write at most 6",
    ),
    "a refinement": (
        lambda: fa.with_refinement(fedbuff(4), lambda params, view, key: params),
        {},
        "refines models on a public set, .* does not wait for them; leave one out",
    ),
    "a report": (
        lambda: fedbuff(
            4,
            base=fa.Algorithm(
                server=fa.ServerRule(report=lambda *_: {"norm": jnp.zeros(())})
            ),
        ),
        {},
        "cannot show what the server of its base reports, norm; take a base without",
    ),
    "a probe": (
        lambda: fedbuff(
            4,
            base=fa.Algorithm(local=fa.LocalRule(finish=lambda run: run.probe.missing)),
        ),
        {},
        "fedbuff must know what a client of its base sends before there is a round",
    ),
}


@pytest.mark.parametrize("build, changes, says", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_one_sentence(task, data, build, changes, says):
    with pytest.raises(ValueError, match=says) as error:
        fa.make_round(build(), task, data, replace(PLAIN, **changes))
    assert "\n" not in str(error.value)


def test_the_slow_twin_refuses_a_plan_without_a_clock_too(task, data):
    with pytest.raises(ValueError, match="the plan has no clock"):
        fa.debug_round(fedbuff(4), task, data, replace(PLAIN, clock=None))


@pytest.mark.parametrize(
    "build, says",
    [
        (lambda: fedbuff(0), "concurrency=0"),
        (lambda: fedbuff(4, server_lr=0), "server_lr=0 must be"),
        (lambda: fedbuff(4, staleness="linear"), "staleness='linear' is unknown"),
        (lambda: fedbuff(4, a=-1), "a=-1 must be"),
        (lambda: fedasync(4, b=-1), "b=-1 must be"),
        (lambda: fedasync(4, alpha=1.1), r"alpha=1.1 must lie in \(0, 1\]"),
        (lambda: fedasync(4, base=scaffold()), "give fedavg.., fedprox.. or moon.."),
        (lambda: fedbuff(4, base=fedasync(4)), "a base that is asynchronous itself"),
    ],
)
def test_a_wrong_argument_is_one_sentence(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_the_state_of_one_is_not_taken_for_that_of_the_other(task, data):
    _, state = start(fedbuff(4), task, data, PLAIN)
    round_fn, _ = start(fedasync(4), task, data, PLAIN)
    with pytest.raises(ValueError, match="state is another algorithm's"):
        round_fn(state, keys(1)[0])
