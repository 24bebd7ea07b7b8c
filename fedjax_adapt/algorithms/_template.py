r"""Name: what it does, in one line (it becomes the row of `fedjax-adapt list`).

    G     <- grad F_i(theta) + mu (theta - w)          the paper's equations first
    w     <- w + mean_{i in S} (theta_i - w)           in the paper's letters

References:
  Authors, "Title", venue and year, https://arxiv.org/abs/0000.00000. Algorithm 1.

Departs from the paper: none. (Say it even then; say where and why otherwise.)
"""

import optax

from .. import check
from ..core import Algorithm, LocalRule


def template(mu: float = 0.1) -> Algorithm:
    """Builds the method. Copy this file, keep only the parts your method needs.

    Four parts, each optional: `local` (objective, correction, client state, upload),
    `policy` (how many local steps), `server` (combine, update, server state), `refine`.
    Then import the constructor in `algorithms/__init__.py`: contract tests and command
    line follow from it; CONTRIBUTING.md says what else it takes.

    Args:
      mu: each hyper-parameter, its unit or range, and what 0 means. It may be a tracer.
    """
    check.nonnegative("mu", mu)

    def correct(grads, view):  # mu (theta - w); written for ONE client
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, mu, drift)

    return Algorithm(local=LocalRule(correct=correct))
