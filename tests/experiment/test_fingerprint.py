"""Objects that do the same have one fingerprint, in every process; others have others."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import make_data, make_task
from test_run import Stop, stop_after

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedprox
from fedjax_adapt.experiment import Config, read_run, run
from fedjax_adapt.experiment.fingerprint import fingerprint
from fedjax_adapt.report.groups import groups

STEPS = 3


def defined(code, **names):
    """The function f of some code, whose globals are `names`."""
    space = {"__name__": "own", **names}
    exec(textwrap.dedent(code), space)
    return space["f"]


def closing_over(value):
    return lambda: value


PAIRS = {
    "body": ("f = lambda x: x + 1", "f = lambda x: x - 1"),
    "constant": ("f = lambda x: x + 1", "f = lambda x: x + 2"),
    "type of a constant": ("f = lambda x: x + 1", "f = lambda x: x + 1.0"),
    "called": ("f = lambda x: abs(x)", "f = lambda x: round(x)"),
    "default": ("f = lambda x, n=1: x + n", "f = lambda x, n=2: x + n"),
    "default by name": ("f = lambda x, *, n=1: x", "f = lambda x, *, n=2: x"),
    "inner function": (
        "f = lambda x: (lambda y: y + 1)(x)",
        "f = lambda x: (lambda y: y + 2)(x)",
    ),
    "global": ("n = 1\nf = lambda x: x + n", "n = 2\nf = lambda x: x + n"),
    "global of an inner function": (
        "n = 1\nf = lambda x: [y + n for y in x]",
        "n = 2\nf = lambda x: [y + n for y in x]",
    ),
    "function that is called": (
        "def g(x): return x + 1\ndef f(x): return g(x)",
        "def g(x): return x + 2\ndef f(x): return g(x)",
    ),
    "method": (
        "class A:\n  def g(self): return 1\nf = A()",
        "class A:\n  def g(self): return 2\nf = A()",
    ),
    "method of a base": (
        "class B:\n  def g(self): return 1\nclass A(B): ...\nf = A()",
        "class B:\n  def g(self): return 2\nclass A(B): ...\nf = A()",
    ),
    "property": (
        "class A:\n  n = property(lambda self: 1)\nf = A()",
        "class A:\n  n = property(lambda self: 2)\nf = A()",
    ),
    "static method": (
        "class A:\n  n = staticmethod(lambda: 1)\nf = A.n",
        "class A:\n  n = staticmethod(lambda: 2)\nf = A.n",
    ),
    "attribute": (
        "class A: ...\nf = A()\nf.n = 1",
        "class A: ...\nf = A()\nf.n = 2",
    ),
    "slot": (
        "class A: __slots__ = 'n',\nf = A()\nf.n = 1",
        "class A: __slots__ = 'n',\nf = A()\nf.n = 2",
    ),
    "recursive": (
        "def f(n): return n if n < 1 else f(n - 1)",
        "def f(n): return n if n < 1 else f(n - 2)",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_code_of_ones_own_is_told_apart(what):
    one, other = PAIRS[what]
    first, again, second = (fingerprint(defined(x)) for x in (one, one, other))
    assert first == again != second


def arrays():
    yield np.arange(3)
    yield np.arange(3.0)
    yield np.arange(3).reshape(3, 1)
    yield np.arange(1, 4)
    yield jnp.arange(3) + 5
    yield jax.random.key(0)
    yield jax.random.key(1)


def algorithms():
    for n in (1, 30):
        yield fa.with_steps(fedavg(), fa.StepPolicy(closing_over(n)))
    for rate in (0.1, 0.2):
        yield fedprox(rate)
        yield fa.with_compression(fedprox(rate), fa.top_k(rate))


def others():
    net = lambda width: nn.Dense(width)
    yield from (net(3), net(4), fa.classification(net(3), (4,), 3))
    yield from (optax.sgd(0.1), optax.sgd(0.2), optax.adam(0.1))
    yield from (partial(closing_over, 1), partial(closing_over, 2))
    yield from (jax.jit(closing_over(1)), jax.jit(closing_over(2)))
    yield from (jnp.add, jnp.subtract, jnp.exp, np.add, len, max, nn.Dense, nn.Conv)
    yield from (np.random.default_rng(0), np.random.default_rng(1))
    yield from ({"a": 1}, {"a": 2}, {"b": 1}, [1, 2], (1, 2), {1, 2}, True, 1, 1.0, "1")


@pytest.mark.parametrize("make", [arrays, algorithms, others])
def test_values_are_told_apart(make):
    found = [fingerprint(value) for value in make()]
    assert len(set(found)) == len(found)
    assert found == [fingerprint(value) for value in make()]


def test_names_and_places_of_variables_that_are_not_read_do_not_count():
    one = defined("n = 1\nf = lambda x: x + 1")
    other = defined("n = 2\n\n\nf = lambda x: x + 1", more=3)
    assert fingerprint(one) == fingerprint(other)


def test_the_constants_of_a_module_of_ones_own_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_steps.py").write_text("COUNT = 3\nOTHER = 4\n")
    import my_steps

    def f(x):
        return x + my_steps.COUNT

    before = fingerprint(f)
    monkeypatch.setattr(my_steps, "OTHER", 5)
    assert fingerprint(f) == before
    monkeypatch.setattr(my_steps, "COUNT", 4)
    assert fingerprint(f) != before


def test_an_object_that_holds_itself_has_a_fingerprint():
    one, other = [1], [2]
    one.append(one)
    other.append(other)
    assert fingerprint(one) != fingerprint(other)

    @dataclasses.dataclass
    class Node:
        value: int
        next: object = None

    first, second = Node(1), Node(1)
    first.next, second.next = first, Node(2)
    assert fingerprint(first) != fingerprint(second)


def test_another_process_has_the_same_fingerprints():
    code = """
        import test_fingerprint as t
        from fedjax_adapt.experiment.fingerprint import fingerprint
        for make in (t.arrays, t.algorithms, t.others):
            print(*map(fingerprint, make()))
        print(fingerprint(t.defined(t.PAIRS["method"][0])), fingerprint(t.make_task()))
    """
    printed = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    lines = printed[0].decode().splitlines()
    assert lines[0] == " ".join(map(fingerprint, arrays()))
    assert lines[1] == " ".join(map(fingerprint, algorithms()))


@pytest.mark.slow
def test_runs_of_other_objects_are_no_seeds_of_one(tmp_path):
    own = {"task": make_task(), "data": make_data()}
    policy = lambda n: fa.StepPolicy(
        lambda _, cohort, measured: 0 * cohort.epoch_steps + n
    )

    def of(folder, n, seed, **more):
        given = {"rounds": 2, "batch_size": 4, "lr": 0.05, "checkpoint_every": 1}
        config = Config(folder=str(tmp_path / folder), seed=seed, **given)
        return run(config, algorithm=fa.with_steps(fedavg(), policy(n)), **own, **more)

    of("one", 1, 0)
    of("two", 1, 1)
    of("three", 5, 2)
    own_of = lambda folder: json.loads((tmp_path / folder / "own.json").read_text())
    assert own_of("one") == own_of("two") != own_of("three")
    assert read_run(tmp_path / "one").summary["own"] == own_of("one")
    (group,) = groups([tmp_path / name for name in ("one", "two", "three")])
    assert sorted(map(sorted, group.lines)) == [[0, 1], [2]]

    with pytest.raises(Stop):
        of("broken", 1, 0, progress=stop_after(1))
    with pytest.raises(ValueError, match="begun with another algorithm=object: it was"):
        of("broken", 5, 0, resume=True)
    of("broken", 1, 0, resume=True)
