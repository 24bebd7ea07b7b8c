"""Argument checks: sentences for people, no-ops on tracers.

A value that JAX is tracing has no number to look at, so it passes: that is what lets
`jax.vmap(lambda mu: run(fedprox(mu)))` build its algorithm inside the traced function.
"""

import contextlib
import difflib
import functools
import inspect
import math
import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import SettingError

MOST = 2**30  # of an integer: two of them add up to one that an int32 holds
MEANT = {  # what others write, not like it by its letters
    "learning_rate": "lr",
    "client_lr": "lr",
    "local_epochs": "epochs",
    "local_steps": "num_steps",
    "num_rounds": "rounds",
    "random_seed": "seed",
    "algo": "algorithm",
    "clients_per_round": "participation",
    "fraction_fit": "participation",
    "dirichlet_alpha": "concentration",
}
SHOWN = 160  # characters of a tree that a sentence quotes
_LIBRARIES = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    | {Path(__file__).resolve().parent}
)
_INSTALLED = {"site-packages", "dist-packages"}  # folders of other libraries
NEAR = 0.75  # of `closest`: mpl is near mlp (0.82), nope is not near copies (0.6)


def is_tracer(value: Any) -> bool:
    """Whether JAX is tracing `value`, so that it has no number yet."""
    return isinstance(value, jax.core.Tracer)


@functools.cache
def is_of_library(file: str) -> bool:
    """Whether code in `file` is Python's, this package's or an installed library's."""
    path = Path(file).resolve()
    if file.startswith("<frozen ") or _INSTALLED & set(path.parts):
        return True
    return any(path.is_relative_to(place) for place in _LIBRARIES)


def _number(name: str, value: Any, wanted: str) -> float | None:
    """`value` as a float, or None for what cannot be looked at: a tracer."""
    try:
        shape = np.shape(value)
    except ValueError:  # of a tuple of several kinds, as an Algorithm is
        raise SettingError(
            f"{name} is {kind_of(value)}, not a number; write one number.", setting=name
        ) from None
    if shape:
        raise SettingError(
            f"{name} has shape {list(shape)}; write one number, and jax.vmap "
            "over it for several."
        )
    if is_tracer(value):
        return None
    if isinstance(value, (bool, str)):
        raise SettingError(
            f"{name}={value!r} is not a number; write {wanted}.", setting=name
        )
    try:
        return float(value)
    except OverflowError:  # an integer of more than 300 digits
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        shown = repr(value)
        what = f"={shown} is" if len(shown) < 60 else f" is {kind_of(value)},"
        raise SettingError(f"{name}{what} not a number; write {wanted}.") from None


def expanded(called: str, path: str | Path) -> Path:
    """The path, with the folder of a user in place of a ~ at its beginning.

    Raises:
      SettingError: there is no such user, the user's folder is unknown, or the path has a
        control character or is no text, which Arrow and orbax do not take; the sentence
        begins with what the user knows the path as, as in "match=".
    """
    if re.search(r"[\x00-\x1f\x7f-\x9f]", str(path)):  # which a terminal would obey
        raise SettingError(
            f"{called}{str(path)!r} has a control character; rename it, or give another "
            "path."
        )
    try:
        found = Path(path).expanduser()
        with contextlib.suppress(FileNotFoundError):  # the working folder has gone
            os.fsencode(found.absolute()).decode("utf-8")
    except UnicodeError:
        raise SettingError(
            f"{called}{path}: this path, or a folder above it, has a name that is not "
            "UTF-8; rename it, or give another."
        ) from None
    except RuntimeError:
        raise SettingError(
            f"{called}{path}: the folder that {Path(path).parts[0]} stands for is not "
            "known; write the path without ~."
        ) from None
    return found


def nonnegative(name: str, value: Any, any_size: bool = False) -> None:
    """Raises SettingError unless `value` is a finite number >= 0.

    Of `any_size`: NumPy draws by it, or closer bounds follow, so JAX need not hold it.
    """
    number = _number(name, value, "a number of at least 0")
    if number is not None and not 0 <= number < math.inf:
        raise SettingError(
            f"{name}={value} must be a finite number of at least 0.", setting=name
        )
    if not any_size:
        representable(name, value)


def positive(name: str, value: Any, any_size: bool = False) -> None:
    """Raises SettingError unless `value` is a finite number > 0; see `nonnegative`."""
    number = _number(name, value, "a number above 0")
    if number is not None and not 0 < number < math.inf:
        raise SettingError(
            f"{name}={value} must be a finite number above 0.", setting=name
        )
    if not any_size:
        representable(name, value)


def representable(name: str, value: Any) -> None:
    """Raises SettingError where JAX would make infinity or 0 of another number."""
    dtype, number = jnp.result_type(float), _number(name, value, "a number")
    if number is not None and 0 < abs(number) < float(jnp.finfo(dtype).tiny):
        raise SettingError(
            f"{name}={value} would be 0 in {dtype}; write a number from 1.2e-38 on.",
            setting=name,
        )
    if number is not None and abs(number) > float(jnp.finfo(dtype).max):
        raise SettingError(
            f"{name}={value} is more than {dtype} holds; write at most 3.4e38.",
            setting=name,
        )


def between(
    name: str, value: Any, low: float, high: float, closed: str = "both"
) -> None:
    """Raises SettingError outside of low to high; `closed`: both, none, left or right."""
    brackets = {"both": "[]", "none": "()", "left": "[)", "right": "(]"}[closed]
    span = f"{brackets[0]}{_short(low)}, {_short(high)}{brackets[1]}"
    number = _number(name, value, f"a number in {span}")
    if number is None:
        return
    above = number >= low if brackets[0] == "[" else number > low
    below = number <= high if brackets[1] == "]" else number < high
    if not (above and below):
        raise SettingError(f"{name}={value} must lie in {span}.", setting=name)


def _short(bound: float) -> str:
    """A bound as a sentence shows it: 1e+15, not 1000000000000000.0."""
    if isinstance(bound, float) and float(text := f"{bound:g}") == bound:
        return text
    return str(bound)


def at_least(
    name: str,
    value: Any,
    low: int,
    none: str | None = None,
    most: float = MOST,
    auto: bool = False,
) -> None:
    """Raises SettingError unless `value` is an integer >= low and <= most.

    `none` says what None means to this argument; without it None is refused. With `auto`
    "auto" passes, too.
    """
    if is_tracer(value) or (value is None and none is not None):
        return
    if auto and isinstance(value, str) and value == "auto":
        return
    hint = f", or None for {none}" if none else ""
    hint += ', or "auto"' if auto else ""
    wanted = f"an integer >= {low}{hint}"
    number = None if value is None else _number(name, value, wanted)
    kind = getattr(value, "dtype", type(value))
    # 5.0 is no integer to NumPy and JAX either, which would say so in words of their own
    is_float = jnp.issubdtype(kind, jnp.floating)
    if number is None or number < low or number % 1 != 0 or is_float:
        raise SettingError(
            f"{name}={value} must be an integer >= {low}{hint}.", setting=name
        )
    if number > most:
        raise SettingError(
            f"{name}={value} must be at most {most}{hint}.", setting=name
        )


def kinds(call: str, **arguments: tuple[Any, Any]) -> None:
    """Raises SettingError unless every argument is of its kind.

    Args:
      call: what to write, such as "evaluate(task, params, test)".
      arguments: name=(value, kind), a type, or a function such as `tree` or `callable`.
    """
    for name, (value, kind) in arguments.items():
        fits = isinstance(value, kind) if isinstance(kind, type) else kind(value)
        if not fits:
            caller = call.partition("(")[0]
            makes_one = isinstance(kind, type) and _takes_nothing(value)
            wanted = (
                f"call it: {name}={value.__name__}()" if makes_one else f"write {call}"
            )
            raise SettingError(f"{caller} got {kind_of(value)} for {name}; {wanted}.")


def _takes_nothing(value: Any) -> bool:
    """Whether it is a function with a name that can be called without arguments."""
    if not inspect.isfunction(value) or not value.__name__.isidentifier():
        return False
    given = inspect.signature(value).parameters.values()
    return all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in given)


def path(value: Any) -> bool:
    """Whether it is the path of a file or a folder."""
    return isinstance(value, str | os.PathLike)


def several_paths(value: Any) -> bool:
    """Whether it may be a list of paths; of one path each character would be a path."""
    return isinstance(value, Iterable) and not path(value)


def tree(value: Any) -> bool:
    """Whether it is a tree of arrays or numbers, and no object of this package."""
    number = lambda leaf: hasattr(leaf, "shape") or isinstance(leaf, int | float)
    return not _is_ours(value) and all(map(number, jax.tree.leaves(value)))


def array(value: Any) -> bool:
    """Whether it is an array, of JAX or NumPy; tracers are."""
    return isinstance(value, jax.Array | np.ndarray)


def key(value: Any) -> bool:
    """Whether it is one random key, or the two words of one."""
    return _key_axes(value) == 0


def keys(value: Any) -> bool:
    """Whether it is a vector of random keys, or of the two words of each."""
    return _key_axes(value) == 1


def _key_axes(value: Any) -> int | None:
    """Axes of an array of keys, which may be words as `jax.random.PRNGKey` makes them."""
    if not array(value):
        return None
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value.ndim
    words = value.dtype == np.uint32 and value.ndim > 0 and value.shape[-1] in (2, 4)
    return value.ndim - 1 if words else None


def pair(value: Any) -> bool:
    """Whether it is (x, y)."""
    return isinstance(value, tuple | list) and len(value) == 2 and not _is_ours(value)


def shape(value: Any) -> bool:
    """Whether it is the shape of an array."""
    whole = lambda side: isinstance(side, int | np.integer)
    return isinstance(value, tuple | list) and all(map(whole, value))


def _is_ours(value: Any) -> bool:
    package = __name__.partition(".")[0]
    return type(value).__module__.partition(".")[0] == package


def kind_of(value: Any) -> str:
    """The kind of a value, in words: "a Plan", "5", "the function fedavg"."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    name = getattr(value, "__name__", None)
    if callable(value) and name:
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    return with_article("array" if array(value) else type(value).__name__)


def with_article(name: str) -> str:
    """A name behind "a" or "an"."""
    return f"a{'n' if name[0].lower() in 'aeiou' else ''} {name}"


def same_kind(part: str, what: str, new: Any, old: Any, given_by: str) -> None:
    """Raises SettingError unless `new` has the structure, shapes and dtypes of `old`."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        write = "return the same structure"
        if isinstance(old, tuple) and len(old) == 0:
            write = f"return (), or have {given_by} make the first one"
        raise SettingError(
            f"{part} returned {shown(new)} for {what} where {given_by} gave {shown(old)}; "
            f"{write}."
        )
    pairs = zip(jax.tree.leaves_with_path(new), jax.tree.leaves(old), strict=True)
    for (path, got), given in pairs:
        if leaf(got) != leaf(given) and not _rounds(got, given):
            where = jax.tree_util.keystr(path)
            raise SettingError(
                f"{part} returned {leaf(got)} for {what}{where} where {given_by} gave "
                f"{leaf(given)}; return the same shape and dtype."
            )


def shown(tree: Any) -> str:
    """The leaves of a tree, in short: "{'b': float32[3], 'w': float32[4, 3]}"."""
    structure = jax.tree.structure(tree)
    if structure.num_leaves == 0 and not isinstance(tree, tuple | list | dict):
        return kind_of(tree)
    if isinstance(tree, tuple) and len(tree) == 0:
        return "nothing"
    text = str(jax.tree.map(lambda value: _Bare(leaf(value)), tree))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class _Bare(str):
    """Text whose representation has no quotes."""

    __repr__ = str.__str__


def _rounds(new: Any, old: Any) -> bool:
    """Whether they differ in precision alone, and `new` may be rounded to `old`.

    It may where one is in half precision, or `old` in float32 under jax_enable_x64.
    """
    dtypes = jnp.result_type(new), jnp.result_type(old)
    floating = all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
    if jnp.shape(new) != jnp.shape(old) or not floating:
        return False
    bits, kept = (jnp.finfo(dtype).bits for dtype in dtypes)
    return bits < 32 or kept < jnp.finfo(jnp.result_type(float)).bits


def leaf(value: Any) -> str:
    """Dtype and shape of an array, "float32[4, 3]"; what else it is, in words."""
    if not hasattr(value, "shape") and not isinstance(value, bool | int | float):
        return kind_of(value)
    return f"{jnp.result_type(value)}{list(jnp.shape(value))}"


def closest(value: str, known: Iterable[str]) -> str | None:
    """The name that was meant, as far as one can tell; None where none is really near.

    Names count by difflib's ratio, in [0, 1]. One that begins with the same letter, or
    that `value` begins with, counts more: `lrate` is sooner `lr` than `rate`.
    """
    value, known = str(value).lower(), list(known)
    meant = MEANT.get(value.replace("-", "_"))
    if meant in known:
        return meant

    def likeness(name: str) -> float:
        ratio = difflib.SequenceMatcher(None, value, name.lower()).ratio()
        begins = len(name) > 1 and value.startswith(name.lower())
        return ratio + 0.15 * (value[:1] == name[:1].lower()) + 0.2 * begins

    best = max(known, key=likeness, default=None)
    return None if best is None or likeness(best) < NEAR else best


def nearest(value: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest one, and all of them."""
    known = list(known)
    if not known:
        return "there are none."
    close = closest(value, known)
    if close is not None:
        return f"did you mean {close!r}? There are {', '.join(known)}."
    return f"write one of {', '.join(known)}."


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Raises SettingError unless `value` is one of `known`; names the nearest."""
    known = list(known)
    if value not in known:
        raise SettingError(
            f"{name}={value!r} is unknown; {nearest(value, known)}", setting=name
        )


def option_names(function: Callable) -> list[str]:
    """The options of a loader or a partition: its keyword-only arguments, in order."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def options(owner: str, function: Callable, given: Iterable[str]) -> None:
    """Raises SettingError on an option that `function` does not take; names the nearest.

    `owner` is whose options they are, as the sentence says it: "dataset=digits".
    """
    known = option_names(function)
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "it takes none."
            raise SettingError(f"{owner} takes no option {name!r}; {hint}")
