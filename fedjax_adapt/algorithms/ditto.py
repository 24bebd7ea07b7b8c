r"""Ditto: besides the global model every client trains one of its own, held near that one.

    w   <- as its base, FedAvg: local SGD from w, sent and averaged
    v_i <- v_i - lr (grad F_i(v_i) + lambda (v_i - w))       lambda = mu, w as begun from

The model a client uses is v_i. One that takes part trains v_i after its local steps, on
the batches of those steps once more, in the same order.

References:
  Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
  2021, https://arxiv.org/abs/2012.04221. Algorithm 1.

Departs from the paper: none. F_i is the task's loss whatever the base minimises; what the
plan says of local SGD but momentum (clipping, weight decay) holds for v_i as well.
"""

from typing import Any, NamedTuple

import jax
import optax

from .. import check
from ..core import (
    Algorithm,
    as_base,
    clip,
    predict_train,
    weighted_loss,
)
from ..wrap import around, seeing

OWN = 0x6474  # what `LocalRun.key` is folded in by


class DittoClient(NamedTuple):
    """The state of a client."""

    inner: Any  # of the base
    own: Any  # v_i


def ditto(
    mu: float = 0.1, steps: int | None = None, base: Algorithm | None = None
) -> Algorithm:
    """Builds Ditto on a base. At mu=0 clients' own models know nothing of the others.

    A round takes a client twice as long as the simulated clock says, which counts the
    steps of the global model alone.

    Args:
      mu: lambda, how strongly v_i is held near w; the paper tunes it, around
        0.1 to 2.
      steps: s, the steps that v_i takes in a round; none: as many as the client's others.
      base: the algorithm that trains w; none: FedAvg.
    """
    check.nonnegative("mu", mu)
    check.at_least("steps", steps, 1, none="as many as the client's others")
    base = as_base(base)
    inner = seeing(base, client=lambda state: state.inner)

    def init(params):
        return DittoClient(base.local.init(params), params)

    def trained(run):  # v_i
        setting, key = run.setting, jax.random.fold_in(run.key, OWN)

        def loss(model, batch, step):
            here = jax.random.fold_in(key, step)
            outputs = predict_train(run.task, model, batch.x, here)
            return weighted_loss(run.task, outputs, batch)

        def step(model, batch, i):
            grads = jax.grad(loss)(model, batch, i)
            grads = optax.tree.add_scale(grads, mu, optax.tree.sub(model, run.anchor))
            grads, _ = clip(grads, setting.clip_norm)
            grads = optax.tree.add_scale(grads, setting.weight_decay, model)
            moved = lambda p, g: (p - setting.lr * g).astype(p.dtype)
            return jax.tree.map(moved, model, grads)

        return run.over_steps(step, run.client.own, steps)

    def finish(run):
        upload, state = inner.local.finish(run)
        return upload, DittoClient(state, trained(run))

    return inner._replace(
        local=inner.local._replace(
            init=around(init, base.local.init),
            finish=around(finish, base.local.finish),
            personal=lambda params, client: client.own,
        )
    )
