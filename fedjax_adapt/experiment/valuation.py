r"""What the clients of a run's next cohort are worth, as a reference for their r_k.

No cohort need be kept: the round after the newest checkpoint is run again, see
`replay`, and coalitions S of its clients are valued on the test set,

    v(S) = value of  w + sum_{k in S} p_k delta_k / sum_{k in S} p_k

p_k are the weights with which the server averages what the clients send. What else it
does with the mean, as FedDyn's and FedNova's do, is not part of a coalition's model.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from .. import check
from ..core import Array, Info, Key, Mean, Params, State, Task
from ..engine import processes
from ..engine.build import make_round
from ..engine.xla import arrays_of, compiler_options, jit_newest
from ..errors import SettingError
from ..valuation import Value, cohort_weights, leave_one_out, shapley
from . import checkpoint, store
from .build import Federation, build
from .config import Config
from .folder import config_of
from .program import compile_program, run_keys
from .rows import client_rows

Reference = Literal["leave_one_out", "shapley"]
ORDERS = 100  # of the cohort, unless given


class CohortValues(NamedTuple):
    """What the clients that trained in a round were worth. Leading axis: these."""

    round: int  # as the run's tables count: the one after the checkpoint
    clients: np.ndarray  # ids
    values: np.ndarray  # by the reference
    gsnr: np.ndarray | None  # r_k of that round, NaN where it says nothing


def value_cohort(
    folder: str | Path,
    reference: Reference = "leave_one_out",
    value: Value = "loss",
    orders: int | None = None,
    tolerance: float | None = None,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
) -> CohortValues:
    """Values the cohort of the round after a run's newest checkpoint, on the test set.

    It takes the rounds up to the run's next evaluation and one more, an evaluation per
    client and order, and memory for cohort x parameters.

    Args:
      folder: of the run, finished or not, of any method; it stays as it is.
      reference: "leave_one_out", or "shapley" values from random orders of the cohort.
      value: of a model, "loss" (its negative) or "accuracy".
      orders: for "shapley", how many; None: 100.
      tolerance: for "shapley", how near to v(all) an order may end; None: none does.
      data_dir: where data files lie; None: the variable FEDJAX_ADAPT_DATA.
      devices: that share the clients of the round; None: as many as the run had, and
        only then are its numbers the run's to the bit.

    Returns:
      The round, its clients that trained, what each was worth, and its r_k, which is None
      for a run that does not measure it.

    Raises:
      SettingError: the folder has no run or no checkpoint, the run's data are not there or
        its devices too few, its method has no weights, fewer than two clients trained, a
        number is not finite, or an argument is not as it must be.
    """
    processes.check_alone("a valuation")
    check.one_of("reference", reference, get_args(Reference))
    check.one_of("value", value, get_args(Value))
    for name, given in {"orders": orders, "tolerance": tolerance}.items():
        if given is not None and reference != "shapley":
            raise SettingError(
                f"{name}={given} is about random orders, which reference={reference} does "
                f"not draw; write reference=shapley, or leave {name} out."
            )
    check.at_least("orders", orders, 1, none=str(ORDERS))
    check.nonnegative("tolerance", 0 if tolerance is None else tolerance)
    folder = check.expanded("", folder)
    config = config_of(folder, data_dir, devices)
    federation = build(config)
    algorithm, task, data, plan = federation[:4]
    if not isinstance(algorithm.server.combine, Mean):
        raise SettingError(
            f"algorithm={config.algorithm} takes no weighted mean of what clients send, "
            "so coalitions of them have no model to be valued."
        )
    number, params, info, rows = replay(folder, config, federation)
    trained = info.num_steps > 0
    if trained.sum() < 2:
        raise SettingError(
            f"{trained.sum()} clients trained in round {number} of {folder}, and one has "
            "nobody to be compared with; take a run with larger cohorts."
        )
    weights = np.asarray(cohort_weights(algorithm, data, plan, info, number - 1))
    how = reference, value, orders or ORDERS, tolerance or 0.0
    deltas = jax.tree.map(lambda leaf: leaf[trained], info.clients)
    test = jax.device_get(data.test)
    key = jax.random.fold_in(jax.random.key(config.seed), 2)  # 0 and 1 are the run's
    values = _values(task, how, params, deltas, weights[trained], test, key)
    values, clients = map(np.asarray, (values, info.cohort[trained]))
    if not np.isfinite(values).all():
        raise SettingError(
            f"round {number} of {folder} leads to a loss that is not finite, by which "
            "nobody can be valued."
        )
    return CohortValues(number, clients, values, _gsnr_of(clients, rows))


@jit_newest(static=2)
def _values(
    task: Task,
    how: tuple[str, Value, int, float],
    params: Params,
    deltas: Params,
    weights: Array,
    test: tuple[Array, Array],
    key: Key,
) -> Array:
    reference, value, num_orders, tolerance = how
    cohort = (task, params, deltas, weights, test)
    if reference == "leave_one_out":
        return leave_one_out(*cohort, value)
    return shapley(*cohort, key, num_orders, tolerance, value)


def _gsnr_of(clients: np.ndarray, rows: dict[str, Any]) -> np.ndarray | None:
    """r_k of these clients, from the rows of the round."""
    if "gsnr" not in rows:
        return None
    says = rows.get("measured", np.ones(len(rows["client"]), bool))
    gsnr = dict(zip(rows["client"], np.where(says, rows["gsnr"], np.nan), strict=True))
    return np.array([gsnr[client] for client in clients])


def replay(
    folder: Path, config: Config, federation: Federation
) -> tuple[int, Params, Info, dict[str, Any]]:
    """The next round of the run in `folder`, whose settings are `config`, on the host.

    It runs twice: as part of the very program of the run, whose figures are to the bit
    those the run would write, and in one that also shows the clients' displacements.
    Nothing is written.

    Returns:
      The number of the round, as the run's tables count (1 is the first), the server's
      model before it, what it shows, and its rows of the table `clients`, as the run would
      write them. `clients` of what it shows are the displacements from that model of those
      who trained, [cohort, ...]; others have no meaning.

    Raises:
      SettingError: no checkpoint can be read, or there are not as many devices.
    """
    saved = folder / store.CHECKPOINTS
    left = config.rounds - checkpoint.rounds(saved)[-1]
    # rounds to an evaluation, which make a program; a run at its end would go on as before
    group = min(config.evaluate_every, left or config.rounds)
    program = compile_program(replace(config, rounds=group), federation)
    restored = checkpoint.restore(saved, program.abstract)
    assert restored is not None
    state, done = restored
    params = jax.device_get(state.params)
    info = jax.device_get(_shown(config, federation, state))
    run = program.group or program.last
    assert run is not None
    infos = jax.device_get(run(state)[1])  # last: it gives up the memory of the state
    first = jax.tree.map(lambda leaf: leaf[:1], infos)
    rows = client_rows(first, done + 1, federation.data.num_clients)
    return done + 1, params, info, rows


def _shown(config: Config, federation: Federation, state: State) -> Info:
    """The round after `state`, its clients' displacements in `Info.clients`.

    They are from the server's model, also where a rule has its clients start elsewhere.
    """
    algorithm, task, data, plan = federation[:4]
    finish = algorithm.local.finish

    def with_model(run):
        upload, client = finish(run)
        return upload._replace(info=run.params), client

    shown = algorithm._replace(local=algorithm.local._replace(finish=with_model))
    round_fn = make_round(shown, task, data, plan)
    options = compiler_options(round_fn.num_lanes)
    _, key_train = run_keys(config.seed)
    key = jax.random.fold_in(key_train, state.round)
    # a Round's data and numbers are arguments of the program, not constants in it
    arrays, rebuild = arrays_of(round_fn)

    def only_info(arrays, state, key):
        info = rebuild(arrays)(state, key)[1]
        apart = lambda models, params: models - params[None]
        return info._replace(clients=jax.tree.map(apart, info.clients, state.params))

    return jax.jit(only_info, compiler_options=options)(arrays, state, key)
