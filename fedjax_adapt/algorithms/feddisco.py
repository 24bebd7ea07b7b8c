r"""FedDisco: trust clients less the more their labels differ from those of all clients.

    v_i = n_i / sum_{S} n
    d_i = KL(labels of i || uniform), over its total on the cohort
    r_i = max(0, v_i - a d_i + b)
    w  <- w + sum_{i in S} r_i (theta_i - w) / sum_{S} r

References:
  Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML
  2023, https://arxiv.org/abs/2305.19229, and the authors' code,
  https://github.com/MediaBrain-SJTU/FedDisco.

Departs from the paper: KL is divided by its sum over the cohort, as in the code
(`normalise=False` is the paper). Where no r_i is above 0 the weights are v_i, where the
code fails. With another base than FedAvg's server, FedDyn's above all, only the cohort's
mean of theta is weighted anew, as the FedSSG paper's "FedDyn + Disco" has it.
"""

import math
from typing import Literal

import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    LABEL_COUNTS,
    Algorithm,
    Cohort,
    Mean,
    ServerRule,
    adds_mean,
    as_base,
    by_examples,
    traffic_within,
    updated,
)
from ..errors import SettingError

DISTANCES = ("kl", "cosine", "l1", "l2", "only_iid")


def feddisco(
    a: float = 0.5,
    b: float = 0.1,
    distance: Literal["kl", "cosine", "l1", "l2", "only_iid"] = "kl",
    normalise: bool = True,
    reference: tuple[float, ...] | None = None,
    legacy_reshape: bool = False,
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds FedDisco on a base. With a = b = 0 it is its base, weighted by data.

    Args:
      a: how much discrepancy costs.
      b: added to every weight.
      distance: KL divergence, 1 - cosine, l1, l2, or "only_iid": 0.01 for a cosine above
        0.9, else the client is left out.
      normalise: whether KL is divided by its sum over the cohort (code).
      reference: label shares to compare with, one per class; none: uniform.
      legacy_reshape: read the table of label shares ten classes a row whatever their
        number, as the code behind FedSSG's CIFAR-100 tables does by mistake.
      base: an algorithm whose server adds the mean of the cohort's displacements:
        FedAvg, FedProx, MOON, FedDyn, FedDC or FedSSG; none: FedAvg.
    """
    check.nonnegative("a", a)
    check.nonnegative("b", b)
    check.one_of("distance", distance, DISTANCES)
    base = as_base(base)
    combine = base.server.combine
    if not (isinstance(combine, Mean) and adds_mean(base.server)):
        raise SettingError(
            "feddisco weighs the mean of the cohort's models anew, but its base's server "
            "does something else with it; give fedavg(), fedprox(), moon(), feddyn(), "
            "feddc() or fedssg()."
        )
    if reference is not None and not (
        all(0 <= share < math.inf for share in reference) and sum(reference) > 0
    ):
        raise SettingError(
            f"reference={reference} must be finite shares of at least 0, not all 0.",
            setting="reference",
        )

    def label_shares(cohort):  # [cohort, classes]
        if cohort.label_counts is None:
            raise SettingError(
                "feddisco compares label distributions but the data have no integer "
                "labels, one per example; take another algorithm."
            )
        counts = cohort.label_counts
        shares = counts / jnp.maximum(counts.sum(1, keepdims=True), 1)
        if legacy_reshape:
            if counts.shape[1] % 10:
                raise SettingError(
                    f"legacy_reshape reads ten labels a row but there are "
                    f"{counts.shape[1]}; leave it out."
                )
            shares = shares.reshape(-1, 10)
            shares = shares / jnp.maximum(shares.sum(1, keepdims=True), 1e-12)
        return shares[jnp.minimum(cohort.ids, cohort.num_clients - 1)]

    def discrepancy(cohort):  # d_i, [cohort]
        shares = label_shares(cohort)
        target = jnp.full(shares.shape[1], 1 / shares.shape[1])
        if reference is not None:
            if len(reference) != len(target):
                raise SettingError(
                    f"reference has {len(reference)} shares but there are "
                    f"{len(target)} labels; give one share per label."
                )
            target = jnp.asarray(reference) / sum(reference)
        cosine = (shares @ target) / (
            jnp.sqrt((shares**2).sum(1)) * jnp.sqrt((target**2).sum())
        )
        difference = shares - target[None]
        d = {
            "kl": lambda: _kl(shares, target[None]),
            "cosine": lambda: 1 - cosine,
            "l1": lambda: jnp.abs(difference).sum(1),
            "l2": lambda: jnp.sqrt((difference**2).sum(1)),
            "only_iid": lambda: jnp.where(cosine > 0.9, 0.01, jnp.inf),
        }[distance]()
        if distance != "kl" or not normalise:
            return d
        # a label the reference has not: in the limit such clients share all of the sum
        apart = cohort.active & jnp.isinf(d)
        d = jnp.where(apart.any(), apart, jnp.where(cohort.active, d, 0))
        return d / jnp.where(d.sum() > 0, d.sum(), 1)

    def trusted(cohort: Cohort):  # r_i over their sum, [cohort]
        v = by_examples(cohort)
        # a = 0 takes out even an infinite distance
        cost = jnp.where(jnp.asarray(a) > 0, a * discrepancy(cohort), 0)
        r = jnp.where(cohort.active, jnp.maximum(v - cost + b, 0), 0)
        return jnp.where(r.sum() > 0, r / jnp.where(r.sum() > 0, r.sum(), 1), v)

    if base.server.update is None:
        weighted = Mean(trusted, combine.extra)
        server = base.server._replace(combine=weighted, given=LABEL_COUNTS)
        return base._replace(server=server)

    def sends_twice(run):
        upload, client = base.local.finish(run)
        return upload._replace(delta=(upload.delta, upload.delta)), client

    def once(upload):
        return upload._replace(delta=upload.delta[0])

    def update(params, extra, upload, cohort, shift=None):
        usual, weighted = upload.delta
        upload = upload._replace(delta=usual)
        params, extra = updated(base.server, params, extra, upload, cohort, shift)
        change = optax.tree.sub(weighted, usual)
        return optax.tree.add(params, change), extra

    def report(extra, upload, cohort):
        return base.server.report(extra, once(upload), cohort)

    weights = Mean(
        lambda cohort: (combine.delta(cohort), trusted(cohort)), combine.extra
    )
    return base._replace(
        local=base.local._replace(
            finish=sends_twice,
            traffic=traffic_within(base.local, once),
        ),
        server=ServerRule(
            base.server.init,
            weights,
            update,
            refined=update,
            report=report,
            given=LABEL_COUNTS,
        ),
    )


def _kl(p, q):
    """KL divergence of rows p from q, in nats; 0 log 0 = 0."""
    log = lambda x: jnp.log(jnp.where(p > 0, x, 1))
    return (p * (log(p) - log(q))).sum(1)
