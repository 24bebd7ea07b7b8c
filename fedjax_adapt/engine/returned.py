"""The checks of what parts return: one function for each kind of result.

Each is called with the part's name, its result and its arguments, and raises a SettingError
of one sentence.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import PyTree, Refined, RoundView, Upload
from ..errors import SettingError


def arrays(name: str, result: PyTree, *arguments: Any) -> None:
    """Raises SettingError unless a part returned a tree of arrays."""
    number = lambda leaf: hasattr(leaf, "shape") or isinstance(leaf, int | float)
    if not all(map(number, jax.tree.leaves(result))):
        raise SettingError(
            f"{name} returned {check.shown(result)}; return a tree of arrays."
        )


def scalar(name: str, result: Any, *arguments: Any) -> None:
    """Raises SettingError unless a part returned a floating scalar."""
    floats = check.array(result) and jnp.issubdtype(result.dtype, jnp.floating)
    if not floats or result.shape != ():
        raise SettingError(
            f"{name} returned {check.shown(result)}; return a floating scalar that "
            "depends on params."
        )


def one_number(name: str, result: Any, *arguments: Any) -> None:
    """Raises SettingError unless a part returned one number."""
    if not (hasattr(result, "shape") or isinstance(result, int | float)) or jnp.ndim(
        result
    ):
        raise SettingError(f"{name} returned {check.shown(result)}; return one number.")


def parameters(name: str, result: PyTree, *arguments: Any) -> None:
    """Raises SettingError unless a part returned floating parameters."""
    arrays(name, result)
    for path, leaf in jax.tree.leaves_with_path(result):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            at = f" at {jax.tree_util.keystr(path)}" if path else ""
            raise SettingError(
                f"{name} returned {check.leaf(leaf)}{at}; parameters are floating arrays, "
                "to be trained."
            )


def as_first(what: str, given_by: str) -> Callable[..., None]:
    """Accepts a result like the first argument, by structure and shapes."""

    def accept(name: str, result: PyTree, first: PyTree, *rest: Any) -> None:
        first = first.params if given_by == "view.params" else first
        # a gradient in another precision is rounded as every product is
        like = lambda new, old: new.astype(old.dtype) if _floats(new, old) else new
        if jax.tree.structure(result) == jax.tree.structure(first):
            result = jax.tree.map(like, result, first)
        check.same_kind(name, what, result, first, given_by)

    return accept


def transformation(name: str, result: Any, *arguments: Any) -> None:
    """Accepts what makes moves of gradients."""
    if not isinstance(result, optax.GradientTransformation):
        raise SettingError(
            f"{name} returned {check.kind_of(result)}; return an optax transformation, as "
            "optax.adam(lr) is."
        )


def _floats(new: Any, old: Any) -> bool:
    of = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return hasattr(new, "astype") and of(new) and of(old)


def _averaged(name: str, what: str, sent: PyTree) -> None:
    """Raises SettingError unless a mean of these says something."""
    for path, leaf in jax.tree.leaves_with_path(sent):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise SettingError(
                f"{name} sends {check.leaf(leaf)} as {what}{jax.tree_util.keystr(path)}, "
                "whose mean is no such number; send jnp.asarray(value, float)."
            )


def sent(name: str, result: PyTree, *arguments: Any) -> None:
    """Raises SettingError unless a part returned what may be averaged."""
    arrays(name, result)
    _averaged(name, "what is averaged", result)


def upload_and_state(averages: bool, name: str, result: Any, run: Any) -> None:
    """Raises SettingError unless a part gave (Upload, client state), the state alike."""
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], Upload)
        and not isinstance(result, Upload)
    ):
        raise SettingError(
            f"{name} returned {_kind(result)}; return (Upload(delta), client state), the "
            "state run.client where it keeps none."
        )
    arrays(name, result[0])
    if averages:
        _averaged(name, "Upload.delta", result[0].delta)
        _averaged(name, "Upload.extra", result[0].extra)
    check.same_kind(name, "the client's state", result[1], run.client, "LocalRule.init")


def _kind(result: Any) -> str:
    if type(result) is tuple:
        return f"({', '.join(check.kind_of(part) for part in result)})"
    return check.kind_of(result)


def like_state(what: str, given_by: str) -> Callable[..., None]:
    """Accepts a state like the one that came as the first argument."""

    def accept(name: str, result: PyTree, first: PyTree, *rest: Any) -> None:
        check.same_kind(name, what, result, first, given_by)

    return accept


def steps(name: str, result: Any, state: PyTree, cohort: Any, *rest: Any) -> None:
    """Raises SettingError unless a part returned an integer for each of the cohort."""
    size = cohort.ids.shape
    if not hasattr(result, "shape") and not isinstance(result, bool | int | float):
        raise SettingError(
            f"{name} returned {check.shown(result)}; return integers {list(size)}."
        )
    dtype = jnp.result_type(result)
    # the cap of a plan would wrap round in an int16
    whole = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4
    if jnp.shape(result) != size or not whole:
        raise SettingError(
            f"{name} returned {check.shown(result)} for a cohort of {size[0]}; return one "
            f"integer for each, int32{list(size)}, such as jnp.ceil(k).astype(jnp.int32)."
        )


def per_client(name: str, result: Any, cohort: Any) -> None:
    """Raises SettingError unless a part returned a number for each of the cohort."""
    if not check.array(result) or result.shape != cohort.ids.shape:
        raise SettingError(
            f"{name} returned {check.shown(result)} for a cohort of "
            f"{cohort.ids.shape[0]}; return one number for each."
        )


def one_upload(name: str, result: Any, *arguments: Any) -> None:
    """Raises SettingError unless a `ServerRule.combine` returned an Upload."""
    if not isinstance(result, Upload):
        raise SettingError(
            f"{name} returned {check.kind_of(result)}; return one Upload, such as "
            "mean(by_examples)(uploads, cohort)."
        )


def params_and_extra(
    name: str, result: Any, params: PyTree, extra: PyTree, *rest: Any
) -> None:
    """Raises SettingError unless `ServerRule.update` returned what it was given, alike."""
    if not (type(result) is tuple and len(result) == 2):
        raise SettingError(f"{name} returned {_kind(result)}; return (params, extra).")
    check.same_kind(name, "the model", result[0], params, "Task.init")
    check.same_kind(name, "the server's state", result[1], extra, "ServerRule.init")


def ids(name: str, result: Any, *arguments: Any) -> None:
    """Raises SettingError unless a part returned a vector of client ids."""
    whole = jnp.issubdtype(jnp.result_type(result), jnp.integer)
    if jnp.ndim(result) != 1 or not whole:
        raise SettingError(
            f"{name} returned {check.shown(result)}; return client ids, int32[any], -1 "
            "for none."
        )


def report_of(which: int) -> Callable[..., None]:
    """Accepts a report about the cohort that came as argument `which`."""

    def accept(name: str, result: Any, *arguments: Any) -> None:
        size = arguments[which].ids.shape[0]
        if not isinstance(result, dict):
            raise SettingError(
                f"{name} returned {_kind(result)}; return a dict of arrays."
            )
        arrays(name, result)
        for key, value in result.items():
            if jnp.ndim(value) and jnp.shape(value)[0] != size:
                raise SettingError(
                    f"{name} returned {check.leaf(value)} for {key!r}; return a scalar "
                    f"of the round or values [{size}, ...], one for each of the cohort."
                )

    return accept


def refined(name: str, result: Any, view: RoundView, *rest: Any) -> None:
    """Raises SettingError unless a part returned Refined, the models alike."""
    if not isinstance(result, Refined):
        raise SettingError(
            f"{name} returned {_kind(result)}; return Refined(params, steps, report)."
        )
    models = view.runs.params
    check.same_kind(name, "the clients' models", result.params, models, "view.runs")


def refined_server(name: str, result: Any, params: PyTree, state: PyTree, *rest: Any):
    """Raises SettingError unless a part returned (params, state, report), alike."""
    if not (type(result) is tuple and len(result) == 3):
        raise SettingError(
            f"{name} returned {_kind(result)}; return (params, state, report), or give "
            "with_refinement a function that returns params alone."
        )
    check.same_kind(name, "the server's model", result[0], params, "Task.init")
    check.same_kind(name, "its own state", result[1], state, "Refinement.init")
