"""From a model, however it is written, to a classification task.

The parameters of every task are nested dicts of arrays under the names their module
gave them, so that a checkpoint reads like the model.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from ..core import Array, Key, Outputs, Params, Task

NO_STATE = (
    "holds {kind}, which is state besides its parameters and would be neither averaged "
    "nor kept per client; write GroupNorm for BatchNorm, and plain attributes for "
    "constants."
)


class _Model(NamedTuple):
    """A model as pure functions of already normalised inputs."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None


def classification(
    model: Any,
    input_shape: Sequence[int],
    mean: Any = 0.0,
    std: Any = 1.0,
) -> Task:
    """A task: `model` under softmax cross entropy with integer labels.

    Inputs are normalised as (x - mean) / std in the units of the data; integer pixels
    become float32 first, floating inputs keep their dtype. A module with methods
    `features(x)` and `head(features)` also says what goes into its last layer.

    Args:
      model: one of
        a factory: `rngs -> nnx.Module` (a module class will do);
        an nnx module, whose weights are what `init` returns whatever its key;
        a linen module;
        a pair of functions (init(key) -> params, apply(params, x) -> logits or Outputs).
      input_shape: of one example.
      mean: subtracted from the inputs; a number or one per channel.
      std: inputs are divided by it; likewise.

    Returns:
      The task. `apply_train` is None where the model has nothing random.

    Raises:
      ValueError: the model keeps state besides parameters (BatchNorm), returns no
        logits of shape [batch, classes], or `model`, `mean` or `std` are none of the above.
    """
    input_shape = tuple(input_shape)
    mean, std = np.asarray(mean), np.asarray(std)
    if not np.all(std > 0):
        raise ValueError(f"std={std.tolist()} must be above 0.")
    model = _pure(model, input_shape)
    prepare = partial(_normalise, input_shape, mean, std)

    train = None
    if model.apply_train is not None:
        train = lambda params, x, key: model.apply_train(params, prepare(x), key)
    task = Task(
        init=model.init,
        apply=lambda params, x: model.apply(params, prepare(x)),
        loss=optax.softmax_cross_entropy_with_integer_labels,
        apply_train=train,
    )
    _check_logits(task, input_shape)
    return task


def _normalise(shape: tuple, mean: np.ndarray, std: np.ndarray, x: Array) -> Array:
    if x.shape[1:] != shape:
        raise ValueError(
            f"the model takes inputs of shape {list(shape)} but got a batch of shape "
            f"{list(x.shape)}; give classification(model, input_shape={x.shape[1:]})."
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    if np.all(mean == 0) and np.all(std == 1):
        return x
    of_rank = lambda a: a.reshape((1,) * (x.ndim - a.ndim) + a.shape).astype(x.dtype)
    return (x - of_rank(mean)) / of_rank(std)


def _pure(model: Any, input_shape: tuple) -> _Model:
    """The model as pure functions, whatever it came as."""
    if isinstance(model, linen.Module):
        return _from_linen(model, input_shape)
    if isinstance(model, nnx.Module):
        return _from_nnx(lambda rngs: model, _named_params(nnx.state(model, nnx.Param)))
    if isinstance(model, tuple) and [callable(part) for part in model] == [True, True]:
        init, apply = model
        return _Model(init, lambda params, x: _outputs(apply(params, x)))
    if callable(model):
        return _from_nnx(model)
    raise ValueError(
        f"model={model!r} is no flax module, factory or pair of functions; give for "
        "example fedjax_adapt.models.mlp((28, 28, 1), 10)."
    )


def _from_nnx(factory: Callable, params: Params | None = None) -> _Model:
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

    return _Model(init, apply, apply_train if is_random else None)


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


def _module_outputs(module: nnx.Module, x: Array, **options) -> Outputs:
    if hasattr(module, "features") and hasattr(module, "head") and not options:
        features = module.features(x)
        return Outputs(module.head(features), features)
    return _outputs(module(x, **options))


def _from_linen(module: linen.Module, input_shape: tuple) -> _Model:
    """A linen module; one that takes `train` or `deterministic` is told which it is."""
    call = inspect.signature(type(module).__call__).parameters
    modes = {"train": (False, True), "deterministic": (True, False)}
    mode = lambda train: {
        name: values[train] for name, values in modes.items() if name in call
    }
    split = hasattr(type(module), "features") and hasattr(type(module), "head")

    def variables(key):
        example = jnp.zeros((1, *input_shape), jnp.float32)
        return module.init({"params": key}, example, **mode(False))

    extra = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}
    if extra:
        raise ValueError(
            f"{type(module).__name__} " + NO_STATE.format(kind=sorted(extra)[0])
        )

    def apply(params, x):
        if split and not mode(False):
            features = module.apply({"params": params}, x, method="features")
            logits = module.apply({"params": params}, features, method="head")
            return Outputs(logits, features)
        return _outputs(module.apply({"params": params}, x, **mode(False)))

    def apply_train(params, x, key):
        rngs = {"dropout": key}
        return _outputs(module.apply({"params": params}, x, **mode(True), rngs=rngs))

    init = lambda key: variables(key)["params"]
    return _Model(init, apply, apply_train if mode(True) else None)


def _outputs(result: Any) -> Outputs:
    return result if isinstance(result, Outputs) else Outputs(result)


def _check_logits(task: Task, input_shape: tuple) -> None:
    """Traces the model once, so that a misfit is reported before anything runs."""
    example = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    outputs = jax.eval_shape(
        lambda key, x: task.apply(task.init(key), x), jax.random.key(0), example
    )
    shape = list(getattr(outputs.logits, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"the model returned shape {shape} for a batch of 2 inputs of shape "
            f"{list(input_shape)}; it must return logits [batch, classes]."
        )
