"""Four parts as one algorithm, and the step policies that learn nothing."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .defaults import Mean, by_expected
from .parts import (
    LocalRule,
    Refine,
    Refinement,
    ServerRule,
    StepPolicy,
    as_refinement,
    learns,
)

P = ParamSpec("P")
Part = TypeVar("Part")


def constant_steps(num_steps: int) -> StepPolicy:
    """Every client takes `num_steps` local steps, whatever it holds."""
    check.at_least("num_steps", num_steps, 1)

    def steps(state, cohort, measurement):
        return jnp.full(cohort.ids.shape, num_steps, jnp.int32)

    return StepPolicy(
        steps, mean_steps=lambda epoch_steps: jnp.full_like(epoch_steps, num_steps)
    )


def epochs(num_epochs: float = 1) -> StepPolicy:
    """Every client passes `num_epochs` times over its data.

    That is ceil(num_epochs * ceil(n_i / B)) local steps: the last partial batch counts.

    Raises:
      SettingError: `num_epochs` is below 1/1000, which rounding could make no step at all.

    Example:
      >>> policy = fa.epochs(0.5)  # of clients whose epochs have 4 and 7 steps
      >>> print(policy.mean_steps(jnp.array([4, 7])))
      [2 4]
    """
    check.positive("num_epochs", num_epochs)
    if not check.is_tracer(num_epochs) and num_epochs < 1e-3:
        raise SettingError(
            f"num_epochs={num_epochs} is less than a step of a thousand; write "
            "constant_steps(1) for one local step.",
            setting="num_epochs",
        )

    def of(epoch_steps):
        # 0.3 epochs of 50 steps are 15, though 0.3 x 50 is a little more in float32
        return jnp.ceil(num_epochs * epoch_steps - 1e-4).astype(jnp.int32)

    def steps(state, cohort, measurement):
        return of(cohort.epoch_steps)

    return StepPolicy(steps, mean_steps=of)


def matched_steps(average_epochs: float) -> StepPolicy:
    """Every client takes floor(average_epochs n_i / B) local steps, at least 1.

    It gives a baseline the total of a run with adaptive steps: that run's steps, times B,
    over the examples of the clients of all its rounds. So are FedVeca's baselines run.

    Args:
      average_epochs: E_avg, passes over a client's data; a partial batch does not count.
    """
    check.positive("average_epochs", average_epochs)

    def steps(state, cohort, measurement):
        # in float32 the product may fall short of the whole number it is
        wanted = average_epochs * cohort.num_examples / cohort.batch_size + 1e-4
        return jnp.maximum(jnp.floor(wanted), 1).astype(jnp.int32)

    return StepPolicy(steps)


def scheduled_steps(num_steps: np.ndarray) -> StepPolicy:
    """Every client takes `num_steps[round]` local steps, whatever it holds."""
    table = jnp.asarray(num_steps)

    def steps(state, cohort, measurement):
        now = table[jnp.minimum(cohort.round, len(table) - 1)]
        return jnp.broadcast_to(now, cohort.ids.shape)

    return StepPolicy(steps)


class Algorithm(NamedTuple):
    """Four independent parts; the default of every part is FedAvg's."""

    local: LocalRule = LocalRule()
    policy: StepPolicy = epochs(1)
    server: ServerRule = ServerRule()
    refine: Refinement | Refine | None = None  # None: client models need not be kept


def is_private(algorithm: Algorithm) -> bool:
    """Whether the server takes the mean of `with_privacy`."""
    combine = algorithm.server.combine
    if not isinstance(combine, Mean):
        return False
    # `with_averages` wraps the weights, which `evaluate_also` puts around any algorithm
    return inspect.unwrap(combine.delta) is by_expected


def check_private(algorithm: Algorithm) -> None:
    """Raises SettingError where the server gets more from clients than clipped uploads."""
    if learns(algorithm.policy):
        raise SettingError(
            "with_privacy clips what local rules send, but the step policy learns from "
            "what clients measure or send; write with_steps(algorithm, epochs(5))."
        )
    if algorithm.refine is not None:
        raise SettingError(
            "with_privacy clips what local rules send, but the refinement is shown the "
            "clients' models; take an algorithm without one."
        )


def as_base(base: Algorithm | None) -> Algorithm:
    """The algorithm that another stands on; None: FedAvg.

    Raises:
      SettingError: it is no Algorithm.
    """
    if base is None:
        return Algorithm()
    if not isinstance(base, Algorithm):
        name = base if isinstance(base, str) else getattr(base, "__name__", "scaffold")
        raise SettingError(
            f"base={name!r} is not an algorithm; call its constructor, as in "
            f"base={name}().",
            setting="base",
        )
    return base


def part_of(
    method: Callable[P, Algorithm], *own: str
) -> Callable[[Callable[[Algorithm], Part]], Callable[P, Part]]:
    """The decorator that makes a constructor of a function that picks a method's part.

    What it makes takes the method's arguments but for `own`: names, defaults and choices
    are written once, where the method is.

    Args:
      method: the constructor of the whole algorithm.
      own: its keyword-only arguments that are no business of the part, such as base.

    Example:
      @part_of(gift, "base")
      def gift_steps(algorithm: Algorithm) -> StepPolicy:
          return algorithm.policy
    """

    def constructor(pick: Callable[[Algorithm], Part]) -> Callable[P, Part]:
        of_method = inspect.signature(method)
        taken = [p for p in of_method.parameters.values() if p.name not in own]
        returns = inspect.signature(pick).return_annotation
        signature = of_method.replace(parameters=taken, return_annotation=returns)

        @wraps(pick)
        def part(*args: P.args, **kwargs: P.kwargs) -> Part:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # as Python says it, but for the function's name
                what = str(error).removeprefix("got ")
                raise TypeError(f"{pick.__name__}() got {what}") from None
            return pick(method(*args, **kwargs))

        made: Any = part
        made.__signature__ = signature
        return made

    return constructor


def with_steps(algorithm: Algorithm, policy: StepPolicy) -> Algorithm:
    """The same algorithm, with another answer to "how many local steps?".

    Raises:
      SettingError: `algorithm` is no Algorithm or `policy` no StepPolicy.
    """
    check.kinds("with_steps(fedavg(), epochs(5))", algorithm=(algorithm, Algorithm))
    if not isinstance(policy, StepPolicy):
        raise SettingError(
            f"with_steps got {check.kind_of(policy)} for policy; "
            + (
                "call it, as in gsnr_steps(20), or give a function of your own as "
                "StepPolicy(steps), where steps(state, cohort, measurement) returns the "
                "local steps of each client."
                if callable(policy)
                else "write epochs(5) or constant_steps(20)."
            )
        )
    return algorithm._replace(policy=policy)


def with_refinement(
    algorithm: Algorithm, refine: "Refinement | Refine | Algorithm | None"
) -> Algorithm:
    """The same algorithm, followed by `refine` on the public set.

    Args:
      algorithm: any; a refinement that it has is replaced.
      refine: a Refinement; an algorithm, whose refinement it is, as in
        with_refinement(moon(), fnr()); or a function (params, view, key) -> params of the
        server's model; None: nothing.

    Raises:
      SettingError: `algorithm` is no Algorithm or `refine` none of these.
    """
    check.kinds(
        "with_refinement(fedavg(), fnr_refinement())", algorithm=(algorithm, Algorithm)
    )
    if isinstance(refine, Algorithm):
        refine = refine.refine
    if not (refine is None or isinstance(refine, Refinement) or callable(refine)):
        raise SettingError(
            f"with_refinement got {check.kind_of(refine)} for refine; write a Refinement, "
            "or a function (params, view, key) -> params."
        )
    return algorithm._replace(refine=as_refinement(refine))
