from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, broken, close, keys, linear_task, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedadam, fedavg, scaffold
from fedjax_adapt.core import (
    Probe,
    Refinement,
    StepPolicy,
    send_delta,
    task_loss,
    weighted_sum,
)

FULL = fa.Plan(batch_size=4, lr=0.1)


def steps_by_id(*num_steps):
    """A policy that gives client i num_steps[i] local steps."""
    table = jnp.array(num_steps)
    return StepPolicy(steps=lambda state, cohort, measurement: table[cohort.ids])


@pytest.mark.slow
def test_unequal_steps_are_exact_for_any_number_of_lanes(x64):
    data = make_data(dtype=np.float64)
    steps = np.array([7, 0, 2, 5, 1, 3])
    algorithm = fa.with_steps(fedavg("uniform"), steps_by_id(*steps))
    ends = np.cumsum(SIZES)
    gradients = np.stack(
        [
            np.asarray(data.x)[e - n : e].mean(0)
            for n, e in zip(SIZES, ends, strict=True)
        ]
    )
    for lanes in (1, 4, 6):
        plan = fa.Plan(batch_size=None, lr=0.1, lanes=lanes)
        round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
        after, info = jax.jit(round_fn)(state, keys(1)[0])
        moved = -0.1 * (steps[:, None] * gradients)[steps > 0].mean(0)
        close(after.params, np.asarray(state.params) + moved, atol=1e-12)
        np.testing.assert_array_equal(info.num_steps, steps)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, np.int64(3)])
def test_a_round_with_all_that_a_plan_has_may_be_called_in_any_way(task, data, rounds):
    wanted = lambda state, cohort, measured: jnp.full_like(
        cohort.ids, cohort.setting.rounds
    )
    algorithm = fa.with_steps(fedavg(), StepPolicy(wanted))
    plan = replace(FULL, cohort_size=2, lanes=1, rounds=rounds, clip_norm=5)
    plan = replace(plan, lr_decay=0.9, momentum=0.5, weight_decay=1e-3)
    round_fn, state = start(algorithm, task, data, plan)
    as_an_argument = jax.jit(lambda round_fn, state, key: round_fn(state, key))
    key = keys(1)[0]
    found = [
        round_fn(state, key),
        jax.jit(round_fn)(state, key),
        as_an_argument(round_fn, state, key),
        fa.train(round_fn, state, key[None]),
    ]
    for after, info in found:
        assert np.ravel(info.num_steps).tolist() == [3, 3]
        close(after.params, found[0][0].params)


@pytest.mark.slow
def test_packed_rounds_side_by_side_are_each_as_if_alone(task, data):
    """As the trials of a sweep are: other rates, seeds, cohorts and numbers of steps."""

    def last(lr, key):
        plan = fa.Plan(cohort_size=5, batch_size=4, lr=lr, lanes=2)
        state = fa.init_state(scaffold(), task, data, plan, key)
        round_fn = fa.make_round(scaffold(), task, data, plan)
        return jax.lax.scan(round_fn, state, jax.random.split(key, 2))

    rates, seeds = jnp.array([0.1, 0.03, 0.2]), keys(3)
    together = jax.jit(jax.vmap(last))(rates, seeds)
    alone = jax.jit(last)
    steps = np.asarray(together[1].num_steps)  # [trials, rounds, cohort]
    assert len({row.tobytes() for row in steps}) == 3 and len(set(steps[0, 0])) > 1
    for i in range(3):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        close(own, alone(rates[i], seeds[i]))


@pytest.mark.slow
def test_a_client_without_steps_is_neither_averaged_nor_changed(task, data):
    rest = fa.with_steps(scaffold(), steps_by_id(2, 0, 2, 0, 2, 2))
    round_fn, state = start(rest, task, data, FULL)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    for i in range(6):
        row = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree)
        assert same(row(after.clients), row(state.clients)) == (i in (1, 3))
    assert int(info.num_active) == 4
    np.testing.assert_array_equal(info.loss[jnp.array([1, 3])], 0)


LEAVE_OUT = dict(batch_size=4, lr=0.1, nonfinite_updates="leave_out")


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 6])
@pytest.mark.parametrize(
    "algorithm", [fedavg(), scaffold()], ids=["fedavg", "scaffold"]
)
def test_where_all_is_finite_nobody_is_left_out_and_rounding_alone_changes(
    algorithm, lanes, task, data
):
    ends = []
    for updates in ("stop", "leave_out"):
        plan = fa.Plan(**{**LEAVE_OUT, "nonfinite_updates": updates}, lanes=lanes)
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(fa.train(round_fn, state, keys(3)))
    close(ends[0][0], ends[1][0])
    assert not ends[1][1].left_out.any()
    np.testing.assert_array_equal(ends[1][1].num_left_out, [0, 0, 0])
    close(ends[0][1], ends[1][1]._replace(left_out=()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        dict(lanes=1),
        dict(lanes=4),
        dict(devices=2),
        dict(client_memory="host"),
        dict(client_memory="host", devices=3, lanes=1),
    ],
    ids=str,
)
def test_who_is_left_out_does_not_depend_on_where_clients_train(task, data, options):
    """The others are averaged as if they were all, and its row is as it was."""
    data = broken(data, 0, 4)
    rest = fa.with_steps(scaffold(), steps_by_id(0, 2, 3, 2, 0, 1))
    some = fa.with_steps(scaffold(), steps_by_id(2, 2, 3, 2, 1, 1))
    round_fn, state = start(rest, task, data, FULL)
    expected, _ = jax.jit(round_fn)(state, keys(1)[0])
    round_fn, state = start(some, task, data, fa.Plan(**LEAVE_OUT, **options))
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    close(after.params, expected.params)
    close(after.server, expected.server)
    close(jax.device_get(after.clients), jax.device_get(expected.clients))
    assert info.left_out.tolist() == [True, False, False, False, True, False]
    assert (int(info.num_left_out), int(info.num_active)) == (2, 6)


@pytest.mark.slow
def test_trials_side_by_side_leave_out_their_own(task, data):
    """The same client ends at infinity at one learning rate and not at another."""

    def last(lr, scale):
        plan = fa.Plan(**{**LEAVE_OUT, "lr": lr})
        large = replace(data, x=data.x.at[data.index[2, 0]].multiply(scale))
        round_fn = fa.make_round(scaffold(), task, large, plan)
        return jax.lax.scan(round_fn, state, keys(2))

    state = fa.init_state(scaffold(), task, data, FULL, jax.random.key(1))
    rates, scales = jnp.array([0.1, 0.1, 0.05]), jnp.array([1.0, jnp.inf, 1.0])
    together = jax.jit(jax.vmap(last))(rates, scales)
    assert together[1].num_left_out.tolist() == [[0, 0], [1, 1], [0, 0]]
    for i in range(3):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        close(own, jax.jit(last)(rates[i], scales[i]))


def spoilt(part):
    """An algorithm of which client 3 sends one number that is not finite, in `part`."""
    bad = lambda run: jnp.where(run.id == 3, jnp.inf, 1.0)

    def finish(run):
        upload, client = send_delta(run)
        delta, extra = upload.delta, {"a": jnp.zeros(2), "z": jnp.ones(2)}
        if part == "delta":
            delta = {**delta, "w": delta["w"].at[3, 2].multiply(bad(run))}
        if part == "extra":
            extra = {**extra, "z": extra["z"].at[1].multiply(bad(run))}
        return fa.Upload(delta, extra), client

    sends = lambda name: (lambda run: (jnp.ones(2), bad(run))) if part == name else None
    policy = StepPolicy(steps=fedavg().policy.steps, send=sends("policy"))
    return fa.Algorithm(
        local=fa.LocalRule(finish=finish),
        policy=policy,
        refine=Refinement(send=sends("refinement"), needs_public=False),
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", ["delta", "extra", "policy", "refinement"])
def test_every_number_that_a_client_sends_must_be_finite(part, task, data):
    round_fn, state = start(spoilt(part), task, data, fa.Plan(**LEAVE_OUT))
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    assert info.left_out.tolist() == [i == 3 for i in range(6)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))
    assert not same(after.params, state.params)


@pytest.mark.slow
def test_a_client_that_sends_nothing_is_not_left_out(task, data):
    local = fa.LocalRule(finish=lambda run: (fa.Upload(()), run.client))
    stay = fa.ServerRule(update=lambda params, extra, upload, cohort: (params, extra))
    algorithm = fa.Algorithm(local=local, server=stay)
    round_fn, state = start(algorithm, task, data, fa.Plan(**LEAVE_OUT))
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    assert not info.left_out.any() and int(info.num_active) == 6


@pytest.mark.slow
def test_who_did_not_train_is_not_counted_as_left_out(task, data):
    """What is in its slot may be no number, as it is where a rule divides by steps."""
    idle = fa.with_steps(spoilt("delta"), steps_by_id(1, 1, 1, 0, 1, 1))
    round_fn, state = start(idle, task, data, fa.Plan(**LEAVE_OUT))
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    assert not info.left_out.any() and int(info.num_active) == 5


@pytest.mark.slow
def test_a_round_of_which_everybody_is_left_out_changes_nothing(task, data):
    data = broken(data, *range(6))
    round_fn, state = start(scaffold(), task, data, fa.Plan(**LEAVE_OUT))
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    assert same(after._replace(round=state.round), state)
    assert int(info.num_left_out) == 6 and float(info.delta_norm) == 0


@pytest.mark.slow
def test_a_server_with_momentum_stands_still_where_everybody_is_left_out(task, data):
    """An update of zero would move it."""
    round_fn, state = start(fedadam(), task, data, fa.Plan(**LEAVE_OUT))
    state, _ = jax.jit(round_fn)(state, keys(1)[0])
    bad, _ = start(fedadam(), task, broken(data, *range(6)), fa.Plan(**LEAVE_OUT))
    after, info = jax.jit(bad)(state, keys(1)[0])
    assert int(info.num_left_out) == 6
    assert same(after._replace(round=state.round), state)


@pytest.mark.slow
def test_what_a_policy_is_sent_is_a_mean_of_those_that_count(task, data):
    policy = StepPolicy(
        steps=steps_by_id(1, 1, 1, 1, 1, 1).steps,
        init=lambda params, num_clients: jnp.zeros(()),
        send=lambda run: run.id.astype(float),
        update=lambda state, cohort, runs, outcome: outcome.sent + cohort.num_active,
    )
    algorithm = fa.with_steps(fedavg(), policy)
    round_fn, state = start(algorithm, task, broken(data, 5), fa.Plan(**LEAVE_OUT))
    after, _ = jax.jit(round_fn)(state, keys(1)[0])
    np.testing.assert_allclose(after.policy, 2 + 5, rtol=1e-6)


@pytest.mark.slow
def test_infos_of_a_client_without_steps_say_what_the_policy_saw_of_it(task, data):
    """FedGSNR leaves clients out by what they measured, which is to be seen."""

    def finish(run):
        upload, state = send_delta(run)
        return upload._replace(info={"one": jnp.ones(())}), state

    policy = steps_by_id(2, 0, 1, 0, 2, 2)._replace(
        report=lambda state, cohort, seen: {"id": cohort.ids + 1.0, "all": jnp.ones(())}
    )
    algorithm = fedavg()
    algorithm = algorithm._replace(local=algorithm.local._replace(finish=finish))
    plan = fa.Plan(participation=fa.bernoulli(0.7), batch_size=4)
    round_fn, state = start(fa.with_steps(algorithm, policy), task, data, plan)
    _, infos = fa.train(round_fn, state, keys(4))
    ids, steps = np.asarray(infos.cohort), np.asarray(infos.num_steps)
    present = ids < len(SIZES)
    assert (present & (steps == 0)).any() and not present.all()
    np.testing.assert_array_equal(infos.policy["id"], np.where(present, ids + 1, 0))
    np.testing.assert_array_equal(infos.policy["all"], 1)
    np.testing.assert_array_equal(infos.clients["one"], steps > 0)
    assert not np.any(np.asarray(infos.loss)[steps == 0])
    np.testing.assert_array_equal(infos.num_active, (steps > 0).sum(1))


@pytest.mark.slow
def test_max_steps_caps_the_policy(task, data):
    plan = fa.Plan(batch_size=4, max_steps=2)
    greedy = fa.with_steps(fedavg(), fa.constant_steps(9))
    capped = fa.with_steps(fedavg(), fa.constant_steps(2))
    ends = []
    for algorithm in (greedy, capped):
        round_fn, state = start(algorithm, task, data, plan)
        after, info = jax.jit(round_fn)(state, keys(1)[0])
        assert set(np.asarray(info.num_steps).tolist()) == {2}
        ends.append(after.params)
    assert same(*ends)


@pytest.mark.slow
def test_mean_steps_are_capped_and_rounded_like_everyones(task, data):
    seen = []

    def finish(run):
        seen.append(run.setting.mean_steps)
        return send_delta(run)

    rule = fedavg()
    rule = rule._replace(local=rule.local._replace(finish=finish))
    for num_epochs, max_steps, batch_size, expected in (
        (2, None, 3, 6),  # mean size 8: three batches of 3
        (0.3, None, 1, 3),  # 2.4 rounds up
        (0.5, None, 1, 4),
        (2, 5, 3, 5),
    ):
        plan = fa.Plan(batch_size=batch_size, max_steps=max_steps)
        algorithm = fa.with_steps(rule, fa.epochs(num_epochs))
        round_fn, state = start(algorithm, task, data, plan)
        with jax.disable_jit():
            fa.debug_round(algorithm, task, data, plan)(state, keys(1)[0])
        assert int(seen[-1]) == expected


def test_fractional_epochs_take_no_step_too_many():
    fifty = jnp.array([50, 25, 10])
    for num_epochs, expected in (
        (0.3, [15, 8, 3]),
        (0.6, [30, 15, 6]),
        (2, [100, 50, 20]),
    ):
        steps = fa.epochs(num_epochs).mean_steps(fifty)
        np.testing.assert_array_equal(steps, expected)


@pytest.mark.slow
def test_clients_without_examples_never_train(task):
    data = make_data(sizes=(8, 8, 8))
    holes = fa.FederatedDataset.from_rows(
        data.x, data.y, [np.arange(8), [], np.arange(8, 24)], num_classes=3
    )
    round_fn, state = start(scaffold(), task, holes, FULL)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    np.testing.assert_array_equal(info.num_steps, [2, 0, 4])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


@pytest.mark.slow
def test_a_combine_rule_that_is_no_mean_sees_all_uploads(task, data):
    def by_hand(uploads, cohort):
        n = np.array(SIZES) / sum(SIZES)
        return jax.tree.map(lambda leaf: jnp.tensordot(n, leaf, 1), uploads)

    rule = fedavg()
    hand = rule._replace(server=rule.server._replace(combine=by_hand))
    ends = []
    for algorithm in (rule, hand):
        round_fn, state = start(algorithm, task, data, FULL)
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[0].params)
    close(*ends)


def test_neither_upload_nor_weight_of_an_idle_slot_counts():
    weights, active = jnp.array([0.25, jnp.nan, jnp.inf]), jnp.arange(3) < 1
    assert weighted_sum(weights, active, jnp.array([[4.0], [1.0], [jnp.nan]])) == 1


@pytest.mark.slow
def test_the_learning_rate_decays_by_round(x64):
    data = make_data(dtype=np.float64, sizes=(8,))
    plan = fa.Plan(batch_size=None, lr=0.2, lr_decay=0.5)
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(3))
    round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
    gradient, step = np.asarray(data.x).mean(0), jax.jit(round_fn)
    for t, key in enumerate(keys(3)):
        after, _ = step(state, key)
        moved = np.asarray(after.params) - np.asarray(state.params)
        np.testing.assert_allclose(moved, -3 * 0.2 * 0.5**t * gradient, atol=1e-12)
        state = after


@pytest.mark.slow
def test_policies_measure_probe_and_learn(x64):
    """A policy sees each client's gradient at the broadcast model, folds over its steps,
    and keeps a state per client."""
    data = make_data(dtype=np.float64)

    def measure(view, key):
        return jax.grad(task_loss)(view.params, view, key)

    def update(state, cohort, runs, outcome):
        moved = jnp.abs(outcome.params - outcome.anchor).sum()
        return state.at[cohort.ids].add(runs.probe * (moved > 0))

    policy = StepPolicy(
        steps=lambda state, cohort, measured: 1 + (measured[:, 0] > 1).astype(int),
        init=lambda params, num_clients: jnp.zeros(num_clients),
        measure=measure,
        probe=Probe(
            lambda view: jnp.zeros(()), lambda total, grads, view: total + grads[0]
        ),
        update=update,
    )
    plan = fa.Plan(batch_size=None, lr=0.1, lanes=4)
    algorithm = fa.with_steps(fedavg(), policy)
    round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
    first = np.array(
        [
            np.asarray(data.x)[e - n : e, 0].mean()
            for n, e in zip(SIZES, np.cumsum(SIZES), strict=True)
        ]
    )
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    steps = 1 + (first > 1)
    assert set(steps) == {1, 2}
    np.testing.assert_array_equal(info.num_steps, steps)
    np.testing.assert_allclose(after.policy, steps * first, atol=1e-12)


@pytest.mark.slow
def test_refinements_see_the_clients_models_and_the_public_set(task, data):
    public = jnp.ones((5, 4))
    with_public = fa.FederatedDataset.from_rows(
        data.x,
        data.y,
        [data.index[i, :n] for i, n in enumerate(SIZES)],
        public=public,
        num_classes=3,
    )

    def refine(params, view, key):
        assert view.runs.params["w"].shape == (6, 4, 3)
        assert view.public.x.shape == (5, 4)
        return jax.tree.map(lambda leaf: leaf.mean(0), view.runs.params)

    plain = fedavg("uniform")
    ends = []
    for algorithm in (plain, fa.with_refinement(plain, refine)):
        round_fn, state = start(algorithm, task, with_public, FULL)
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[0].params)
    close(*ends)


def test_more_clients_per_round_than_there_are_is_refused(task, data):
    with pytest.raises(
        ValueError,
        match=r"cohort_size=7 but the data set has 6 clients that hold examples; take at "
        "most 6",
    ):
        fa.make_round(fedavg(), task, data, fa.Plan(cohort_size=7))


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (
            dict(cohort_size=0),
            "cohort_size=0 must be an integer >= 1, or None for every",
        ),
        (dict(batch_size=2.5), "batch_size=2.5 must be an integer >= 1, or None for"),
        (dict(lr=0.0), "lr=0.0 must be a finite number above 0"),
        (dict(weight_decay=1e40), r"weight_decay=1e\+40 is more than float32 holds"),
        (
            dict(weight_decay=1e-50),
            r"weight_decay=1e-50 would be 0 in float32; write a",
        ),
        (dict(batch_size=Fraction(5, 2)), "batch_size=5/2 must be an integer >= 1"),
        (dict(lr=1e40), r"lr=1e\+40 is more than float32 holds; write at most 3.4e38"),
        (dict(lr=float("nan")), "lr=nan must be a finite number above 0"),
        (dict(lr="fast"), "lr='fast' is not a number"),
        (
            dict(lr=[0.1, 0.2]),
            r"lr has shape \[2\]; write one number, and jax.vmap over",
        ),
        (dict(momentum=np.zeros((1,))), r"momentum has shape \[1\]; write one number"),
        (dict(momentum=1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (dict(weight_decay=-1e-3), "weight_decay=-0.001 must be a finite number of at"),
        (dict(clip_norm=0), "clip_norm=0 must be a finite number above 0"),
        (dict(max_steps=float("inf")), "max_steps=inf must be an integer >= 1"),
        (
            dict(lanes="all"),
            "lanes='all' is not a number; write an integer >= 1, or \"auto\"",
        ),
        (
            dict(nonfinite_updates="skip"),
            "nonfinite_updates='skip' is unknown; write one of stop, leave",
        ),
        (dict(devices=0), 'devices=0 must be an integer >= 1, or "auto"'),
        (dict(shuffle="epochs"), "shuffle='epochs' is unknown; did you mean 'epoch'"),
        (
            dict(cohort_size=2, participation=fa.bernoulli(0.5)),
            "both cohort_size=2 and participation",
        ),
    ],
)
def test_a_wrong_plan_says_what_to_write(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        fa.Plan(**wrong)


def test_a_model_with_fewer_outputs_than_labels_is_refused(data):
    shape = data.x.shape[1:]
    few = fa.classification(fa.models.linear(shape, 2), shape)
    with pytest.raises(
        ValueError, match="has 2 outputs but the data set 3 labels; bui"
    ):
        fa.make_round(fedavg(), few, data, FULL)
    fa.make_round(
        fedavg(), fa.classification(fa.models.linear(shape, 4), shape), data, FULL
    )


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (
            lambda: fa.Plan(participation=0.3),
            "must be a Participation, got 0.3; write",
        ),
        (lambda: fa.with_steps(fedavg(), 5), r"got 5 for policy; write epochs\(5\) or"),
        (lambda: fa.with_steps(fedavg, fa.epochs(5)), r"call it: algorithm=fedavg\(\)"),
    ],
)
def test_a_part_that_is_none_is_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        wrong()
