"""Flax modules, nnx and linen, as pure functions of nested dicts of arrays.

The parameters have the names their module gave them, so that a checkpoint reads like
the model.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from ..core import Array, Key, Outputs, Params

NO_STATE = (
    "holds {kind}, which is state besides its parameters and would be neither averaged "
    "nor kept per client; write GroupNorm for BatchNorm, and plain attributes for "
    "constants."
)


class Model(NamedTuple):
    """A model as pure functions of already normalised inputs."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None
    loss: Callable[[Array, Array], Array] | None = None  # the module's own
    head: Callable[[Params, Array], Array] | None = None  # in evaluation mode


def pure(model: Any, input_shape: tuple) -> Model:
    """The model as pure functions, whatever it came as."""
    if isinstance(model, linen.Module):
        return _from_linen(model, input_shape)
    if isinstance(model, nnx.Module):
        return _from_nnx(lambda rngs: model, _named_params(nnx.state(model, nnx.Param)))
    if isinstance(model, tuple) and [callable(part) for part in model] == [True, True]:
        init, apply = model
        return Model(init, lambda params, x: _outputs(apply(params, x)))
    if callable(model):
        return _from_nnx(model)
    raise ValueError(
        f"model={model!r} is no flax module, factory or pair of functions; give for "
        "example fedjax_adapt.models.mlp((28, 28, 1), 10)."
    )


def _from_nnx(factory: Callable, params: Params | None = None) -> Model:
    """An nnx module: its graph is fixed here, its parameters are drawn by `init`."""

    named = inspect.signature(factory).parameters.get("rngs")
    by_name = named is not None and named.kind is named.KEYWORD_ONLY

    def build(key):
        rngs = nnx.Rngs(key)
        module = factory(rngs=rngs) if by_name else factory(rngs)
        if not isinstance(module, nnx.Module):
            raise ValueError(
                f"the model's factory returned {type(module).__name__}, not an "
                "nnx.Module; give a function of nnx.Rngs that returns one, or a pair "
                "(init, apply)."
            )
        return module

    module = nnx.eval_shape(build, jax.random.key(0))
    call = inspect.signature(module.__call__).parameters
    module.eval()
    graph, weights, random, rest = nnx.split(module, nnx.Param, nnx.RngState, ...)
    for _, variable in nnx.to_flat_state(rest):
        raise ValueError(
            f"{type(module).__name__} " + NO_STATE.format(kind=type(variable).__name__)
        )
    module.train()
    graph_train = nnx.split(module, nnx.Param, nnx.RngState)[0]
    paths = [path for path, _ in nnx.to_flat_state(weights)]
    is_random = bool(nnx.to_flat_state(random)) or "rngs" in call

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
        return _module_outputs(merged(graph, params, _streams(random)), x)

    def apply_train(params, x, key):
        module = merged(graph_train, params, _streams(random, key))
        return _module_outputs(
            module, x, **({"rngs": nnx.Rngs(key)} if "rngs" in call else {})
        )

    def head(params, features):
        return merged(graph, params, _streams(random)).head(features)

    return Model(
        init=init,
        apply=apply,
        apply_train=apply_train if is_random else None,
        loss=_own_loss(module),
        head=head if _is_split(module) else None,
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


def _is_split(model: Any) -> bool:
    return hasattr(model, "features") and hasattr(model, "head")


def _module_outputs(module: nnx.Module, x: Array, **options) -> Outputs:
    if _is_split(module) and not options:
        features = module.features(x)
        return Outputs(module.head(features), features)
    return _outputs(module(x, **options))


def _from_linen(module: linen.Module, input_shape: tuple) -> Model:
    """A linen module; one that takes `train` or `deterministic` is told which it is."""
    call = inspect.signature(type(module).__call__).parameters
    modes = {"train": (False, True), "deterministic": (True, False)}
    mode = lambda train: {
        name: values[train] for name, values in modes.items() if name in call
    }
    split = _is_split(type(module)) and not mode(False)  # an instance has no submodules

    def variables(key):
        example = jnp.zeros((1, *input_shape), jnp.float32)
        return module.init({"params": key}, example, **mode(False))

    extra = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}
    if extra:
        raise ValueError(
            f"{type(module).__name__} " + NO_STATE.format(kind=sorted(extra)[0])
        )

    def head(params, features):
        return module.apply({"params": params}, features, method="head")

    def apply(params, x):
        if split:
            features = module.apply({"params": params}, x, method="features")
            return Outputs(head(params, features), features)
        return _outputs(module.apply({"params": params}, x, **mode(False)))

    def apply_train(params, x, key):
        rngs = {"dropout": key}
        return _outputs(module.apply({"params": params}, x, **mode(True), rngs=rngs))

    init = lambda key: variables(key)["params"]
    return Model(
        init=init,
        apply=apply,
        apply_train=apply_train if mode(True) else None,
        loss=_own_loss(module),
        head=head if split else None,
    )


def _outputs(result: Any) -> Outputs:
    return result if isinstance(result, Outputs) else Outputs(result)


def _own_loss(module: nnx.Module | linen.Module) -> Callable | None:
    loss = getattr(module, "loss", None)
    return loss if callable(loss) else None
