"""What models have in common once they are pure functions, and flax's modules as such.

The parameters of flax modules, nnx and linen, are nested dicts of arrays with the names
their module gave them, so that a checkpoint reads like the model.
"""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict, unflatten_dict

from .. import check
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
    "inference": False,
}
MODE_NAMES = "train, training, is_training, deterministic or inference"
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
      function: of the inputs and perhaps more; an argument that nothing gives is refused.
      shown: how it is called, for a message.
      given: how many arguments it is given by position.
      keys: arguments that are given besides them.
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


def check_factory(
    factory: Any, constructor: Callable, *given: Any, **named: Any
) -> None:
    """Raises SettingError unless a factory of modules takes what it is called with.

    Args:
      factory: a class or a function of `rngs` or `key`.
      constructor: it, or where a class hides what it takes, its __init__.
      given: what `constructor` gets by position.
      named: what it gets by name.
    """
    takes = "key" if "key" in named else "rngs"
    try:
        # a decorator may give what the function that it names asks for
        inspect.signature(constructor, follow_wrapped=False).bind(*given, **named)
    except TypeError as error:
        raise SettingError(
            f"model is {check.kind_of(factory)}, which cannot be called with {takes} "
            f"alone ({error}); give what it returns, or a function of {takes} that "
            "returns a module."
        ) from None
    except ValueError:  # Python cannot say what it takes
        pass


def outputs_of(result: Any) -> Outputs:
    """What a model returned, as Outputs."""
    return result if isinstance(result, Outputs) else Outputs(result)


def is_split(
    kind: type,
    init: Callable[[Key], Params],
    called: Callable[[Params, Array], Outputs],
    composed: Callable[[Params, Array], Outputs],
    example: jax.ShapeDtypeStruct,
) -> bool:
    """Whether modules of a kind say by methods what goes into their last layer.

    Their __call__ then does what head(features(x)) does, operation by operation. A
    submodule of such a name is no method: what lies between the two is in __call__.
    """
    if not all(callable(getattr(kind, name, None)) for name in ("features", "head")):
        return False
    x = jax.ShapeDtypeStruct((2, *example.shape), example.dtype)

    def operations(function):
        logits = lambda key, x: function(init(key), x).logits
        traced = jax.make_jaxpr(logits)(jax.random.key(0), x)
        # but for addresses of functions, which every trace has others of
        return re.sub("0x[0-9a-f]+", "", str(traced))

    wanted = operations(called)
    try:
        return operations(composed) == wanted
    except TypeError:  # they take something else
        return False


def functions_of(
    module: Any,
    init: Callable[[Key], Params],
    bind: Callable[[Params, Key | None], Any],
    keywords: Callable[[Key | None], dict[str, Any]],
    example: jax.ShapeDtypeStruct,
    silent: str | None,
    draws: bool = False,
    each: bool = False,
) -> Model:
    """A module as pure functions; a key is for training, and None for evaluation.

    Args:
      module: of the kind that `bind` returns.
      init: draws the parameters.
      bind: (params, key) -> the module to call.
      keywords: key -> its keyword arguments, besides its inputs.
      example: of its inputs.
      silent: as in `Model`.
      draws: whether it is random in training without being given anything.
      each: whether it takes one example, not a batch.
    """

    def call(params, x, key=None, split=False):
        bound = bind(params, key)

        def one(x, key):
            if split:
                features = bound.features(x)
                return Outputs(bound.head(features), features)
            try:
                return outputs_of(bound(x, **keywords(key)))
            except InvalidRngError:  # of linen, which has every stream in training
                raise SettingError(
                    f"{type(module).__name__} draws random numbers when it is evaluated, "
                    f"too; {SAY_MODE}."
                ) from None

        if not each:
            return one(x, key)
        return jax.vmap(one)(x, None if key is None else jax.random.split(key, len(x)))

    def head(params, features):
        function = bind(params, None).head
        return jax.vmap(function)(features) if each else function(features)

    composed, kind = partial(call, split=True), type(module)
    split = not keywords(None) and is_split(kind, init, call, composed, example)
    in_training = keywords(jax.random.key(0))
    trained = partial(call, split=split and not in_training)
    loss = getattr(module, "loss", None)
    return Model(
        init=init,
        apply=composed if split else call,
        apply_train=trained if draws or in_training else None,
        loss=loss if callable(loss) else None,
        head=head if split else None,
        silent=silent,
    )


def never_drops(name: str, hint: str) -> str:
    """The warning about a model whose dropout does not run in training."""
    return (
        f"{name} holds dropout that never runs, since nothing tells it that it is "
        f"trained; {hint}."
    )


def linen_drops(traced: Callable, example: jax.ShapeDtypeStruct) -> bool:
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


SAY_MODE = f"give __call__ an argument named {MODE_NAMES}, and pass it on"


def from_nnx(model: nnx.Module | Callable, example: jax.ShapeDtypeStruct) -> Model:
    """An nnx module, or a factory of one: its graph is fixed here, `init` draws it.

    The weights of a module are what `init` returns, whatever its key.
    """
    factory, given_params = model, None
    if isinstance(model, nnx.Module):
        factory = lambda rngs: model
        given_params = _named_params(nnx.state(model, nnx.Param))
    made_by = factory.func if isinstance(factory, partial) else factory
    # the class of all nnx modules hides what their constructors take
    is_class = isinstance(made_by, type) and issubclass(made_by, nnx.Module)
    named = parameters(made_by.__init__ if is_class else factory).get("rngs")
    by_name = named is not None and named.kind is named.KEYWORD_ONLY
    if not isinstance(factory, partial):
        given, options = ((), {"rngs": None}) if by_name else ((None,), {})
        if is_class:
            check_factory(made_by, made_by.__init__, None, *given, **options)
        else:
            check_factory(made_by, made_by, *given, **options)

    def build(key):
        rngs = nnx.Rngs(key)
        module = factory(rngs=rngs) if by_name else factory(rngs)
        if not isinstance(module, nnx.Module):
            raise SettingError(
                f"the model's factory returned {type(module).__name__}, not an "
                "nnx.Module; give a function of nnx.Rngs that returns one, or a pair "
                "(init, apply)."
            )
        for path, value in nnx.iter_graph(module):
            if isinstance(value, jax.Array | np.ndarray):
                raise SettingError(
                    f"{type(module).__name__}.{'.'.join(map(str, path))} is an array "
                    "besides the parameters; make a constant in __call__, of numbers or "
                    "a tuple, and write nnx.Param for what is trained."
                )
        return module

    module = nnx.eval_shape(build, jax.random.key(0))
    name = type(module).__name__
    asks_rngs = "rngs" in parameters(module.__call__)
    mode = modes_of(module.__call__, f"{name}.__call__(x)", given=1, keys=("rngs",))
    module.eval()
    graph, weights, random, rest = nnx.split(module, nnx.Param, nnx.RngState, ...)
    for _, variable in nnx.to_flat_state(rest):
        raise SettingError(f"{name} " + NO_STATE.format(kind=type(variable).__name__))
    module.train()
    graph_train = nnx.split(module, nnx.Param, nnx.RngState)[0]
    paths = [path for path, _ in nnx.to_flat_state(weights)]
    draws = bool(nnx.to_flat_state(random))
    mute = not draws and not asks_rngs and _nnx_drops(module)

    def init(key):
        if given_params is not None:
            return given_params
        return _named_params(nnx.state(build(key), nnx.Param))

    def bind(params, key):
        flat = flatten_dict(params)
        state = [(path, nnx.Param(flat[_path_names(path)])) for path in paths]
        kept = graph if key is None else graph_train
        # a module in evaluation mode asks for no random numbers, but has their streams
        return nnx.merge(kept, nnx.from_flat_state(state), _streams(random, key))

    def keywords(key):
        rngs = {"rngs": nnx.Rngs(key)} if asks_rngs and key is not None else {}
        return mode(key is not None) | rngs

    hint = "build it with nnx.Dropout(rate, rngs=rngs)"
    silent = never_drops(name, hint) if mute else None
    return functions_of(module, init, bind, keywords, example, silent, draws)


def _streams(random: nnx.State, key: Key | None = None) -> nnx.State:
    """The random streams of a module, started anew from `key`, each with its own."""
    key = jax.random.key(0) if key is None else key
    flat = []
    for i, (path, variable) in enumerate(nnx.to_flat_state(random)):
        is_key = isinstance(variable, nnx.RngKey)
        value = jax.random.fold_in(key, i) if is_key else jnp.zeros((), jnp.uint32)
        flat.append((path, variable.replace(value)))
    return nnx.from_flat_state(flat)


def _path_names(path: tuple) -> tuple[str, ...]:
    """A path with the positions of a list as names, as checkpoints want them."""
    return tuple(str(part) for part in path)


def _named_params(state: nnx.State) -> Params:
    """The parameters of an nnx module as nested dicts of arrays."""
    flat = nnx.to_flat_state(state)
    return unflatten_dict({_path_names(path): variable[...] for path, variable in flat})


def _nnx_drops(module: nnx.Module) -> bool:
    """Whether it holds a layer that drops out."""
    called = {nnx.Dropout: "rate", nnx.MultiHeadAttention: "dropout_rate"}
    rates = [
        getattr(part, name, 0)
        for _, part in nnx.iter_modules(module)
        for kind, name in called.items()
        if isinstance(part, kind)
    ]
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def from_linen(module: linen.Module, example: jax.ShapeDtypeStruct) -> Model:
    """A linen module; one that takes `train` or the like is given the mode."""
    name = type(module).__name__
    mode = modes_of(type(module).__call__, f"{name}.__call__(x)", given=2)

    def variables(key):
        x = jnp.zeros((1, *example.shape), example.dtype)
        return module.init({"params": key}, x, **mode(False))

    extra = set(jax.eval_shape(variables, jax.random.key(0))) - {"params"}
    if extra:
        raise SettingError(f"{name} " + NO_STATE.format(kind=sorted(extra)[0]))
    mute = not mode(True) and linen_drops(lambda key, x: variables(key), example)

    def bind(params, key):
        if key is None:
            return module.bind({"params": params})
        # a stream of another name falls back on that of the parameters
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}
        return module.bind({"params": params}, rngs=rngs)

    init = lambda key: variables(key)["params"]
    keywords = lambda key: mode(key is not None)
    silent = never_drops(name, SAY_MODE) if mute else None
    return functions_of(module, init, bind, keywords, example, silent)
