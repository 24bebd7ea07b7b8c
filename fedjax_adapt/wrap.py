"""Algorithms around algorithms: what a wrapper keeps is hidden from what it wraps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from . import check
from .core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    LocalRule,
    LocalRun,
    LocalView,
    Params,
    Probe,
    PyTree,
    Refinement,
    ServerExtra,
    StepPolicy,
    Upload,
    as_refinement,
    learns,
    measure_of,
    of_widened,
    updated,
)

# (function, what it is around or None): `State.origin` is whose function lies inside
around = partial(update_wrapper, assigned=(), updated=())


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
      SettingError: `algorithm` is no Algorithm, or `optimizer` no optax transformation.
    """
    check.kinds(
        "with_server_optimizer(fedavg(), optax.adam(0.01))",
        algorithm=(algorithm, Algorithm),
        optimizer=(optimizer, optax.GradientTransformation),
    )
    rule, optimizer = algorithm.server, of_widened(optimizer)

    def init(params: Params) -> Optimized:
        return Optimized(rule.init(params), optimizer.init(params))

    def update(
        params: Params,
        extra: Optimized,
        upload: Upload,
        cohort: Cohort,
        shift: Params | None = None,
    ):
        proposed, inner = updated(rule, params, extra.inner, upload, cohort, shift)
        gradient = optax.tree.sub(params, proposed)
        moves, state = optimizer.update(gradient, extra.optimizer, params)
        new = optax.apply_updates(params, moves)
        if rule.busy is not None:
            # nobody arrives in the first rounds of an asynchronous server
            moved = jnp.stack(list(map(jnp.any, jax.tree.leaves(gradient)))).any()
            new, state = optax.tree.where(
                moved, (new, state), (params, extra.optimizer)
            )
        return new, Optimized(inner, state)

    inner = seeing(algorithm, server=lambda extra: extra.inner)
    return inner._replace(
        server=inner.server._replace(
            init=around(init, rule.init),
            update=around(update, rule.update),
            refined=update,
            adds_mean=False,
        )
    )


def with_local_optimizer(
    algorithm: Algorithm, optimizer: Callable[[Array], optax.GradientTransformation]
) -> Algorithm:
    """The same algorithm, whose clients take their local steps with another optimizer.

    With `optax.adam` it is Adam of the plan's learning rate of the round, with `optax.sgd`
    what it was. Its memory begins anew in every round. It sees the gradient with the
    algorithm's correction, clipped, and with the plan's weight decay, as torch's Adam does.
    What an optimizer draws, as `optax.noisy_sgd` does, is the same for all clients and
    rounds.

    What a method does besides local steps remains SGD: Ditto's personal models, pFedMe's
    inner steps, a refinement. Methods that take a client's move for a sum of its gradients
    are for SGD and refuse another: SCAFFOLD, FedNova, FedCM, FedDC, FedSSG. So does FedRep,
    which holds parameters still.

    Args:
      algorithm: any of the others.
      optimizer: (learning rate) -> an optax transformation: `optax.adam`,
        `partial(optax.adamw, weight_decay=0.01)`, or with a schedule over local steps
        `lambda lr: optax.sgd(optax.cosine_decay_schedule(lr, 50))`.

    Raises:
      SettingError: `algorithm` is no Algorithm, or `optimizer` no such function.
    """
    check.kinds(
        "with_local_optimizer(fedavg(), optax.adam)",
        algorithm=(algorithm, Algorithm),
        optimizer=(optimizer, callable),
    )
    return algorithm._replace(local=algorithm.local._replace(optimizer=optimizer))


def same(value: Any) -> Any:
    """The identity."""
    return value


def seeing(
    algorithm: Algorithm,
    server: Callable[[ServerExtra], ServerExtra] = same,
    client: Callable[[ClientState], ClientState] = same,
    upload: Callable[[Upload], Upload] = same,
) -> Algorithm:
    """The same algorithm inside a wrapper that keeps states of its own.

    Whatever is handed a server extra, a client state or a combined upload is handed
    `server(extra)`, `client(state)` and `upload(combined)` instead; with `client`,
    `LocalRule.refined` renews the `inner` of the wrapper's state. What makes them,
    `LocalRule.init`, the results of `LocalRule.finish` and the server's `init`, `combine`
    and `update`, is the wrapper's to replace.
    """

    def inner(argument):
        if not isinstance(argument, LocalView | LocalRun):
            return argument
        return argument._replace(
            server=server(argument.server), client=client(argument.client)
        )

    def renewed(state, params):
        assert renew is not None
        return state._replace(inner=renew(client(state), params))

    def shown(function):
        if function is None:
            return None
        return around(lambda *arguments: function(*map(inner, arguments)), function)

    local, rule = algorithm.local, algorithm.server
    personal, renew = local.personal, local.refined
    # defaults but `finish`, which hands the state on, look at none
    wrapped = {
        name: shown(function)
        for name, function in local._asdict().items()
        if name == "finish" or function is not LocalRule._field_defaults[name]
    }
    wrapped |= {
        "init": local.init,
        "traffic": local.traffic,
        "refined": renew if renew is None or client is same else renewed,
        "check": local.check,
        "personal": personal
        and (lambda params, state: personal(params, client(state))),
    }
    refine = as_refinement(algorithm.refine)

    def report(extra, sent, cohort):
        return rule.report(server(extra), upload(sent), cohort)

    busy = rule.busy and (lambda extra, busy=rule.busy: busy(server(extra)))
    keeps = server is same and upload is same
    return Algorithm(
        local=local._replace(**wrapped),
        policy=_policy(algorithm.policy, shown, server, upload),
        server=rule if keeps else rule._replace(report=report, busy=busy),
        refine=None if refine is None else _refinement(refine, inner),
    )


def _policy(policy: StepPolicy, shown: Callable, server, upload) -> StepPolicy:
    """The same policy, shown inner states; itself where it looks at none."""
    if policy.probe is None and not learns(policy):
        return policy
    policy_update, measure = policy.update, measure_of(policy)

    def update(state, cohort, runs, outcome):
        assert policy_update is not None
        outcome = outcome._replace(
            server=server(outcome.server), upload=upload(outcome.upload)
        )
        return policy_update(state, cohort, runs, outcome)

    return policy._replace(
        measure=measure._replace(client=shown(measure.client)),
        probe=policy.probe and Probe(*map(shown, policy.probe)),
        send=shown(policy.send),
        update=policy_update and shown(update),
    )


def _refinement(refine: Refinement, inner: Callable) -> Refinement:
    def shown(function):
        if function is None:
            return None

        # the view is the last argument but the key
        def of_inner(*arguments):
            *before, view, key = arguments
            return function(*before, view._replace(runs=inner(view.runs)), key)

        return of_inner

    return refine._replace(
        clients=shown(refine.clients),
        server=shown(refine.server),
        send=refine.send and (lambda run, send=refine.send: send(inner(run))),
    )


_KEPT: ContextVar[Callable[[Params], PyTree] | None] = ContextVar(
    "parameters that clients keep", default=None
)


@contextmanager
def keeping(which: Callable[[Params], PyTree]) -> Iterator[None]:
    """A context in which no parameters are sent for which `which` is true."""
    token = _KEPT.set(which)
    try:
        yield
    finally:
        _KEPT.reset(token)


def sent_part(tree: Params) -> tuple[PyTree, Callable[[PyTree], Params]]:
    """The sent leaves of a tree like the model, and a function that restores it with 0s."""
    which = _KEPT.get()
    if which is None:
        return tree, lambda sent: sent
    kept = jax.tree.leaves(which(tree))
    leaves, structure = jax.tree.flatten(tree)

    def whole(sent: PyTree) -> Params:
        left = iter(sent)
        zeros = map(jnp.zeros_like, leaves)
        pairs = zip(kept, zeros, strict=True)
        return structure.unflatten(
            [zero if stays else next(left) for stays, zero in pairs]
        )

    return [leaf for leaf, stays in zip(leaves, kept, strict=True) if not stays], whole
