"""Haiku transforms as pure functions: `hk.transform(f)`, with or without its key."""

from typing import Any

import haiku as hk  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp

from ..errors import SettingError
from .modules import NO_STATE, Model, modes_of, outputs_of, parameters


def from_haiku(transformed: Any, example: jax.ShapeDtypeStruct) -> Model:
    """`hk.transform(f)` of a function of the batch, and perhaps of `is_training`.

    Raises:
      ValueError: it keeps state, or needs a key in evaluation.
    """
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
    mode = modes_of(
        transformed.apply, "the function of hk.transform", given=3 if keyed else 2
    )

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
