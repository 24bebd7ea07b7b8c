"""One contract for every algorithm (and for the template to copy)."""

import inspect
import re
import sys
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    SIZES,
    broken,
    clocked,
    close,
    constructed,
    keys,
    make_data,
    same,
    start,
)

import fedjax_adapt as fa
from fedjax_adapt import plan as plans
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.algorithms._template import template
from fedjax_adapt.core import Participation
from fedjax_adapt.engine.client_store import DEVICE, STORES, device, store_of
from fedjax_adapt.engine.client_store.exchange import CohortRows, evenly
from fedjax_adapt.experiment import Config, build, checkpoint, objects, run, sweep
from fedjax_adapt.experiment.rows import check_columns

CONSTRUCTORS = {**ALGORITHMS, "template": template}
# and what weighs the parts of an upload by themselves
CASES = {
    **{name: partial(constructed, name) for name in ALGORITHMS},
    "template": template,
    "feddisco on feddyn": lambda: ALGORITHMS["feddisco"](base=ALGORITHMS["feddyn"]()),
}
PLAN = fa.Plan(cohort_size=4, batch_size=4, lr=0.2, clip_norm=5.0, weight_decay=1e-3)
# what an algorithm with client states runs on besides, and where those are kept
KEPT = "scaffold, kept twice"
CASES[KEPT] = partial(constructed, "scaffold")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Twice:
    """A leaf of a client table, [clients, ..., 2]: every number stands there twice."""

    numbers: jax.Array


def doubled(table):
    """Every leaf as `Twice`."""
    twice = lambda leaf: jnp.broadcast_to(leaf[..., None], (*leaf.shape, 2))
    return jax.tree.map(lambda leaf: Twice(twice(leaf)), table)


def whole(table):
    """The table that was `doubled`."""
    second = lambda twice: twice.numbers[..., 1]
    return jax.tree.map(second, table, is_leaf=lambda node: isinstance(node, Twice))


def gather_twice(table, ids, num_devices):
    slots, ids = jnp.arange(len(ids)), evenly(ids, num_devices)
    take = lambda leaf: jnp.take(leaf, ids, axis=0, mode="clip")
    return CohortRows(whole(jax.tree.map(take, table)), slots)


def scatter_twice(table, ids, rows, num_devices):
    ids = evenly(ids, num_devices)
    put = lambda all_, new: all_.at[ids].set(new, mode="drop")
    return jax.tree.map(put, table, doubled(rows))


# a way to keep client states that does not come with the package
TWICE = DEVICE._replace(
    create=lambda *client: doubled(device.create(*client)),
    gather=gather_twice,
    scatter=scatter_twice,
)


@pytest.fixture(scope="module")
def twice():
    """A plan that keeps client states as `TWICE`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STORES, "twice", TWICE)
        patch.setattr(plans, "ClientMemory", Literal[*STORES, "twice"])
        yield replace(PLAN, client_memory="twice")


class Case:
    """An algorithm on the tiny task, its round compiled once for all tests here."""

    def __init__(self, constructor, task, data, plan=PLAN):
        self.constructor, self.task, self.data = constructor, task, data
        self.algorithm = constructor()
        self.plan = clocked(self.algorithm, plan)
        self.store = store_of(self.plan)
        self.round_fn, self.state = start(self.algorithm, task, data, self.plan)
        self.traces = 0
        self._step = jax.jit(self._counted)

    def step(self, state, key):
        return self._step(self.round_fn, state, key)

    def _counted(self, round_fn, state, key):
        self.traces += 1  # Python runs when JAX traces, and only then
        return round_fn(state, key)

    @cached_property
    def with_a_broken_client(self):
        """(state, key, a client that trains then, data in which its inputs are NaN)."""
        before, _ = self.after(2)
        key = keys(3)[2]
        _, info = self.step(before, key)
        # a policy may give others no step
        client = int(info.cohort[np.argmax(info.num_steps)])
        return before, key, client, broken(self.data, client)

    def where(self, trains):
        """The algorithm, but clients take no step unless `trains` [clients] is true."""
        policy = self.algorithm.policy

        def steps(state, cohort, measured):
            wanted = policy.steps(state, cohort, measured)
            return jnp.where(trains[cohort.ids], wanted, 0)

        return fa.with_steps(self.algorithm, policy._replace(steps=steps))

    @cached_property
    def some_idle(self):
        """(trains, state, key) -> a round of `where`, on data with a broken client."""
        *_, data = self.with_a_broken_client

        def step(trains, state, key):
            algorithm = self.where(trains)
            return fa.make_round(algorithm, self.task, data, self.plan)(state, key)

        return jax.jit(step)

    @property
    def turns(self):
        """Whether the cohort may be reversed: a busy server takes it in in its order."""
        return self.algorithm.server.busy is None

    @cached_property
    def together(self):
        """(trains, data, state, key) -> a round of `where` in which all is different.

        It has another plan, under which a client may be left out, and is made of any data.
        """
        plan = replace(self.plan, lanes=1, devices=2, nonfinite_updates="leave_out")
        if self.turns:
            who = backwards(PLAN.cohort_size)
            plan = replace(plan, cohort_size=None, participation=who)

        def step(trains, data, state, key):
            return fa.make_round(self.where(trains), self.task, data, plan)(state, key)

        return jax.jit(step)

    @cached_property
    def shapes(self):
        """Of the state after a round, and of its info."""
        return jax.eval_shape(self.round_fn, self.state, keys(1)[0])

    def after(self, rounds):
        state, infos = self.state, []
        for key in keys(rounds):
            state, info = self.step(state, key)
            infos.append(info)
        return state, infos

    def with_plan(self, **changes):
        plan = fa.Plan(**{**vars(self.plan), **changes})
        return fa.make_round(self.algorithm, self.task, self.data, plan)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request, task, data, twice):
    plan = twice if request.param is CASES[KEPT] else PLAN
    return Case(request.param, task, data, plan)


# a client table; parts weighed by themselves
REPRESENTATIVE = ("scaffold", KEPT, "feddisco on feddyn")
# and steps that follow from measurements, a refinement, trial runs
VARIOUS = (*REPRESENTATIVE, "fedgsnr", "fedgen", "afl")


def for_cases(fast, slow=()):
    """For a test that compiles: fast for some cases, among the slow tests for others."""
    marks = lambda name: () if name in fast else pytest.mark.slow
    names = [name for name in CASES if name in {*fast, *slow}]
    cases = [pytest.param(CASES[n], id=n, marks=marks(n)) for n in names]
    return pytest.mark.parametrize("case", cases, indirect=True)


for_all = for_cases(REPRESENTATIVE, CASES)
for_various = for_cases(REPRESENTATIVE, VARIOUS)
for_others = for_cases((), [name for name in CASES if name not in REPRESENTATIVE])


def with_another(argument, value, other):
    """For representative cases with a value; for various with another among the slow."""
    fast = [pytest.param(CASES[n], value, id=f"{n}-{value}") for n in REPRESENTATIVE]
    slow = [
        pytest.param(CASES[n], other, id=f"{n}-{other}", marks=pytest.mark.slow)
        for n in VARIOUS
    ]
    return pytest.mark.parametrize(f"case, {argument}", fast + slow, indirect=["case"])


def test_init_works_on_shapes_alone(case):
    shapes = jax.eval_shape(
        lambda key: fa.init_state(case.algorithm, case.task, case.data, case.plan, key),
        jax.random.key(0),
    )
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, case.state)
    for leaf in jax.tree.leaves(shapes.clients):
        assert leaf.shape[0] == len(SIZES)


def test_a_round_keeps_structure_shapes_dtypes_and_strong_types(case):
    after, _ = case.shapes
    assert jax.tree.structure(after) == jax.tree.structure(case.state)
    for new, old in zip(
        jax.tree.leaves(after), jax.tree.leaves(case.state), strict=True
    ):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
        assert not new.weak_type and not old.weak_type


@pytest.mark.slow
@for_various
def test_double_precision_elsewhere_changes_no_round(case):
    expected, _ = case.after(1)
    with jax.enable_x64(True):
        round_fn, state = start(case.algorithm, case.task, case.data, case.plan)
        assert same(state.params, case.state.params)
        found, _ = jax.jit(round_fn)(state, keys(1)[0])
    close(found.params, expected.params, rtol=1e-5)


def test_nothing_that_a_method_shows_has_the_name_of_a_column_of_every_run(case):
    _, info = case.shapes
    of_rounds = lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)
    check_columns(jax.tree.map(of_rounds, info))


def test_rounds_are_traced_once_stay_finite_and_improve(case):
    state, _ = case.after(20)
    assert case.traces == 1
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()
    before = fa.evaluate(case.task, case.state.params, case.data.test)
    after = fa.evaluate(case.task, state.params, case.data.test)
    assert after.loss < 0.8 * before.loss
    assert int(state.round) == 20


def test_a_round_moves_the_model_and_says_who_trained(case):
    state, (info,) = case.after(1)
    assert not same(state.params, case.state.params)
    moved = jax.tree.map(jnp.subtract, state.params, case.state.params)
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(moved)))
    np.testing.assert_allclose(info.delta_norm, norm, rtol=1e-5)
    cohort = np.asarray(info.cohort)
    assert len(set(cohort.tolist())) == PLAN.cohort_size
    steps = -(-np.array(SIZES)[cohort] // PLAN.batch_size)
    if case.algorithm.policy.steps is fa.Algorithm().policy.steps:
        np.testing.assert_array_equal(info.num_steps, steps)
    trained = np.asarray(info.num_steps) > 0
    assert trained.any()
    assert (np.asarray(info.loss)[trained] > 0).all()


@pytest.mark.slow
@for_various
def test_a_scan_over_rounds_equals_the_loop(case):
    looped, infos = case.after(3)
    scanned, stacked = fa.train(case.round_fn, case.state, keys(3))
    close(scanned, looped)
    close(jax.tree.map(lambda leaf: leaf[2], stacked), infos[2])


@pytest.mark.slow
@with_another("lanes", 3, 1)
def test_lanes_do_not_change_a_round(case, lanes):
    assert lanes != PLAN.cohort_size
    before, _ = case.after(2)  # rows differ by then, and steps of policies that adapt
    state, infos = case.after(3)
    step = jax.jit(case.with_plan(lanes=lanes))
    chunked, chunked_info = step(before, keys(3)[2])
    close(chunked, state)
    close(chunked_info, infos[2])


@pytest.mark.slow
@with_another("devices", 2, 4)
def test_devices_do_not_change_a_round(case, devices):
    before, _ = case.after(1)
    state, infos = case.after(2)
    spread = jax.jit(case.with_plan(devices=devices))
    begin = case.store.place(jax.tree.map(jnp.copy, before), devices)
    other, other_info = spread(begin, keys(2)[1])
    close(other, state)
    close(other_info, infos[1])
    spread(other, keys(1)[0])
    assert spread._cache_size() == 1  # a round hands on its state as it took it


@pytest.mark.slow
@for_cases(REPRESENTATIVE)
def test_a_client_without_examples_changes_nothing(case):
    state, infos = case.after(2)
    lonely = make_data((*SIZES, 0, 0))
    round_fn, other = start(case.algorithm, case.task, lonely, case.plan)
    step = jax.jit(round_fn)
    for key in keys(2):
        other, info = step(other, key)
    close(other.params, state.params)
    close(other.server, state.server)
    close(info, infos[1])


@pytest.mark.slow
@for_cases(("scaffold", KEPT), VARIOUS)
def test_a_checkpoint_gives_back_the_state_to_the_bit(case, tmp_path):
    state, _ = case.after(2)
    checkpoint.save(tmp_path, state, 2)
    for devices in (1, 2):  # wherever it goes on
        abstract = case.store.place(jax.eval_shape(lambda: state), devices)
        restored, rounds = checkpoint.restore(tmp_path, abstract)
        assert same(restored, state) and rounds == 2
        step = case.step
        if devices != case.plan.devices:
            step = jax.jit(case.with_plan(devices=devices))
        close(step(restored, keys(1)[0]), case.step(state, keys(1)[0]))


@pytest.mark.slow
@for_all
def test_the_slow_twin_agrees(case):
    slow = fa.debug_round(case.algorithm, case.task, case.data, case.plan)
    state, infos = case.after(2)
    before, _ = case.after(1)
    slow_state, slow_info = slow(before, keys(2)[1])
    close(slow_state, state)
    close(slow_info, infos[1])


def backwards(slots):
    """`uniform`, each cohort in reverse."""
    uniform = fa.uniform(slots)
    some = lambda key, n: uniform.sample(key, n)[::-1]
    order = lambda key, n: jnp.append(some(key, n), uniform.order(key, n)[slots:])
    return Participation(uniform.slots, some, among_holders=True, order=order)


# and servers that take clients in in their order, which the test of the others leaves out
@pytest.mark.slow
@for_cases(REPRESENTATIVE, ("fedbuff", "fedasync"))
def test_the_order_of_the_cohort_does_not_change_the_round(case):
    state, (info,) = case.after(1)
    plan = dict(cohort_size=None, participation=backwards(PLAN.cohort_size))
    other, other_info = jax.jit(case.with_plan(**plan))(case.state, keys(1)[0])
    if case.algorithm.server.busy is not None:
        other = other._replace(server=state.server)
    close(other, state)
    np.testing.assert_array_equal(other_info.cohort, info.cohort[::-1])


@for_others
def test_what_changes_nothing_does_so_together(case):
    """What representative cases are asked one by one: one program for the others."""
    step, lonely = case.together, make_data((*SIZES, 0, 0))
    everybody, key = jnp.ones(len(SIZES) + 2, bool), keys(3)[2]

    # lanes, devices, clients without examples and the order of the cohort
    state, infos = case.after(2)
    _, before = start(case.algorithm, case.task, lonely, case.plan)
    before = case.store.place(before, 2)
    for k in keys(2):
        before, info = step(everybody, lonely, before, k)
    of_all = (len(SIZES) + 2,)
    rows = lambda leaf: leaf[: len(SIZES)] if leaf.shape[:1] == of_all else leaf
    close(jax.tree.map(rows, before), state)
    assert infos[1].left_out == () and infos[1].num_left_out == 0
    assert info.left_out.tolist() == [False] * PLAN.cohort_size
    per_client = lambda leaf: case.turns and np.shape(leaf)[:1] == (PLAN.cohort_size,)
    info = jax.tree.map(lambda x: x[::-1] if per_client(x) else x, info)
    close(info._replace(left_out=()), infos[1])

    # nobody trains
    after, info = step(~everybody, lonely, before, keys(1)[0])
    check_idle(after, info, before)

    # a client whose update is not finite
    _, info = step(everybody, lonely, before, key)
    client = int(info.cohort[np.argmax(info.num_steps)])
    data = broken(lonely, client)
    left_out = step(everybody, data, before, key)
    others = everybody.at[client].set(False)
    check_left_out(case, client, before, left_out, step(others, data, before, key))
    assert step._cache_size() == 1


def check_idle(state, info, before):
    """A round after `before` in which nobody trained has changed nothing."""
    assert int(info.num_active) == 0
    # a policy may learn from what it measured
    assert same(state._replace(round=before.round, policy=before.policy), before)


@pytest.mark.slow
@for_cases(REPRESENTATIVE)
def test_a_round_nobody_trains_in_changes_nothing(case):
    before, _ = case.after(3)  # memories and control variates are no longer zero
    nobody = jnp.zeros(len(SIZES), bool)
    check_idle(*case.some_idle(nobody, before, keys(1)[0]), before)


@pytest.mark.parametrize("constructor", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_docstrings_have_title_equations_reference_and_arguments(constructor):
    text = sys.modules[constructor.__module__].__doc__
    first = text.splitlines()[0]
    assert re.match(r"\w+: .+\.?", first), first
    assert re.search(r"^    .*(<-|=)", text, re.MULTILINE)
    assert "https://" in text
    assert "Departs from the paper:" in text
    for name in inspect.signature(constructor).parameters:
        assert f"  {name}: " in constructor.__doc__, name


def test_clients_that_sit_out_keep_their_state_to_the_bit(case):
    before, _ = case.after(2)
    after, infos = case.after(3)
    away = np.setdiff1d(np.arange(len(SIZES)), np.asarray(infos[2].cohort))
    rows = lambda tree: jax.tree.map(lambda leaf: leaf[away], tree)
    assert len(away) == 2 and same(rows(before.clients), rows(after.clients))


def check_left_out(case, client, before, left_out, expected):
    """A round in which a client's update was not finite is as if it had not trained.

    Both `left_out` and `expected`, in which it did not, are (state, info) of a round after
    `before`.
    """
    (state, info), (other, other_info) = left_out, expected
    # it sends nothing to be refused for
    if case.algorithm.local.traffic == fa.Traffic():
        assert not info.left_out.any()
        return
    place = info.cohort.tolist().index(client)
    close(state, other)
    assert np.isfinite(float(info.delta_norm))
    row = lambda tree: jax.tree.map(lambda leaf: leaf[client], tree)
    assert same(row(state.clients), row(before.clients))
    assert info.left_out.tolist() == [i == place for i in range(PLAN.cohort_size)]
    assert int(info.num_left_out) == 1 and int(info.num_steps[place]) > 0
    close(jnp.delete(info.loss, place), jnp.delete(other_info.loss, place))


@pytest.mark.slow
@for_cases(REPRESENTATIVE)
def test_a_client_whose_update_is_not_finite_is_as_if_it_had_not_trained(case):
    before, key, client, data = case.with_a_broken_client
    plan = replace(case.plan, nonfinite_updates="leave_out")
    left_out = jax.jit(fa.make_round(case.algorithm, case.task, data, plan))
    others = jnp.arange(len(SIZES)) != client
    expected = case.some_idle(others, before, key)
    check_left_out(case, client, before, left_out(before, key), expected)
    assert case.plan.nonfinite_updates == "stop"
    _, plain = case.step(before, key)
    assert plain.left_out == () and plain.num_left_out == 0


@pytest.mark.slow
def test_hyper_parameters_may_be_traced(task, data):
    def loss(mu):
        round_fn, state = start(ALGORITHMS["fedprox"](mu), task, data)
        state, _ = fa.train(round_fn, state, keys(2))
        return state.params

    together = jax.jit(jax.vmap(loss))(jnp.array([0.0, 1.0]))
    for row, mu in enumerate((0.0, 1.0)):
        close(jax.tree.map(lambda leaf, row=row: leaf[row], together), loss(mu))


# what bits a state may have that arithmetic, or a narrower dtype, would change
ROWS = {
    "float32": np.array([0.1, -0.0, 1e-42, np.inf, np.nan, 16777217], np.float32),
    "bfloat16": jnp.array([0.1, -0.0, 1e-40, jnp.inf, jnp.nan, 257], jnp.bfloat16),
    "int32": np.array([2**31 - 1, -(2**31), -1, 0, 1, 2**24 + 1], np.int32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STORES, "twice"])
def test_a_store_gives_back_what_it_was_given_to_the_bit(name, twice):
    """`client_memory` is no part of a run's hash, so no store may change a number."""
    assert set(get_args(plans.ClientMemory)) == set(STORES)
    store, everybody, some = STORES[name], jnp.arange(6), jnp.array([4, 6, 1])
    new = {dtype: jnp.asarray(row) for dtype, row in ROWS.items()}
    new["bool"] = jnp.array([True, False])

    def put(table, row, at):  # by NumPy: XLA may make a small bfloat16 zero
        changed = np.array(table)
        changed[np.asarray(at)] = row
        return jax.device_put(changed, table.sharding)

    if name == "twice":  # where XLA itself moves bfloat16, AVX-512 makes 1e-40 zero
        new["bfloat16"] = new["bfloat16"].at[2].set(0.5)
    client = jax.tree.map(jnp.zeros_like, new)
    for num_devices in (1, 2):  # which do not divide the cohort
        table = store.create(client, 6, num_devices)
        assert store.gather(table, some, num_devices).row.shape == some.shape
    # rows that XLA itself sums over devices lose the sign of a zero
    for num_devices in (1,) if name == "twice" else (1, 2):
        table = store.create(client, 6, num_devices)
        rows = store.gather(table, some, num_devices)
        at = rows.row[jnp.array([0, 2])]
        changed = jax.tree.map(partial(put, at=at), rows.table, new)
        table = store.scatter(table, some, changed, num_devices)
        found = store.gather(table, everybody, num_devices)
        for leaf, row, old in zip(
            *map(jax.tree.leaves, (found.table, new, client)), strict=True
        ):
            assert leaf.dtype == old.dtype
            leaf = np.asarray(leaf)[np.asarray(found.row)]
            expected = [np.asarray(row if i in (1, 4) else old) for i in range(6)]
            assert leaf.tobytes() == np.stack(expected).tobytes()


def test_who_reads_client_states_without_their_store_refuses_another_form(
    task, data, twice
):
    """Even one of the same structure and shapes."""
    as_ints = partial(jax.lax.bitcast_convert_type, new_dtype=jnp.int32)
    ditto, plain = ALGORITHMS["ditto"](), fa.Plan(cohort_size=3)
    averaged = fa.with_averages(ALGORITHMS["fedavg"](), clients=True)
    for plan, form in ((twice, lambda leaf: leaf), (plain, as_ints)):
        _, state = start(ditto, task, data, plan)
        other = state._replace(clients=jax.tree.map(form, state.clients))
        with pytest.raises(ValueError, match="client_memory that keeps it as it is"):
            fa.personal_models(ditto, other)
        _, state = start(averaged, task, data, plan)
        other = state._replace(clients=jax.tree.map(form, state.clients))
        with pytest.raises(ValueError, match="in another form than the server's"):
            fa.averages(averaged, other, data)


def test_a_run_refuses_such_a_store_where_its_clients_have_models_of_their_own(
    task, data, tmp_path, monkeypatch
):
    """Before its first round, as it would evaluate them after the last."""
    monkeypatch.setitem(STORES, "device", TWICE)
    folder, own = tmp_path / "run", {"task": task, "data": data}
    says = "client_memory=device keeps clients' states in a form of its own"
    with pytest.raises(fa.SettingError, match=says):
        run(Config(algorithm="ditto", folder=str(folder)), **own)
    with pytest.raises(fa.SettingError, match=says):
        sweep({"run": {"algorithm": "ditto"}, "grid": {"lr": [0.1]}}, folder, **own)
    assert not folder.exists()
    with objects.given(None, task, data):
        config = objects.settled(Config(algorithm="ditto", evaluate_clients=False))
        build(config)  # nobody reads them then


def test_a_run_refuses_models_of_clients_that_keep_nothing(task, data, tmp_path):
    of_server = fa.LocalRule(personal=lambda params, client: params)
    own = {"algorithm": fa.Algorithm(local=of_server), "task": task, "data": data}
    with pytest.raises(
        fa.SettingError, match="clients keep no state, .* give LocalRule"
    ):
        run(Config(folder=str(tmp_path / "run")), **own)
    assert not (tmp_path / "run").exists()
