"""A user's own algorithm, model, partition or data set: a function, as ours are.

It is registered, or comes from a file, by FILE.py:FUNCTION. Its arguments are options. How
to tell what is a user's own is recorded here, and what is ours but was another thing in an
earlier version, by the same name, and what is not JAX's default of the random generator
and of x64.

A file is loaded once, and anew when it has changed, but not while a run is under way: what
a run takes from a file is what it held when the run began.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import TokenError
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import check
from ..errors import SettingError, first_line
from . import objects
from .objects import FROM_RUN, KINDS, OBJECT, REGISTERED, built_in
from .toml import convert, plain

# what the run gives to a function by position, and whether its options need a name
TAKES: dict[str, tuple[tuple[str, ...], bool]] = {
    "algorithm": ((), False),
    "model": (("input_shape", "num_classes"), False),
    "partition": (("labels", "num_clients"), True),
    "dataset": (("data_dir",), True),
}
EXAMPLES = {
    "algorithm": "(strength: float = 0.1)",
    "model": "(input_shape, num_classes, width: int = 8)",
    "partition": "(labels, num_clients, *, seed, skew: float = 0.5)",
    "dataset": "(data_dir, *, size: int = 8)",
}
# what a run gives by name where a function takes it
BY_NAME = {**FROM_RUN, "partition": {"seed", "clients"}}
# variables by which the same seed has other numbers, and what they are by default
JAX_DEFAULTS = {
    "JAX_DEFAULT_PRNG_IMPL": "threefry2x32",
    "JAX_THREEFRY_PARTITIONABLE": "True",
    "JAX_ENABLE_X64": "False",
}


def register(kind: str) -> Callable[[Callable], Callable]:
    """A decorator that adds a function to what runs can choose by name.

        @fa.register("algorithm")
        def leash(strength: float = 0.3) -> fa.Algorithm: ...

    From then on `run`, `sweep`, `Config` and `fedjax-adapt list` know it by the
    function's name, in this process, and its arguments are settings. One that is defined
    again under its name, as in a notebook, takes the place of the one before.

    Args:
      kind: "algorithm", a function of options alone that returns an `Algorithm`; "model",
        (input_shape, num_classes, ...) -> what `classification` takes; "partition",
        (labels, num_clients, *, seed, ...) -> the rows of each client; or "dataset",
        (data_dir, *, ...) -> a `data.Source`.

    Raises:
      SettingError: there is no such kind, the name is taken, or an argument cannot be an
        option: it has no default, or no annotation.
    """
    check.one_of("kind", kind, KINDS)

    def add(function: Callable) -> Callable:
        check_function(kind, function)
        name = function.__name__
        before = {**built_in(kind), **REGISTERED[kind]}.get(name)
        places = [(f.__module__, f.__qualname__) for f in (function, before) if f]
        again = name in REGISTERED[kind] and len(set(places)) == 1
        if name == OBJECT or (before is not None and not again):
            raise SettingError(
                f"{kind} {name} is there already; give the function another name."
            )
        REGISTERED[kind][name] = function
        return function

    return add


def check_function(kind: str, function: Any) -> None:
    """Raises SettingError unless a run can call it and its signature says its options."""
    if not inspect.isfunction(function):
        raise SettingError(
            f"{kind} got {check.kind_of(function)}; give a function, "
            f"def name{EXAMPLES[kind]}."
        )
    begins = f"{kind} {function.__name__}"
    example = f"write def {function.__name__}{EXAMPLES[kind]}"
    given, by_name = TAKES[kind]
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise SettingError(
            f"{begins}: an annotation is not a type ({error})."
        ) from None
    parameters = list(inspect.signature(function).parameters.values())
    first = parameters[: len(given)]
    variable = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    fixed = [p for p in first if p.name not in FROM_RUN.get(kind, ())]
    unlike = any(map(_by_name_only, first)) or any(map(_has_default, fixed))
    if len(first) < len(given) or variable or unlike:
        raise SettingError(
            f"{begins} takes other arguments than a run gives; {example}."
        )
    by_run = {p.name for p in parameters[len(given) :]} & BY_NAME.get(kind, set())
    if kind == "partition" and "seed" not in by_run:
        raise SettingError(f"{begins} takes no seed; {example}.")
    for parameter in parameters[len(given) :]:
        name = parameter.name
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SettingError(f"{begins}: {name} has no name in a call; {example}.")
        if by_name and not _by_name_only(parameter):
            raise SettingError(
                f"{begins}: {name} is given by name; write * before it, as in "
                f"def {function.__name__}{EXAMPLES[kind]}."
            )
        if kind == "algorithm" and name == "base" and parameter.default is not None:
            raise SettingError(
                f"{begins}: a run gives base as an Algorithm; write base: fa.Algorithm | "
                "None = None, or give what is none another name."
            )
        if name not in by_run:
            _check_option(f"{begins}: argument {name}", parameter, hints.get(name))


def _by_name_only(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty


def _check_option(begins: str, parameter: inspect.Parameter, hint: Any) -> None:
    name, default = parameter.name, parameter.default
    if name == "name":
        raise SettingError(f"{begins} is what files choose a function by; rename it.")
    if not _has_default(parameter):
        raise SettingError(f"{begins} has no default; write {name}: float = 0.1.")
    if hint is None:
        raise SettingError(f"{begins} has no annotation; write {name}: float = 0.1.")
    if plain(hint) is None:
        return  # nothing that can be written down: it stays at its default
    try:
        convert(plain(hint), default)
    except TypeError as error:
        raise SettingError(f"{begins}: {error}, as its annotation has it.") from None


def called(what: str, function: Callable) -> Callable:
    """A user's function, whose mistakes are one sentence with the line they are in.

    Tracers that Python asks for a number are no mistake: a sweep then builds without.
    """

    def call(*given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except (SettingError, jax.errors.JAXTypeError, jax.errors.JAXIndexError):
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            of_file = [f for f in frames if f.filename == function.__code__.co_filename]
            last = (of_file or frames)[-1]
            place = f" at {Path(last.filename).name}:{last.lineno}"
            raise SettingError(
                f"{what} raised {type(error).__name__}{place}: {first_line(error)}."
            ) from error

    return call


def check_made(what: str, made: Any, kind: type) -> None:
    """Raises SettingError if a user's function returned something else than it should."""
    if not isinstance(made, kind):
        raise SettingError(
            f"{what} returned {check.kind_of(made)}; its function must return "
            f"{check.with_article(kind.__name__)}."
        )


def checked_rows(config: Any, rows: Any, num_examples: int) -> list[np.ndarray]:
    """The rows of each client, as a user's partition returned them; else SettingError."""
    what = f"partition={config.partition} returned"
    if not isinstance(rows, list | tuple) or len(rows) != config.num_clients:
        came = f"{len(rows)} clients" if hasattr(rows, "__len__") else "no list"
        raise SettingError(
            f"{what} {came}; return a list of the rows of each of {config.num_clients} "
            "clients."
        )
    found = [np.asarray(mine) if len(mine) else np.zeros(0, int) for mine in rows]
    for client, mine in enumerate(found):
        whole = mine.ndim == 1 and np.issubdtype(mine.dtype, np.integer)
        if not whole or not ((mine >= 0) & (mine < num_examples)).all():
            raise SettingError(
                f"{what} for client {client} what are no rows; return integers from 0 to "
                f"{num_examples - 1}."
            )
    return found


# runs begun before these were so have nothing recorded, and cannot be gone on with
REVISED = {
    "model=fedveca_cnn": "AFL's with its normalisation and first weights",
    "model=svm": "AFL's with its norm in the loss and no bias",
    "partition=fedveca_case": "AFL's cases",
}


class _File(NamedTuple):
    """A file as it was loaded."""

    stamp: tuple[int, int]  # time of its last change in ns, size
    sha256: str
    module: ModuleType


_files: dict[Path, _File] = {}


def is_file(name: Any) -> bool:
    """Whether it is FILE.py:FUNCTION."""
    return isinstance(name, str) and name.rpartition(":")[0].endswith(".py")


def label(name: str) -> str:
    """A choice as part of a path: the function of a file alone."""
    return name.rpartition(":")[2] if is_file(name) else name


def from_file(kind: str, text: str) -> Callable:
    """The function of FILE.py:FUNCTION, seen from the working folder; else SettingError."""
    name, module = text.rpartition(":")[2], _loaded(kind, text).module
    if not hasattr(module, name):
        functions = filter(inspect.isfunction, vars(module).values())
        names = [f.__name__ for f in functions if f.__module__ == module.__name__]
        raise SettingError(f"{kind}={text} is unknown; {check.nearest(name, names)}")
    check_function(kind, getattr(module, name))
    return getattr(module, name)


def forget_changed() -> None:
    """Has files that have changed loaded anew when they are asked for next."""
    for path, file in list(_files.items()):
        if not path.exists() or _stamp(path) != file.stamp:
            del _files[path]


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _loaded(kind: str, text: str) -> _File:
    path = check.expanded(f"{kind}=", text.rpartition(":")[0]).absolute()
    if path in _files and objects.under_way():
        return _files[path]
    try:
        stamp = _stamp(path)
        if path in _files and _files[path].stamp == stamp:
            return _files[path]
        content = path.read_bytes()
    except OSError as error:
        raise SettingError(
            f"{kind}={text}: the file {path} cannot be read ({error.strerror}); write its "
            "path as seen from the working folder."
        ) from None
    sha256 = digest(content)
    same = path in _files and _files[path].sha256 == sha256
    module = _files[path].module if same else _module(kind, text, path, content)
    _files[path] = _File(stamp, sha256, module)
    return _files[path]


def _module(kind: str, text: str, path: Path, content: bytes) -> ModuleType:
    name = f"{path.stem}_{digest(str(path).encode())[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look there for annotations
    try:
        # not by its loader, which may take what it compiled of a file a moment older
        exec(compile(content, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise SettingError(
            f"{kind}={text}: {path} cannot be loaded ({type(error).__name__}: "
            f"{str(error).rstrip('.')})."
        ) from error
    return module


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def origins(configs: Iterable[Any]) -> dict[str, str]:
    """Where what is not ours comes from: "KIND=NAME" -> how to tell it from another.

    Of a file it is the SHA-256 of all of it, of a registered function that of its source,
    of an object its description. What is `REVISED` is there, too, and `JAX_DEFAULTS`.
    """
    found: dict[str, str] = {}
    for config in configs:
        for kind in KINDS:
            name = getattr(config, kind)
            base = str(config.algorithm_options.get("base") or "").partition("(")[0]
            for choice in (name, base) if kind == "algorithm" else (name,):
                if f"{kind}={choice}" not in found and is_own(kind, choice):
                    found[f"{kind}={choice}"] = _origin(kind, choice)
        found |= revised(config)
    for name, default in JAX_DEFAULTS.items():
        now = str(getattr(jax.config, name.lower(), default))
        found |= {} if now == default else {name: now}
    return found


def revised(config: Any) -> dict[str, str]:
    """What is `REVISED` of the choices of a run."""
    chosen = (f"{kind}={getattr(config, kind)}" for kind in KINDS)
    return {choice: REVISED[choice] for choice in chosen if choice in REVISED}


def is_own(kind: str, name: str) -> bool:
    """Whether a choice is a user's own."""
    return is_file(name) or name in REGISTERED[kind] or name == OBJECT


def _origin(kind: str, name: str) -> str:
    if name == OBJECT:
        return objects.described(kind)
    if is_file(name):
        return f"SHA-256 {_loaded(kind, name).sha256}"
    try:
        source = inspect.getsource(REGISTERED[kind][name])
    except (OSError, TypeError, SyntaxError, TokenError):  # written at a prompt
        return "source unknown"
    return f"SHA-256 {digest(source.encode())}"
