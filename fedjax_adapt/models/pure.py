"""Models, however they are written, as pure functions of trees of arrays.

Equinox and Haiku need not be installed: they are imported where a module of theirs comes.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.errors import FlaxError
from flax.traverse_util import flatten_dict, unflatten_dict

from ..core import Key, Params
from ..errors import SettingError, first_line
from .modules import (
    KEYS,
    NO_STATE,
    Model,
    check_factory,
    from_linen,
    from_nnx,
    functions_of,
    linen_drops,
    modes_of,
    never_drops,
    outputs_of,
    parameters,
)
from .ways import choosing


def read_model(
    call: str, model: Any, input_shape: tuple, same_units: bool
) -> tuple[Model, Any]:
    """The model as pure functions, and the dtype it takes: float32, or else int32.

    Raises:
      SettingError: it takes no inputs of this shape.
    """

    def read(dtype):
        batch = jax.ShapeDtypeStruct((2, *input_shape), dtype)
        once = lambda key, x: made.apply(made.init(key), x)
        with choosing(lambda layer: "lax"):  # which is traced in the least time
            made = _as_functions(model, jax.ShapeDtypeStruct(input_shape, dtype))
            jax.eval_shape(once, jax.random.key(0), batch)
        return made, dtype

    unfit = (ValueError, TypeError, FlaxError)
    try:
        return read(jnp.float32)
    except unfit as error:
        first = error
    try:  # an embedding takes nothing but integers
        found = read(jnp.int32)
    except unfit as second:
        for error in (first, second):
            if isinstance(error, SettingError):  # about the model, not its inputs
                raise error from None
        said = [first_line(error) for error in (first, second)]
        said = " nor int32: ".join(dict.fromkeys(said))  # the same is said once
        raise SettingError(
            f"the model takes no inputs of shape {list(input_shape)} (float32: {said}); "
            f"give {call} the shape of one example, without the batch."
        ) from first
    if not same_units:
        raise SettingError(
            f"{call} got mean and std for a model that takes integers, which are not "
            "normalised; leave them out, and let a data set be a Source of int32 inputs "
            "with mean=0.0 and std=1.0."
        )
    return found


def _as_functions(model: Any, example: jax.ShapeDtypeStruct) -> Model:
    """The model of `classification` as pure functions, whatever it came as."""
    library = _library(model)
    if library == "haiku":
        return _from_haiku(model, example)
    if library == "equinox" or (callable(model) and _takes_key(model)):
        return _from_equinox(model, example)
    if isinstance(model, type) and issubclass(model, linen.Module):
        name = model.__name__
        raise SettingError(
            f"model={name} is the class of a linen module; give a module, as in {name}()."
        )
    if isinstance(model, linen.Module):
        return from_linen(model, example)
    if isinstance(model, nnx.Module) or callable(model):
        return from_nnx(model, example)
    if isinstance(model, tuple) and [callable(part) for part in model] == [True, True]:
        return _from_pair(*model, example)
    raise SettingError(
        f"model={model!r} is no flax module, nor one of Equinox or Haiku, factory or pair "
        "of functions; give for example fedjax_adapt.models.mlp((28, 28, 1), 10)."
    )


def _library(model: Any) -> str | None:
    """Of "equinox" and "haiku" the one whose module it is; neither is imported here."""
    names = (kind.__module__.partition(".")[0] for kind in type(model).__mro__)
    return next((name for name in names if name in ("equinox", "haiku")), None)


def _takes_key(factory: Callable) -> bool:
    """Whether it makes an Equinox module of a key, as nnx factories do of `rngs`."""
    if isinstance(factory, nnx.Module | linen.Module) or "equinox" not in sys.modules:
        return False
    arguments = parameters(factory)
    return "key" in arguments and "rngs" not in arguments


def _from_pair(init: Callable, apply: Callable, example: jax.ShapeDtypeStruct) -> Model:
    """A pair of functions; `apply` may take a key and the mode by name."""
    try:
        inspect.signature(init).bind(jax.random.key(0))
    except TypeError as error:
        raise SettingError(
            f"model=(init, apply) has an init that takes no key alone ({error}); write "
            "(init(key) -> params, apply(params, x) -> logits)."
        ) from None
    except ValueError:  # Python cannot say what it takes
        pass
    arguments = parameters(apply)
    keys = [name for name in KEYS if name in arguments]
    for name in keys:
        if arguments[name].default is inspect.Parameter.empty:
            raise SettingError(
                f"model=(init, apply) has apply(params, x, {name}), which cannot be called "
                f"without a key in evaluation; write {name}=None, and leave out what is "
                f"random where it is None."
            )
    mode = modes_of(apply, "apply(params, x)", given=2, keys=keys)

    def options(train, key=None):
        return {**mode(train), **({name: key for name in keys} if train else {})}

    def apply_train(params, x, key):
        return outputs_of(apply(params, x, **options(True, key)))

    is_random = bool(keys or mode(True))
    silent = None
    if not is_random and linen_drops(lambda key, x: apply(init(key), x), example):
        hint = "give apply an argument key=None, under which it drops"
        silent = never_drops("apply(params, x)", hint)
    return Model(
        init=init,
        apply=lambda params, x: outputs_of(apply(params, x, **options(False))),
        apply_train=apply_train if is_random else None,
        silent=silent,
    )


def _from_haiku(transformed: Any, example: jax.ShapeDtypeStruct) -> Model:
    """`hk.transform(f)` of a function of the batch, and perhaps of `is_training`."""
    import haiku as hk  # pyright: ignore[reportMissingImports]

    if isinstance(transformed, hk.TransformedWithState):
        kind = "what hk.get_state makes"
        raise SettingError("hk.transform_with_state " + NO_STATE.format(kind=kind))
    if not isinstance(transformed, hk.Transformed):
        raise SettingError(
            f"model is a {type(transformed).__name__} of Haiku; write hk.transform(f) of "
            "a function f(x)."
        )
    # hk.without_apply_rng leaves the key out
    keyed = list(parameters(transformed.apply))[1:2] == ["rng"]
    shown, given = "the function of hk.transform", 3 if keyed else 2
    mode = modes_of(transformed.apply, shown, given)

    def init(key):
        x = jnp.zeros((1, *example.shape), example.dtype)
        return transformed.init(key, x, **mode(False))

    def called(params, x, key, train):
        keys = (key,) if keyed else ()
        return outputs_of(transformed.apply(params, *keys, x, **mode(train)))

    def apply(params, x):
        try:
            return called(params, x, key=None, train=False)
        except ValueError as error:
            if type(error).__name__ != "MissingRNGError":
                raise
            raise SettingError(
                "the function of hk.transform takes a key in evaluation, too; give it an "
                "argument is_training=False and leave out what is random where it is "
                "False."
            ) from error

    def apply_train(params, x, key):
        return called(params, x, key, train=True)

    return Model(init, apply, apply_train if keyed or mode(True) else None)


def _from_equinox(model: Any, example: jax.ShapeDtypeStruct) -> Model:
    """A module, whose weights `init` returns whatever its key, or a factory of one.

    It takes one example. The parameters are its float arrays, as nested dicts with the
    names of its fields.
    """
    import equinox as eqx  # pyright: ignore[reportMissingImports]

    if not isinstance(model, eqx.Module):
        check_factory(model, model, key=None)
    build = lambda key: model if isinstance(model, eqx.Module) else model(key=key)
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
    name_of = lambda part: jax.tree_util.keystr((part,), simple=True)
    names = [tuple(map(name_of, path)) for path, _ in paths]
    evaluated, trained = (eqx.nn.inference_mode(rest, value) for value in (True, False))

    arguments = parameters(made.__call__)
    asked = [key for key in KEYS if key in arguments]
    mode = modes_of(made.__call__, f"{name}.__call__(x)", given=1, keys=asked)
    hint = "give __call__ an argument key=None and pass it on"

    def init(key: Key) -> Params:
        drawn = jax.tree.leaves(eqx.filter(build(key), eqx.is_inexact_array))
        return unflatten_dict(dict(zip(names, drawn, strict=True)))

    def bind(params: Params, key: Key | None) -> Any:
        flat = flatten_dict(params)
        whole = structure.unflatten([flat[path] for path in names])
        return eqx.combine(whole, evaluated if key is None else trained)

    keywords = lambda key: mode(key is not None) | dict.fromkeys(asked, key)
    silent = never_drops(name, hint) if _equinox_drops(made) and not asked else None
    return functions_of(made, init, bind, keywords, example, silent, each=True)


def _equinox_drops(module: Any) -> bool:
    """Whether it holds a layer that drops out."""
    import equinox as eqx  # pyright: ignore[reportMissingImports]

    is_dropout = lambda part: isinstance(part, eqx.nn.Dropout)
    parts = jax.tree.leaves(module, is_leaf=is_dropout)
    return any(is_dropout(part) and part.p != 0 for part in parts)
