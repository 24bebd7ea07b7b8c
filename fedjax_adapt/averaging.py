"""Models worth evaluating besides the server's: the cohort's mean and everyone's mean.

    sel = w + sum_{i in S} p_i (theta_i - w)       the cohort of the last round
    all = sum_i P_i theta_i                        every client that holds examples

p_i are the weights with which the algorithm itself averages uploads, and theta_i in the
second line is the model that client i ended its last round with, w^0 if it never took
part. P_i is n_i / n where p_i is n_i over the cohort's examples, and 1 / N otherwise.

The server of FedDyn and its descendants is no mean of client models, and their codes
report all three: what a table calls accuracy may be any of them. For FedAvg, FedProx and
SCAFFOLD (server_lr = 1) sel is the server's model.

References:
  Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
  https://arxiv.org/abs/2111.04263. The authors' code,
  https://github.com/alpemreacar/FedDyn, evaluates "sel" and "all".
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from . import check
from .core import (
    Algorithm,
    ClientState,
    Cohort,
    LocalRule,
    LocalRun,
    Mean,
    Params,
    PyTree,
    ServerExtra,
    ServerRule,
    State,
    Upload,
    by_examples,
    rows_are_like,
    traffic_within,
    uniformly,
    updated,
    weighted_sums,
)
from .data.dataset import FederatedDataset
from .errors import SettingError
from .wrap import around, seeing


class Averaged(NamedTuple):
    """The algorithm's state or upload, and the model kept or sent besides it."""

    inner: PyTree
    model: Params | tuple[()]  # or a displacement; () where it is not asked for


def with_averages(
    algorithm: Algorithm, cohort: bool = True, clients: bool = False
) -> Algorithm:
    """The same algorithm, which also keeps what `averages` reads.

    Its rounds are those of `algorithm`. Wrap last: a policy or refinement that is given
    later would see the wrapped states.

    Args:
      algorithm: any; its parts see their own states only.
      cohort: keep sel, one model more on the server.
      clients: keep the last local models for all, a client table of num_clients x the
        size of the model.
    """
    check.kinds("with_averages(algorithm)", algorithm=(algorithm, Algorithm))
    inner = seeing(
        algorithm,
        server=lambda extra: extra.inner,
        client=lambda state: state.inner,
        upload=lambda upload: upload._replace(delta=upload.delta.inner),
    )
    return inner._replace(
        local=_local(inner.local, cohort, clients),
        server=_server(
            algorithm.server, inner.server, cohort, algorithm.local.start is None
        ),
    )


def keeps_averages(algorithm: Algorithm) -> bool:
    """Whether it is one of `with_averages` whose server takes a mean."""
    combine = algorithm.server.combine
    return isinstance(combine, Mean) and isinstance(combine.delta, _Weights)


def averages(
    algorithm: Algorithm, state: State, data: FederatedDataset
) -> dict[str, Params]:
    """The means that a state keeps: "sel", "all" or both.

    Clients' refined models count in both; where the server refines its own model, sel is
    what that began from.

    Args:
      algorithm: from `with_averages`.
      state: a state of its rounds; before the first round both are the initial model.
      data: who holds how many examples. Clients without any are not averaged.

    Raises:
      SettingError: the state is of no algorithm from `with_averages`, or its client
        store keeps models in another form.
    """
    check.kinds(
        "averages(algorithm, state, data)",
        algorithm=(algorithm, Algorithm),
        state=(state, State),
        data=(data, FederatedDataset),
    )
    if not isinstance(state.server, Averaged) or not isinstance(
        state.clients, Averaged
    ):
        raise SettingError(
            "averages got a state that keeps no averages; build state and rounds with "
            "with_averages(algorithm)."
        )
    models, combine = {}, algorithm.server.combine
    if jax.tree.leaves(state.server.model):
        models["sel"] = state.server.model
    if jax.tree.leaves(state.clients.model):
        if not rows_are_like(state.clients.model, state.params):
            raise SettingError(
                "averages got clients' models in another form than the server's; write "
                "client_memory=device."
            )
        weigh = combine.delta if isinstance(combine, Mean) else None
        while isinstance(weigh, _Weights):  # wrapped more than once, as a run may
            weigh = weigh.own
        sized = weigh is by_examples
        holds = data.size > 0
        share = jnp.where(holds, data.size if sized else 1, 0)
        weights = share / share.sum()
        models["all"] = weighted_sums(weights, holds, state.clients.model)
    return models


def _local(rule: LocalRule, cohort: bool, clients: bool) -> LocalRule:
    """`rule` is shown its own states already; see `wrap.seeing`."""

    def init(params: Params) -> ClientState:
        return Averaged(rule.init(params), params if clients else ())

    def finish(run: LocalRun) -> tuple[Upload, ClientState]:
        upload, client = rule.finish(run)
        # a rule may send something else than the displacement, as FedNova does
        moved = _moved(rule, run) if cohort else ()
        upload = upload._replace(delta=Averaged(upload.delta, moved))
        return upload, Averaged(client, run.params if clients else ())

    def refined(client: ClientState, params: Params) -> ClientState:
        client = client if rule.refined is None else rule.refined(client, params)
        return client._replace(model=params if clients else ())

    kept = clients or rule.refined is not None
    return rule._replace(
        init=around(init, rule.init),
        finish=around(finish, rule.finish),
        refined=refined if kept else None,
        traffic=traffic_within(
            rule, lambda upload: upload._replace(delta=upload.delta.inner)
        ),
    )


def _moved(rule: LocalRule, run: LocalRun) -> Params:
    """A client's displacement from the broadcast; its model where it began elsewhere."""
    if rule.start is None:
        return optax.tree.sub(run.params, run.anchor)
    return run.params


def _server(
    rule: ServerRule, shown: ServerRule, keep: bool, from_broadcast: bool
) -> ServerRule:
    """`shown` is `rule`, shown its own state."""

    def init(params: Params) -> ServerExtra:
        return Averaged(rule.init(params), params if keep else ())

    def update(
        params: Params,
        server: ServerExtra,
        upload: Upload,
        cohort: Cohort,
        shift: Params | None = None,
    ) -> tuple[Params, ServerExtra]:
        delta, moved = upload.delta
        if keep and shift is not None:
            moved = optax.tree.add(moved, shift)
        # where clients began elsewhere they sent their models
        sel = optax.tree.add(params, moved) if keep and from_broadcast else moved
        upload = upload._replace(delta=delta)
        params, extra = updated(rule, params, server.inner, upload, cohort, shift)
        return params, Averaged(extra, sel)

    def with_models(uploads: Upload, cohort: Cohort) -> Upload:
        delta, moved = uploads.delta
        upload = rule.combine(uploads._replace(delta=delta), cohort)
        moved = weighted_sums(uniformly(cohort), cohort.active, moved)
        return upload._replace(delta=Averaged(upload.delta, moved))

    if isinstance(rule.combine, Mean):  # it stays one, which the engine can stream
        combine = Mean(_Weights(rule.combine.delta), rule.combine.extra)
    else:
        combine = with_models

    return shown._replace(
        init=around(init, rule.init),
        combine=combine,
        update=around(update, rule.update),
        refined=update,
        adds_mean=False,
    )


class _Weights(NamedTuple):
    """The rule's weights of its own `Upload.delta`, and those of the displacement."""

    own: Callable[[Cohort], PyTree]

    @property
    def __wrapped__(self) -> Callable[[Cohort], PyTree]:
        return self.own

    def __call__(self, cohort: Cohort) -> Averaged:
        weights = self.own(cohort)
        # of several it means the last: feddisco sends the usual mean first, then its own
        return Averaged(weights, jax.tree.leaves(weights)[-1])
