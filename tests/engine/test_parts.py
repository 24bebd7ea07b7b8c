"""What a part returns that the engine cannot use is one sentence, before any round runs."""

import inspect
import warnings
from dataclasses import replace
from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import (
    close,
    constructed,
    fast,
    keys,
    make_clients,
    make_data,
    make_task,
    same,
    start,
)

import fedjax_adapt as fa
from fedjax_adapt import check
from fedjax_adapt.algorithms import (
    ALGORITHMS,
    fedavg,
    fedavgm,
    feddyn,
    fedssg,
    scaffold,
)

PLAN = fa.Plan(cohort_size=3, batch_size=4)


def local(**parts):
    return fa.Algorithm(local=fa.LocalRule(**parts))


def server(**parts):
    return fa.Algorithm(server=fa.ServerRule(**parts))


def policy(steps=lambda state, cohort, measured: jnp.ones_like(cohort.ids), **parts):
    return fa.with_steps(fedavg(), fa.StepPolicy(steps, **parts))


def delta(run):
    return optax.tree.sub(run.params, run.anchor)


def counting(run):
    return fa.Upload(delta(run)), run.client + 0.5


def adds(params, extra, upload, cohort):
    return optax.tree.add(params, upload.delta), extra + 0.5


def raises(*arguments):
    return arguments[0].nothing


BROKEN = {
    "client state of another dtype": (
        local(init=lambda params: 0, finish=counting),
        r"LocalRule.finish \(counting\) returned float32\[\] for the client's state where "
        r"LocalRule.init gave int32\[\]",
    ),
    "client state of another shape": (
        local(
            init=lambda params: jnp.zeros(3),
            finish=lambda run: (fa.Upload(delta(run)), jnp.zeros(1)),
        ),
        r"LocalRule.finish .* returned float32\[1\] .* gave float32\[3\]",
    ),
    "no state": (
        local(finish=lambda run: fa.Upload(delta(run))),
        r"LocalRule.finish .* returned an Upload; return \(Upload\(delta\), client state\)",
    ),
    "None for no client state": (
        local(finish=lambda run: (fa.Upload(delta(run)), None)),
        r"LocalRule.finish .* returned None for the client's state where LocalRule.init "
        r"gave nothing; return \(\), or have LocalRule.init make the first one.",
    ),
    "a delta of another structure": (
        local(finish=lambda run: (fa.Upload(delta(run)["w"]), ())),
        r"LocalRule.finish .* returned float32\[4, 3\] for Upload.delta where Task.init",
    ),
    "server state of another dtype": (
        server(init=lambda params: 0, update=adds),
        r"ServerRule.update \(adds\) returned float32\[\] for the server's state where "
        r"ServerRule.init gave int32\[\]",
    ),
    "a model alone": (
        server(update=lambda params, extra, upload, cohort: params),
        r"ServerRule.update .* returned a dict; return \(params, extra\)",
    ),
    "a correction that broadcasts": (
        local(correct=lambda grads, view: jax.tree.map(lambda g: g[None], grads)),
        r"LocalRule.correct .* returned float32\[1, 3\] for the gradient\['b'\]",
    ),
    "a decay of another structure": (
        local(decay=lambda grads, view: grads["w"]),
        "LocalRule.decay .* for the gradient where jax.grad gave",
    ),
    "an objective per example": (
        local(objective=lambda params, view, key: view.batch.x[:, 0]),
        r"LocalRule.objective .* returned float32\[4\]; return a floating scalar",
    ),
    "float steps": (
        policy(lambda state, cohort, measured: cohort.epoch_steps * 0.5),
        r"StepPolicy.steps .* returned float32\[3\] for a cohort of 3; .* integer",
    ),
    "steps that wrap round at a large cap": (
        policy(lambda state, cohort, measured: cohort.epoch_steps.astype(jnp.int16)),
        r"StepPolicy.steps .* returned int16\[3\] for a cohort of 3; .* int32\[3\]",
    ),
    "one number of steps": (
        policy(lambda state, cohort, measured: 5),
        r"StepPolicy.steps .* returned int32\[\] for a cohort of 3",
    ),
    "policy state of another dtype": (
        policy(
            init=lambda params, num_clients: jnp.zeros(num_clients, jnp.int32),
            update=lambda state, cohort, runs, outcome: state + 0.5,
        ),
        r"StepPolicy.update .* returned float32\[6\] for the policy's state",
    ),
    "a report of another length": (
        policy(report=lambda state, cohort, measured: {"x": jnp.zeros(5)}),
        r"StepPolicy.report .* returned float32\[5\] for 'x'",
    ),
    "weights of another length": (
        server(combine=fa.mean(lambda cohort: jnp.ones(5) / 5)),
        r"weights of ServerRule.combine=mean\(...\) are float32\[5\] for a cohort of 3",
    ),
    "weights that are counts": (
        server(combine=fa.mean(lambda cohort: cohort.num_examples)),
        r"are int32\[3\], but .* not divided by their sum; return shares, such as by_ex",
    ),
    "a report that is not a dict": (
        server(report=lambda extra, upload, cohort: 1.0),
        "ServerRule.report .* returned 1.0; return a dict",
    ),
    "a start of another structure": (
        local(start=lambda view: view.params["w"]),
        "LocalRule.start .* for the model a client starts from",
    ),
    **{
        f"{part} raises": (
            build(**{part: raises}),
            rf"{kind}.{part} \(raises\) raised AttributeError at test_parts.py:\d+: .*"
            r"nothing.*; it takes \(",
        )
        for build, kind, parts in (
            (local, "LocalRule", ("init", "prepare", "objective", "correct", "finish")),
            (server, "ServerRule", ("init", "combine", "update", "report")),
            (policy, "StepPolicy", ("init", "measure", "steps", "update", "report")),
        )
        for part in parts
    },
    "an argument too many": (
        local(correct=lambda grads: grads),
        r"LocalRule.correct .* raised TypeError.*; it takes \(grads, view\)",
    ),
}


@pytest.mark.parametrize("algorithm, sentence", BROKEN.values(), ids=BROKEN)
def test_a_part_that_breaks_its_contract_is_named(algorithm, sentence, task, data):
    with pytest.raises(ValueError, match=sentence) as caught:
        fa.make_round(algorithm, task, data, PLAN)
    assert "\n" not in str(caught.value).split("\n----")[0]


class Raises:
    def __call__(self, *arguments):
        return raises(*arguments)


def inside(algorithm):
    return fa.with_averages(fa.with_compression(algorithm, fa.top_k(0.5)), clients=True)


LINE = inspect.getsourcelines(raises)[1] + 1
INSIDE = {
    "optimizer": (
        fa.with_server_optimizer(server(update=raises), optax.sgd(1.0)),
        "ServerRule.update (raises)",
    ),
    "correct": (inside(local(correct=raises)), "LocalRule.correct (raises)"),
    "partial": (inside(local(correct=partial(raises))), "LocalRule.correct (raises)"),
    "finish": (inside(local(finish=raises)), "LocalRule.finish (raises)"),
    "one that is called": (
        inside(local(correct=Raises())),
        "LocalRule.correct (Raises)",
    ),
    "personal": (
        fa.with_personal(local(correct=raises), "b"),
        "LocalRule.correct (with_personal.added.<lambda>)",
    ),
    "refine": (
        fa.Algorithm(refine=lambda *given: raises(*given)),
        "Refinement.server (<lambda>)",
    ),
    "around a part of ours": (
        server(update=wraps(fedavgm().server.update)(lambda *given: raises(*given))),
        "ServerRule.update (with_server_optimizer.update)",
    ),
}


@pytest.mark.parametrize("algorithm, named", INSIDE.values(), ids=INSIDE)
def test_what_a_user_wrote_is_named_inside_a_wrapper(algorithm, named, task, data):
    with pytest.raises(fa.SettingError) as caught:
        fa.make_round(algorithm, task, data, PLAN)
    says = f"{named} raised AttributeError at test_parts.py:{LINE}: "
    assert str(caught.value).startswith(says)


def test_what_a_wrapper_itself_calls_is_found_where_a_user_wrote_it(task, data):
    base = server(update=adds, init=lambda params: 0.5)
    optimizer = optax.GradientTransformation(raises, raises)
    part = r"^ServerRule.init \(with_server_optimizer.init\)"
    says = rf"{part} raised .* at test_parts.py:{LINE}: "
    with pytest.raises(fa.SettingError, match=says):
        fa.make_round(fa.with_server_optimizer(base, optimizer), task, data, PLAN)


def test_what_nothing_of_a_user_raised_is_found_in_the_wrapper(task, data):
    optimizer = optax.GradientTransformation(int, int)  # which have no lines
    says = r"^ServerRule.init \(with_server_optimizer.init\) raised .* at wrap.py:\d+: "
    with pytest.raises(fa.SettingError, match=says):
        fa.make_round(fa.with_server_optimizer(fedavg(), optimizer), task, data, PLAN)


def test_what_could_not_be_called_is_named_inside_a_wrapper(task, data):
    takes_less, test = lambda one: one, "test_what_could_not_be_called_is"
    for part, algorithm in (
        ("LocalRule.correct", inside(local(correct=takes_less))),
        ("Refinement.server", fa.Algorithm(refine=takes_less)),
    ):
        says = rf"^{part} .{test}\w+.<lambda>\) raised TypeError: "
        with pytest.raises(fa.SettingError, match=says):
            fa.make_round(algorithm, task, data, PLAN)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"apply": lambda params, x: x @ params["w"]}, "Task.apply returned an array"),
        ({"apply": lambda params, x: x @ params["u"]}, "Task.apply .* raised KeyError"),
        ({"loss": lambda logits: logits}, "Task.loss .* raised TypeError"),
    ],
)
def test_a_task_that_breaks_its_contract_is_named(change, sentence, data):
    with pytest.raises(ValueError, match=sentence):
        fa.make_round(fedavg(), make_task()._replace(**change), data, PLAN)


def test_the_slow_twin_names_the_function(task, data):
    def finish(run):
        return fa.Upload(delta(run)), run.client if run.id == 0 else jnp.zeros(2)

    algorithm = local(init=lambda params: jnp.zeros(3), finish=finish)
    round_fn = fa.debug_round(algorithm, task, data, fa.Plan(batch_size=4))
    state = fa.init_state(algorithm, task, data, PLAN, keys(1)[0])
    says = r"client 1, after its local steps: LocalRule.finish .* float32\[2\]"
    with pytest.raises(RuntimeError, match=says):
        round_fn(state, keys(1)[0])


@pytest.mark.slow
def test_the_slow_twin_warns_of_a_model_where_a_difference_belongs(task, data):
    sends_model = local(finish=lambda run: (fa.Upload(run.params), run.client))
    _, state = start(fedavg(), task, data, PLAN)
    with pytest.warns(UserWarning, match="the model itself, as Upload.delta"):
        fa.debug_round(sends_model, task, data, PLAN)(state, keys(1)[0])


def test_participation_of_no_ids_is_named(task, data):
    nobody = fa.Participation(lambda n: 3, lambda key, n: jnp.zeros(3))
    plan = fa.Plan(participation=nobody)
    with pytest.raises(ValueError, match=r"Participation.sample .*float32\[3\]|index"):
        fa.make_round(fedavg(), task, data, plan)


def test_parts_that_keep_their_contract_are_called_once_each(task, data):
    """The check costs a trace of every part, no more."""
    calls = []

    def correct(grads, view):
        calls.append(view.params["w"])
        return grads

    fa.make_round(local(correct=correct), task, data, PLAN)
    assert len(calls) == 1 and isinstance(calls[0], jax.core.Tracer)


STATES = {
    "scaffold's in feddyn": (scaffold, feddyn, make_task, make_data),
    "another model's": (
        fedavg,
        fedavg,
        lambda: make_task()._replace(init=lambda key: {"w": jnp.zeros((4, 3))}),
        make_data,
    ),
    "other clients'": (scaffold, scaffold, make_task, partial(make_data, (8, 8))),
    "another dtype's": (
        fedavg,
        fedavg,
        partial(make_task, jnp.float16),
        make_data,
    ),
}


@pytest.mark.parametrize("case", STATES.values(), ids=STATES)
@pytest.mark.parametrize("make", [fa.make_round, fa.debug_round])
def test_a_state_of_something_else_is_refused(case, make, task, data):
    theirs, ours, other_task, other_data = case
    plan = fa.Plan(batch_size=4)
    key = keys(1)[0]
    state = fa.init_state(theirs(), other_task(), other_data(), plan, key)
    round_fn = make(ours(), task, data, plan)
    step = jax.jit(round_fn) if make is fa.make_round else round_fn
    with pytest.raises(ValueError, match="write init_state"):
        step(state, key)


AROUND = {
    "averages": fa.with_averages,
    "compression": lambda base: fa.with_compression(base, fa.top_k(0.5)),
    "personal": lambda base: fa.with_personal(base, "b"),
    "optimizer": lambda base: fa.with_server_optimizer(base, optax.sgd(1.0)),
    "ditto, averages": lambda base: fa.with_averages(ALGORITHMS["ditto"](base=base)),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_wrapped_state_is_known_by_the_method_inside(around, task, data):
    _, state = start(around(scaffold()), task, data, PLAN)
    round_fn, own = start(around(feddyn()), task, data, PLAN)
    jax.eval_shape(round_fn, own, keys(1)[0])
    with pytest.raises(
        ValueError, match="scaffold but the round's is that of .*feddyn"
    ):
        jax.eval_shape(round_fn, state, keys(1)[0])


@pytest.mark.slow
def test_the_origin_of_a_state_is_no_obstacle_to_what_keeps_nothing(task, data):
    """FedProx goes on from FedAvg's state, and a jitted round from its own."""
    _, state = start(fedavg(), task, data, PLAN)
    round_fn, own = start(ALGORITHMS["fedprox"](0.1), task, data, PLAN)
    assert same(
        jax.jit(round_fn)(state, keys(1)[0]), jax.jit(round_fn)(own, keys(1)[0])
    )


def test_epochs_that_are_no_step_are_refused():
    with pytest.raises(ValueError, match="num_epochs=1e-09 .* constant_steps"):
        fa.epochs(1e-9)


def noisy():
    """A method whose clients and server add noise, and say what they added."""

    def finish(run):
        noise = jax.random.normal(run.key)
        moved = jax.tree.map(lambda leaf: leaf + 1e-3 * noise, delta(run))
        return fa.Upload(moved, info={"noise": noise, "id": run.id}), run.client

    def update(params, extra, upload, cohort):
        noise = cohort.setting.lr * jax.random.normal(cohort.key)
        moved = jax.tree.map(lambda leaf: leaf + noise, upload.delta)
        return optax.tree.add(params, moved), noise

    return fa.Algorithm(
        local=fa.LocalRule(finish=finish),
        server=fa.ServerRule(
            init=lambda params: jnp.zeros(()),
            update=update,
            report=lambda extra, upload, cohort: {
                "noise": extra,
                "seconds": cohort.seconds,
            },
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda *parts: jax.jit(fa.make_round(*parts)), id="make_round"),
        fa.debug_round,
    ],
)
def test_a_server_rule_may_say_how_long_a_round_took(task, data, make):
    def saying(seconds):
        says = lambda cohort: {"simulated_seconds": seconds(cohort), "twice": 2.0}
        return server(report=lambda extra, upload, cohort: says(cohort))

    plan = replace(PLAN, clock=fa.Clock(step_seconds=1.0, bandwidth=1e9))
    algorithm = saying(lambda cohort: cohort.seconds.min())
    state = fa.init_state(algorithm, task, data, plan, keys(1)[0])
    _, info = make(algorithm, task, data, plan)(state, keys(1)[0])
    steps = np.asarray(info.num_steps)
    np.testing.assert_allclose(info.seconds, steps.min(), atol=1e-4)
    assert steps.min() < steps.max()
    assert info.server == {"twice": 2.0}
    with pytest.raises(ValueError, match="'simulated_seconds', which are those of the"):
        make(saying(lambda cohort: cohort.seconds), task, data, plan)(state, keys(1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_noise_of_clients_and_server_comes_from_the_key_alone(lanes, task, data):
    plan = fa.Plan(cohort_size=3, batch_size=4, lanes=lanes, clock=fa.Clock(0.5))
    algorithm = fa.with_steps(noisy(), fa.epochs(1))
    round_fn, state = start(algorithm, task, data, plan)
    key = keys(1)[0]
    after, info = jax.jit(round_fn)(state, key)
    slow, slow_info = fa.debug_round(algorithm, task, data, plan)(state, key)
    close(after, slow)
    close(info, slow_info)
    np.testing.assert_array_equal(info.clients["id"], info.cohort)
    assert len(set(np.asarray(info.clients["noise"]).tolist())) == 3
    assert float(info.server["noise"]) == float(after.server) != 0
    assert float(info.server["seconds"].max()) == float(info.seconds)
    again, _ = jax.jit(round_fn)(state, keys(2)[1])
    assert float(again.server) != float(after.server)


@pytest.mark.slow
def test_a_client_may_start_elsewhere_than_at_the_broadcast(task):
    """Each keeps its own biases: what it starts from is its anchor."""
    data = fa.FederatedDataset.from_clients(make_clients(), num_classes=3)
    seen = []

    def begin(view):
        return {**view.params, "b": view.client}

    def finish(run):
        moved = delta(run)
        seen.append(run.anchor["b"])
        return fa.Upload({**moved, "b": 0 * moved["b"]}), run.params["b"]

    algorithm = local(init=lambda params: params["b"] + 1.0, start=begin, finish=finish)
    plan = fa.Plan(cohort_size=4, batch_size=4, lanes=2)
    round_fn, state = start(algorithm, task, data, plan)
    slow = fa.debug_round(algorithm, task, data, plan)
    expected = state
    for key in keys(2):
        state, info = jax.jit(round_fn)(state, key)
        expected, expected_info = slow(expected, key)
    close(state, expected)
    close(info, expected_info)
    own = np.asarray(state.clients)
    took_part = np.abs(own - 1).max(1) > 0
    assert took_part.sum() >= 4 and len(np.unique(own[took_part], axis=0)) > 1
    assert not np.asarray(state.params["b"]).any()


@pytest.mark.slow
def test_fedssg_learns_the_run_from_plan_and_train(task, data):
    def after(algorithm, plan, rounds=4):
        round_fn, state = start(algorithm, task, data, plan)
        return fa.train(round_fn, state, keys(rounds))[0]

    plan = fa.Plan(cohort_size=3, batch_size=4)
    told = after(fedssg(total_rounds=4, participation=0.5), plan)
    close(after(fedssg(), plan), told)
    close(after(fedssg(), fa.Plan(cohort_size=3, batch_size=4, rounds=4)), told)
    coin = fa.Plan(participation=fa.bernoulli(0.4), batch_size=4)
    share = 0.4 / (1 - 0.6**6)  # as at least one of six takes part
    told_share = fedssg(total_rounds=4, participation=share)
    close(after(fedssg(), coin), after(told_share, coin))
    other = after(fedssg(), fa.Plan(cohort_size=3, batch_size=4, rounds=40))
    assert not np.allclose(other.params["w"], told.params["w"])
    # in parts, of a whole that the plan says
    round_fn, state = start(fedssg(), task, data, replace_rounds(plan, 4))
    for part in (keys(4)[:2], keys(4)[2:]):
        state, _ = fa.train(round_fn, state, part)
    close(state, told)


def replace_rounds(plan, rounds):
    return fa.Plan(**{**vars(plan), "rounds": rounds})


def test_fedssg_refuses_what_contradicts_the_run(task, data):
    plan = fa.Plan(cohort_size=3, batch_size=4)
    with pytest.raises(ValueError, match="participation=0.15 but 0.5 of the clients"):
        fa.make_round(fedssg(participation=0.15), task, data, plan)
    with pytest.raises(ValueError, match="total_rounds=300 but the run has 60 rounds"):
        fa.make_round(fedssg(total_rounds=300), task, data, replace_rounds(plan, 60))
    round_fn, state = start(fedssg(total_rounds=2), task, data, plan)
    with pytest.raises(
        ValueError, match="the run has 3 rounds; train no more, or leave"
    ):
        fa.train(round_fn, state, keys(3))
    round_fn, state = start(fedavg(), task, data, replace_rounds(plan, 2))
    with pytest.raises(
        ValueError, match=r"3 keys after 0 rounds .* write Plan\(rounds=3"
    ):
        fa.train(round_fn, state, keys(3))
    round_fn, state = start(fedssg(), task, data, plan)
    with pytest.warns(UserWarning, match="takes the paper's 300"):
        jax.eval_shape(round_fn, state, keys(1)[0])


@pytest.mark.parametrize(
    "options, plan, says",
    [
        (dict(beta=1.5), {}, "k is 2.5 in round 4 of 4 "),
        (dict(beta=2.5, gate="current"), {}, "k is 3.5 in round 1 of 4 "),
        (dict(beta=1.5, correction_lr="round"), dict(lr_decay=0.5), "k is 2.5 in "),
        (dict(beta=1.5), dict(lr_decay=0.9), None),  # 2.25 x 0.81 at the most
        (dict(), {}, None),  # 2 at the end, and no more
        (dict(gate_map="clip01", beta=1.2), {}, "k is 2.2 in round 4 of 4 "),
        (dict(beta=9.0, gate="none"), {}, None),
        (dict(beta=9.0, correction="none"), {}, None),
        (dict(beta=9.0, correction_gated=False), {}, None),
    ],
)
@pytest.mark.parametrize("whence", ["plan", "algorithm", "train"])
def test_fedssg_warns_once_of_control_variates_that_grow(
    options, plan, says, whence, task, data
):
    """drift.md: at a constant rate beta = 0 and 1 converge, 1.5 and 2 diverge."""
    plan = fa.Plan(cohort_size=3, rounds=4 if whence == "plan" else None, **plan)
    own = {"total_rounds": 4} if whence == "algorithm" else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        round_fn, state = start(fedssg(**options, **own), task, data, plan)
        said = [str(w.message) for w in caught]
        assert len(said) == (whence != "train" and says is not None)
        round_fn.for_rounds(state.round, 4)
    said = [str(w.message) for w in caught]
    assert len(said) == (says is not None) and all(says in text for text in said)


def test_fedssg_warns_where_its_round_is_traced_and_its_numbers_are_not(task, data):
    plan = fa.Plan(cohort_size=3, rounds=4)

    def traced(alpha, beta):
        options = dict(alpha=alpha, beta=beta, gate_map="clip01")
        fa.make_round(fedssg(**options), task, data, plan)
        return jnp.asarray(beta)

    beta = jnp.asarray(1.5)
    with pytest.warns(UserWarning, match="k is 2.5 in round 4 of 4"):
        jax.eval_shape(lambda x: traced(0.1, beta), 0.0)
    jax.eval_shape(traced, 0.1, 1.5)


def with_policy(policy):
    return fedavg()._replace(policy=policy)


WRONG_KINDS = {
    "no rule": (fa.Algorithm(local=None), "Algorithm.local is None; write a LocalRule"),
    "a function": (
        fa.Algorithm(server=lambda params, upload: params),
        "Algorithm.server is the function .*; write a ServerRule",
    ),
    "a number of steps": (with_policy(5), "Algorithm.policy is 5; write a StepPolicy"),
    "no function": (
        local(correct=0.1),
        r"LocalRule.correct is 0.1; write a function that takes \(grads, view\)",
    ),
    "no traffic": (
        local(traffic=(1, 1)),
        r"LocalRule.traffic is a tuple; write Traffic",
    ),
    "a pair for a probe": (
        policy(probe=(lambda view: 0.0, lambda probe, grads, view: probe)),
        "StepPolicy.probe is a tuple; write Probe",
    ),
    "no text": (
        fa.Algorithm(server=fa.ServerRule(given=True)),
        "ServerRule.given is True; write a text, or leave it out",
    ),
    "half a step": (
        policy(max_steps=2.5),
        "StepPolicy.max_steps=2.5 must be an integer",
    ),
    "text": (local(init=lambda params: "none"), "LocalRule.init .* tree of arrays"),
    "a vector": (local(objective=lambda params, view, key: 1.0), "floating scalar"),
}


@pytest.mark.parametrize("algorithm, sentence", WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_a_part_of_another_kind_is_named(algorithm, sentence, task, data):
    for make in (
        lambda: fa.make_round(algorithm, task, data, PLAN),
        lambda: fa.init_state(algorithm, task, data, PLAN, keys(1)[0]),
    )[: 1 if "scalar" in sentence else 2]:
        with pytest.raises(ValueError, match=sentence):
            make()


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (lambda f, s: f(s, 0), "round_fn got 0 for key"),
        (lambda f, s: f(s, keys(2)), "round_fn got an array"),
        (lambda f, s: f(s.params, keys(1)[0]), "round_fn got a dict for state"),
        (lambda f, s: fa.train(f, s.params, keys(2)), "train got a dict for state"),
        (lambda f, s: fa.train(f, s, jnp.arange(3)), r"keys is int32\[3\], no vector"),
        (lambda f, s: fa.train(f, s, keys(1)[0]), "keys is one key"),
        (lambda f, s: fa.train(f, s, keys(2), chunk_size=0), "chunk_size=0 must be"),
        (lambda f, s: ALGORITHMS["fedprox"](jnp.ones(3)), r"mu has shape \[3\]"),
        (lambda f, s: fa.mean(0.5), "mean got 0.5 for weights"),
    ],
)
def test_arguments_of_another_kind_are_named(wrong, sentence, task, data):
    round_fn, state = start(fedavg(), task, data, PLAN)
    with pytest.raises(ValueError, match=sentence):
        wrong(round_fn, state)


@pytest.mark.slow
def test_keys_as_two_words_are_keys(task, data):
    round_fn, state = start(fedavg(), task, data, PLAN)
    words = jax.random.split(jax.random.PRNGKey(3), 2)
    typed = jax.random.split(jax.random.key(3), 2)
    assert same(fa.train(round_fn, state, words), fa.train(round_fn, state, typed))


@pytest.mark.parametrize(
    "kind",
    [
        fa.Batch, fa.Cohort, fa.Info, fa.LocalRun, fa.LocalView, fa.Outcome, fa.Outputs,
        fa.Refined, fa.RefineSetup, fa.RoundView, fa.Setting, fa.State, fa.Task,
        fa.Traffic, fa.Upload,
    ],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_help_says_what_every_field_is(kind):
    for field in kind._fields:
        assert f"\n  {field}: " in inspect.getdoc(kind), f"{kind.__name__}.{field}"


AVERAGED = {
    "a count": lambda run: run.num_steps,
    "a truth": lambda run: {"late": run.loss > 1},
    "bytes": lambda run: run.num_steps.astype(jnp.int8),
}


@pytest.mark.parametrize("extra", AVERAGED.values(), ids=AVERAGED)
def test_what_is_averaged_is_no_integer(extra, task, data):
    """The mean of 16 and 16 steps, each weighing a half as an integer, would be 0."""
    finish = lambda run: (fa.Upload(delta(run), extra(run)), run.client)
    says = r"LocalRule.finish .* sends (int|bool)\w*\[\] as Upload.extra.*whose mean"
    with pytest.raises(ValueError, match=says):
        fa.make_round(local(finish=finish), task, data, PLAN)
    _, state = start(fedavg(), task, data, PLAN)
    with pytest.raises(RuntimeError, match=says):
        fa.debug_round(local(finish=finish), task, data, PLAN)(state, keys(1)[0])
    whole = lambda uploads, cohort: uploads._replace(
        delta=jax.tree.map(lambda leaf: leaf.mean(0), uploads.delta)
    )
    own = local(finish=finish)._replace(server=fa.ServerRule(combine=whole))
    fa.make_round(own, task, data, PLAN)  # whoever combines them himself may
    sends = policy(send=extra, update=lambda state, cohort, runs, outcome: state)
    with pytest.raises(ValueError, match="StepPolicy.send .* sends"):
        fa.make_round(sends, task, data, PLAN)


def test_a_combine_that_hands_the_stack_on_is_named(task, data):
    stacked = server(combine=lambda uploads, cohort: uploads)
    with pytest.raises(ValueError, match=r"ServerRule.combine .* float32\[3, 3\]"):
        fa.make_round(stacked, task, data, PLAN)


@pytest.mark.parametrize(
    "traffic", [fa.Traffic(-1, 1), lambda params, upload: fa.Traffic(1, -2)]
)
def test_nobody_sends_less_than_nothing(traffic, task, data):
    with pytest.raises(ValueError, match="models_.* of LocalRule.traffic=-"):
        fa.make_round(local(traffic=traffic), task, data, PLAN)


def test_what_a_tracer_cannot_do_is_told_with_what_can(task, data):
    chooses = local(correct=lambda grads, view: grads if view.step > 0 else grads)
    with pytest.raises(ValueError, match="write jnp.where"):
        fa.make_round(chooses, task, data, PLAN)


def test_tokens_beyond_the_vocabulary_are_refused():
    tokens = np.full((8, 4), 20, np.int32)
    data = fa.FederatedDataset.from_clients([(np.ones((8, 4), np.int32), tokens)] * 3)
    pair = (
        lambda key: {"e": jax.random.normal(key, (8, 8))},
        lambda params, x: params["e"][x],
    )
    with pytest.raises(ValueError, match="8 outputs but the data set 21 labels"):
        fa.make_round(fedavg(), fa.language_model(pair, 4), data, PLAN)


class Called:
    """An object that is called in place of a function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *arguments):
        return self.function(*arguments)


@pytest.mark.parametrize("wrap", [partial, Called])
def test_partials_and_objects_are_under_the_same_contract(wrap, task, data):
    nan = lambda state, cohort, measured: jnp.full(3, jnp.nan)
    broadcasts = lambda grads, view: jax.tree.map(jnp.sum, grads)
    for algorithm, says in (
        (local(init=lambda params: 0, finish=wrap(counting)), "LocalRule.finish"),
        (policy(wrap(nan)), "StepPolicy.steps"),
        (local(correct=wrap(broadcasts)), "LocalRule.correct"),
        (server(init=lambda params: 0, update=wrap(adds)), "ServerRule.update"),
    ):
        with pytest.raises(ValueError, match=says):
            fa.make_round(algorithm, task, data, PLAN)


CLOCKED = fa.Plan(cohort_size=3, batch_size=4, clock=fa.Clock(0.1))


NARROW = {"bfloat16": False, "float32": True}  # whether JAX has float64 beside it
# client states, momentum and a policy's state, and loops of their own
SEVERAL = ("scaffold", "fedssg", "fednova", "fedcm", "gift", "fedgsnr", "fedftg")


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", fast({n: n for n in ALGORITHMS}, *SEVERAL))
def test_every_method_keeps_parameters_of_less_precision_than_jax_s_numbers(
    name, dtype
):
    """Learning rates and shares are such numbers."""
    with jax.enable_x64(NARROW[dtype]):
        task, data = make_task(dtype), make_data()
        round_fn, state = start(constructed(name), task, data, CLOCKED)
        after, _ = jax.eval_shape(round_fn, state, keys(1)[0])
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert after.params["w"].dtype == dtype


ROUNDED = [
    ("bfloat16", "float32", True),
    ("float32", "bfloat16", True),
    ("float16", "bfloat16", True),
    ("bfloat16", "float64", True),
    ("float64", "float32", True),
    ("float32", "float64", False),
    ("int32", "float32", False),
    ("float32", "int32", False),
]


@pytest.mark.parametrize("new, kept, may", ROUNDED)
def test_which_numbers_are_rounded_to_what_is_kept(x64, new, kept, may):
    new, kept = jnp.zeros(3, new), jnp.zeros(3, kept)
    same_kind = partial(check.same_kind, "part", "what", old=kept, given_by="init")
    if may:
        same_kind(new)
    for other in [new[:2]] if may else [new]:
        with pytest.raises(ValueError, match="return the same shape and dtype"):
            same_kind(other)


def test_counts_may_weigh_what_is_not_added_to_the_model(task, data):
    counts, shares = (lambda cohort: cohort.num_examples), fa.by_examples
    start(server(combine=fa.mean(shares, extra=counts)), task, data, PLAN)
    update = lambda params, extra, upload, cohort: (params, extra)
    start(server(combine=fa.mean(counts), update=update), task, data, PLAN)


def test_a_state_of_double_precision_is_not_taken_in_float32(x64):
    """It would have the digits of float32 without a word."""
    less = lambda run: (fa.Upload(delta(run)), run.client.astype(jnp.float32))
    algorithm = local(init=lambda params: jnp.zeros(3), finish=less)
    with pytest.raises(
        ValueError, match=r"float32\[3\] .* LocalRule.init gave float64"
    ):
        start(algorithm, make_task("float64"), make_data(dtype=np.float64), PLAN)


@pytest.mark.parametrize("dtype", NARROW)
def test_momentum_keeps_the_precision_of_the_parameters(dtype):
    """A correction has the precision of what weighs it."""
    with jax.enable_x64(NARROW[dtype]):
        plan = replace(CLOCKED, momentum=0.5)
        round_fn, state = start(
            constructed("scaffold"), make_task(dtype), make_data(), plan
        )
        after, _ = jax.eval_shape(round_fn, state, keys(1)[0])
    assert after.params["w"].dtype == dtype


def measured_sums():
    """Steps by what each client measured, all of whom are reported of."""
    return policy(
        lambda state, cohort, measured: 1 + (measured > 6).astype(int),
        measure=fa.Measure(lambda view, key: view.batch.x.sum()),
        report=lambda state, asked, seen: {"ids": asked.ids, "total": seen.sum()},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [measured_sums, partial(ALGORITHMS["fedveca"], initial_steps=3)],
    ids=["measured", "fedveca"],
)
def test_those_that_start_are_reported_of_by_the_slow_twin_as_well(build, task, data):
    clock = fa.Clock(np.linspace(0.6, 0.1, 6))
    plan = fa.Plan(participation=fa.earliest(0.5), batch_size=4, clock=clock)
    algorithm = build()
    round_fn, state = start(algorithm, task, data, plan)
    (key,) = keys(1)
    after, info = jax.jit(round_fn)(state, key)
    slow, slow_info = fa.debug_round(algorithm, task, data, plan)(state, key)
    close(after, slow, atol=1e-5)
    close(info, slow_info, atol=1e-5, rtol=1e-4)
    assert info.cohort.tolist() != [0, 1, 2]
    if build is measured_sums:
        np.testing.assert_array_equal(info.policy["ids"], info.cohort)
        assert info.wasted_steps > 0  # by those who had measured as well


def test_a_measurement_takes_a_number_of_steps_for_each(task, data):
    wrong = policy(
        measure=fa.Measure(
            lambda view, key: view.batch.x.sum(), steps=lambda cohort: jnp.ones(7)
        )
    )
    with pytest.raises(ValueError, match=r"Measure.steps .* float32\[7\]"):
        fa.make_round(wrong, task, data, PLAN)
    with pytest.raises(ValueError, match="StepPolicy.best .* a model"):
        fa.make_round(policy(best=lambda state: jnp.zeros(2)), task, data, PLAN)


@pytest.mark.slow
def test_the_key_of_a_run_is_no_key_of_its_steps(task, data):
    """What is drawn after the steps is independent of batches and dropout."""
    seen = {}

    def objective(params, view, key):
        seen["objective"] = jax.random.key_data(key)
        return params["w"].sum()

    def finish(run):
        seen["run"] = jax.random.key_data(run.key)
        return fa.Upload(delta(run)), run.client

    algorithm = local(objective=objective, finish=finish)
    plan = fa.Plan(batch_size=12)
    _, state = start(algorithm, task, data, plan)
    (key,) = keys(1)
    fa.debug_round(algorithm, task, data, plan)(state, key)
    last = len(data.size) - 1  # the client that was asked last
    key_train, _ = jax.random.split(jax.random.split(key, 3)[1])
    client = jax.random.fold_in(key_train, last)
    others = [client, *jax.random.split(client), *jax.random.split(client, 5)]
    others += [jax.random.fold_in(client, i) for i in range(5)]
    run = np.asarray(seen["run"])
    for other in map(jax.random.key_data, others):
        assert not np.array_equal(run, np.asarray(other))
    assert not np.array_equal(run, np.asarray(seen["objective"]))


def test_fedssg_takes_a_participation_rounded_to_whole_clients(task, data):
    plan = fa.Plan(cohort_size=3, batch_size=4)  # of six
    for close_by in (0.45, 0.5, 0.55):
        fa.make_round(fedssg(participation=close_by), task, data, plan)
    for wrong in (0.34, 0.66):
        with pytest.raises(ValueError, match="but 0.5 of the clients"):
            fa.make_round(fedssg(participation=wrong), task, data, plan)
