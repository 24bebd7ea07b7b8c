"""Models, however they are written, as pure functions of trees of arrays.

Every library's modules are read in a file of their own, which is imported where such a
module comes.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import jax
from flax import linen, nnx

from ..errors import SettingError
from .modules import KEYS, Model, drops, modes_of, never_drops, outputs_of, parameters


def pure(model: Any, example: jax.ShapeDtypeStruct) -> Model:
    """The model as pure functions, whatever it came as.

    Args:
      model: see `classification`.
      example: one input, without a batch axis.

    Raises:
      ValueError: it is none of these, or keeps state.
    """
    library = _library(model)
    if library == "haiku":
        from .haiku_modules import from_haiku

        return from_haiku(model, example)
    if library == "equinox" or (callable(model) and _takes_key(model)):
        from .equinox_modules import from_equinox

        return from_equinox(model)
    if isinstance(model, linen.Module):
        from .flax_modules import from_linen

        return from_linen(model, example)
    if isinstance(model, nnx.Module) or callable(model):
        from .flax_modules import from_nnx

        return from_nnx(model)
    if isinstance(model, tuple) and [callable(part) for part in model] == [True, True]:
        return _from_pair(*model, example)
    raise SettingError(
        f"model={model!r} is no flax module, nor one of Equinox or Haiku, factory or pair "
        "of functions; give for example fedjax_adapt.models.mlp((28, 28, 1), 10)."
    )


def _library(model: Any) -> str | None:
    """Of "equinox" and "haiku" the one whose module it is; neither is imported here."""
    for kind in type(model).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in ("equinox", "haiku"):
            return name
    return None


def _takes_key(factory: Callable) -> bool:
    """Whether it makes an Equinox module of a key, as nnx factories do of `rngs`."""
    if isinstance(factory, nnx.Module | linen.Module) or "equinox" not in sys.modules:
        return False
    arguments = parameters(factory)
    return "key" in arguments and "rngs" not in arguments


def _from_pair(init: Callable, apply: Callable, example: jax.ShapeDtypeStruct) -> Model:
    """A pair of functions; `apply` may take a key and the mode by name."""
    arguments = parameters(apply)
    keys = [name for name in KEYS if name in arguments]
    asks_key = bool(keys)
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

    is_random = asks_key or bool(mode(True))
    silent = None
    if not is_random and drops(lambda key, x: apply(init(key), x), example):
        hint = "give apply an argument key=None, under which it drops"
        silent = never_drops("apply(params, x)", hint)
    return Model(
        init=init,
        apply=lambda params, x: outputs_of(apply(params, x, **options(False))),
        apply_train=apply_train if is_random else None,
        silent=silent,
    )
