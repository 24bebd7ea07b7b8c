"""A checksum of a Python object, which differs between two that do something else.

Of functions it has the bytecode, the defaults, what they enclose and the globals they
name; of classes their functions; of other objects what `pickle` would store. What can be
imported from an installed library, the standard one or this package is known by its name.
Bytecode is that of one Python version. What cannot be looked into is known by its type.
"""

import copyreg
import dataclasses
import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check

PLAIN = bool | int | float | complex | str | bytes | types.NoneType | types.EllipsisType


def fingerprint(value: Any) -> str:
    """The SHA-256 of an object, in hexadecimal; the same in every process of one Python."""
    return _Traversal().of(value)


def enclosed_by(function: types.FunctionType) -> list[Any]:
    """The values of the variables that a function encloses."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            found.append(None)
    return found


class _Traversal:
    """One pass over an object and all that it holds."""

    def __init__(self, open_: Iterable[int] = ()) -> None:
        self.known: dict[int, str] = {}
        self.kept: list[Any] = []  # else an id may be used again
        self.open = set(open_)

    def of(self, value: Any) -> str:
        """The checksum of an object; one that holds itself is known there by its name."""
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {value!r}"
        key = id(value)
        if key in self.open:
            return f"again {_name_of(value) or type(value).__qualname__}"
        if key not in self.known:
            self.kept.append(value)
            self.open.add(key)
            try:
                self.known[key] = _digest(self.parts(value))
            except Exception:  # a proxy of nothing, or one of everything
                self.known[key] = _digest(["unknown", type(value).__qualname__])
            self.open.remove(key)
        return self.known[key]

    def all(self, values: Iterable[Any]) -> Iterator[str]:
        return map(self.of, values)

    def parts(self, value: Any) -> Iterator[str | bytes]:
        """What tells an object from others, piece by piece."""
        kind = type(value)
        yield kind.__qualname__
        if isinstance(value, types.ModuleType):
            yield value.__name__
        elif _is_imported(value):
            yield f"{value.__module__}.{_name_of(value)}"
        elif isinstance(value, jax.Array | np.ndarray):
            yield from self.array(value)
        elif isinstance(value, types.CodeType):
            yield from self.code(value)
        elif isinstance(value, types.FunctionType):
            yield from self.function(value)
        elif isinstance(value, type):
            yield from self.own_class(value)
        elif isinstance(value, enum.Enum):
            yield from (self.of(kind), value.name)
        elif isinstance(value, types.MethodType):
            yield from self.all([value.__func__, value.__self__])
        elif isinstance(value, staticmethod | classmethod):
            yield self.of(value.__func__)
        elif isinstance(value, property):
            yield from self.all([value.fget, value.fset, value.fdel])
        elif isinstance(value, functools.partial):
            yield from self.all([value.func, value.args, value.keywords])
        elif callable(wrapped := inspect.getattr_static(value, "__wrapped__", None)):
            # as by jit, or by custom_vjp, which has the rules besides
            more = getattr(value, "__dict__", {})
            more = {name: more[name] for name in more if not _is_dunder(name)}
            yield from self.all([wrapped, more])
        elif isinstance(value, dict | types.MappingProxyType):
            yield from self.all(item for pair in value.items() for item in pair)
        elif isinstance(value, set | frozenset):
            # each by itself, as their order is not that of another process
            yield from sorted(_Traversal(self.open).of(item) for item in value)
        elif isinstance(value, list | tuple):
            yield self.of(kind) if kind not in (list, tuple) else ""
            yield from self.all(value)
        elif dataclasses.is_dataclass(value):
            yield self.of(kind)
            fields = [field.name for field in dataclasses.fields(value)]
            yield from self.all(getattr(value, name, None) for name in fields)
        else:
            yield from self.stored(value)

    def array(self, value: jax.Array | np.ndarray) -> Iterator[str | bytes]:
        yield f"{value.dtype}{value.shape}"
        if isinstance(value, jax.Array):
            gone = check.is_tracer(value) or value.is_deleted()
            if (
                gone or not value.is_fully_addressable
            ):  # no numbers, or only a part here
                return
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
        value = np.asarray(value)
        if value.dtype.hasobject:
            yield from self.all(value.ravel().tolist())
        else:
            yield value.tobytes()

    def function(self, function: types.FunctionType) -> Iterator[str]:
        yield function.__qualname__
        enclosed = enclosed_by(function)
        yield from self.all([function.__defaults__, function.__kwdefaults__])
        yield from self.all([*enclosed, vars(function)])
        if check.is_of_library(function.__code__.co_filename):
            yield function.__module__
            return
        yield self.of(function.__code__)
        names, known = sorted(_names_in(function.__code__)), function.__globals__
        read = {name: known[name] for name in names if name in known}
        yield self.of(read)
        # and what it reads of modules, also of those that it imports itself
        modules = [*read.values(), *enclosed, *map(sys.modules.get, names)]
        seen = set()
        while modules:
            module = modules.pop()
            if _is_own_module(module) and id(module) not in seen:
                seen.add(id(module))
                read = {n: vars(module)[n] for n in names if n in vars(module)}
                yield self.of(read)
                modules.extend(read.values())

    def code(self, code: types.CodeType) -> Iterator[str | bytes]:
        yield code.co_code
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        yield f"{counts} {code.co_flags}"
        yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
        yield from self.all(code.co_consts)

    def own_class(self, kind: type) -> Iterator[str]:
        yield kind.__qualname__
        yield from self.all([*kind.__bases__, type(kind)])
        for name, value in sorted(vars(kind).items()):
            is_method = callable(value) or isinstance(value, classmethod)
            if is_method or not _is_dunder(name):
                yield from (name, self.of(value))

    def stored(self, value: Any) -> Iterator[str]:
        yield self.of(type(value))
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            state = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception:  # as of locks and files: the type is all there is to tell
            return
        if isinstance(state, str):
            yield state
            return
        for part in state:
            yield self.of(list(part) if isinstance(part, Iterator) else part)


def _digest(parts: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        part = part if isinstance(part, bytes) else part.encode()
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.hexdigest()


def _names_in(code: types.CodeType) -> set[str]:
    """The names that code and the functions in it look up."""
    inner = (x for x in code.co_consts if isinstance(x, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _name_of(value: Any) -> str | None:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None)


def _is_imported(value: Any) -> bool:
    """Whether a library has it by its name."""
    module, name = getattr(value, "__module__", None), _name_of(value)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(module)
    if found is None or _is_own_module(found):
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_own_module(value: Any) -> bool:
    if not isinstance(value, types.ModuleType):
        return False
    if value.__name__ == "__main__":
        return True
    file = getattr(value, "__file__", None)
    return file is not None and not check.is_of_library(file)
