"""Which parameters are meant, by their paths; taken out of a model and put back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import check
from ..core import Array, Params, PyTree
from ..errors import SettingError

Which = str | Callable[[str], bool]
Personal = Which | tuple[Which, ...]


def chosen(personal: Personal, params: Params) -> PyTree:
    """Whether each parameter is personal, a tree of bools; see `with_personal`.

    Raises:
      ValueError: a part of `personal` is true of none, or all of it of all.
    """
    wanted, paths = parts_of(personal), _paths(params)
    found = [[_is_true(which, path) for path in paths] for which in wanted]
    for which, true in zip(wanted, found, strict=True):
        if not any(true):
            raise SettingError(
                f"personal={check.kind_of(which)} is true of no parameter; name one or "
                f"more of {', '.join(paths)}."
            )
    mine = [any(true) for true in zip(*found, strict=True)]
    if all(mine):
        named = ", ".join(map(check.kind_of, wanted))
        raise SettingError(
            f"personal={named} is true of every parameter, so that none is shared; name "
            f"some of {', '.join(paths)}."
        )
    return jax.tree.unflatten(jax.tree.structure(params), mine)


def parts_of(personal: Personal) -> tuple[Which, ...]:
    """The parts of a choice, any of which may be true.

    Raises:
      ValueError: it is no choice.
    """
    parts = tuple(personal) if isinstance(personal, tuple | list) else (personal,)
    if not parts or not all(isinstance(part, str) or callable(part) for part in parts):
        raise SettingError(
            f"with_personal got {check.kind_of(personal)} for personal; write part of a "
            'path, such as "out", a function of the path, or a tuple of them.'
        )
    return parts


def _is_true(which: Which, path: str) -> bool:
    if callable(which):
        return bool(which(path))
    return f"/{which.strip('/')}/" in f"/{path}/"


def _paths(params: Params) -> list[str]:
    """Of every parameter, as "hidden/0/kernel"."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return [name(path) for path, _ in jax.tree.leaves_with_path(params)]


def taken(mine: PyTree, params: Params) -> dict[str, Array]:
    """The personal parameters by their path."""
    parts = zip(
        _paths(params), jax.tree.leaves(mine), jax.tree.leaves(params), strict=True
    )
    return {path: leaf for path, own, leaf in parts if own}


def with_own(own: dict[str, Array], params: Params) -> Params:
    """The parameters, those that are personal as the client has them."""
    pairs = zip(_paths(params), jax.tree.leaves(params), strict=True)
    leaves = [own.get(path, leaf) for path, leaf in pairs]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def shapes_of(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    """The structure of a tree and the shapes of its leaves."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
