"""Flax modules, nnx and linen, as pure functions of nested dicts of arrays.

The parameters have the names their module gave them, so that a checkpoint reads like
the model.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from ..core import Key, Outputs, Params
from ..errors import SettingError
from .modules import (
    MODE_NAMES,
    NO_STATE,
    Model,
    drops,
    is_split,
    modes_of,
    never_drops,
    outputs_of,
    own_loss,
    parameters,
)

SAY_MODE = f"give __call__ an argument named {MODE_NAMES}, and pass it on"


def from_nnx(model: nnx.Module | Callable) -> Model:
    """An nnx module, or a factory of one: its graph is fixed here, `init` draws it."""
    if isinstance(model, nnx.Module):
        return _from_nnx(lambda rngs: model, _named_params(nnx.state(model, nnx.Param)))
    return _from_nnx(model)


def _from_nnx(factory: Callable, params: Params | None = None) -> Model:
    """An nnx module: its graph is fixed here, its parameters are drawn by `init`."""

    made_by = factory.func if isinstance(factory, partial) else factory
    # the class of all nnx modules hides what their constructors take
    is_class = isinstance(made_by, type) and issubclass(made_by, nnx.Module)
    named = parameters(made_by.__init__ if is_class else factory).get("rngs")
    by_name = named is not None and named.kind is named.KEYWORD_ONLY

    def build(key):
        rngs = nnx.Rngs(key)
        module = factory(rngs=rngs) if by_name else factory(rngs)
        if not isinstance(module, nnx.Module):
            raise SettingError(
                f"the model's factory returned {type(module).__name__}, not an "
                "nnx.Module; give a function of nnx.Rngs that returns one, or a pair "
                "(init, apply)."
            )
        return module

    module = nnx.eval_shape(build, jax.random.key(0))
    name = type(module).__name__
    asks_rngs = "rngs" in parameters(module.__call__)
    mode = modes_of(module.__call__, f"{name}.__call__(x)", given=1, keys=("rngs",))
    split = is_split(module) and not mode(False)
    module.eval()
    graph, weights, random, rest = nnx.split(module, nnx.Param, nnx.RngState, ...)
    for _, variable in nnx.to_flat_state(rest):
        raise SettingError(f"{name} " + NO_STATE.format(kind=type(variable).__name__))
    module.train()
    graph_train = nnx.split(module, nnx.Param, nnx.RngState)[0]
    paths = [path for path, _ in nnx.to_flat_state(weights)]
    is_random = bool(nnx.to_flat_state(random)) or asks_rngs
    mute = not is_random and _drops(module)

    def init(key):
        if params is not None:
            return params
        return _named_params(nnx.state(build(key), nnx.Param))

    def merged(graph, params, random):
        flat = flatten_dict(params)
        state = [(path, nnx.Param(flat[_names(path)])) for path in paths]
        return nnx.merge(graph, nnx.from_flat_state(state), random)

    def apply(params, x):
        # a module in evaluation mode asks for no random numbers, but has their streams
        module = merged(graph, params, _streams(random))
        if split:
            features = module.features(x)
            return Outputs(module.head(features), features)
        return outputs_of(module(x, **mode(False)))

    def apply_train(params, x, key):
        module = merged(graph_train, params, _streams(random, key))
        if split and not asks_rngs:
            features = module.features(x)
            return Outputs(module.head(features), features)
        rngs = {"rngs": nnx.Rngs(key)} if asks_rngs else {}
        return outputs_of(module(x, **mode(True), **rngs))

    def head(params, features):
        return merged(graph, params, _streams(random)).head(features)

    return Model(
        init=init,
        apply=apply,
        apply_train=apply_train if is_random or mode(True) else None,
        loss=own_loss(module),
        head=head if split else None,
        silent=never_drops(name, "build it with nnx.Dropout(rate, rngs=rngs)")
        if mute
        else None,
    )


def _streams(random: nnx.State, key: Key | None = None) -> nnx.State:
    """The random streams of a module, started anew from `key`, each with its own."""
    key = jax.random.key(0) if key is None else key
    flat = []
    for i, (path, variable) in enumerate(nnx.to_flat_state(random)):
        is_key = isinstance(variable, nnx.RngKey)
        value = jax.random.fold_in(key, i) if is_key else jnp.zeros((), jnp.uint32)
        flat.append((path, variable.replace(value)))
    return nnx.from_flat_state(flat)


def _names(path: tuple) -> tuple[str, ...]:
    """A path with the positions of a list as names, as checkpoints want them."""
    return tuple(str(part) for part in path)


def _named_params(state: nnx.State) -> Params:
    """The parameters of an nnx module as nested dicts of arrays."""
    flat = nnx.to_flat_state(state)
    return unflatten_dict({_names(path): variable[...] for path, variable in flat})


def _drops(module: nnx.Module) -> bool:
    """Whether it holds a layer that drops out."""
    rates = [
        getattr(part, "rate", 0)
        if isinstance(part, nnx.Dropout)
        else getattr(part, "dropout_rate", 0)
        for _, part in nnx.iter_modules(module)
        if isinstance(part, nnx.Dropout | nnx.MultiHeadAttention)
    ]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def from_linen(module: linen.Module, example: jax.ShapeDtypeStruct) -> Model:
    """A linen module; one that takes `train` or the like is given the mode."""
    name = type(module).__name__
    mode = modes_of(type(module).__call__, f"{name}.__call__(x)", given=2)
    split = is_split(type(module)) and not mode(False)  # an instance has no submodules

    def variables(key):
        x = jnp.zeros((1, *example.shape), example.dtype)
        return module.init({"params": key}, x, **mode(False))

    extra = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}
    if extra:
        raise SettingError(f"{name} " + NO_STATE.format(kind=sorted(extra)[0]))
    mute = not mode(True) and drops(lambda key, x: variables(key), example)

    def head(params, features):
        return module.apply({"params": params}, features, method="head")

    def apply(params, x):
        if split:
            features = module.apply({"params": params}, x, method="features")
            return Outputs(head(params, features), features)
        return outputs_of(module.apply({"params": params}, x, **mode(False)))

    def apply_train(params, x, key):
        rngs = {"dropout": key}
        return outputs_of(module.apply({"params": params}, x, **mode(True), rngs=rngs))

    init = lambda key: variables(key)["params"]
    return Model(
        init=init,
        apply=apply,
        apply_train=apply_train if mode(True) else None,
        loss=own_loss(module),
        head=head if split else None,
        silent=never_drops(name, SAY_MODE) if mute else None,
    )
