"""Algorithms around algorithms: what a wrapper keeps is hidden from what it wraps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from .core import (
    Algorithm,
    ClientState,
    Cohort,
    LocalRule,
    Params,
    Probe,
    ServerExtra,
    ServerRule,
    Upload,
    unchanged,
)


class Optimized(NamedTuple):
    """The server state of `with_server_optimizer`."""

    inner: ServerExtra  # of the algorithm itself
    optimizer: Any


def with_server_optimizer(
    algorithm: Algorithm, optimizer: optax.GradientTransformation
) -> Algorithm:
    """The same algorithm, its move of the global model passed through an optimizer.

    Where the algorithm would go from w to w', the server takes w - w' for a gradient at
    w: `with_server_optimizer(fedavg(), optax.sgd(1.0))` is FedAvg.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
    https://arxiv.org/abs/2003.00295. Algorithm 1.

    Args:
      algorithm: any.
      optimizer: any optax transformation, learning rate included: `optax.adam(0.01)`.

    Raises:
      ValueError: `algorithm` is no Algorithm, or `optimizer` no optax transformation.
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"with_server_optimizer got algorithm={algorithm!r}; call its constructor, as "
            "in with_server_optimizer(fedavg(), optax.adam(0.01))."
        )
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"with_server_optimizer got optimizer={optimizer!r}; write an optax "
            "transformation, such as optax.adam(0.01)."
        )
    rule = algorithm.server

    def init(params: Params) -> Optimized:
        return Optimized(rule.init(params), optimizer.init(params))

    def update(params: Params, extra: Optimized, upload: Upload, cohort: Cohort):
        proposed, inner = rule.update(params, extra.inner, upload, cohort)
        gradient = optax.tree.sub(params, proposed)
        updates, state = optimizer.update(gradient, extra.optimizer, params)
        return optax.apply_updates(params, updates), Optimized(inner, state)

    inner = seeing(algorithm, server=lambda extra: extra.inner)
    return inner._replace(server=ServerRule(init, rule.combine, update))


def seeing(
    algorithm: Algorithm,
    server: Callable[[ServerExtra], ServerExtra] = lambda extra: extra,
    client: Callable[[ClientState], ClientState] = lambda state: state,
) -> Algorithm:
    """The same algorithm inside a wrapper that keeps states of its own.

    Whatever is handed a server extra or a client state is handed `server(extra)` and
    `client(state)` instead. What makes states, `init` and `LocalRule.finish`'s result,
    and the whole server rule are the wrapper's to replace.
    """

    def inner(view):  # LocalView, LocalRun: alike in what counts here
        return view._replace(server=server(view.server), client=client(view.client))

    local, policy, refine = algorithm.local, algorithm.policy, algorithm.refine
    shown = LocalRule(
        init=local.init,
        objective=lambda params, view, key: local.objective(params, inner(view), key),
        correct=lambda grads, view: local.correct(grads, inner(view)),
        finish=lambda run: local.finish(inner(run)),
        prepare=lambda view: local.prepare(inner(view)),
        decay=lambda grads, view: local.decay(grads, inner(view)),
    )
    measure, update, probe = policy.measure, policy.update, policy.probe
    if measure is not None:
        policy = policy._replace(
            measure=lambda view, key: measure(inner(view), key),
        )
    if update is not unchanged:  # else the engine need not keep the runs
        policy = policy._replace(
            update=lambda state, cohort, runs, outcome: update(
                state,
                cohort,
                inner(runs),
                outcome._replace(server=server(outcome.server)),
            ),
        )
    policy = policy._replace(
        probe=Probe(
            probe.init, lambda p, grads, view: probe.update(p, grads, inner(view))
        )
    )
    if refine is None:
        return Algorithm(shown, policy, algorithm.server)

    def refined(params, view, key):
        return refine(params, view._replace(runs=inner(view.runs)), key)

    return Algorithm(shown, policy, algorithm.server, refined)
