"""AFL's bound G on the loss that a budget ends with, and the one tau that is best by it.

See `__init__.py` for the symbols.
"""

from typing import Any

import jax.numpy as jnp

from ... import check
from ...core import Array, StepPolicy, constant_steps
from ...errors import SettingError

# c and b of the paper's testbed, in seconds
STEP_SECONDS, AGGREGATION_SECONDS = 0.0130, 0.1316


def afl_fixed(
    beta: float,
    delta: float,
    rho: float,
    budget: float | None = None,
    *,
    lr: float = 0.01,
    phi: float = 5e-5,
    step_seconds: float = STEP_SECONDS,
    aggregation_seconds: float = AGGREGATION_SECONDS,
    max_steps: int = 100,
) -> StepPolicy:
    """One tau for the whole run, the first minimiser of G over 1..max_steps.

    Args:
      beta: smoothness, with delta and rho from `afl_constants` of a trial run.
      delta: divergence of the clients' gradients.
      rho: Lipschitz constant of the loss.
      budget: R, seconds; it must be given.
      lr: eta, the learning rate of the run.
      phi: the control parameter.
      step_seconds: c, seconds of one local step.
      aggregation_seconds: b, seconds of one aggregation.
      max_steps: the largest tau to look at.
    """
    for name, value in (("beta", beta), ("delta", delta), ("rho", rho)):
        check.nonnegative(name, value, any_size=True)
        check.between(name, value, 0, 1e15)
    check.positive("lr", lr)
    check_costs(phi, step_seconds, aggregation_seconds, max_steps)
    check_budget(budget, step_seconds, aggregation_seconds)
    costs = budget, step_seconds, aggregation_seconds
    tau: Any = 1 + jnp.argmin(bounds(beta, delta, rho, lr, phi, costs, max_steps))
    return constant_steps(tau if check.is_tracer(tau) else int(tau))


def drifts(beta, delta, lr, most: int) -> Array:
    """h at 1..most. As a sum it is exactly 0 at 1 and never below."""
    growth = jnp.arange(most) * jnp.log1p(lr * beta)
    # e^80 is large enough for any G, and no product with it is NaN
    return lr * delta * jnp.cumsum(jnp.expm1(jnp.minimum(growth, 80.0)))


def bounds(beta, delta, rho, lr, phi, costs, most: int) -> Array:
    """G at 1..most."""
    (budget, c, b), x = costs, jnp.arange(1, most + 1)
    steps = (budget - b - c) / (c + b / x)  # T
    half = 1 / (2 * lr * phi * steps)
    drift = rho * drifts(beta, delta, lr, most)
    g = half + jnp.sqrt(half**2 + drift / (lr * phi * x)) + drift
    return jnp.where(jnp.isnan(g), jnp.inf, g)


def check_costs(phi, c, b, max_steps) -> None:
    """Raises SettingError unless G can be found for them."""
    check.positive("phi", phi, any_size=True)
    check.positive("step_seconds", c, any_size=True)
    check.nonnegative("aggregation_seconds", b)
    check.at_least("max_steps", max_steps, 1)
    check.between("max_steps", max_steps, 1, 1_000_000)  # G is a vector as long
    for name, value in {"phi": phi, "step_seconds": c}.items():
        check.between(name, value, 1e-9, 1e15)  # a float32 holds their products


def check_budget(budget, c, b) -> None:
    """Raises SettingError unless there are seconds for a first round."""
    if budget is None:
        raise SettingError(
            "AFL chooses tau for a budget but budget is missing; write the seconds that "
            "all rounds together may take, as in budget=15.0."
        )
    if check.is_tracer(budget) or check.is_tracer(b + c):
        return
    check.positive("budget", budget, any_size=True)
    if budget <= b + c:
        raise SettingError(
            f"budget={budget} is over before the first round ends, which takes "
            f"{b + c:.4g} seconds; write more.",
            setting="budget",
        )
    check.between("budget", budget, 1e-9, 1e15)
