"""Equinox modules, which take one example each, as pure functions of a batch.

The parameters are the module's float arrays, as nested dicts with the names of its
fields.
"""

from collections.abc import Callable

import equinox as eqx  # pyright: ignore[reportMissingImports]
import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from ..core import Array, Key, Outputs, Params
from ..errors import SettingError
from .modules import (
    KEYS,
    NO_STATE,
    Model,
    is_split,
    modes_of,
    never_drops,
    outputs_of,
    own_loss,
    parameters,
)


def from_equinox(model: eqx.Module | Callable) -> Model:
    """A module, whose weights `init` returns whatever its key, or a factory of one."""
    if isinstance(model, eqx.Module):
        build = lambda key: model
    else:
        build = lambda key: model(key=key)
    made = build(jax.random.key(0))
    if not isinstance(made, eqx.Module):
        raise SettingError(
            f"the model's factory returned {type(made).__name__}, not an eqx.Module; give "
            "a function of key that returns one, a function of rngs that returns an "
            "nnx.Module, or a pair (init, apply)."
        )
    name = type(made).__name__
    is_state = lambda part: isinstance(part, eqx.nn.StateIndex)
    if any(map(is_state, jax.tree.leaves(made, is_leaf=is_state))):
        raise SettingError(f"{name} " + NO_STATE.format(kind="a StateIndex"))

    weights, rest = eqx.partition(made, eqx.is_inexact_array)
    paths, structure = jax.tree_util.tree_flatten_with_path(weights)
    names = [tuple(_name(part) for part in path) for path, _ in paths]
    evaluated, trained = (eqx.nn.inference_mode(rest, value) for value in (True, False))

    arguments = parameters(made.__call__)
    asked = [key for key in KEYS if key in arguments]
    mode = modes_of(made.__call__, f"{name}.__call__(x)", given=1, keys=asked)
    hint = "give __call__ an argument key=None and pass it on"
    split = is_split(made) and not asked and not mode(False)

    def init(key: Key) -> Params:
        drawn = jax.tree.leaves(eqx.filter(build(key), eqx.is_inexact_array))
        return unflatten_dict(dict(zip(names, drawn, strict=True)))

    def module(params: Params, rest: eqx.Module) -> eqx.Module:
        flat = flatten_dict(params)
        return eqx.combine(structure.unflatten([flat[path] for path in names]), rest)

    def apply(params: Params, x: Array) -> Outputs:
        whole = module(params, evaluated)

        def one(x):
            if split:
                features = whole.features(x)
                return Outputs(whole.head(features), features)
            return outputs_of(whole(x, **mode(False), **dict.fromkeys(asked)))

        return jax.vmap(one)(x)

    def apply_train(params: Params, x: Array, key: Key) -> Outputs:
        whole = module(params, trained)
        one = lambda x, key: whole(x, **mode(True), **dict.fromkeys(asked, key))
        return outputs_of(jax.vmap(one)(x, jax.random.split(key, x.shape[0])))

    def head(params: Params, features: Array) -> Array:
        return jax.vmap(module(params, evaluated).head)(features)

    return Model(
        init=init,
        apply=apply,
        apply_train=apply_train if asked or mode(True) else None,
        loss=own_loss(made),
        head=head if split else None,
        silent=never_drops(name, hint) if _drops(made) and not asked else None,
    )


def _drops(module: eqx.Module) -> bool:
    """Whether it holds a layer that drops out."""
    is_dropout = lambda part: isinstance(part, eqx.nn.Dropout)
    parts = jax.tree.leaves(module, is_leaf=is_dropout)
    return any(is_dropout(part) and part.p != 0 for part in parts)


def _name(part) -> str:
    """A step of a path: the name of a field, or the position in a list."""
    for of in ("name", "idx", "key"):
        if hasattr(part, of):
            return str(getattr(part, of))
    return str(part)
