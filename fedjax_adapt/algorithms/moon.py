r"""MOON: pull the features towards the global model's, away from one's own last ones.

    L(theta) = CE + mu mean_x l(x)
    l        = -log( e^{s_g/T} / (e^{s_g/T} + e^{s_p/T}) ) = log(1 + e^{(s_p - s_g)/T})
    s_g      = cos(z, z_w),  s_p = cos(z, z_prev)          z = features of theta at x
    w       <- w + sum_{i in S} p_i (theta_i - w)          p_i = n_i / sum_{S} n

z_w and z_prev are the features of the broadcast model and of the client's own last
end point at the same (augmented) inputs, both frozen and in evaluation mode.

References:
  Li et al., "Model-Contrastive Federated Learning", CVPR 2021,
  https://arxiv.org/abs/2103.16257. Eqs. (3)-(5), Algorithm 1, and the authors' code,
  https://github.com/QinbinLi/MOON.

Departs from the paper: a client that comes for the first time in a later round has no last
model, and so no contrast; the authors' code compares with a random model of its own,
NIID-Bench with the initial one (`first="init"`). One last model is kept, as published; the
code could keep more. Features that are the inputs (models linear and svm) cannot be pulled:
there MOON is FedAvg, at a higher cost. The projection head belongs to the model:
`fedjax_adapt.models.projected` or `--projection 256`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .. import check
from ..core import (
    WEIGHTS,
    Algorithm,
    LocalRule,
    ServerRule,
    mean,
    predict_frozen,
    predict_train,
    send_delta,
    weighted_loss,
)
from ..errors import SettingError


class MoonClient(NamedTuple):
    """The state of a client."""

    previous: Any  # its last end point
    visited: jax.Array  # bool


def moon(
    mu: float = 1.0,
    temperature: float = 0.5,
    first: Literal["none", "init"] = "none",
    weights: Literal["data", "uniform"] = "data",
) -> Algorithm:
    """Builds MOON. `moon(0)` is FedAvg. A step takes two forward passes more.

    Args:
      mu: weight of the contrastive loss; the paper tunes 0.1 to 10, 5 for CIFAR-10.
      temperature: T; the paper's is 0.5.
      first: on a client's first visit no contrast ("none"), or with the initial model.
      weights: of the model average, "data" or "uniform".
    """
    check.nonnegative("mu", mu)
    check.positive("temperature", temperature)
    check.one_of("first", first, ("none", "init"))
    check.one_of("weights", weights, WEIGHTS)

    def init(params):
        return MoonClient(params, jnp.asarray(first == "init"))

    def objective(params, view, key):
        outputs = predict_train(view.task, params, view.batch.x, key)
        if outputs.features is None:
            raise SettingError(
                "moon compares features but the model has none; give a module with "
                "features(x) and head(features), or return Outputs(logits, features)."
            )
        frozen = lambda params: jax.lax.stop_gradient(
            predict_frozen(view.task, params, view.batch.x, key).features
        )
        toward = cosine(outputs.features, frozen(view.anchor))
        away = cosine(outputs.features, frozen(view.client.previous))
        contrast = jax.nn.softplus((away - toward) / temperature)
        weight = view.batch.weight
        contrast = (contrast * weight).sum() / weight.sum()
        loss = weighted_loss(view.task, outputs, view.batch)
        return loss + jnp.where(view.client.visited, mu * contrast, 0)

    def finish(run):
        upload, _ = send_delta(run)
        return upload, MoonClient(run.params, jnp.ones_like(run.client.visited))

    def refined(client, params):  # the model that is uploaded
        return client._replace(previous=params)

    return Algorithm(
        local=LocalRule(init=init, objective=objective, finish=finish, refined=refined),
        server=ServerRule(combine=mean(WEIGHTS[weights])),
    )


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine of the angle between rows, [batch]; 0 where a row is 0."""
    # the square of the 1e-8 that torch's cosine_similarity bounds the norms by; rooted
    # after the maximum, the gradient at 0 is 0 and not NaN
    norm = lambda x: jnp.sqrt(jnp.maximum((x * x).sum(-1), 1e-16))
    return (a * b).sum(-1) / (norm(a) * norm(b))
