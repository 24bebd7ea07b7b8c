"""Objects that do the same have one fingerprint, in every process; others have others."""

import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from functools import partial
from unittest import mock

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
from fedjax_adapt.check import is_of_library
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
    "arguments": ("def f(*a): return a", "def f(a): return a"),
    "attribute of a function": (
        "def f(): ...\nf.n = 1",
        "def f(): ...\nf.n = 2",
    ),
    "compiled method": (
        "import jax\nclass A:\n  @jax.jit\n  def __call__(self): return 1\nf = A()",
        "import jax\nclass A:\n  @jax.jit\n  def __call__(self): return 2\nf = A()",
    ),
    "backward rule": (
        """
        import jax
        f = jax.custom_vjp(lambda x: x)
        f.defvjp(lambda x: (x, 0), lambda kept, g: (g,))
        """,
        """
        import jax
        f = jax.custom_vjp(lambda x: x)
        f.defvjp(lambda x: (x, 0), lambda kept, g: (-g,))
        """,
    ),
    "member of a set": (
        """
        import enum
        class E(enum.Enum):
            P, Q = "p", "q"
            def g(self): return T
        T = {E.P, E.Q}
        f = lambda: T
        """,
        """
        import enum
        class E(enum.Enum):
            P, Q = "p", "q"
            def g(self): return T
        T = {E.P}
        f = lambda: T
        """,
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


@dataclasses.dataclass
class Node:
    value: int
    next: object = None

    def moved(self, x):
        return x + self.value


class E(enum.Enum):
    A = 1
    B = 2


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
    yield from (partial(closing_over, value=1), partial(closing_over, value=2))
    yield from (Node(1).moved, Node(2).moved, re.compile("a"), re.compile("b"))
    yield from (["ab", "c"], ["a", "bc"], np.array(["a", 1], object), E.A, E.B)
    yield set(map(str, range(9)))  # whose order is of the process
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

    first, second = Node(1), Node(1)
    first.next, second.next = first, Node(2)
    assert fingerprint(first) != fingerprint(second)


class Strange:
    """A proxy that has everything and lets nobody see it."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def strange():
    def leaks(x):
        seen.append(x)
        return x

    seen, gone = [], jnp.ones(3)
    jax.jit(leaks)(1.0)  # a tracer is left
    gone.delete()
    yield from (leaks, gone, mock.call, Strange(), threading.Lock(), (i for i in ()))
    yield from (
        weakref.ref(Node),
        open(os.devnull),
        memoryview(b"a"),
        np.random.RandomState(),
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestWarning")
def test_what_cannot_be_looked_into_is_known_by_its_type():
    for value in strange():
        assert len(fingerprint(closing_over(value))) == 64


def test_an_id_that_is_used_again_is_no_known_object():
    class Fresh:
        def __reduce__(self):
            return list, (), None, iter([object(), [1]]), iter([([2], [3])])

    assert fingerprint(Fresh()) == fingerprint(Fresh())


def test_modules_below_modules_and_what_a_function_imports_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/__init__.py").touch()
    (tmp_path / "my_package/inner.py").write_text("def h(x): return x + 1\n")
    import my_package.inner

    def f(x):
        return my_package.inner.h(x)

    def g(x):
        import my_package.inner as inner

        return inner.h(x)

    before = fingerprint(f), fingerprint(g)
    monkeypatch.setattr(my_package.inner, "h", lambda x: x + 2)
    after = fingerprint(f), fingerprint(g)
    assert before[0] != after[0] and before[1] != after[1]


def test_libraries_are_known_by_where_they_are_installed():
    for place in ("/usr/lib/python3/dist-packages/flax/a.py", "/o/site-packages/b.py"):
        assert is_of_library(place)
    assert is_of_library(os.__file__) and is_of_library(fa.__file__)
    assert not is_of_library("/home/me/project/steps.py")


def test_another_process_has_the_same_fingerprints():
    code = """
        import test_fingerprint as t
        from fedjax_adapt.experiment.fingerprint import fingerprint
        for make in (t.arrays, t.algorithms, t.others):
            print(*map(fingerprint, make()))
        print(*(fingerprint(t.defined(pair[0])) for pair in t.PAIRS.values()))
        print(fingerprint(t.make_task()))
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
def test_what_a_function_notes_while_it_is_traced_is_no_other_object(tmp_path):
    noted = []

    def steps(state, cohort, measured):
        noted.append(len(noted))
        return 0 * cohort.epoch_steps + 1

    own = {"task": make_task(), "data": make_data()}
    given = {"rounds": 2, "batch_size": 4, "lr": 0.05, "checkpoint_every": 1}
    config = Config(folder=str(tmp_path / "run"), **given)
    policy = lambda: fa.with_steps(fedavg(), fa.StepPolicy(steps))
    with pytest.raises(Stop):
        run(config, algorithm=policy(), progress=stop_after(1), **own)
    assert noted
    noted.clear()  # as in a new process
    summary = run(config, algorithm=policy(), resume=True, **own)
    assert summary.own == json.loads((tmp_path / "run/own.json").read_text())


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
