"""The kinds of what runs choose: functions by name, or objects of a user's own.

An object is an Algorithm, a Task or a FederatedDataset; in the settings of a run each is
called "object". What it is belongs to the call, so that going on with such a run takes the
object again.
"""

import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from .. import check
from ..core import Algorithm, Task
from ..data import PARTITIONS, SOURCES, FederatedDataset, Source
from ..data.source import moments
from ..errors import SettingError
from .fingerprint import enclosed_by, fingerprint

KINDS = ("algorithm", "model", "partition", "dataset")

# Arguments the run itself gives to partitions and data sets: no options of theirs.
FROM_RUN = {
    "partition": {"num_clients", "seed"},
    "dataset": {"data_dir", "num_clients", "seed"},
}

OBJECT = "object"  # the name of what is given as one, see `given`
# functions of a user's own, by kind and name, see user_functions.py
REGISTERED: dict[str, dict[str, Callable]] = {kind: {} for kind in KINDS}


def registry(kind: str) -> Mapping[str, Callable]:
    """The functions of one kind by name; there are patterns too, see `find`."""
    return {**built_in(kind), **REGISTERED[kind]}


def built_in(kind: str) -> Mapping[str, Callable]:
    """The functions of one kind that come with this package, by name."""
    if kind == "algorithm":
        from ..algorithms import ALGORITHMS

        return ALGORITHMS
    if kind == "model":
        from ..models import MODELS

        return MODELS
    if kind == "partition":
        return PARTITIONS
    return SOURCES


# the argument that stands for a choice
ARGUMENTS = dict(algorithm="algorithm", model="task", partition="data", dataset="data")
# between a description and its checksum, which earlier versions lacked
CHECKED = ", SHA-256 "
_sums: weakref.WeakKeyDictionary[FederatedDataset, str] = weakref.WeakKeyDictionary()
TYPES = {"algorithm": Algorithm, "task": Task, "data": FederatedDataset}
# settings that say what an object says already, its choices and their options apart
SAYS = {
    "algorithm": (),
    "task": ("projection", "augment"),
    "data": (
        *("train_examples", "public", "public_examples", "validation_examples"),
        *("evaluate_on", "labels", "feature_noise", "corrupt"),
    ),
}
DEPTH = 6  # of a description

# each with its description, taken before JAX traces it: what it keeps for itself meanwhile
# is no part of that
_given: ContextVar[Mapping[str, tuple[Any, str]] | None] = ContextVar(
    "objects", default=None
)


@contextmanager
def given(algorithm: Any, task: Any, data: Any) -> Iterator[None]:
    """While the block runs, "object" stands for these; None: there is none."""
    values = {"algorithm": algorithm, "task": task, "data": data}
    for name, value in values.items():
        if value is not None and not isinstance(value, TYPES[name]):
            raise SettingError(
                f"{name} is {check.kind_of(value)}; give an fa.{TYPES[name].__name__}."
            )
    if data is not None:
        values["data"] = _tested(data)
    found = {n: (v, _description(n, v)) for n, v in values.items() if v is not None}
    token = _given.set(found)
    try:
        yield
    finally:
        _given.reset(token)


def under_way() -> bool:
    """Whether a run is: what it takes from files is what they held when it began."""
    return _given.get() is not None


def of(argument: str) -> Any:
    """The object given for "algorithm", "task" or "data"; None: there is none."""
    return (_given.get() or {}).get(argument, (None, ""))[0]


def function_of(kind: str) -> Callable:
    """What stands in for the function of an object; SettingError if none was given."""
    argument = ARGUMENTS[kind]
    if of(argument) is None:
        raise SettingError(
            f"{kind}={OBJECT} is one that was given in Python; give it again, as in "
            f"run(config, resume=True, {argument}={argument}) or "
            f"load_run(folder, {argument}={argument})."
        )
    return _algorithm  # of others only the options are asked for


def _algorithm() -> Algorithm:
    return of("algorithm")


def settings() -> dict[str, Any]:
    """The settings that follow from the objects given, flat."""
    kinds = (kind for kind, name in ARGUMENTS.items() if of(name) is not None)
    found: dict[str, Any] = dict.fromkeys(kinds, OBJECT)
    if of("data") is not None:
        found["num_clients"] = of("data").num_clients
    if of("task") is not None:
        found["precision"] = of("task").precision
    return found


def settled(config: Any) -> Any:
    """The `Config` with objects in place of names; SettingError if it names such itself."""
    found = settings()
    for name, value in found.items():
        if config.is_set(name) and getattr(config, name) != value:
            _refuse(name, getattr(config, name))
        if getattr(config, f"{name}_options", None):
            _refuse(f"{name}_options", dict(getattr(config, f"{name}_options")))
    for argument, names in SAYS.items():
        for name in names if of(argument) is not None else ():
            if config.is_set(name):
                _refuse(name, getattr(config, name))
    return replace(config, **found)


def check_settings_free(names: Mapping[str, Any]) -> None:
    """Raises SettingError if settings say what an object says."""
    says = [name for a, s in SAYS.items() if of(a) is not None for name in s]
    for name in (*settings(), *says):
        if name in names and names[name] != settings().get(name):
            _refuse(name, names[name])


def _refuse(name: str, value: Any) -> None:
    about = {**{n: a for a, names in SAYS.items() for n in names}, **ARGUMENTS}
    about |= {"num_clients": "data", "precision": "task"}
    argument = about[name.removesuffix("_options")]
    either = "one of the two" if name == argument else f"{name} or {argument}"
    raise SettingError(
        f"{name}={value} is a setting that the object given as {argument} decides; leave "
        f"{either} out."
    )


def _tested(data: FederatedDataset) -> FederatedDataset:
    """The data set, its test set all the tests of its clients where it has none itself."""
    tests = data.client_tests
    if data.test is None and tests is not None:
        rows = np.unique(np.concatenate(tests.rows()))
        data = replace(data, test=(tests.x[rows], tests.y[rows]))
    if data.test is None:
        raise SettingError(
            "data has no test set, on which a run is evaluated; give it test=(x, y)."
        )
    if data.label_counts is None:
        raise SettingError(
            "data has targets that are no labels, of which a run counts the classes; "
            "train on them with fa.train."
        )
    return data


def source_of(data: FederatedDataset) -> Source:
    """The examples of a data set, on the host."""
    assert data.test is not None  # or `given` has refused it
    x, y, x_test, y_test = map(np.asarray, (data.x, data.y, *data.test))
    return Source(OBJECT, x, y, x_test, y_test, data.num_classes, *moments(x))


def described(kind: str) -> str:
    """A description of the object given for a choice, the same in every process.

    Numbers, texts and shapes of arrays, the names of functions and what they enclose, and
    a checksum: of data of all they hold, of others their `fingerprint`, with the Python
    version that it is of.
    """
    function_of(kind)  # raises if none was given
    return (_given.get() or {})[ARGUMENTS[kind]][1]


def _description(argument: str, value: Any) -> str:
    about = f"{_described(value, DEPTH)}{CHECKED}"
    if argument == "data":
        return f"{about}{_sha256(value)}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{about}{fingerprint(value)} under Python {python}"


def _sha256(data: FederatedDataset) -> str:
    """The checksum of all of a data set but its names."""
    if data not in _sums:
        leaves, structure = jax.tree.flatten(data)
        found = hashlib.sha256(str(structure).encode())
        for leaf in map(np.asarray, leaves):
            found.update(f"{leaf.dtype}{leaf.shape}".encode())
            found.update(leaf.reshape(-1).view(np.uint8))
        _sums[data] = found.hexdigest()
    return _sums[data]


def _described(value: Any, depth: int) -> str:
    name = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, FederatedDataset):
        return repr(value)
    if not depth:
        return name
    within = lambda item: _described(item, depth - 1)
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
        return f"{name}({', '.join(map(within, inner))})"
    if isinstance(value, types.FunctionType):
        enclosed = ", ".join(map(within, enclosed_by(value)))
        return value.__qualname__ + (f"({enclosed})" if enclosed else "")
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        usual = getattr(value, "_field_defaults", {})
        pairs = [
            f"{field}={within(item)}"
            for field, item in value._asdict().items()
            if item is not usual.get(field, value)
        ]
        return f"{name}({', '.join(pairs)})"
    if isinstance(value, list | tuple):
        return f"{name}({', '.join(map(within, value))})"
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{k}={within(v)}' for k, v in value.items())})"
    return name
