"""Models of clients' own against a loop over clients, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SIZES, close, keys, make_data, make_public, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, feddisco, feddyn
from fedjax_adapt.engine.personal import evaluate_personal

PLAN = fa.Plan(cohort_size=4, batch_size=4, lr=0.3)


def remembering():
    """FedAvg whose clients go on from their last model next time, and use it."""

    def finish(run):
        return fa.Upload(optax.tree.sub(run.params, run.anchor)), run.params

    local = fa.LocalRule(
        init=lambda params: params,
        start=lambda view: view.client,
        finish=finish,
        personal=lambda params, client: client,
    )
    return fa.Algorithm(local=local)


@pytest.fixture(scope="module")
def trained(task):
    """(data with a client that holds nothing, state after some rounds)."""
    data = make_data((*SIZES, 0))
    round_fn, state = start(remembering(), task, data, PLAN)
    return data, fa.train(round_fn, state, keys(3))[0]


def model(stacked, i):
    return jax.tree.map(lambda leaf: leaf[i], stacked)


def scored(task, params, x, y, rows):
    """(accuracy, mean loss) on some rows; all are computed, which is one shape."""
    logits = task.apply(params, x).logits
    right = np.asarray(logits).argmax(1) == np.asarray(y)
    return right[rows].mean(), np.asarray(task.loss(logits, y))[rows].mean()


def check_own(task, given, stacked, x, y, rows):
    for i, own in enumerate(rows):
        params = model(stacked, i)
        expected = scored(task, params, x, y, own) if len(own) else (0, 0)
        np.testing.assert_allclose(given.accuracy[i], expected[0], rtol=1e-6)
        np.testing.assert_allclose(given.loss[i], expected[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{}, {"batch_size": 5}, {"batch_size": 30, "devices": 2}, {"devices": 4}]
)
def test_each_model_is_scored_on_its_own_clients_examples(task, trained, sizes):
    data, state = trained
    stacked = fa.personal_models(remembering(), state)
    assert not same(model(stacked, 0), model(stacked, 1))
    given = fa.evaluate_clients(task, stacked, data, **sizes)
    check_own(task, given, stacked, data.x, data.y, data.rows())
    found = evaluate_personal(remembering(), task, state, data, **sizes)
    close(found, given)


def with_tests(data):
    x, y = map(jnp.asarray, make_public(size=20, seed=4))
    index = np.zeros((data.num_clients, 9), np.int32)
    size = np.arange(2, 2 + data.num_clients, dtype=np.int32)
    for i, n in enumerate(size):
        index[i, :n] = (3 * i + np.arange(n)) % 20
    tests = SimpleNamespace(x=x, y=y, index=jnp.asarray(index), size=jnp.asarray(size))
    data = replace(data)
    object.__setattr__(data, "client_tests", tests)
    return data, [row[:n] for row, n in zip(index, size, strict=True)]


@pytest.mark.slow
def test_the_clients_test_sets_count_where_there_are_some(task, trained):
    data, state = trained
    tested, rows = with_tests(data)
    x, y = tested.client_tests.x, tested.client_tests.y
    stacked = fa.personal_models(remembering(), state)
    for on in (None, "test"):
        own = fa.evaluate_clients(task, stacked, tested, on=on)
        check_own(task, own, stacked, x, y, rows)
        one = fa.evaluate_clients(task, state.params, tested, on=on)
        for i, of in enumerate(rows):
            expected = scored(task, state.params, x, y, of)
            np.testing.assert_allclose(one.accuracy[i], expected[0], rtol=1e-6)
    for params in (stacked, state.params):
        train = fa.evaluate_clients(task, params, tested, on="train")
        assert same(train, fa.evaluate_clients(task, params, data))


@pytest.mark.slow
def test_states_in_the_hosts_memory_are_read_block_by_block(task, data, monkeypatch):
    ends = []
    for memory in ("device", "host"):
        plan = replace(PLAN, client_memory=memory)
        round_fn, state = start(remembering(), task, data, plan)
        state, _ = fa.train(round_fn, state, keys(2))
        monkeypatch.setattr("fedjax_adapt.engine.personal.BLOCK", 4)
        stacked = fa.personal_models(remembering(), state)
        own = evaluate_personal(remembering(), task, state, data)
        close(own, fa.evaluate_clients(task, stacked, data))
        ends.append(stacked)
    close(*ends)


def wrapped():
    return {
        "server optimizer": fa.with_server_optimizer(remembering(), optax.sgd(1.0)),
        "averages": fa.with_averages(remembering(), clients=True),
        "feddisco": feddisco(a=0.0, b=0.0, base=remembering()),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", wrapped())
def test_wrappers_hand_on_where_clients_start_and_what_they_use(task, data, name):
    algorithm = wrapped()[name]
    ends = []
    for one in (remembering(), algorithm):
        round_fn, state = start(one, task, data, PLAN)
        state, _ = fa.train(round_fn, state, keys(3))
        ends.append(fa.personal_models(one, state))
    close(*ends)


def test_what_is_no_model_is_refused(task, data, trained):
    _, state = trained
    some = jax.tree.map(lambda leaf: leaf[None], state.params)
    for params in (some, {"w": state.params["w"]}):
        with pytest.raises(
            ValueError, match="neither a model of the task nor one for e"
        ):
            fa.evaluate_clients(task, params, data)
    with pytest.raises(ValueError, match='on="test" asks for test sets of clients but'):
        fa.evaluate_clients(task, state.params, data, on="test")
    with pytest.raises(ValueError, match="on='all' is unknown; write one of test, tr"):
        fa.evaluate_clients(task, state.params, data, on="all")
    with pytest.raises(
        ValueError, match="clients use the server's model; take state.p"
    ):
        fa.personal_models(fedavg(), state)
    _, other = start(feddyn(), task, data, PLAN)
    with_own = feddyn()._replace(
        local=feddyn().local._replace(personal=lambda params, client: params)
    )
    with pytest.raises(
        ValueError, match="do not keep what this algorithm's keep; give"
    ):
        fa.personal_models(with_own, state._replace(clients={"w": other.clients}))


def test_a_personal_that_is_no_model_is_refused(task, data):
    rule = remembering().local._replace(personal=lambda params, client: client["w"])
    with pytest.raises(ValueError, match=r"LocalRule.personal \(.*returned float32"):
        fa.make_round(fa.Algorithm(local=rule), task, data, PLAN)
