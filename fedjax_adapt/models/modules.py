"""What all ways to read a module have in common: its arguments, modes and outputs."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import linen

from ..core import Array, Key, Outputs, Params
from ..errors import SettingError

NO_STATE = (
    "holds {kind}, which is state besides its parameters and would be neither averaged "
    "nor kept per client; write GroupNorm for BatchNorm, and plain attributes for "
    "constants."
)
# what an argument is called that says whether the model is trained, and what it is then
MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
}
MODE_NAMES = "train, training, is_training or deterministic"
KEYS = ("key", "rng", "rngs")


class Model(NamedTuple):
    """A model as pure functions of already normalised inputs."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None
    loss: Callable[[Array, Array], Array] | None = None  # the module's own
    head: Callable[[Params, Array], Array] | None = None  # in evaluation mode
    silent: str | None = None  # what to warn of: dropout that never runs


def parameters(function: Callable) -> dict[str, inspect.Parameter]:
    """The arguments of a function by name; {} where Python cannot say."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def modes_of(
    function: Callable, shown: str, given: int, keys: Any = ()
) -> Callable[[bool], dict[str, bool]]:
    """A function of whether the model is trained: what to tell `function` by name.

    Args:
      function: of the inputs and perhaps more.
      shown: how it is called, for a message.
      given: how many arguments it is given by position.
      keys: arguments that are given besides them.

    Raises:
      ValueError: it asks for an argument that nothing gives.
    """
    arguments = parameters(function)
    known = {name: on for name, on in MODES.items() if name in arguments}
    for name, argument in list(arguments.items())[given:]:
        needed = argument.default is argument.empty
        variadic = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        by_position = argument.kind is argument.POSITIONAL_ONLY
        if by_position or (
            needed and not variadic and name not in known and name not in keys
        ):
            raise SettingError(
                f"{shown} asks for {name} as well, which nothing gives; give it a "
                f"default, or name it {MODE_NAMES} if it says whether the model is trained."
            )
    return lambda train: {name: on == train for name, on in known.items()}


def outputs_of(result: Any) -> Outputs:
    """What a model returned, as Outputs."""
    return result if isinstance(result, Outputs) else Outputs(result)


def is_split(model: Any) -> bool:
    """Whether a module says by methods what goes into its last layer."""
    return hasattr(model, "features") and hasattr(model, "head")


def own_loss(module: Any) -> Callable | None:
    """The module's method `loss`, if it has one."""
    loss = getattr(module, "loss", None)
    return loss if callable(loss) else None


def never_drops(name: str, hint: str) -> str:
    """The warning about a model whose dropout does not run in training."""
    return (
        f"{name} holds dropout that never runs, since nothing tells it that it is "
        f"trained; {hint}."
    )


def drops(traced: Callable, example: jax.ShapeDtypeStruct) -> bool:
    """Whether `traced(key, x)` calls a linen layer that drops out."""
    rates = []

    def look(call, arguments, options, context):
        module = context.module
        if isinstance(module, linen.Dropout):
            rates.append(module.rate)
        elif isinstance(module, linen.MultiHeadDotProductAttention):
            rates.append(module.dropout_rate)
        return call(*arguments, **options)

    x = jax.ShapeDtypeStruct((1, *example.shape), example.dtype)
    with linen.intercept_methods(look):
        jax.eval_shape(traced, jax.random.key(0), x)
    return any(rate > 0 for rate in rates)
