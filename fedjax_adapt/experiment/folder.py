"""The folder of a run: who may write into it, what it holds, and what it was made of."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from .. import check
from ..core import Algorithm, State, Task
from ..data import FederatedDataset
from ..engine import processes
from ..engine.initial import init_state
from ..errors import SettingError
from . import checkpoint, files, objects, records, store
from .build import Federation, build
from .config import (
    Config,
    config_hash,
    first_difference,
    from_settings,
    to_settings,
    to_toml,
)
from .files import LOCK, locked
from .program import abstract_state, round_keys, run_keys
from .reading import read_settings
from .records import read_run
from .schema import settings_that_are
from .user_functions import JAX_DEFAULTS, REVISED, label, origins

if TYPE_CHECKING:
    import pyarrow

# whose public batches were the clients' before a default of 32 was written
PUBLIC_BATCH = ("fnr", "fedavg_pubft", "public_only")


def run_folder(config: Config) -> Path:
    """Where a run lies: as given, or runs/DATASET-ALGORITHM-HASH."""
    if config.folder is not None:
        return check.expanded("folder=", config.folder)
    dataset, algorithm = dataset_label(config), label(config.algorithm)
    name = f"{dataset}-{algorithm}-{config_hash(config)}"
    return check.expanded("folder=", Path("runs") / name)


def dataset_label(config: Config) -> str:
    """The data set's name as part of a file's."""
    name = Path(label(config.dataset)).name.removesuffix(".npz")
    return re.sub(r"[^\w.-]+", "_", name)


def check_folder(folder: Path, config: Config, resume: bool) -> None:
    """Raises SettingError unless this run may start, or go on, in `folder`."""

    def changed() -> str | None:
        change = first_change(folder, config)
        if change is None:
            return None
        name, old, new = change
        if not resume:
            go_on = ""
            if store.read_summary(folder) is None:
                again = f"fedjax-adapt run --folder {quote(str(folder))} --resume"
                go_on = f"write {again} to go on with that one, or "
            return (
                f"another run ({name}={old}, here {name}={new}); {go_on}give another "
                "folder."
            )
        return (
            f"a run with {name}={old}, not {name}={new}; resume it with {name}={old}, or "
            "give another folder."
        )

    if (sweep := records.sweep_of(folder)) is not None:
        raise SettingError(
            f"folder={folder} lies among the trials of {sweep}, which stay as they are; "
            "give another folder, and --config with the config.toml of a trial to train it "
            "by itself.",
            setting="folder",
        )
    check_may_begin(folder, store.CONFIG, changed, [config], resume)


def check_may_begin(
    folder: Path,
    file: str,
    changed: Callable[[], str | None],
    configs: Iterable[Config],
    resume: bool,
) -> None:
    """Raises SettingError unless a run or a sweep may start, or go on, in `folder`.

    Its file is `store.CONFIG` or `store.SWEEP`, `configs` are those of its runs, and
    `changed` says what the folder holds instead; None: the same.
    """
    kind = "run" if file == store.CONFIG else "sweep"
    check_can_write(folder)
    if not holds(folder, file, kind):
        return
    change = changed()
    if change is not None:
        raise SettingError(f"folder={folder} holds {change}")
    if store.read_summary(folder) is not None:
        raise SettingError(
            f"folder={folder} holds this {kind}, finished; a finished {kind} is never "
            "overwritten, so give another folder."
        )
    if resume:
        check_origins(folder, configs)
        return
    call = "run(config, resume=True)" if kind == "run" else "sweep(..., resume=True)"
    raise SettingError(
        f"folder={folder} holds this {kind}, half finished; write --resume ({call} in "
        "Python), or give another folder."
    )


def holds(folder: Path, file: str, kind: str) -> bool:
    """Whether a run, a sweep or a search, whose settings `file` has, began in a folder."""
    if not folder.exists():
        return False
    if (folder / file).exists():
        return True
    first = (LOCK, store.OWN, files.SUMS)
    others = (path for path in folder.iterdir() if path.name not in first)
    if not all(files.is_left_over(path, (file, *first)) for path in others):
        raise SettingError(
            f"folder={folder} holds files that are no {kind}; give a new folder.",
            setting="folder",
        )
    return False


def is_finished(folder: Path, config: Config) -> bool:
    """Whether `folder` holds this run, finished; SettingError if a file is damaged."""
    if not holds_finished(folder, store.CONFIG) or first_change(folder, config):
        return False
    check_origins(folder, [config])
    files.check_all(folder)
    return True


def holds_finished(folder: Path, file: str) -> bool:
    """Whether `folder` holds a finished run or sweep, whose settings are in `file`."""
    return (folder / file).is_file() and store.read_summary(folder) is not None


def check_origins(folder: Path, configs: Iterable[Config]) -> None:
    """Raises SettingError if what `origins` tells is not what the folder was begun with."""
    before = JAX_DEFAULTS | store.read_origins(folder)
    for choice, origin in (JAX_DEFAULTS | origins(configs)).items():
        then = before.get(choice, "not recorded")
        if then not in (origin, origin.partition(objects.CHECKED)[0]):
            files.check(folder, folder / store.OWN)  # it may be gone
            ours = choice in REVISED
            remedy = "go on in the version it was" if ours else "put it back as it was"
            raise SettingError(
                f"folder={folder} was begun with another {choice}: it was {then}, and is "
                f"{origin} now; {remedy}, or give another folder."
            )


def check_can_write(folder: Path) -> None:
    """Raises SettingError if the folder cannot be made, or nothing be written there."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        what = "is a file" if there == folder else f"lies below {there}, a file"
        raise SettingError(f"folder={folder} {what}; give the path of a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(
            f"folder={folder} cannot be written; give a folder where you may write."
        )


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in `folder`, with what defaults were when it began."""
    settings = read_settings(folder / store.CONFIG)
    if settings.get("algorithm") in PUBLIC_BATCH:
        settings.setdefault("algorithm.batch_size", None)
    return settings


def devices_of(folder: str | Path) -> int | Literal["auto"]:
    """How many devices shared the clients of the run in `folder`, before JAX has begun."""
    return stored_settings(check.expanded("", folder)).get("devices", "auto")


def first_change(folder: Path, config: Config) -> tuple[str, Any, Any] | None:
    """The first setting in which the run in `folder` differs: its name, then, now."""
    old = to_settings(from_settings(stored_settings(folder)))
    new = to_settings(config)
    if new["num_clients"] is None:  # the data say it, and are not loaded yet
        new["num_clients"] = old["num_clients"]
    return first_difference(old, new, settings_that_are("incidental"))


def as_begun(folder: Path, config: Config) -> Config:
    """The config, where what it leaves open is as the run in `folder` took it."""
    if not (folder / store.CONFIG).exists():
        return config
    # a run of an earlier version had its convolutions by the rule
    before = {"convolutions": "rule"} | read_settings(folder / store.CONFIG)
    begun = from_settings(before)
    may = settings_that_are("settled")
    left = [name for name in may if getattr(config, name) in ("auto", None)]
    return replace(config, **{name: getattr(begun, name) for name in left})


def create(folder: Path) -> None:
    """Makes the folder, or raises a SettingError that says why it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(folder / LOCK):
            (folder / LOCK).touch()
    except OSError as error:
        raise SettingError(
            f"folder={folder} cannot be written ({error.strerror}); "
            "give another folder."
        ) from None


@contextmanager
def locked_folder(folder: Path, config: Config, resume: bool) -> Iterator[bool]:
    """The folder, its settings written, held for this process while the block runs.

    Of several processes the first holds it. Yields whether that is this one.
    """
    with ExitStack() as stack:
        with processes.agreed():
            if processes.is_first():
                stack.enter_context(locked(folder))
                check_folder(folder, config, resume)
                if not (folder / store.CONFIG).exists():
                    store.write_origins(folder, origins([config]))
                    files.write_listed(folder / store.CONFIG, to_toml(config))
                store.begin_list(folder)
        yield processes.is_first()


class Loaded(NamedTuple):
    """A run, finished or not.

    Attributes:
      config: its settings.
      federation: its algorithm, task, data and plan, and what they were made of, as
        `build` returns it: `fa.make_round(*loaded.federation[:4])` is its round.
      state: its newest checkpoint; the rounds done are `state.round`.
      metrics: a row per evaluation, those after the checkpoint too, see `Record`.
      clients: a row per client and round, likewise.
      summary: what summary.json holds; None: the run is not finished.
    """

    config: Config
    federation: Federation
    state: State
    metrics: "pyarrow.Table"
    clients: "pyarrow.Table"
    summary: dict[str, Any] | None

    def __repr__(self) -> str:
        """One line: a state is long."""
        done = f"{self.state.round} rounds" + ("" if self.summary else ", not finished")
        return f"Loaded({self.config.algorithm}, {done})"

    def keys(self, num_rounds: int) -> jax.Array:
        """The keys of the next rounds, as the run would have them, [num_rounds]."""
        check.at_least("num_rounds", num_rounds, 1)
        _, key_train = run_keys(self.config.seed)
        return round_keys(key_train, self.state.round, num_rounds)


def load_run(
    folder: str | Path,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
) -> Loaded:
    """Loads a run: its data, its algorithm, its newest state and its tables.

        loaded = fa.load_run("runs/mine")
        algorithm, task, data, plan = loaded.federation[:4]
        fa.evaluate(task, loaded.state.params, data.test)
        round_fn = fa.make_round(algorithm, task, data, plan)
        state, infos = fa.train(round_fn, loaded.state, loaded.keys(10))

    Nothing is written: rounds that are trained so are no part of the run. Of a run with
    evaluate_on=validation `data.test` are the validation examples. FedSSG goes by the
    number of rounds, and trains no more than those of its run.

    Args:
      folder: of the run, finished or not, or of a trial of a sweep.
      data_dir: where data files lie; None: the variable FEDJAX_ADAPT_DATA.
      devices: that share the clients of a round; None: as many as the run had.
      algorithm: that it was given, if it was an object; likewise the next two.
      task: see there.
      data: see there.

    Raises:
      SettingError: the folder holds no run or no checkpoint, the run's data, devices or
        file of a user's own are not there, or an object was given to the run.
    """
    check.kinds('load_run("runs/mine")', folder=(folder, check.path))
    folder = check.expanded("", folder)
    record = read_run(folder)
    with objects.given(algorithm, task, data):
        config = config_of(folder, data_dir, devices)
        federation = build(config)
        key_init, _ = run_keys(config.seed)
        init = partial(init_state, *federation[:4], key_init)
        abstract = abstract_state(init, federation)
        restored = checkpoint.restore(folder / store.CHECKPOINTS, abstract)
    assert restored is not None  # or `config_of` has said so
    return Loaded(
        config, federation, restored[0], record.metrics, record.clients, record.summary
    )


def config_of(
    folder: Path,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
) -> Config:
    """The settings of a saved run, with what may differ here; else SettingError."""
    if not (folder / store.CONFIG).is_file():
        raise SettingError(f"{folder} holds no run: it has no {store.CONFIG}.")
    if not checkpoint.rounds(folder / store.CHECKPOINTS):
        if folder.absolute().parent.name == store.TRIALS:
            raise SettingError(
                f"{folder} has no checkpoint: it diverged, was stopped before the others "
                "of its program, or is of an earlier version; train it by itself with "
                f"fedjax-adapt run --config {quote(str(folder / store.CONFIG))} --folder "
                "NEW."
            )
        raise SettingError(
            f"{folder} has no checkpoint to go on from; write fedjax-adapt run --folder "
            f"{quote(str(folder))} --resume to get one."
        )
    here = {"data_dir": data_dir, "devices": devices or _present(folder)}
    given = {name: value for name, value in here.items() if value is not None}
    config = from_settings(stored_settings(folder) | given)
    check_origins(folder, [config])
    return config


def _present(folder: Path) -> int | None:
    """How many devices there are, where they are fewer than the run had."""
    had = read_settings(folder / store.CONFIG).get("devices", "auto")
    present = len(jax.devices())
    return present if isinstance(had, int) and had > present else None
