r"""FedBuff: the server moves when the first few have ended; FedAsync: when one has.

M clients are under way. Whoever ends sends D_i = theta_i - w^(v_i), where v_i counts the
server's updates when it began; when K have arrived the server moves, v <- v + 1:

    w <- w + server_lr / K sum_i s(v - v_i) D_i                             FedBuff
    w <- w + alpha / K sum_i s(v - v_i) (theta_i - w)                       FedAsync, K = 1
    s(x) = 1,  (1 + x)^-a  or  1 / (1 + a max(x - b, 0))                    staleness

A round is one update. It begins when the update before it was made: K clients that are not
under way are drawn, begin at the model that there is, and take `Cohort.seconds` by the
plan's clock; it ends when all but M - K of those under way have ended. So the first rounds
only send clients off, until more than M - K are under way, and leave the model as it is.
Steps and bytes of a client, its upload as well, count in the round in which it begins: at
the end of a run those of up to M - K clients are counted whose uploads have not arrived.

References:
  Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
  https://arxiv.org/abs/2106.06639. Algorithm 1.
  Xie et al., "Asynchronous Federated Optimization", 2019,
  https://arxiv.org/abs/1903.03934. Algorithm 1 and section 5.2; its regularised local
  objective is `base=fedprox(mu)`.

Departs from the paper: those who ended are replaced when the server moves, K at once, and
not one by one, so that M - K to M clients are under way (for K = 1 that is the same).
v - v_i counts the updates in between, 0 if there was none. An update has fewer arrivals
than K where a step policy left clients out, and the first one if K does not divide M.
FedAsync with K > 1 moves towards the mean. A base averages arrivals with its own weights.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    Cohort,
    LocalRun,
    Params,
    PyTree,
    ServerExtra,
    ServerRule,
    Setting,
    Upload,
    as_base,
    by_row,
    mean,
    uniformly,
    updated,
)
from ..errors import SettingError
from ..wrap import around, same, seeing

STALENESS = ("constant", "polynomial", "hinge")


class Clients(NamedTuple):
    """The clients that train, [M]; an id of -1: none."""

    ids: Array
    num_examples: Array
    epoch_steps: Array
    num_steps: Array
    seconds: Array  # from its beginning to its end
    due: Array  # seconds until its end
    version: Array  # v_i


class InFlight(NamedTuple):
    """The state of the server. Leading axis of all that clients have sent: M."""

    inner: ServerExtra  # of the base
    clients: Clients
    delta: PyTree  # as sent; () where the models are kept
    model: PyTree  # theta_i; () where the displacements are kept
    extra: PyTree
    updates: Array  # v
    report: dict[str, Array]  # of the last round


def fedbuff(
    concurrency: int = 20,
    server_lr: float = 1.0,
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial",
    a: float = 0.5,
    b: float = 4.0,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedBuff: the server moves when K of its clients have ended; needs a clock.

    K is the plan's cohort_size. The first ceil(M / K) - 1 rounds only send clients off:
    the model stays as it was, and no time passes.

    Server state: what M clients have sent, M times the memory of an upload.

    Args:
      concurrency: M, clients under way at a time, at least K; M = K waits for all.
      server_lr: the paper's global learning rate, on every displacement.
      staleness: s, what a late displacement counts.
      a: exponent of polynomial, or how steeply hinge falls.
      b: staleness from which hinge falls.
      base: an algorithm without a public set, whose server is given the arrivals as its
        cohort, their displacements times server_lr s. What FedDyn, FedDC and FedSSG
        remember is made of them as they were sent; none: FedAvg with weights 1/K.
    """
    check.positive("server_lr", server_lr)
    s = _weight(staleness, a, b)
    factor = lambda updates: server_lr * s(updates)
    return _asynchronous("fedbuff", concurrency, base, factor, mixes=False)


def fedasync(
    concurrency: int = 20,
    alpha: float = 0.6,
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial",
    a: float = 0.5,
    b: float = 4.0,
    base: Algorithm | None = None,
) -> Algorithm:
    """FedAsync: the server mixes in each model as its client ends; needs a clock.

    K is the plan's cohort_size, the paper's 1. The first ceil(M / K) - 1 rounds only send
    clients off: the model stays as it was, and no time passes.

    Server state: the models of M clients, M times the memory of one.

    Args:
      concurrency: M, clients under way at a time, at least K.
      alpha: how much of an arriving model is mixed in, in (0, 1].
      staleness: s, what a late model counts.
      a: exponent of polynomial, or how steeply hinge falls (the paper's 10).
      b: staleness from which hinge falls.
      base: an algorithm whose server adds the mean of displacements and keeps nothing:
        FedAvg, FedProx or MOON; none: FedAvg with weights 1/K.
    """
    check.between("alpha", alpha, 0, 1, closed="right")
    s = _weight(staleness, a, b)
    if as_base(base).server.update is not None:
        raise SettingError(
            "fedasync mixes in the models of clients, but its base's server makes more "
            "than a mean of them; give fedavg(), fedprox() or moon(), or take fedbuff."
        )
    factor = lambda updates: alpha * s(updates)
    return _asynchronous("fedasync", concurrency, base, factor, mixes=True)


def _weight(kind: str, a: float, b: float) -> Callable[[Array], Array]:
    """s of the updates since a client began."""
    check.one_of("staleness", kind, STALENESS)
    check.nonnegative("a", a)
    check.nonnegative("b", b)
    return {
        "constant": lambda x: jnp.ones(x.shape),
        "polynomial": lambda x: (1.0 + x) ** -a,
        "hinge": lambda x: 1 / (1 + a * jnp.maximum(x - b, 0.0)),
    }[kind]


def _asynchronous(
    name: str,
    concurrency: int,
    base: Algorithm | None,
    factor: Callable[[Array], Array],
    mixes: bool,
) -> Algorithm:
    """The base, its server rule in either way: `mixes` says whether models are kept."""
    check.at_least("concurrency", concurrency, 1)
    most, algorithm = concurrency, as_base(base)
    if base is None:
        algorithm = Algorithm(server=ServerRule(combine=mean(uniformly)))
    rule = algorithm.server
    if rule.busy is not None:
        raise SettingError(
            f"{name} got a base that is asynchronous itself; leave it out."
        )

    def init(params):
        sent = _sent_by(name, algorithm, params)
        table = lambda tree: jax.tree.map(
            lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), tree
        )
        count, seconds = jnp.zeros(most, jnp.int32), jnp.zeros(most)
        clients = Clients(count - 1, count, count, count, seconds, seconds, count)
        none = jnp.zeros((), jnp.int32)
        report = {"arrived": none, "in_flight": none}
        report |= {"staleness": jnp.zeros(()), "simulated_seconds": jnp.zeros(())}
        return InFlight(
            inner=rule.init(params),
            clients=clients,
            delta=() if mixes else table(sent.delta),
            model=table(params) if mixes else (),
            extra=table(sent.extra),
            updates=none,
            report=report,
        )

    def update(params, state, uploads, cohort):
        size = len(cohort.ids)
        _check_numbers(concurrency, size, cohort.num_holders)
        state = _sent_off(state, params, uploads, cohort, mixes)
        clients = state.clients
        away = clients.ids >= 0
        leaving = jnp.maximum(away.sum() - (most - size), 0)
        first, arrived = _by_due(clients)[:size], jnp.arange(size) < leaving
        take = lambda tree: jax.tree.map(lambda leaf: leaf[first], tree)
        ended = take(clients)
        passed = jnp.where(arrived, ended.due, 0).max()
        arrivals = _cohort_of(cohort, ended, arrived)

        stale = state.updates - ended.version
        factors = factor(stale)
        times = lambda leaf: by_row(factors, leaf).astype(leaf.dtype) * leaf
        sent, extra = take(state.delta), take(state.extra)
        moved = sent
        if mixes:
            apart = lambda model, current: model - current[None]
            moved = jax.tree.map(apart, take(state.model), params)
        weighted = jax.tree.map(times, moved)
        combined = rule.combine(Upload(weighted, extra), arrivals)
        if rule.adds_mean:
            usual = rule.combine(Upload(sent, extra), arrivals)
            new, inner = updated(rule, params, state.inner, usual, arrivals)
            change = optax.tree.sub(combined.delta, usual.delta)
            new = optax.tree.add(new, change)
        else:
            new, inner = updated(rule, params, state.inner, combined, arrivals)
        _check_silent(name, rule.report(inner, combined, arrivals))
        new, inner = optax.tree.where(leaving > 0, (new, inner), (params, state.inner))

        emptied = jnp.where(arrived, first, most)
        report = {
            "arrived": leaving,
            "in_flight": away.sum() - leaving,
            "staleness": jnp.where(arrived, stale, 0).sum() / jnp.maximum(leaving, 1),
            "simulated_seconds": passed,
        }
        typed = lambda now, then: now.astype(then.dtype)
        return new, state._replace(
            inner=inner,
            clients=clients._replace(
                ids=clients.ids.at[emptied].set(-1, mode="drop"),
                # from now on: sums of seconds would grow out of float32
                due=jnp.maximum(clients.due - passed, 0),
            ),
            updates=state.updates + (leaving > 0),
            report=jax.tree.map(typed, report, state.report),
        )

    server = ServerRule(
        init=init,
        combine=lambda uploads, cohort: uploads,
        update=around(update, rule.update),
        report=lambda state, upload, cohort: state.report,
        busy=lambda state: state.clients.ids,
        given=algorithm.server.given,
    )
    return seeing(algorithm, server=lambda state: state.inner)._replace(server=server)


def _sent_off(
    state: InFlight, params: Params, uploads: Upload, cohort: Cohort, mixes: bool
) -> InFlight:
    """The state with the clients that begin in this round, in places that were free."""
    size, most = len(cohort.ids), len(state.clients.ids)
    free = jnp.nonzero(state.clients.ids < 0, size=size, fill_value=most)[0]
    place = jnp.where(cohort.active, free, most)
    clients = Clients(
        ids=cohort.ids,
        num_examples=cohort.num_examples,
        epoch_steps=cohort.epoch_steps,
        num_steps=cohort.num_steps,
        seconds=cohort.seconds,
        due=cohort.seconds,
        version=jnp.broadcast_to(state.updates, (size,)),
    )
    model = ()
    if mixes:
        model = jax.tree.map(lambda w, d: w[None] + d, params, uploads.delta)
    put = lambda table, rows: table.at[place].set(rows.astype(table.dtype), mode="drop")
    return state._replace(
        clients=jax.tree.map(put, state.clients, clients),
        delta=() if mixes else jax.tree.map(put, state.delta, uploads.delta),
        model=jax.tree.map(put, state.model, model),
        extra=jax.tree.map(put, state.extra, uploads.extra),
    )


def _by_due(clients: Clients) -> Array:
    """The places in the order in which clients end, [M]; free ones come last.

    What rounding alone sets apart ends together. Then the one that began first is first,
    so that no client waits for ever.
    """
    due = jnp.where(clients.ids >= 0, clients.due, jnp.inf)
    by = jnp.argsort(due)
    longer = jnp.maximum(clients.seconds[by][1:], clients.seconds[by][:-1])
    apart = jnp.diff(due[by]) > 1e-5 * longer
    moment = jnp.append(0, jnp.cumsum(apart))
    return by[jnp.lexsort((by, clients.version[by], moment))]


def _cohort_of(cohort: Cohort, ended: Clients, arrived: Array) -> Cohort:
    """Those who have arrived, as the cohort of the base's server."""
    present = lambda rows: jnp.where(arrived, rows, 0)
    arrivals = cohort._replace(
        ids=jnp.where(arrived, ended.ids, cohort.num_clients),
        num_examples=present(ended.num_examples),
        epoch_steps=present(ended.epoch_steps),
        num_steps=present(ended.num_steps),
        active=arrived,
        seconds=present(ended.seconds),
    )
    setting = cohort.setting and cohort.setting._replace(share=arrivals.share)
    return arrivals._replace(setting=setting)


def _sent_by(name: str, base: Algorithm, params: Params) -> Upload:
    """The shapes of what one client sends."""

    def upload(params):
        zero, one = jnp.zeros(()), jnp.ones((), jnp.int32)
        setting = Setting(one, zero, zero, zero, zero, zero, zero, 1, None, one, 1.0, 1)
        client, server = base.local.init(params), base.server.init(params)
        run = LocalRun(
            params, params, client, server, one, zero, (), zero, setting,
            full_gradient=same, full_loss=lambda params: zero, id=one,
            key=jax.random.key(0),
        )  # fmt: skip
        return base.local.finish(run)[0]._replace(info=())

    try:
        return jax.eval_shape(upload, params)
    except Exception as error:
        raise SettingError(
            f"{name} must know what a client of its base sends before there is a round, "
            f"but LocalRule.finish cannot do without its task, batches or probe ({error}); "
            "take another base."
        ) from error


def _check_numbers(concurrency: int, size: int, num_holders: int) -> None:
    if concurrency < size:
        raise SettingError(
            f"concurrency={concurrency} but {size} clients begin in a round; write a "
            f"concurrency of at least {size}, or have fewer in a round.",
            setting="concurrency",
        )
    if concurrency > num_holders:
        raise SettingError(
            f"concurrency={concurrency} but {num_holders} clients hold examples, and none "
            f"is under way twice; write at most {num_holders}.",
            setting="concurrency",
        )


def _check_silent(name: str, report: Any) -> None:
    if report:
        raise SettingError(
            f"{name} cannot show what the server of its base reports, "
            f"{', '.join(report)}; take a base without a report."
        )
