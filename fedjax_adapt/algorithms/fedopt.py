r"""FedOpt: an optimizer at the server (FedAvgM, FedAdagrad, FedAdam, FedYogi).

    D  = sum_{i in S} p_i (theta_i - w)                    p_i = n_i / sum_{S} n

    m <- beta m + D                                        FedAvgM; m = 0 at first
    w <- w + server_lr m

    m <- b1 m + (1 - b1) D                                 the others; m = 0 at first
    v <- v + D^2                                           FedAdagrad
    v <- b2 v + (1 - b2) D^2                               FedAdam
    v <- v - (1 - b2) D^2 sign(v - D^2)                    FedYogi; v = tau^2 at first
    w <- w + server_lr m / (sqrt(v) + tau)

References:
  Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
  Visual Classification", 2019, https://arxiv.org/abs/1909.06335. Section 4.2: FedAvgM.
  Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
  https://arxiv.org/abs/2003.00295. Algorithm 2.

Departs from the paper: FedAvgM in nothing; the paper's Nesterov form is `nesterov=True`.
In the others D is weighted by data, as FedAvg's mean is; the paper's is uniform,
`base=fedavg("uniform")`. optax's own adam and yogi, which correct the bias of m and v, are
used as `with_server_optimizer(fedavg(), optax.adam(0.01))`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import Algorithm, as_base
from ..wrap import with_server_optimizer


class Moments(NamedTuple):
    """The server's state: moments of the moves."""

    first: Any  # m
    second: Any  # v


def fedavgm(
    server_lr: float = 1.0,
    server_momentum: float = 0.9,
    nesterov: bool = False,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedAvgM: FedAvg with momentum at the server.

    Without momentum and at server_lr=1 it is its base.

    Args:
      server_lr: step size of the server.
      server_momentum: beta, in [0, 1).
      nesterov: whether to look ahead by one step.
      base: the algorithm whose move of the global model is D; none: FedAvg.
    """
    check.positive("server_lr", server_lr)
    check.between("server_momentum", server_momentum, 0, 1, closed="left")
    optimizer = optax.sgd(server_lr, server_momentum, nesterov)
    return with_server_optimizer(as_base(base), optimizer)


def fedadagrad(
    server_lr: float = 0.03,
    b1: float = 0.0,
    tau: float = 1e-3,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedAdagrad: adaptive steps of the server, v a sum of squared moves.

    Args:
      server_lr: step size of the server; the paper tunes it, 0.001 to 1.
      b1: momentum of m, in [0, 1); the paper's FedAdagrad has none.
      tau: degree of adaptivity: a small one adapts more.
      base: the algorithm whose move of the global model is D; none: FedAvg.
    """
    return _adaptive(server_lr, b1, tau, base, lambda v, square: v + square)


def fedadam(
    server_lr: float = 0.03,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedAdam: adaptive steps of the server, v a moving mean of squared moves.

    Args:
      server_lr: step size of the server; the paper tunes it, 0.001 to 1.
      b1: momentum of m, in [0, 1).
      b2: of v, in [0, 1).
      tau: degree of adaptivity: a small one adapts more.
      base: the algorithm whose move of the global model is D; none: FedAvg.
    """
    check.between("b2", b2, 0, 1, closed="left")
    second = lambda v, square: b2 * v + (1 - b2) * square
    return _adaptive(server_lr, b1, tau, base, second)


def fedyogi(
    server_lr: float = 0.03,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedYogi: adaptive steps of the server, v grows additively to the squared moves.

    Args:
      server_lr: step size of the server; the paper tunes it, 0.001 to 1.
      b1: momentum of m, in [0, 1).
      b2: of v, in [0, 1).
      tau: degree of adaptivity: a small one adapts more.
      base: the algorithm whose move of the global model is D; none: FedAvg.
    """
    check.between("b2", b2, 0, 1, closed="left")
    second = lambda v, square: v - (1 - b2) * square * jnp.sign(v - square)
    return _adaptive(server_lr, b1, tau, base, second)


def _adaptive(server_lr, b1, tau, base: Algorithm | None, second: Callable):
    """An algorithm whose server keeps two moments of the moves."""
    check.positive("server_lr", server_lr)
    check.between("b1", b1, 0, 1, closed="left")
    check.positive("tau", tau)

    def init(params):
        begin = lambda leaf: jnp.full_like(leaf, tau**2)
        return Moments(optax.tree.zeros_like(params), jax.tree.map(begin, params))

    def update(gradient, moments, params=None):  # gradient = -D
        first = optax.tree.add_scale(
            optax.tree.scale(b1, moments.first), 1 - b1, gradient
        )
        squares = jax.tree.map(jnp.square, gradient)
        v = jax.tree.map(second, moments.second, squares)
        step = lambda m, v: -server_lr * m / (jnp.sqrt(v) + tau)
        return jax.tree.map(step, first, v), Moments(first, v)

    optimizer = optax.GradientTransformation(init, update)
    return with_server_optimizer(as_base(base), optimizer)
