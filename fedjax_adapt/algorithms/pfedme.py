r"""pFedMe: train the mean of models that every client may leave at a price.

    theta  <- theta - inner_lr (grad f_i(theta) + lambda (theta - w))   K times, from w
    T_i(w)  = the last theta, near argmin_theta f_i(theta; batch) + lambda/2 ||theta - w||^2
    w_i    <- w_i - lr lambda (w_i - T_i(w_i))               one local step
    w      <- (1 - beta) w + beta mean_{i in S} w_i

The model a client uses is theta_i = T_i(w_i) after its last step, on the batch that
would be next; before its first round w^0.

References:
  Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
  https://arxiv.org/abs/2006.08848. Algorithm 1 and Section 5; the authors' code,
  https://github.com/CharlieDinh/pFedMe, solves by K steps of this kind.

Departs from the paper: clients that are not drawn do not train, where the paper trains all
and averages the drawn. K steps take the place of the accuracy nu, from w_i each time; the
authors' code begins where the solve before it ended. Weight decay and clipping, which it
does not treat, hold for w_i.
"""

import jax
import optax

from .. import check
from ..core import (
    Algorithm,
    LocalRule,
    ServerRule,
    mean,
    predict_train,
    send_delta,
    uniformly,
    weighted_loss,
)

SOLVE = 0x7066  # what `LocalRun.key` is folded in by


def pfedme(
    lam: float = 15.0, inner_steps: int = 5, inner_lr: float = 0.09, beta: float = 1.0
) -> Algorithm:
    """Builds pFedMe. Client state: theta_i. A local step costs K gradients and a loss.

    With one inner step of inner_lr = 1/lam it is FedAvg with uniform weights.

    Args:
      lam: lambda, the price of leaving w; the paper's is 15 on MNIST.
      inner_steps: K; the paper's is 5.
      inner_lr: of the inner steps, as in the authors' code on MNIST; below 2/lam, or they
        leave w for good.
        The local learning rate times lam must stay below 2 as well.
      beta: of the server, above 0; the paper's is 1, and 2 where that is faster.
    """
    check.positive("lam", lam)
    check.at_least("inner_steps", inner_steps, 1)
    check.positive("inner_lr", inner_lr)
    check.positive("beta", beta)

    def loss(theta, task, batch, key):
        return weighted_loss(task, predict_train(task, theta, batch.x, key), batch)

    def solved(w, *given):  # T_i(w)
        def step(_, theta):
            grads = jax.grad(loss)(theta, *given)
            pull = optax.tree.add_scale(grads, lam, optax.tree.sub(theta, w))
            moved = lambda p, g: (p - inner_lr * g).astype(p.dtype)
            return jax.tree.map(moved, theta, pull)

        return jax.lax.fori_loop(0, inner_steps, step, w)

    def objective(params, view, key):  # its gradient is lambda (w - T_i(w))
        given = view.task, view.batch, key
        theta = solved(jax.lax.stop_gradient(params), *given)
        apart = optax.tree.norm(optax.tree.sub(params, theta), squared=True)
        return loss(theta, *given) + lam / 2 * apart

    def finish(run):
        batch, key = run.batch_at(run.num_steps), jax.random.fold_in(run.key, SOLVE)
        return send_delta(run)[0], solved(run.params, run.task, batch, key)

    def update(params, extra, upload, cohort):
        return optax.tree.add_scale(params, beta, upload.delta), extra

    def refined(params, extra, upload, cohort, shift):
        moved = upload._replace(delta=optax.tree.add(upload.delta, shift))
        return update(params, extra, moved, cohort)

    return Algorithm(
        local=LocalRule(
            init=lambda params: params,
            objective=objective,
            finish=finish,
            personal=lambda params, theta: theta,
        ),
        server=ServerRule(combine=mean(uniformly), update=update, refined=refined),
    )
