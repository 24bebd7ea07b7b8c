"""Models of every library and kind train, drop out in training alone, and are refused."""

import functools
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from helpers import CLASSES, WIDTH, close

import fedjax_adapt as fa

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)
SHAPE = (WIDTH,)
MODES = ("train", "training", "is_training", "deterministic", "inference")


def linen_with(argument, keyword_only=False, default=True):
    """A linen module that is told its mode by an argument of this name."""
    off = argument in ("deterministic", "inference")
    given = f"{argument}={off}" if default else argument
    names = {"linen": linen}
    exec(
        "class Dropping(linen.Module):\n"
        "    @linen.compact\n"
        f"    def __call__(self, x, {'*, ' * keyword_only}{given}):\n"
        f"        still = {argument if off else 'not ' + argument}\n"
        "        x = linen.relu(linen.Dense(40)(x))\n"
        "        x = linen.Dropout(0.5, deterministic=still)(x)\n"
        f"        return linen.Dense({CLASSES})(x)\n",
        names,
    )
    return names["Dropping"]()


class NnxMode(nnx.Module):
    def __init__(self, *, rngs):
        self.body = nnx.Linear(WIDTH, 40, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(40, CLASSES, rngs=rngs)

    def __call__(self, x, *, training=False):
        x = self.drop(jax.nn.relu(self.body(x)), deterministic=not training)
        return self.out(x)


class NnxStreams(NnxMode):
    def __call__(self, x):
        return self.out(self.drop(jax.nn.relu(self.body(x))))


def init_pair(key):
    keys = jax.random.split(key)
    w = 0.5 * jax.random.normal(keys[0], (WIDTH, 40))
    return {"w": w, "out": 0.5 * jax.random.normal(keys[1], (40, CLASSES))}


def apply_pair(params, x, key=None):
    x = jax.nn.relu(x @ params["w"])
    if key is not None:
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)
    return x @ params["out"]


def equinox(part):
    """A test needs Equinox: what `part` makes of it."""
    return part(pytest.importorskip("equinox"))


def equinox_dropping(eqx):
    class Dropping(eqx.Module):
        body: eqx.nn.Linear
        drop: eqx.nn.Dropout
        out: eqx.nn.Linear
        kept: jax.Array

        def __init__(self, key):
            keys = jax.random.split(key)
            self.body = eqx.nn.Linear(WIDTH, 40, key=keys[0])
            self.drop = eqx.nn.Dropout(0.5)
            self.out = eqx.nn.Linear(40, CLASSES, key=keys[1])
            self.kept = jnp.arange(3)  # no parameter

        def __call__(self, x, key=None):
            return self.out(self.drop(jax.nn.relu(self.body(x)), key=key))

    return Dropping


def equinox_told(eqx):
    class Told(equinox_dropping(eqx)):
        def __call__(self, x, *, key=None, inference=False):
            x = jax.nn.relu(self.body(x))
            return self.out(self.drop(x, key=key, inference=inference))

    return Told


def haiku_dropping():
    hk = pytest.importorskip("haiku")

    def forward(x, is_training=False):
        x = jax.nn.relu(hk.Linear(40)(x))
        if is_training:
            x = hk.dropout(hk.next_rng_key(), 0.5, x)
        return hk.Linear(CLASSES)(x)

    return hk.transform(forward)


DROPPING = {
    **{name: lambda name=name: linen_with(name) for name in MODES},
    "by keyword": lambda: linen_with("train", keyword_only=True),
    "no default": lambda: linen_with("training", default=False),
    "nnx mode": lambda: NnxMode,
    "nnx partial": lambda: functools.partial(NnxMode),
    "nnx streams": lambda: NnxStreams(rngs=nnx.Rngs(0)),
    "pair": lambda: (init_pair, apply_pair),
    "pair mode": lambda: (
        init_pair,
        lambda params, x, train=False, rngs=None: apply_pair(
            params, x, rngs if train else None
        ),
    ),
    "equinox factory": lambda: equinox(equinox_dropping),
    "equinox": lambda: equinox(equinox_dropping)(KEY),
    "equinox mode": lambda: equinox(equinox_told),
    "haiku": haiku_dropping,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_runs_in_training_alone(name):
    task = fa.classification(DROPPING[name](), SHAPE)
    params = task.init(KEY)
    leaves = jax.tree.leaves(params)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
    alike, y = np.repeat(X[:1], 5, 0), np.ones(5, int)
    losses = jax.jit(
        lambda key: task.loss(task.apply_train(params, alike, key).logits, y)
    )
    one, same, other = (np.asarray(losses(jax.random.key(i))) for i in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).all()
    assert len(np.unique(one)) == 5  # each example has a mask of its own
    still = task.apply(params, X).logits
    np.testing.assert_array_equal(still, task.apply(params, X).logits)
    mean = jax.vmap(lambda key: task.apply_train(params, X, key).logits)(
        jax.random.split(KEY, 4000)
    ).mean(0)
    np.testing.assert_allclose(mean, still, atol=0.12)


PLAIN = {
    "linen": lambda: linen_with("train"),
    "nnx": lambda: NnxMode,
    "pair": lambda: (init_pair, apply_pair),
    "equinox": lambda: equinox(equinox_dropping),
    "haiku": haiku_dropping,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_every_kind_trains_a_round_under_vmap_and_lanes(name, data):
    task = fa.classification(PLAIN[name](), SHAPE)
    plan = fa.Plan(cohort_size=3, batch_size=6, lr=0.1, lanes=2)
    algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.constant_steps(3))
    state = fa.init_state(algorithm, task, data, plan, KEY)
    round_fn = fa.make_round(algorithm, task, data, plan)
    keys = jax.random.split(jax.random.key(1), 2)
    several, _ = jax.jit(jax.vmap(round_fn, (None, 0)))(state, keys)
    before = fa.evaluate(task, state.params, data.test).loss
    for i in range(2):
        params = jax.tree.map(itemgetter(i), several.params)
        assert fa.evaluate(task, params, data.test).loss < before
    if name == "pair":
        slow, _ = fa.debug_round(algorithm, task, data, plan)(state, keys[1])
        close(slow.params, params, atol=1e-5)


class NnxMute(nnx.Module):
    def __init__(self, rngs):
        self.body = nnx.Linear(WIDTH, CLASSES, rngs=rngs)
        self.drop = nnx.Dropout(0.5)  # without a stream of its own

    def __call__(self, x):
        return self.drop(self.body(x))


def equinox_mute(eqx):
    class Mute(equinox_dropping(eqx)):
        def __call__(self, x):
            return self.out(self.drop(self.body(x), inference=True))

    return Mute(KEY)


MUTE = linen.Sequential([linen.Dense(3), linen.Dropout(0.5, deterministic=True)])


@pytest.mark.parametrize(
    "model, message",
    [
        (lambda: linen_with("dropping"), "give __call__ an argument named train, tr"),
        (lambda: MUTE, "Sequential holds dropout that never runs"),
        (lambda: NnxMute, r"build it with nnx.Dropout\(rate, rngs=rngs\)"),
        (
            lambda: (lambda key: MUTE.init(key, X), lambda p, x: MUTE.apply(p, x)),
            "give apply an argument key=None, under which it drops",
        ),
        (lambda: equinox(equinox_mute), "Mute holds dropout .* an argument key=None"),
    ],
)
def test_dropout_that_never_runs_is_warned_of_once(model, message):
    with pytest.warns(UserWarning, match=message) as caught:
        fa.classification(model(), SHAPE)
    assert len(caught) == 1


def test_what_drops_nothing_is_not_warned_of():
    fa.classification(
        linen.Sequential([linen.Dense(3), linen.Dropout(0.0, deterministic=True)]),
        SHAPE,
    )


class Masked(linen.Module):
    @linen.compact
    def __call__(self, x, mask):
        return linen.Dense(3)(x * mask)


def haiku_refused(part):
    return part(pytest.importorskip("haiku"))


REFUSED = {
    "argument": (lambda: Masked(), r"Masked.__call__\(x\) asks for mask as well"),
    "dropout": (
        lambda: linen.Sequential(
            [linen.Dense(3), linen.Dropout(0.5, deterministic=False)]
        ),
        "Sequential draws random numbers when it is evaluated.*; give __call__ an argument",
    ),
    "pair key": (
        lambda: (init_pair, lambda p, x, rng: apply_pair(p, x, rng)),
        r"has apply\(params, x, rng\), which cannot .*; write rng=None",
    ),
    "pair init": (
        lambda: (lambda: init_pair(KEY), apply_pair),
        r"init that takes no key alone .*; write \(init\(key\) -> params",
    ),
    "pair": (
        lambda: (init_pair, lambda p, x, noise: apply_pair(p, x)),
        r"apply\(params, x\) asks for noise as well",
    ),
    "state": (
        lambda: (init_pair, lambda p, x: (apply_pair(p, x), {})),
        r"returned a tuple; it must return logits \[batch, classes\] alone, without state",
    ),
    "dict": (
        lambda: (init_pair, lambda p, x: {"out": apply_pair(p, x)}),
        "returned a dict; it must return logits",
    ),
    "shape": (
        lambda: (lambda key: jnp.zeros((9, 3)), lambda p, x: x @ p),
        r"takes no inputs of shape \[4\] \(float32: dot_general .*; give classification",
    ),
    "equinox state": (
        lambda: equinox(lambda eqx: eqx.nn.BatchNorm(WIDTH, "batch", mode="ema")),
        "BatchNorm holds a StateIndex, which is state",
    ),
    "equinox factory": (
        lambda: equinox(lambda eqx: lambda key: 3),
        "factory returned int, not an eqx.Module",
    ),
    "equinox class": (
        lambda: equinox(lambda eqx: eqx.nn.MLP),
        r"^model is the class MLP, .* with key alone \(missing .* function of key",
    ),
    "haiku state": (
        lambda: haiku_refused(lambda hk: hk.transform_with_state(lambda x: x)),
        "hk.transform_with_state holds what hk.get_state makes",
    ),
    "haiku key": (
        lambda: haiku_refused(
            lambda hk: hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, x))
        ),
        "takes a key in evaluation, too; give it an argument is_training=False",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused(name):
    model, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        fa.classification(model(), SHAPE)


def test_a_parameter_may_be_a_number():
    init = lambda key: {"w": np.ones((WIDTH, CLASSES), np.float32), "scale": 2.0}
    task = fa.classification((init, lambda p, x: p["scale"] * x @ p["w"]), SHAPE)
    logits = task.apply(task.init(KEY), X).logits
    np.testing.assert_allclose(logits[:, 0], 2 * X.sum(1), rtol=1e-5)


@pytest.mark.slow
def test_equinox_modules_are_named_by_their_fields_and_take_one_example():
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.MLP(WIDTH, CLASSES, 6, 1, key=KEY)
    task = fa.classification(module, SHAPE)
    params = task.init(jax.random.key(5))  # an instance starts from its own weights
    assert sorted(params["layers"]) == ["0", "1"]
    assert params["layers"]["0"]["weight"].shape == (6, WIDTH)
    expected = jax.vmap(module)(X)
    np.testing.assert_allclose(task.apply(params, X).logits, expected, rtol=1e-6)
    factory = fa.classification(lambda key: eqx.nn.MLP(WIDTH, 3, 6, 1, key=key), SHAPE)
    drawn = jax.vmap(factory.init)(jax.random.split(KEY, 3))
    assert drawn["layers"]["0"]["weight"].shape == (3, 6, WIDTH)


def test_haiku_without_its_key_is_taken():
    hk = pytest.importorskip("haiku")
    transformed = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(3)(x)))
    task = fa.classification(transformed, SHAPE)
    params = task.init(KEY)
    assert task.apply_train is None
    np.testing.assert_allclose(
        task.apply(params, X).logits, transformed.apply(params, X), rtol=1e-6
    )


class Embedded(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Embed(50, 8, rngs=rngs)
        self.out = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.out(self.table(x).mean(1))


class LinenEmbedded(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(CLASSES)(linen.Embed(50, 8)(x).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("model", [Embedded, LinenEmbedded()])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_an_embedding_receives_integers(model, dtype):
    task = fa.classification(model, (6,))
    params = task.init(KEY)
    x = np.random.default_rng(0).integers(0, 50, (5, 6)).astype(dtype)
    out = params.get("out", params.get("Dense_0"))
    table, out = jax.tree.map(
        np.asarray,
        (next(w for w in jax.tree.leaves(params) if w.shape == (50, 8)), out),
    )
    expected = table[x].mean(1) @ out["kernel"] + out["bias"]
    np.testing.assert_allclose(task.apply(params, x).logits, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="takes integers but got inputs float32"):
        task.apply(params, x.astype(np.float32))
    said = (
        "got mean and std for a model that takes integers, .* a Source of int32 inputs"
    )
    with pytest.raises(ValueError, match=said):
        fa.classification(model, (6,), mean=2.0)
    narrow = fa.with_precision(task, "bf16")
    assert narrow.apply(params, x).logits.dtype == jnp.float32


@pytest.mark.slow
def test_whole_numbers_are_float32_to_a_model_that_takes_them():
    task = fa.classification(fa.models.mlp(SHAPE, CLASSES), SHAPE)
    params = task.init(KEY)
    whole = np.arange(20, dtype=np.int32).reshape(5, WIDTH)
    for dtype in (np.int32, np.uint8):
        np.testing.assert_array_equal(
            task.apply(params, whole.astype(dtype)).logits,
            task.apply(params, whole.astype(np.float32)).logits,
        )


@pytest.mark.slow
def test_a_regression_learns_a_line():
    rng = np.random.default_rng(0)
    w = np.array([1.0, -2.0, 0.5, 3.0])
    clients = []
    for _ in range(3):
        x = rng.normal(size=(20, WIDTH)).astype(np.float32)
        clients.append((x, (x @ w + 1).astype(np.float32)))
    data = fa.FederatedDataset.from_clients(clients, test=clients[0])
    task = fa.regression(fa.models.linear(SHAPE, 1), SHAPE)
    plan = fa.Plan(batch_size=10, lr=0.1)
    algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.epochs(5))
    state = fa.init_state(algorithm, task, data, plan, KEY)
    round_fn = fa.make_round(algorithm, task, data, plan)
    state, _ = fa.train(round_fn, state, jax.random.split(KEY, 10))
    metrics = fa.evaluate(task, state.params, data.test)
    assert metrics.named["r2"] > 0.99 and np.isnan(metrics.accuracy)
    np.testing.assert_allclose(metrics.named["rmse"] ** 2, metrics.loss, rtol=1e-4)
    with pytest.raises(ValueError, match="build it with 2 outputs"):
        fa.evaluate(task, state.params, (data.x[:4], jnp.zeros((4, 2))))


class TokenTransformer(nnx.Module):
    """One block of causal attention over learnt places."""

    def __init__(self, words, length, rngs):
        self.words = nnx.Embed(words, 16, rngs=rngs)
        self.places = nnx.Param(0.1 * jax.random.normal(rngs.params(), (length, 16)))
        self.attention = nnx.MultiHeadAttention(
            2, 16, decode=False, rngs=rngs, dropout_rate=0.1
        )
        self.out = nnx.Linear(16, words, rngs=rngs)

    def __call__(self, x):
        mask = nnx.make_causal_mask(x)
        x = self.words(x) + self.places[...][None]
        return self.out(x + self.attention(x, mask=mask))


@pytest.mark.slow
def test_a_token_transformer_learns_a_sequence():
    """Words count upwards from a random one, modulo 5; sequences end anywhere."""
    rng, length, words, pad = np.random.default_rng(0), 6, 6, 0
    clients = []
    for n in (12, 7, 9):
        text = 1 + (rng.integers(0, 5, (n, 1)) + np.arange(length + 1)) % 5
        ends = rng.integers(2, length + 1, (n, 1))
        y = np.where(np.arange(length) < ends, text[:, 1:], pad)
        clients.append((text[:, :-1].astype(np.int32), y.astype(np.int32)))
    data = fa.FederatedDataset.from_clients(clients, test=clients[0], num_classes=words)
    build = functools.partial(TokenTransformer, words, length)
    task = fa.language_model(lambda rngs: build(rngs), length, pad=pad)
    plan = fa.Plan(batch_size=6, lr=0.3, lanes=2)
    algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.epochs(5))
    state = fa.init_state(algorithm, task, data, plan, KEY)
    before = fa.evaluate(task, state.params, data.test)
    round_fn = fa.make_round(algorithm, task, data, plan)
    state, _ = fa.train(round_fn, state, jax.random.split(KEY, 20))
    metrics = fa.evaluate(task, state.params, data.test, batch_size=5)
    assert before.named["perplexity"] > 4 and metrics.named["perplexity"] < 1.5
    assert metrics.accuracy > 0.95 and metrics.named["token_accuracy"] > 0.95
    x, y = data.test
    logits = np.asarray(task.apply(state.params, x).logits)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = [
        -np.mean([log_p[i, t, y[i, t]] for t in range(length) if y[i, t] != pad])
        for i in range(len(y))
    ]
    np.testing.assert_allclose(task.loss(jnp.asarray(logits), y), losses, rtol=1e-4)
    np.testing.assert_allclose(metrics.loss, np.mean(losses), rtol=1e-4)


@pytest.mark.slow
def test_a_sequence_without_tokens_that_count_has_no_loss():
    task = fa.language_model(lambda rngs: TokenTransformer(6, 4, rngs), 4, pad=0)
    logits, y = jnp.ones((2, 4, 6)), jnp.array([[0, 0, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(task.loss(logits, y), [0, np.log(6)], rtol=1e-6)
    assert task.accuracy is not None
    np.testing.assert_array_equal(task.accuracy(logits, y), [0, 0])
    with pytest.raises(ValueError, match="give the next token of each place"):
        task.loss(logits, y[:, 0])
    with pytest.raises(ValueError, match=r"must return logits \[batch, length, vocab"):
        fa.language_model(Embedded, 4)
