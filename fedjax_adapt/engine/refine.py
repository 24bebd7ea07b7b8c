"""The last part of a round: what happens on the public set.

    w^+ = server rule + sum_i p_i (refined_i - theta_i)

Refined models count in place of those that clients had sent; what else a client sends or
remembers was made of theta_i, but for what its rule renews by `LocalRule.refined`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    Key,
    LocalRun,
    Params,
    PyTree,
    RefineSetup,
    RefineState,
    RoundView,
    as_refinement,
    by_row,
    model_weights,
    weighted_sum,
)
from ..errors import SettingError
from .batches import batch_size
from .client_store.exchange import CohortRows, gather_rows, set_rows
from .cohort import SECONDS, num_slots
from .contract import guarded_task
from .setup import Setup

PUBLIC_STEPS = "public_steps"  # of a report, what `Info.public_steps` counts
# as errors call them
REFINEMENT_PARTS = ("Refinement.clients", "Refinement.server")


class Shifted(NamedTuple):
    """The results of clients that were refined."""

    shift: Params | None  # sum_i p_i (refined_i - theta_i); None: no client refines
    runs: LocalRun  # with the refined models
    clients: ClientState  # the whole table
    steps: Array | None  # [cohort], on the public set
    report: dict[str, Array]


def refine_setup(setup: Setup, params: Params | None = None) -> RefineSetup:
    """The `RefineSetup` of a run. `params` None: shapes alone."""
    task, data, plan = setup[1:4]
    if params is None:
        params = jax.eval_shape(task.init, jax.random.key(0))
    return RefineSetup(
        params=params,
        num_classes=data.num_classes,
        num_clients=data.num_clients,
        cohort_size=num_slots(data, plan),
        example=jax.ShapeDtypeStruct(data.x.shape[1:], data.x.dtype),
        batch_size=batch_size(data, plan),
        public=data.public,
        outputs=jax.eval_shape(guarded_task(task).apply, params, data.x[:1]),
        labelled=data.label_counts is not None,
    )


def settled(setup: Setup) -> Setup:
    """The setup, the traffic of its algorithm's refinement as numbers.

    Raises:
      SettingError: there is no public set, or something else the refinement needs; or the
        public set holds test examples.
    """
    algorithm, task, data = setup[:3]
    refine = as_refinement(algorithm.refine)
    if refine is None:
        return setup
    if refine.needs_public and data.public is None:
        raise SettingError(
            "the algorithm refines models on a public set but the data have none; give "
            "public=(x, y) to from_clients, or take another algorithm."
        )
    known = refine_setup(setup)
    if refine.check is not None:
        refine.check(task, known)
    if refine.needs_public:
        data.check_public()
    number = lambda traffic: traffic(known) if callable(traffic) else traffic
    refine = refine._replace(
        traffic=number(refine.traffic), traffic_refined=number(refine.traffic_refined)
    )
    return setup._replace(algorithm=algorithm._replace(refine=refine))


def init_refinement(setup: Setup, params: Params, key: Key) -> RefineState:
    """The state of the refinement before round 0."""
    refine = as_refinement(setup.algorithm.refine)
    if refine is None:
        return ()
    return refine.init(setup.task, refine_setup(setup, params), key)


def refine_clients(
    algorithm: Algorithm, view: RoundView, rows: CohortRows, key: Key
) -> Shifted:
    """The clients' models refined, and what follows for the server and the table."""
    refine, runs, cohort = as_refinement(algorithm.refine), view.runs, view.cohort
    if refine is None or refine.clients is None:
        return Shifted(None, runs, rows.table, None, {})
    refined = refine.clients(view, key)
    steps = jnp.where(cohort.active, refined.steps, 0)
    weights = model_weights(algorithm.server, cohort)
    moved = optax.tree.sub(refined.params, runs.params)
    shift = jax.tree.map(lambda leaf: weighted_sum(weights, steps > 0, leaf), moved)
    renew, table = algorithm.local.refined, rows.table
    if renew is not None:
        renewed = jax.vmap(renew)(gather_rows(table, rows.row), refined.params)
        table = set_rows(table, rows.row, steps > 0, renewed)
    runs = runs._replace(params=refined.params)
    return Shifted(shift, runs, table, steps, refined.report)


def refine_server(
    algorithm: Algorithm, params: Params, state: RefineState, view: RoundView, key: Key
) -> tuple[Params, RefineState, dict[str, Array]]:
    """The server's model after the public set, what is kept, and what is shown."""
    refine = as_refinement(algorithm.refine)
    if refine is None or refine.server is None:
        return params, state, {}
    return refine.server(params, state, view, key)


def public_steps(cohort: Cohort, steps: Array | None, report: dict) -> Array:
    """Steps on the public set in this round, of clients and at the server. A scalar.

    Args:
      cohort: of the round; where no client trained nothing counts.
      steps: of its clients, [cohort]; None: no client refines.
      report: what the refinement says, `public_steps` of the server among it.
    """
    server = jnp.asarray(report.get(PUBLIC_STEPS, 0)).astype(float)
    server = jnp.where(cohort.num_active > 0, server, 0)
    return server if steps is None else server + steps.sum().astype(float)


def masked_report(cohort: Cohort, report: dict[str, Array]) -> PyTree:
    """The report with zeros where a client did not train, and where none did."""
    trained = cohort.num_active > 0

    def mask(leaf):
        leaf = jnp.asarray(leaf)
        if leaf.ndim == 0:
            return jnp.where(trained, leaf, jnp.zeros_like(leaf))
        return jnp.where(by_row(cohort.active, leaf), leaf, jnp.zeros_like(leaf))

    counted = (PUBLIC_STEPS, SECONDS)  # which have their own place in `Info`
    report = {name: leaf for name, leaf in report.items() if name not in counted}
    return jax.tree.map(mask, report)
