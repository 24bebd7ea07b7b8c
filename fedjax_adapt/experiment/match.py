"""A comparison at equal work: as many local steps in all as another run took."""

import numpy as np

from .. import check
from ..core import StepPolicy, matched_steps, scheduled_steps
from ..data import PublicSet
from ..errors import SettingError
from . import records, store
from .config import Config, read_config, to_settings
from .schema import settings_that_are


def matching_steps(
    config: Config, sizes: np.ndarray, num_train: int, public: PublicSet | None = None
) -> StepPolicy:
    """The policy that gives this run the total of the run in `config.match`.

    By "epochs" every client takes floor(E_avg n_i / B) local steps, E_avg = tau_all B
    over the examples of the clients of all rounds of that run (with full participation
    K n): FedVeca's protocol. By "steps" all clients of a round take equally many, the
    mean rounded down or up so that the total over all rounds differs by at most half the
    largest cohort: FedGSNR's protocol. A mean below 1 leaves some rounds idle.
    Totals are those of equal cohorts: with coins, of the same seed. Steps on a public set
    are not matched: neither those of the other run nor those of this one count.

    Clients hold `sizes` [clients] of the `num_train` examples that were split among them,
    of which the public set is no part.

    Raises:
      ValueError: there is no finished run of the same federation and rounds.
    """
    record = _record(config)
    _check_examples(config, record, num_train, public)
    rounds, clients, num_steps = _columns(config, record)
    if clients.max(initial=0) >= len(sizes):
        raise SettingError(
            f"match={config.match} holds a run with a client {clients.max()}, but here "
            f"are {len(sizes)} clients; only runs of one federation can be matched."
        )
    visits = sizes[clients]
    total = int(num_steps.sum(dtype=np.int64))
    if total == 0:
        raise SettingError(f"match={config.match} holds a run that took no local step.")
    if config.match_by == "steps":
        holders = rounds[visits > 0]
        cohorts = np.bincount(holders - 1, minlength=config.rounds)
        return scheduled_steps(schedule(total, cohorts))
    longest = int(sizes.max())
    batch = longest if config.batch_size is None else min(config.batch_size, longest)
    return matched_steps(total * batch / int(visits.sum(dtype=np.int64)))


def schedule(total: int, cohorts: np.ndarray) -> np.ndarray:
    """The same whole number of steps for all clients of a round, [rounds] int32.

    Each is the mean rounded down or up, whatever leaves the total so far nearer to the
    mean's: the last total is off by at most half the largest cohort. `cohorts` are how many
    clients train in each round, [rounds].
    """
    visits, given, due, steps = int(cohorts.sum()), 0, 0, []
    few = total // visits
    for cohort in map(int, cohorts):
        due += cohort * total  # in units of 1 / visits
        more = 2 * (due - (given + cohort * few) * visits) > cohort * visits
        steps.append(few + more)
        given += cohort * steps[-1]
    return np.array(steps, np.int32)


def _check_examples(
    config: Config, record: records.Record, num_train: int, public: PublicSet | None
) -> None:
    """Raises ValueError unless the clients of both runs hold as many examples in all."""
    assert record.summary is not None
    theirs = record.summary["data"]["train"]
    if theirs == num_train:
        return
    there = record.summary.get("public", {})  # a run of an earlier version had none
    names = [there[x] for x in ("protocol", "examples", "validation")] if there else []
    here = []
    if public is not None:
        here = [public.protocol, public.num_examples, public.num_validation]
    settings = "public={}, public_examples={}, validation_examples={}"
    said = lambda given: settings.format(*given) if given else "no public set"
    raise SettingError(
        f"match={config.match} holds a run whose clients share {theirs} examples ("
        f"{said(names)}), but here they share {num_train} ({said(here)}); only runs of one "
        "federation can be matched, so take as many examples out of the training set in "
        "both."
    )


def _columns(
    config: Config, record: records.Record
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round (1 is the first), client and local steps of each visit, [visits]."""
    table, names = record.clients, ("round", "client", "num_steps")
    lacks = "is gone"
    if set(names) <= set(table.column_names):
        rounds, clients, num_steps = (table[name].to_numpy() for name in names)
        if set(rounds.tolist()) == set(range(1, config.rounds + 1)):
            return rounds, clients, num_steps
        lacks = "lacks rounds"
    raise SettingError(
        f"match={config.match} holds a run whose table of clients {lacks}; give the folder "
        "of a whole one."
    )


def _record(config: Config) -> records.Record:
    """The finished run to be matched."""
    folder = check.expanded("match=", str(config.match))
    if not (folder / store.CONFIG).is_file():
        raise SettingError(
            f"match={config.match} holds no run; write the folder of a finished one."
        )
    record, _ = records.read_finished(folder, f"match={config.match}")
    theirs = to_settings(read_config(folder / store.CONFIG))
    ours = to_settings(config)
    own = [name for name in ours if name.startswith(("partition.", "dataset."))]
    for name in (*settings_that_are("matched"), *own):
        if ours[name] != theirs.get(name):
            raise SettingError(
                f"match={config.match} holds a run with {name}={theirs.get(name)}, not "
                f"{name}={ours[name]}; only runs of one federation can be matched, so "
                f"write {name}={theirs.get(name)}."
            )
    return record
