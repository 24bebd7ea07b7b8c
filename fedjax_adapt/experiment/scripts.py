"""What is a user's own: functions of files, by FILE.py:FUNCTION, and how to tell them.

And what is ours but was another thing in an earlier version, by the same name.

A file is loaded once, and anew when it has changed, but not while a run is under way: what
a run takes from a file is what it held when the run began.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import TokenError
from types import ModuleType
from typing import Any, NamedTuple

from .. import check
from ..errors import SettingError
from . import objects
from .objects import KINDS, OBJECT, REGISTERED
from .user_functions import check_function

PATTERN = "FILE.py:FUNCTION"

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
    """The function that FILE.py:FUNCTION names; a path is that from the working folder.

    Raises:
      ValueError: there is no such file, it cannot be loaded, or it has no such function.
    """
    name, module = text.rpartition(":")[2], _loaded(kind, text).module
    if not hasattr(module, name):
        functions = filter(inspect.isfunction, vars(module).values())
        own = [f.__name__ for f in functions if f.__module__ == module.__name__]
        raise SettingError(f"{kind}={text} is unknown; {check.nearest(name, own)}")
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


def sha256_of(kind: str, text: str) -> str:
    """Of the file as it was loaded."""
    return _loaded(kind, text).sha256


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def origins(configs: Iterable[Any]) -> dict[str, str]:
    """Where what is not ours comes from: "KIND=NAME" -> how to tell it from another.

    Of a file it is the SHA-256 of all of it, of a registered function that of its source,
    of an object its description. What is `REVISED` is there, too.
    """
    found: dict[str, str] = {}
    for config in configs:
        for kind in KINDS:
            name = getattr(config, kind)
            base = str(config.algorithm_options.get("base") or "").partition("(")[0]
            for own in (name, base) if kind == "algorithm" else (name,):
                if f"{kind}={own}" not in found and is_own(kind, own):
                    found[f"{kind}={own}"] = _origin(kind, own)
        found |= revised(config)
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
        return f"SHA-256 {sha256_of(kind, name)}"
    try:
        source = inspect.getsource(REGISTERED[kind][name])
    except (OSError, TypeError, SyntaxError, TokenError):  # written at a prompt
        return "source unknown"
    return f"SHA-256 {digest(source.encode())}"
