r"""Robust aggregation: a few clients that send anything do not decide where a model goes.

    D = median of D_i, number by number                           Yin et al.
    D = their mean without the b = floor(beta m) least and largest    Yin et al.
    D = mean of the D_i nearest to their m - f - 2 nearest        Blanchard et al.
    D = argmin_v sum_i p_i ||v - D_i||                            Pillutla et al.

over the m clients that trained. An upload with a number that is not finite stands for one
that is infinitely far from all others.

References:
  Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018,
  https://arxiv.org/abs/1803.01498. Definitions 1 and 2.
  Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
  Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757. Krum and multi-Krum.
  Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP 2022,
  https://arxiv.org/abs/1912.13445. The smoothed Weiszfeld algorithm.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from . import check
from .averaging import keeps_averages
from .core import (
    Algorithm,
    Array,
    Cohort,
    Mean,
    Params,
    Upload,
    all_finite,
    by_row,
    is_private,
    model_weights,
    weighted_sum,
    weighted_sums,
    widened,
)
from .errors import SettingError

# (displacements [cohort, ...], weights [cohort] that sum to 1, active [cohort]) -> one
Aggregation = Callable[[Params, Array, Array], Params]


def median() -> Aggregation:
    """The median of every number; that of an even count is the mean of the two inside.

    Half of the clients and more must be honest. The rule's weights do not count.
    """

    def aggregate(deltas: Params, weights: Array, active: Array) -> Params:
        count = active.sum()

        def of(leaf):
            ordered = _ordered(leaf, active)
            low = jnp.take(ordered, jnp.maximum(count - 1, 0) // 2, axis=0)
            high = jnp.take(ordered, count // 2, axis=0, mode="clip")
            # inf - inf would be no number
            return jnp.where(low == high, low, low / 2 + high / 2)

        return jax.tree.map(of, deltas)

    return aggregate


def trimmed_mean(fraction: float) -> Aggregation:
    """The uniform mean of every number without the least and largest `fraction` of them.

    Args:
      fraction: beta, left out on either side, in [0, 0.5); no fewer than may be dishonest.
    """
    check.between("fraction", fraction, 0, 0.5, closed="left")

    def aggregate(deltas: Params, weights: Array, active: Array) -> Params:
        count = jnp.maximum(active.sum(), 1)
        # 0.29 x 100 is a little less than 29 in float32
        out = jnp.floor(fraction * count + 1e-4).astype(jnp.int32)
        out = jnp.minimum(out, (count - 1) // 2)
        rank = jnp.arange(active.shape[0])
        inside = (rank >= out) & (rank < count - out)
        share = inside / (count - 2 * out)
        return jax.tree.map(
            lambda leaf: weighted_sum(share, inside, _ordered(leaf, active)), deltas
        )

    return aggregate


def krum(num_byzantine: int, num_selected: int = 1) -> Aggregation:
    """The mean of those clients whose nearest neighbours are nearest (multi-Krum).

    A client's score is the sum of the squared distances to the m - f - 2 nearest others,
    to one at least; those with the least scores are taken, uniformly.

    Args:
      num_byzantine: f, how many may be dishonest; the theory wants m >= 2 f + 3.
      num_selected: how many are averaged; 1 is Krum. Fewer where fewer trained.

    Raises:
      SettingError: an argument is no such integer; later, a cohort has fewer slots than
        2 f + 3, or than num_selected + f.
    """
    check.at_least("num_byzantine", num_byzantine, 0)
    check.at_least("num_selected", num_selected, 1)

    def aggregate(deltas: Params, weights: Array, active: Array) -> Params:
        slots = active.shape[0]
        least = max(2 * num_byzantine + 3, num_byzantine + num_selected)
        if slots < least:
            raise SettingError(
                f"krum(num_byzantine={num_byzantine}, num_selected={num_selected}) needs "
                f"cohorts of {least} clients but they have {slots}; write a larger cohort "
                "or smaller numbers."
            )
        known = active & jax.vmap(all_finite)(deltas)
        deltas = _only(deltas, known)
        pairs = known[:, None] & known[None] & ~jnp.eye(slots, dtype=bool)
        apart = jnp.where(pairs, _squared_distances(deltas), jnp.inf)
        others = jnp.maximum(active.sum() - num_byzantine - 2, 1)
        near = jnp.arange(slots)[None] < others
        score = jnp.where(near, jnp.sort(apart, axis=1), 0).sum(1)
        order = jnp.lexsort((score, ~known))
        count = jnp.minimum(num_selected, known.sum())
        chosen = jnp.zeros(slots, bool).at[order].set(jnp.arange(slots) < count)
        share = chosen / jnp.maximum(count, 1)
        return weighted_sums(share, chosen, deltas)

    return aggregate


def geometric_median(iterations: int = 8, smoothing: float = 1e-6) -> Aggregation:
    """The point of which the mean distance to the clients, by their weights, is least.

        v <- sum_i b_i D_i / sum_i b_i,        b_i = p_i / max(smoothing, ||v - D_i||)

    p_i are the weights that the rule averages with: by examples for FedAvg. It begins at
    v = 0, the broadcast model, which no client can move; RFA begins anywhere and takes
    three iterations. Who sends numbers that are not finite is left out.

    Args:
      iterations: of Weiszfeld's algorithm, of which each would be a message to all and
        back under secure aggregation; here the server sees the uploads.
      smoothing: nu, the least distance.
    """
    check.at_least("iterations", iterations, 1)
    check.positive("smoothing", smoothing)

    def aggregate(deltas: Params, weights: Array, active: Array) -> Params:
        known = active & jax.vmap(all_finite)(deltas)
        deltas = _only(deltas, known)

        def closer(_, centre):
            apart = jax.tree.map(lambda leaf, v: leaf - v[None], deltas, centre)
            distance = jnp.sqrt(_squares(apart))
            pull = jnp.where(known, weights / jnp.maximum(distance, smoothing), 0)
            total = pull.sum()
            share = pull / jnp.where(total > 0, total, 1)
            # at a distance whose square is no number there is no pull, and 0 x inf
            pulls = known & (share > 0)
            return weighted_sums(share, pulls, deltas)

        centre = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), deltas)
        return jax.lax.fori_loop(0, iterations, closer, centre)

    return aggregate


def with_aggregation(algorithm: Algorithm, rule: Aggregation) -> Algorithm:
    """The same algorithm, `Upload.delta` of the cohort combined by a robust rule.

    What a method sends besides it (`Upload.extra`: SCAFFOLD's control variates, FedNova's
    scales) stays a mean, which a client that lies in it moves; FedExP's step at the server
    follows from it, however robust the displacement. The uploads of a whole cohort are held
    at once.

    Args:
      algorithm: any whose server takes a mean.
      rule: `median`, `trimmed_mean`, `krum`, `geometric_median`, or a function of your own
        (deltas [cohort, ...], weights [cohort], active [cohort]) -> one; a slot that is
        not active holds anything.

    Raises:
      SettingError: `algorithm` is no Algorithm or private, its server takes no mean, or
        `rule` is no function.
    """
    wanted = "with_aggregation(algorithm, median())"
    check.kinds(wanted, algorithm=(algorithm, Algorithm), rule=(rule, callable))
    if rule in (median, trimmed_mean, krum, geometric_median):
        raise SettingError(
            f"with_aggregation got the function {rule.__name__} for rule; call it, as in "
            f"{wanted}."
        )
    server, plain = algorithm.server, algorithm.server.combine
    if not isinstance(plain, Mean):
        raise SettingError(
            "with_aggregation takes the place of a mean but the algorithm's server has "
            "another rule; write it around the algorithm once."
        )
    if is_private(algorithm):
        raise SettingError(
            "with_aggregation takes the place of a mean, but the noise of with_privacy is "
            "for its mean alone; leave one of them out."
        )
    if keeps_averages(algorithm):
        raise SettingError(
            "with_aggregation would combine the models that with_averages keeps, too; "
            "write it inside, as in with_averages(with_aggregation(algorithm, median()))."
        )

    def combine(uploads: Upload, cohort: Cohort) -> Upload:
        weights = model_weights(server, cohort)
        delta = rule(uploads.delta, weights, cohort.active)
        extra = weighted_sums(plain.extra(cohort), cohort.active, uploads.extra)
        return Upload(delta, extra)

    return algorithm._replace(server=server._replace(combine=combine))


def _ordered(leaf: Array, active: Array) -> Array:
    """Every number's values in order; those of idle slots, and NaN, are infinite."""
    valid = by_row(active, leaf) & ~jnp.isnan(leaf)
    return jnp.sort(jnp.where(valid, leaf, jnp.inf), axis=0)


def _only(deltas: Params, known: Array) -> Params:
    """The displacements of some clients, and zeros for all others."""
    return jax.tree.map(lambda leaf: jnp.where(by_row(known, leaf), leaf, 0), deltas)


def _squares(deltas: Params) -> Array:
    """||D_i||^2, [cohort]."""
    leaves = jax.tree.leaves(widened(deltas))
    each = [(leaf**2).reshape(leaf.shape[0], -1).sum(1) for leaf in leaves]
    return jnp.stack(each).sum(0)


def _squared_distances(deltas: Params) -> Array:
    """||D_i - D_j||^2, [cohort, cohort], one row at a time: no cohort^2 models."""
    return jax.lax.map(
        lambda delta: _squares(jax.tree.map(lambda a, b: a - b[None], deltas, delta)),
        deltas,
    )
