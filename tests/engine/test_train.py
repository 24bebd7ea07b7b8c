from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import close, keys, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedavgm, fedgen, fedprox, scaffold
from fedjax_adapt.engine import train


@pytest.fixture(scope="module")
def ready(task, data):
    return start(scaffold(), task, data)


@pytest.mark.slow
def test_chunks_change_nothing_and_the_first_state_stays_valid(ready):
    round_fn, state = ready
    kept = jax.tree.map(np.array, state)
    whole = fa.train(round_fn, state, keys(6))
    chunked = fa.train(round_fn, state, keys(6), chunk_size=3)
    assert same(whole, chunked)
    assert same(jax.tree.map(np.array, state), kept)


@pytest.mark.slow
def test_measurements_are_taken_after_every_so_many_rounds(ready, task, data):
    round_fn, state = ready
    measure = jax.tree_util.Partial(
        lambda test, state: fa.evaluate(task, state.params, test), data.test
    )
    end, infos, metrics = fa.train_and_evaluate(
        round_fn, state, keys(6), measure, every=3
    )
    assert infos.num_steps.shape[0] == 6
    assert metrics.accuracy.shape == (2,)
    halfway, _ = fa.train(round_fn, state, keys(6)[:3])
    close(metrics.loss[0], fa.evaluate(task, halfway.params, data.test).loss)
    close(metrics.loss[1], fa.evaluate(task, end.params, data.test).loss)


def test_the_data_is_an_argument_of_the_program_not_a_constant(ready):
    round_fn, _ = ready
    leaves = jax.tree.leaves(round_fn)
    assert any(leaf is round_fn.data.x for leaf in leaves)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_another_learning_rate_is_no_other_program(task, data, devices):
    call = jax.jit(lambda round_fn, state, key: round_fn(state, key))

    def made(**numbers):
        plan = fa.Plan(cohort_size=4, batch_size=4, devices=devices, **numbers)
        state = fa.init_state(scaffold(), task, data, plan, jax.random.key(0))
        return fa.make_round(scaffold(), task, data, plan), state, keys(1)[0]

    some = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0}
    others = {"lr": 1, "momentum": 0.5, "weight_decay": 0.2, "clip_norm": 0.3}
    others["lr_decay"] = 0.5
    program = call.lower(*made(**some)).as_text()
    assert call.lower(*made(**others)).as_text() == program
    # whose term is left out
    assert call.lower(*made(**some | {"momentum": 0.0})).as_text() != program
    for numbers in (some, others):
        round_fn, state, key = made(**numbers)
        state = state._replace(round=state.round + 1)
        baked_in = jax.jit(round_fn)(state, key)
        close(call(round_fn, state, key), baked_in)
        unlike = others if numbers is some else some
        moved = call(made(**unlike)[0], state, key)[0].params
        assert not same(moved, baked_in[0].params)


@pytest.mark.slow
def test_a_round_made_anew_is_traced_no_more(task, data):
    traced = []

    def counted(logits, y):
        traced.append(logits)
        return task.loss(logits, y)

    counting, algorithm = task._replace(loss=counted), fedavg()

    def trained(algorithm=algorithm, data=data, **numbers):
        traced.clear()
        plan = fa.Plan(cohort_size=4, batch_size=4, **numbers)
        round_fn, state = start(algorithm, counting, data, plan)
        traced.clear()
        end, _ = fa.train(round_fn, state, keys(2))
        return end.params, bool(traced)

    slow, again = trained(lr=0.01)
    assert again
    for lr in (0.3, np.float64(0.3), jnp.asarray(0.3)):
        assert not same(trained(lr=lr)[0], slow)
    _, again = trained(lr=0.2)
    assert not again
    for same_kind in ({"lr": 1}, {"lr": np.float32(0.2), "momentum": 0}):
        assert not trained(**same_kind)[1]
    _, again = trained(lr=0.2, data=replace(data, x=data.x + 1))
    assert not again
    # a term more, another batch, another algorithm
    for other in ({"momentum": 0.5}, {"shuffle": "none"}, {"algorithm": fedprox(0.5)}):
        assert trained(lr=0.2, **other)[1]
    _, again = trained(lr=0.2)
    assert not again


@pytest.mark.slow
def test_the_state_of_another_algorithm_is_one_sentence(ready, task, data):
    round_fn, state = ready
    other, plain = start(fedavg(), task, data)
    says = "state.clients, the clients' states, is not what this one keeps"
    for mistaken in ((other, state), (round_fn, plain)):
        with pytest.raises(ValueError, match=says):
            fa.train(*mistaken, keys(2))
    learning = fa.with_steps(fedavg(), fa.gift_steps(2))
    with pytest.raises(ValueError, match="state.policy, the step policy's state"):
        fa.train(start(learning, task, data)[0], plain, keys(2))
    with pytest.raises(ValueError, match="state.refine, the refinement's state"):
        fa.train(start(fedgen(), task, data)[0], plain, keys(2))
    with pytest.raises(ValueError, match="state.server, the server's state"):
        fa.train(start(fedavgm(), task, data)[0], plain, keys(2))


@pytest.mark.parametrize("done", [None, 3.7, -1, True, np.array([6]), jnp.float32(3)])
def test_a_state_counts_its_rounds(ready, done):
    """Half a round was rounded away, and None ended in an error of Python's."""
    round_fn, state = ready
    odd = state._replace(round=done)
    says = "state.round is .* counts the rounds before this one; write an integer"
    with pytest.raises(ValueError, match=says):
        fa.train(round_fn, odd, keys(1))
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(lambda key: round_fn(odd, key), keys(1)[0])
    if isinstance(done, jax.Array):
        with pytest.raises(ValueError, match=says):
            jax.eval_shape(round_fn, odd, keys(1)[0])


def test_a_state_may_be_a_constant_of_a_jitted_function(ready):
    round_fn, state = ready
    for done in (2, np.int32(2), jnp.int32(2)):
        later = state._replace(round=done)
        new, _ = jax.eval_shape(lambda key, s=later: round_fn(s, key), keys(1)[0])
        assert new.round.shape == ()


def test_any_function_of_state_and_key_can_be_trained():
    def round_fn(state, key):
        return state + 1, jax.random.uniform(key)

    end, infos = fa.train(round_fn, jnp.zeros(()), keys(4))
    assert float(end) == 4
    assert len(set(np.asarray(infos).tolist())) == 4


@pytest.mark.slow
def test_programs_of_its_own_have_the_options_that_lanes_are_fastest_with(
    task, data, monkeypatch
):
    asked = []
    monkeypatch.setattr(train, "compiler_options", asked.append)
    plan = fa.Plan(cohort_size=4, batch_size=4, lanes=2)
    state = fa.init_state(scaffold(), task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(scaffold(), task, data, plan)
    alone, _ = fa.train(round_fn, state, keys(1))
    assert asked == [2]
    # no jit but the outermost may have options
    inside, _ = jax.jit(lambda state: fa.train(round_fn, state, keys(1)))(state)
    assert asked == [2]
    close(inside, alone)


def test_rounds_must_fill_the_interval():
    with pytest.raises(ValueError, match="got 5 round keys with every=2; give a mult"):
        fa.train_and_evaluate(lambda s, k: (s, ()), 0.0, keys(5), lambda s: s, every=2)
    with pytest.raises(ValueError, match="keys is empty; write jax.random.split"):
        fa.train(lambda s, k: (s, ()), 0.0, keys(5)[:0])


def test_evaluation_counts_every_example_once(task, data):
    params = task.init(jax.random.key(0))
    x, y = data.test
    logits = np.asarray(task.apply(params, x).logits)
    expected = (logits.argmax(1) == np.asarray(y)).mean()
    for batch_size in (1, 7, len(y), 10_000):
        metrics = fa.evaluate(task, params, data.test, batch_size=batch_size)
        np.testing.assert_allclose(metrics.accuracy, expected, rtol=1e-6)
        np.testing.assert_allclose(metrics.loss, task.loss(logits, y).mean(), rtol=1e-5)


@pytest.mark.slow
def test_a_callback_hears_every_round_and_changes_none(ready):
    round_fn, state = ready
    heard = []
    end, infos = fa.train(round_fn, state, keys(5), chunk_size=2, callback=heard.append)
    assert same((end, infos), fa.train(round_fn, state, keys(5), chunk_size=2))
    assert [figures["round"] for figures in heard] == [1, 2, 3, 4, 5]
    steps = np.cumsum(np.asarray(infos.num_steps).sum(1))
    assert [figures["local_steps"] for figures in heard] == steps.tolist()
    sent = np.cumsum(np.asarray(infos.bytes_up, float))
    assert [figures["bytes_up"] for figures in heard] == sent.tolist()
    active = np.asarray(infos.num_steps) > 0
    for i, figures in enumerate(heard):
        loss = np.asarray(infos.loss)[i][active[i]].mean()
        assert figures["train_loss"] == pytest.approx(loss, rel=1e-6)
    again, _ = fa.train(round_fn, end, keys(2), callback=heard.append)
    assert heard[-1]["round"] == 7 and int(again.round) == 7


@pytest.mark.slow
def test_a_callback_stops_after_the_chunk_in_which_it_says_so(ready):
    """Early stopping, as a user would write it."""
    round_fn, state = ready
    heard = []

    def stop(figures):
        heard.append(figures["round"])
        return figures["round"] >= 3

    end, infos = fa.train(round_fn, state, keys(8), chunk_size=2, callback=stop)
    assert heard == [1, 2, 3]
    assert int(end.round) == len(infos.loss) == 4
    assert same((end, infos), fa.train(round_fn, state, keys(8)[:4], chunk_size=2))
    at_once, _ = fa.train(round_fn, state, keys(8), chunk_size=1, callback=stop)
    assert int(at_once.round) == 3


@pytest.mark.slow
def test_without_a_callback_nothing_is_fetched_and_with_one_nothing_is_compiled(
    task, data, monkeypatch
):
    traced = []

    def counted(logits, y):
        traced.append(logits)
        return task.loss(logits, y)

    round_fn, state = start(fedavg(), task._replace(loss=counted), data)
    fetched, get = [], jax.device_get
    monkeypatch.setattr(
        jax, "device_get", lambda tree: fetched.append(tree) or get(tree)
    )
    fa.train(round_fn, state, keys(4), chunk_size=2)
    before = len(traced)
    assert before and not fetched
    fa.train(round_fn, state, keys(4), chunk_size=2, callback=lambda figures: None)
    assert len(traced) == before and len(fetched) == 2


@pytest.mark.slow
def test_what_a_callback_raises_leaves_the_state_before_as_it_was(ready):
    round_fn, state = ready
    kept = jax.tree.map(np.array, state)

    def failing(figures):
        raise RuntimeError(f"in round {figures['round']}")

    with pytest.raises(RuntimeError, match="in round 1"):
        fa.train(round_fn, state, keys(2), callback=failing)
    assert same(jax.tree.map(np.array, state), kept)


@pytest.mark.slow
def test_a_figure_with_the_name_of_another_is_refused_for_a_callback(ready):
    round_fn, state = ready

    def shows(**shown):
        def renamed(state, key):
            state, info = round_fn(state, key)
            return state, info._replace(server=shown)

        return lambda: fa.train(renamed, state, keys(2), callback=lambda figures: None)

    for name in ("cohort", "cut", "delta_norm", "round", "local_steps"):
        with pytest.raises(
            ValueError, match=f"ServerRule.report shows '{name}' of each"
        ):
            shows(**{name: jnp.zeros(())})()
    shows(cohort=jnp.zeros(5), mine=jnp.zeros(()))()  # what is of clients is not heard
    heard = []
    fa.train(round_fn, state, keys(1), callback=heard.append)
    assert set(heard[0]) == set(train.FIGURES)


@pytest.mark.slow
def test_a_callback_below_vmap_over_a_number_of_a_method_is_refused(task, data):
    def last(mu):
        round_fn, state = start(fedprox(mu), task, data)  # mu is in closures alone
        return fa.train(round_fn, state, keys(2), callback=print)[1].loss

    with pytest.raises(ValueError, match="but JAX is tracing train as a whole"):
        jax.vmap(last)(jnp.array([0.0, 1.0]))


def test_a_callback_that_could_hear_nothing_is_refused(ready):
    round_fn, state = ready
    quiet = lambda figures: None
    with pytest.raises(ValueError, match="but JAX is tracing train as a whole"):
        jax.jit(lambda s: fa.train(round_fn, s, keys(2), callback=quiet))(state)
    count = lambda number, key: (number + 1, number)
    with pytest.raises(ValueError, match="round_fn returned an? .*, no Info; take a"):
        fa.train(count, jnp.array(0), keys(2), callback=quiet)
    with pytest.raises(ValueError, match="train got 5 for callback; write train"):
        fa.train(round_fn, state, keys(2), callback=5)
    with pytest.raises(ValueError, match="callback returned 'no'; return True to stop"):
        fa.train(round_fn, state, keys(2), callback=lambda figures: "no")
