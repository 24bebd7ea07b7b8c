"""The estimates of AFL: smoothness, divergence and a Lipschitz constant, by its clients.

See `__init__.py` for the symbols.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ... import check
from ...core import (
    Algorithm,
    Array,
    ClientState,
    Info,
    Params,
    adds_mean,
    all_finite,
    norm_of,
    updated,
    weighted_loss,
    widened,
)
from ...errors import SettingError
from ...wrap import seeing

CONSTANTS = ("beta", "delta", "rho")


class Remembered(NamedTuple):
    """The state of a client: the base's, and the model it ended with."""

    inner: ClientState
    model: Params  # `no_model` until it has trained


class Estimate(NamedTuple):
    """The measurements of a client at w before it trains."""

    loss: Array
    gradient: Params
    beta: Array  # 0 where the client has never trained, as rho
    rho: Array
    compares: Array  # whether it had a model to compare with


def estimate(view, key) -> Estimate:
    """On one minibatch, at the broadcast model and at the client's last one."""
    if not isinstance(view.client, Remembered):
        raise SettingError(
            "afl_online needs clients that keep their last model; write "
            "afl(budget=..., base=scaffold()) in place of with_steps(scaffold(), ...)."
        )

    def of(params):
        outputs = view.task.apply(params, view.batch.x)
        return weighted_loss(view.task, outputs, view.batch)

    trained = ~equal(view.client.model, no_model(view.params))
    model = optax.tree.where(trained, view.client.model, view.params)
    loss, gradient = jax.value_and_grad(of)(view.params)
    last_loss, last_gradient = jax.value_and_grad(of)(model)
    apart = norm_of(optax.tree.sub(model, view.params))
    far = ~(apart <= 1e-10)  # the paper's threshold; what is NaN is to be seen
    over = jnp.where(far, apart, 1)
    turned = norm_of(optax.tree.sub(last_gradient, gradient))
    return Estimate(
        loss=loss,
        gradient=gradient,
        beta=jnp.where(far, jnp.maximum(turned / over, 1e-5), 0),  # the paper's floor
        rho=jnp.where(far, jnp.abs(last_loss - loss) / over, 0),
        compares=trained,
    )


def no_model(params: Params) -> Params:
    """The stand-in for the last model of a client that has never trained.

    The largest finite numbers: a model that diverges may be NaN or infinite, but not these.
    """
    return jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.finfo(leaf.dtype).max), params
    )


def equal(one: Params, other: Params) -> Array:
    """Whether all numbers are equal. A scalar."""
    return jnp.stack(jax.tree.leaves(jax.tree.map(jnp.array_equal, one, other))).all()


def divergences(gradients: Params, mean) -> Array:
    """||grad F_i - grad F||, [cohort], of gradients [cohort, ...]."""
    away = lambda leaf: ((leaf - mean(leaf)[None]) ** 2).reshape(len(leaf), -1).sum(1)
    squares = jax.tree.leaves(jax.tree.map(away, widened(gradients)))
    return jnp.sqrt(jnp.stack(squares).sum(0))


def remembering(base: Algorithm) -> Algorithm:
    """The base, whose clients keep their last model and whose server refuses NaN."""
    inner = seeing(base, client=lambda state: state.inner)

    def init(params):
        return Remembered(base.local.init(params), no_model(params))

    def finish(run):
        upload, state = inner.local.finish(run)
        return upload, Remembered(state, run.params)

    def update(params, extra, upload, cohort, shift=None):
        new = updated(base.server, params, extra, upload, cohort, shift)
        return optax.tree.where(all_finite((upload, shift)), new, (params, extra))

    adds = adds_mean(base.server)
    return inner._replace(
        # what AFL compares with is the local model, whatever it is refined to
        local=inner.local._replace(init=init, finish=finish),
        server=base.server._replace(update=update, adds_mean=adds, refined=update),
    )


def afl_constants(infos: Info) -> dict[str, Array]:
    """beta, delta and rho as `afl_fixed` takes them: means over the rounds of a trial.

    Args:
      infos: of `train` with `afl(trial_steps=...)`, [rounds, ...]. Only rounds count that
        gave an estimate: not the first one, before which no client had a model to compare
        with, nor one whose clients all came for the first time or had a number that was
        not finite.

    Raises:
      SettingError: infos are of something else, or no round gave an estimate.
    """
    policy = infos.policy if isinstance(infos, Info) else None
    if not isinstance(policy, dict) or not {"estimates", *CONSTANTS} <= set(policy):
        raise SettingError(
            f"afl_constants got {check.kind_of(infos)} without afl's estimates; write "
            "afl_constants(infos) with what train returned for afl(trial_steps=5) or so."
        )
    return means_of_trial(policy)


def means_of_trial(rounds: Mapping[str, Any]) -> dict[str, Array]:
    """The constants from what a trial showed, [rounds] of each; see `afl_constants`."""
    gave = jnp.diff(rounds["estimates"]) > 0
    if not check.is_tracer(gave) and not gave.any():
        raise SettingError(
            f"afl_constants got {len(rounds['estimates'])} rounds of which none gave an "
            "estimate: no client came again with a finite model; train more rounds, or a "
            "larger cohort."
        )
    return {name: rounds[name][1:].mean(where=gave) for name in CONSTANTS}
