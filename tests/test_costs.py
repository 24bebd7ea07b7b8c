"""Bytes against the papers' own counts, seconds against NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    SIZES,
    clocked,
    close,
    constructed,
    keys,
    make_data,
    make_public,
    same,
    start,
)

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS, fedavg, feddc, feddisco, fedssg
from fedjax_adapt.costs import (
    broadcast_seconds,
    end_times,
    messages,
    refine_seconds,
    round_bytes,
    round_seconds,
    traffic_of,
    wasted,
)
from fedjax_adapt.engine.cohort import gather_cohort
from fedjax_adapt.engine.round import checked

M = 4 * (4 * 3 + 3)  # bytes of the tiny task's model

# per client and round: (models down, models up, scalars down, scalars up, round trips)
PUBLISHED = {
    **dict.fromkeys(
        (
            *("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
            *("fedacg", "feddyn", "fedvra", "feddisco", "moon", "ditto", "pfedme"),
            *("fedbuff", "fedasync"),
        ),
        (1, 1, 0, 0, 1),
    ),
    # the weights, without the biases
    **dict.fromkeys(("fedper", "fedrep"), (48 / 60, 48 / 60, 0, 0, 1)),
    "fednova": (1, 1, 0, 1, 1),
    "fedexp": (1, 1, 0, 1, 1),
    "scaffold": (2, 2, 0, 0, 1),  # 4nM: half as much again as FNR-FL's paper counts
    "fedcm": (2, 1, 0, 0, 1),
    "feddc": (2, 1, 0, 0, 1),
    "fedssg": (2, 1, 0, 0, 1),
    "fedveca": (2, 2, 1, 3, 1),
    "fedgsnr": (1, 3, 1, 0, 2),
    "gift": (1, 1, 1, 0, 1),
    "adacomm": (1, 1, 1, 1, 1),
    "afl": (1, 2, 1, 3, 1),
    "feddf": (1, 1, 0, 0, 1),
    "fedftg": (1, 1, 0, 0, 1),
    # the generator's weights, of 32 + 3 to 4 to 3, its normalisation; label counts
    "fedgen": (1, 1, (32 + 3 + 1) * 4 + 2 * 4 + (4 + 1) * 3, 3, 1),
    "fnr": (1, 1, 0, 3 + 1, 1),  # norms by label and accuracy; see test_fnr
    "fedavg_pubft": (1, 1, 0, 0, 1),
    "public_only": (0, 0, 0, 0, 0),
}


@pytest.mark.slow
def test_bytes_are_those_of_who_takes_part(task):
    """Nobody trains, nobody is asked; who was too late had been asked."""
    leaves = {"w": jnp.zeros(3)}
    policy = fa.constant_steps(1)._replace(
        measure=lambda view, key: (), traffic=fa.Traffic(scalars_up=1)
    )
    data = make_data((4, 4, 4))
    algorithm = told(fa.with_steps(fedavg(), policy), task, data)
    idle = cohort_of(data, [0, 1, 2], [0, 0, 0])
    assert round_bytes(algorithm, leaves, idle) == (0, 0)
    some, all_ = cohort_of(data, [1], [2]), cohort_of(data, [0, 1, 2], [2, 2, 2])
    assert round_bytes(algorithm, leaves, some, all_) == (3 * 12, 12 + 3 * 4)
    # unless that nobody trains follows from what all had sent
    later = policy._replace(traffic=fa.Traffic(scalars_up=1, round_trips=1))
    algorithm = told(fa.with_steps(fedavg(), later), task, data)
    assert round_bytes(algorithm, leaves, idle) == (3 * 12, 3 * 4)


def told(algorithm, task, data):
    """The same algorithm, its traffic as numbers."""
    plan = fa.Plan(cohort_size=3, batch_size=4)
    return checked(algorithm, task, data, clocked(algorithm, plan))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_traffic_of_a_method_is_the_published_one(name, task, data):
    algorithm = told(constructed(name), task, data)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert name in PUBLISHED, (
        f"write what {name}'s paper says that a client receives and sends in PUBLISHED, "
        "from its algorithm box and not from what the code counts"
    )
    down, up, few_down, few_up, trips = PUBLISHED[name]
    expected = (down * M + 4 * few_down, up * M + 4 * few_up)
    assert messages(traffic_of(algorithm), params) == expected
    assert traffic_of(algorithm).round_trips == trips


def test_every_wrapper_keeps_the_traffic_of_what_it_wraps(task, data):
    of = lambda algorithm: traffic_of(told(algorithm, task, data))
    base = ALGORITHMS["scaffold"]()
    wrapped = fa.with_averages(ALGORITHMS["fedadam"](base=base), clients=True)
    assert of(wrapped) == of(base)
    assert of(feddisco(base=feddc())) == of(feddc())
    # fedexp's own scalar comes on top of what its base says, and of what follows
    for inner in (feddc(), fedavg()):
        one_more = of(inner)._replace(scalars_up=of(inner).scalars_up + 1)
        assert of(ALGORITHMS["fedexp"](base=inner)) == one_more


def test_without_control_variates_the_model_alone_goes_down(task, data):
    of = lambda algorithm: traffic_of(told(algorithm, task, data))
    for algorithm in (feddc(correction="none"), fedssg(correction="none")):
        assert of(algorithm) == of(fedavg())


@pytest.mark.slow
def test_what_a_rule_of_ones_own_uploads_is_counted_without_a_word(task, data):
    """Two models, three scalars, six halves of one; what is only shown is not sent."""

    def finish(run):
        delta = jax.tree.map(jnp.subtract, run.params, run.anchor)
        extra = (delta, {"few": jnp.zeros(3), "half": jnp.zeros((3, 2), jnp.bfloat16)})
        return fa.Upload(delta, extra, info={"shown": jnp.zeros(5)}), run.client

    algorithm = fa.Algorithm(local=fa.LocalRule(finish=finish))
    plan = fa.Plan(cohort_size=3, batch_size=4)
    sent = 2 * M + 3 * 4 + 6 * 2
    for build in (fa.make_round, fa.debug_round):
        _, state = start(algorithm, task, data, plan)
        _, info = build(algorithm, task, data, plan)(state, keys(1)[0])
        assert (info.bytes_down, info.bytes_up) == (3 * M, 3 * sent)


def cohort_of(data, ids, num_steps):
    ids = jnp.asarray(ids)
    cohort = gather_cohort(data, ids, jnp.int32(0), 4)
    num_steps = jnp.asarray(num_steps)
    return cohort._replace(num_steps=num_steps, active=num_steps > 0)


def test_who_is_left_out_after_measuring_has_received_all_and_sent_the_measurement(
    data, task
):
    more = fa.Traffic(models_up=2, scalars_down=1, round_trips=1)
    policy = fa.constant_steps(2)._replace(traffic=more)
    cohort = cohort_of(data, [5, 0, 3, len(SIZES)], [2, 0, 1, 0])
    params = task.init(jax.random.key(0))
    of = lambda policy: told(fa.with_steps(fedavg(), policy), task, data)
    down, up = round_bytes(of(policy), params, cohort)
    assert (down, up) == (2 * (M + 4), 2 * 3 * M)
    asking = policy._replace(measure=lambda view, key: ())
    down, up = round_bytes(of(asking), params, cohort)
    assert (down, up) == (3 * (M + 4), 2 * 3 * M + 2 * M)


def test_times_are_steps_messages_and_delay(data, task):
    """t_i = tau_i c_i + b_i + xi_i, with numbers of each client."""
    c = np.linspace(0.1, 0.6, len(SIZES), dtype=np.float32)
    clock = fa.Clock(
        step_seconds=c,
        bandwidth=1e3,
        download_bandwidth=2e3,
        latency=0.25,
        delay=7.0,
    )
    cohort = cohort_of(data, [5, 0, 3], [2, 9, 1])
    algorithm = told(ALGORITHMS["scaffold"](), task, data)
    params = task.init(jax.random.key(0))
    times = end_times(clock, algorithm, params, cohort, keys(1)[0])
    moved = 8 * 2 * M / 1e3 + 8 * 2 * M / 2e3
    expected = np.array([2, 9, 1]) * c[[5, 0, 3]] + moved + 0.25 + 7
    np.testing.assert_allclose(times, expected, rtol=1e-6)


@pytest.mark.slow
def test_all_wait_for_the_last_who_measures_though_it_does_not_train(data, task):
    """FedGSNR by hand: the model comes in 0.5 s and goes in 1 s, tau comes in 1/30 s."""
    c = np.array([1, 2, 4, 8, 1, 1], np.float32)
    clock = fa.Clock(c, bandwidth=8 * M, download_bandwidth=16 * M, latency=0.25)
    algorithm = told(ALGORITHMS["fedgsnr"](probe_batches=3), task, data)
    params = task.init(keys(1)[0])

    def after(num_steps):
        cohort = cohort_of(data, [0, 1, 2, len(SIZES)], num_steps)
        times = end_times(clock, algorithm, params, cohort, keys(1)[0])
        return times[:3], round_seconds(algorithm, cohort, times)

    known = 0.5 + 3 * 4 + 2 * 1 + 0.25  # client 2 is the slowest
    rest = 1 / 30 + 1 + 0.25
    times, seconds = after([5, 0, 1, 0])
    expected = [known + rest + 5 * 1, known, known + rest + 1 * 4]
    np.testing.assert_allclose(times, expected, rtol=1e-6)
    np.testing.assert_allclose(seconds, known + rest + 5, rtol=1e-6)
    _, seconds = after([5, 2, 0, 0])  # without client 2, which had to measure
    np.testing.assert_allclose(seconds, known + rest + 5, rtol=1e-6)
    _, seconds = after([0, 0, 0, 0])  # nobody's gradient says anything
    np.testing.assert_allclose(seconds, known, rtol=1e-6)


@pytest.mark.parametrize(
    "name, each",
    [
        ("fedavg", 2 * M),
        ("scaffold", 4 * M),
        ("fedgsnr", M),
        ("gift", 2 * M + 4),
        ("adacomm", 2 * M + 4 + 4),  # the number of steps down, a loss up
    ],
)
def test_who_was_too_late_has_trained_for_nothing(task, data, name, each):
    """Clients 2 and 5 of the five that train; FedGSNR has all but their models anyhow."""
    algorithm = told(constructed(name), task, data)
    starters = cohort_of(data, [0, 1, 2, 3, 4, 5], [3, 2, 7, 0, 4, 5])
    cohort = cohort_of(data, [0, 1, 4], [3, 2, 4])
    params = task.init(keys(1)[0])
    assert wasted(algorithm, params, cohort, starters) == (2 * each, 7 + 5)
    assert wasted(algorithm, params, starters, starters) == (0, 0)


@pytest.mark.slow
def test_a_round_counts_the_late_apart(task, data):
    clock = fa.Clock(np.array([1, 9, 2, 8, 3, 7], np.float32))
    plan = fa.Plan(participation=fa.earliest(0.5), batch_size=4, clock=clock)
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(3))
    round_fn, state = start(algorithm, task, data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    assert np.asarray(info.cohort).tolist() == [0, 2, 4]
    assert (info.bytes_down, info.bytes_up) == (3 * M, 3 * M)
    assert (info.wasted_bytes, info.wasted_steps) == (3 * 2 * M, 3 * 3)
    heard = []
    fa.train(round_fn, state, keys(2), callback=heard.append)
    assert [figures["wasted_steps"] for figures in heard] == [9, 18]
    assert [figures["local_steps"] for figures in heard] == [9, 18]


@pytest.mark.parametrize("upload", ["delayed", "twice"])
def test_who_refines_sends_its_model_when_it_has(task, upload):
    """FNR-FL by hand: a model comes in 0.5 s and goes in 1 s, F and A go in 4/15 s.

    public-set.md A.9: delayed, norms and accuracy go first, and one more latency leg.
    """
    data = replace(make_data(), public=tuple(map(jnp.asarray, make_public())))
    c = np.array([1, 2, 4, 8, 1, 1], np.float32)
    clock = fa.Clock(c, bandwidth=8 * M, download_bandwidth=16 * M, latency=0.25)
    features = task._replace(apply=lambda p, x: fa.Outputs(task.apply(p, x).logits, x))
    algorithm = told(ALGORITHMS["fnr"](upload=upload), features, data)
    params = task.init(keys(1)[0])
    cohort = cohort_of(data, [0, 1, 2], [5, 1, 2])
    times = end_times(clock, algorithm, params, cohort, keys(1)[0])
    first = 4 * (3 + 1) / M if upload == "delayed" else 1
    expected = np.array([5 * 1, 1 * 2, 2 * 4]) + 0.5 + first + 0.25
    np.testing.assert_allclose(times, expected, rtol=1e-6)
    means = 4 * 3 / (2 * M)
    for steps in ([0, 3, 0], [1, 0, 0]):
        more = refine_seconds(clock, algorithm, params, cohort, jnp.array(steps))
        refined = means + (steps @ c[:3]) + 1 + 0.25
        others = 1 + 0.25 if upload == "delayed" else 0
        np.testing.assert_allclose(more, max(refined, others), rtol=1e-6)
    nobody = refine_seconds(clock, algorithm, params, cohort, jnp.zeros(3, int))
    np.testing.assert_allclose(nobody, 1.25 if upload == "delayed" else 0, rtol=1e-6)


def test_who_waits_for_its_steps_sends_its_model_when_it_knows_who_refines(task):
    """FNR-FL on FedGSNR: tau comes in 1/30 s, F and A go in 4/15 s, no model goes yet."""
    data = replace(make_data(), public=tuple(map(jnp.asarray, make_public())))
    c = np.array([1, 2, 4, 8, 1, 1], np.float32)
    clock = fa.Clock(c, bandwidth=8 * M, download_bandwidth=16 * M, latency=0.25)
    features = task._replace(apply=lambda p, x: fa.Outputs(task.apply(p, x).logits, x))
    base = ALGORITHMS["fedgsnr"](probe_batches=3)
    algorithm = told(ALGORITHMS["fnr"](upload="delayed", base=base), features, data)
    cohort = cohort_of(data, [0, 1, 2], [5, 0, 1])
    times = end_times(clock, algorithm, task.init(keys(1)[0]), cohort, keys(1)[0])
    known = 0.5 + 3 * 4 + 2 * 1 + 0.25  # client 2 is the slowest
    rest = 1 / 30 + 4 / 15 + 0.25
    expected = [known + rest + 5 * 1, known, known + rest + 1 * 4]
    np.testing.assert_allclose(times, expected, rtol=1e-6)


def test_nobody_waits_for_the_late_upload_of_who_did_not_train(task):
    """Client 2 uploads a hundred times as slowly, and a slot is empty."""
    data = replace(make_data(), public=tuple(map(jnp.asarray, make_public())))
    width = np.full(len(SIZES), 8 * M, np.float32)
    width[[2, -1]] /= 100
    clock = fa.Clock(1.0, bandwidth=width, latency=0.25)
    features = task._replace(apply=lambda p, x: fa.Outputs(task.apply(p, x).logits, x))
    algorithm = told(ALGORITHMS["fnr"](upload="delayed"), features, data)
    params, none = task.init(keys(1)[0]), jnp.zeros(4, int)
    of = lambda cohort: refine_seconds(clock, algorithm, params, cohort, none)
    ids = [0, 1, 2, len(SIZES)]
    np.testing.assert_allclose(of(cohort_of(data, ids, [5, 1, 0, 0])), 1 + 0.25)
    np.testing.assert_allclose(of(cohort_of(data, ids, [5, 1, 1, 0])), 100 + 0.25)


def test_a_public_set_takes_the_slowest_download():
    each = np.array([4e6, 1e6, 2e6], np.float32)
    clock = fa.Clock(0.1, download_bandwidth=each)
    np.testing.assert_allclose(broadcast_seconds(clock, 3000, 3), 8 * 3000 / 1e6)
    assert broadcast_seconds(fa.Clock(0.1), 3000, 3) == 0  # GIFT's: free
    assert broadcast_seconds(None, 3000, 3) == broadcast_seconds(clock, 0, 3) == 0


@pytest.mark.slow
def test_a_public_set_takes_what_the_slowest_model_takes_by_the_same_law(task, data):
    """Every client draws its bandwidth once, for all that it ever downloads."""
    clock = fa.Clock(
        0.0, bandwidth=1e15, download_bandwidth=fa.costs.lognormal(1e3, 0.5), seed=3
    )
    everybody, algorithm = range(len(SIZES)), told(fedavg(), task, data)
    cohort = cohort_of(data, everybody, [1] * len(SIZES))
    times = end_times(clock, algorithm, task.init(keys(1)[0]), cohort, keys(1)[0])
    assert len(set(np.asarray(times).tolist())) == len(SIZES)
    for some in (3, len(SIZES)):
        seconds = broadcast_seconds(clock, M, some)
        np.testing.assert_allclose(seconds, times[:some].max(), rtol=1e-6)


MEASURING = {
    "fedavg": (fedavg, lambda n: 0),
    "fedgsnr": (lambda: ALGORITHMS["fedgsnr"](probe_batches=2), lambda n: 2),
    "fedgsnr on scaffold": (
        lambda: ALGORITHMS["fedgsnr"](base=ALGORITHMS["scaffold"]()),
        lambda n: 1,
    ),
    "afl": (lambda: constructed("afl"), lambda n: 2),
    "fedveca": (ALGORITHMS["fedveca"], lambda n: 0),
    "fedveca, all data": (
        lambda: ALGORITHMS["fedveca"](full_gradient=True),
        lambda n: -(-n // 4),
    ),
}


@pytest.mark.parametrize("build, measures", MEASURING.values(), ids=MEASURING)
def test_the_seconds_of_a_round_follow_the_numpy_oracle(data, task, build, measures):
    """A loop over clients, two legs where the policy makes a round trip of its own."""
    rng, algorithm = np.random.default_rng(0), told(build(), task, data)
    draw = lambda: rng.uniform(0.5, 2, len(SIZES)).astype(np.float32)
    c, up, down, delay = draw(), 500 * draw(), 900 * draw(), draw()
    clock = fa.Clock(c, up, down, latency=0.3, delay=delay)
    rule, policy = algorithm.local.traffic, algorithm.policy.traffic
    models = lambda traffic, way: (
        M * getattr(traffic, f"models_{way}") + 4 * getattr(traffic, f"scalars_{way}")
    )
    for num_steps in ([3, 0, 7, 1, 0], [0, 0, 0, 0, 2]):
        ids, ends, known = [4, 1, 0, 5, 3], [], []
        for i, steps in zip(ids, num_steps, strict=True):
            first = measures(SIZES[i]) * c[i] + 8 * models(rule, "down") / down[i]
            first += 8 * models(policy, "up") / up[i]
            first += 0.3 * policy.round_trips + delay[i]
            second = steps * c[i] + 8 * models(policy, "down") / down[i]
            second += 8 * models(rule, "up") / up[i] + 0.3 * rule.round_trips
            known.append(first)
            ends.append(second if steps else 0)
        if policy.round_trips:
            ends = max(known) + np.array(ends)
        else:
            ends = np.where(num_steps, np.array(known) + np.array(ends), 0)
        cohort = cohort_of(data, ids, num_steps)
        times = end_times(clock, algorithm, task.init(keys(1)[0]), cohort, keys(1)[0])
        trains = np.asarray(cohort.active)
        np.testing.assert_allclose(times[trains], ends[trains], rtol=1e-5)
        seconds = round_seconds(algorithm, cohort, times)
        np.testing.assert_allclose(seconds, ends.max(), rtol=1e-5)


@pytest.mark.parametrize(
    "size, seconds", [(62_006, 0.397), (15_245_130, 97.6)], ids=["lenet5", "vgg16"]
)
def test_an_upload_takes_what_gift_says(data, task, size, seconds):
    params = jax.ShapeDtypeStruct((size,), jnp.float32)
    cohort = cohort_of(data, [0, 1], [10, 100])
    algorithm = told(fedavg(), task, data)
    times = end_times(fa.Clock(0.05), algorithm, params, cohort, keys(1)[0])
    np.testing.assert_allclose(times, [0.5 + seconds, 5 + seconds], rtol=1e-3)


@pytest.mark.slow
def test_the_numbers_of_a_clock_may_be_traced(data, task):
    params, cohort = task.init(jax.random.key(0)), cohort_of(data, [0, 1], [1, 2])
    algorithm = told(fedavg(), task, data)

    def times(seconds):
        clock = fa.Clock(seconds, bandwidth=1e12, delay=fa.costs.uniform(seconds))
        return end_times(clock, algorithm, params, cohort, keys(1)[0])

    one, two = jax.vmap(times)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)


@pytest.mark.parametrize(
    "law, mean, spread",
    [
        (fa.costs.exponential(3.0), 3, 3),
        (fa.costs.uniform(6.0), 3, 6 / 12**0.5),
        (fa.costs.normal(3.0, 0.5), 3, 0.5),
        (fa.costs.lognormal(3.0, 0.5), 3 * np.exp(0.125), 1.81),
    ],
    ids=["exponential", "uniform", "normal", "lognormal"],
)
def test_a_law_has_the_mean_and_deviation_it_is_named_by(law, mean, spread):
    drawn = np.asarray(jax.vmap(law.sample)(keys(20_000)))
    assert drawn.min() >= 0
    np.testing.assert_allclose(drawn.mean(), mean, rtol=0.03)
    np.testing.assert_allclose(drawn.std(), spread, rtol=0.04)


def test_a_delay_depends_on_round_and_client_and_nothing_else(data, task):
    params, algorithm = task.init(jax.random.key(0)), told(fedavg(), task, data)

    def delays(key, ids, **options):
        clock = fa.Clock(0.0, 1e12, delay=fa.costs.uniform(1.0), **options)
        cohort = cohort_of(data, ids, [1] * len(ids))
        return np.asarray(end_times(clock, algorithm, params, cohort, key))

    first, second = keys(2)
    some = delays(first, [4, 1])
    np.testing.assert_array_equal(delays(first, [1, 2, 4])[[2, 0]], some)
    assert (delays(second, [4, 1]) != some).all() and len(set(some)) == 2
    for_good = delays(first, [4, 1], delay_persists=True)
    same_again = delays(second, [4, 1], delay_persists=True)
    np.testing.assert_array_equal(for_good, same_again)
    assert (delays(first, [4, 1], delay_persists=True, seed=1) != for_good).all()


CLOCK = fa.Clock(fa.costs.lognormal(0.1, 1.0), 1e3, delay=fa.costs.exponential(2.0))


@pytest.mark.slow
def test_a_clock_counts_and_changes_nothing(task, data):
    plan = dict(cohort_size=3, batch_size=4)
    round_fn, state = start(fedavg(), task, data, fa.Plan(**plan))
    timed, _ = start(fedavg(), task, data, fa.Plan(**plan, clock=CLOCK))
    key = keys(1)[0]
    after, info = jax.jit(round_fn)(state, key)
    also, seen = jax.jit(timed)(state, key)
    assert same(also, after)
    assert (info.seconds, info.bytes_up, info.bytes_down) == (0, 3 * M, 3 * M)
    cohort = cohort_of(data, seen.cohort, seen.num_steps)
    times = end_times(CLOCK, timed.step.algorithm, state.params, cohort, key)
    np.testing.assert_allclose(seen.seconds, times.max(), rtol=1e-6)
    assert same(seen._replace(seconds=info.seconds), info)


@pytest.mark.parametrize(
    "average_epochs, steps",
    [(1.0, [3, 1, 2, 3, 1, 1]), (2.5, [7, 3, 5, 7, 1, 4]), (0.1, [1] * 6)],
)
def test_matched_steps_are_whole_batches_of_the_average_epochs(
    data, average_epochs, steps
):
    cohort = cohort_of(data, range(len(SIZES)), [0] * len(SIZES))
    policy = fa.matched_steps(average_epochs)
    np.testing.assert_array_equal(policy.steps((), cohort, ()), steps)


def test_matched_steps_give_the_total_they_were_made_for(data):
    """E_avg = tau_all / K  B / n, within a step per client and round."""
    wanted = np.random.default_rng(0).integers(1, 20, (50, len(SIZES))).sum()
    cohort = cohort_of(data, range(len(SIZES)), [0] * len(SIZES))
    average_epochs = wanted / 50 * 4 / sum(SIZES)
    matched = 50 * fa.matched_steps(average_epochs).steps((), cohort, ()).sum()
    assert wanted - 50 * len(SIZES) <= matched <= wanted


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: fa.Clock(-1.0), "step_seconds=-1.0 must be a finite number of at le"),
        (lambda: fa.Clock(1.0, bandwidth=0), "bandwidth=0 must be a finite number abo"),
        (lambda: fa.Clock(np.array([1, -2])), "step_seconds of client 1=-2 must be a"),
        (lambda: fa.Clock([1.0, 2.0]), r"array of one .* numpy.array\(step_seconds\)"),
        (lambda: fa.Clock(None), "step_seconds=None says nothing; write a number"),
        (lambda: fa.Clock(1.0, seed=1.5), "seed=1.5 must be an integer >= 0"),
        (lambda: fa.Clock(1.0, delay_persists="no"), "delay_persists='no' is neither"),
        (lambda: fa.Clock(1.0, delay_persists=True), "=True but delay=0.0 is the same"),
        (
            lambda: fa.Clock(1.0, latency=np.ones(6)),
            "is not a single number; write secon",
        ),
        (
            lambda: fa.Clock(1.0, bandwidth=fa.costs.normal(5e6, 5e6)),
            "bandwidth may be 0 under this law",
        ),
        (lambda: fa.costs.exponential(0), "mean=0 must be a finite number above 0"),
        (lambda: fa.matched_steps(0), "average_epochs=0 must be a finite number abo"),
        (lambda: fa.Plan(clock=3), r"clock must be a Clock, got 3; write Clock\(s"),
        (
            lambda: fa.Plan(participation=fa.earliest()),
            r"participation=earliest\(...\) needs to know who ends first; give a clock",
        ),
    ],
)
def test_a_mistake_is_one_sentence(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_numbers_of_other_clients_are_refused(task):
    data = make_data()
    plan = fa.Plan(batch_size=4, clock=fa.Clock(np.ones(4)))
    round_fn, state = start(fedavg(), task, data, plan)
    with pytest.raises(ValueError, match=r"shape \(4,\) but there are 6 clients"):
        round_fn(state, keys(1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("clients, trips", [("some", 1), ("all", 0)])
def test_the_slow_twin_agrees_on_times_and_on_who_was_early(task, data, clients, trips):
    """And a policy is told what the round took."""
    policy = fa.StepPolicy(
        steps=lambda state, cohort, measured: (
            cohort.ids % 3 + (measured > 0) * (cohort.ids != 4)
        ),
        init=lambda params, num_clients: jnp.zeros(()),
        measure=fa.Measure(
            lambda view, key: view.batch.y[0] + 1,
            steps=lambda cohort: cohort.epoch_steps,
        ),
        update=lambda state, cohort, runs, outcome: state + outcome.seconds,
        traffic=fa.Traffic(models_up=1, round_trips=trips),
    )
    algorithm = fa.with_steps(fedavg(), policy)
    participation = fa.earliest(0.5) if clients == "some" else None
    plan = fa.Plan(batch_size=4, clock=CLOCK, participation=participation)
    round_fn, state = start(algorithm, task, data, plan)
    slow = fa.debug_round(algorithm, task, data, plan)
    key = keys(1)[0]
    expected, slow_info = slow(state, key)
    after, info = jax.jit(round_fn)(state, key)
    close(after, expected)
    close(info, slow_info)
    assert after.policy == info.seconds > 0
    assert len(info.cohort) == (3 if clients == "some" else 6)
    spread = replace(plan, devices=2)
    round_fn, state = start(algorithm, task, data, spread)
    other, other_info = jax.jit(round_fn)(state, key)
    close(other, after)
    close(other_info, info)
