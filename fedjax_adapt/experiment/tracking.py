"""TensorBoard, Weights & Biases and MLflow, which show a run while it goes on.

A tracker is given the rows of the table `metrics` once they are written, so the tables
have all that it has, and a run goes on without a tracker that fails.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..errors import SettingError
from . import files
from .config import Config, to_settings

FOLDER = "tracking"  # in that of a run; in that of a sweep it has one for each trial
# of wandb, and the experiment of MLflow, unless they have others
PROJECT = "fedjax-adapt"
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
UNTRACKED = ("round", "trial", "diverged_round", "stopped_round")


class Tracker(Protocol):
    """Where the figures of a run, or of a trial, go."""

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Takes the figures after a round; a resumed run may say a round again."""

    def close(self, finished: bool) -> None:
        """Writes what is left; `finished`: no round is to come."""


class _TensorBoard:
    def __init__(self, folder: Path, name: str, config: Config, done: int):
        from tensorboardX import SummaryWriter

        # what was shown of rounds that are made again is shown no more
        # names have the second of the start alone, and two in one would be one file
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"
        self.writer = SummaryWriter(
            str(folder), purge_step=done + 1, filename_suffix=suffix
        )
        if not done:
            lines = [f"    {k} = {v!r}" for k, v in to_settings(config).items()]
            self.writer.add_text("settings", "\n".join(lines), 0)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        for figure, value in figures.items():
            self.writer.add_scalar(figure, value, round)
        self.writer.flush()  # a run that is killed goes on after its last checkpoint

    def close(self, finished: bool) -> None:
        self.writer.close()


class _WandB:
    def __init__(self, folder: Path, name: str, config: Config, done: int):
        import wandb  # pyright: ignore[reportMissingImports]

        file, known = _identity(folder, "wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=folder,
            id=known,
            resume="allow",
            reinit="create_new",  # trials of a sweep are runs at once
            name=name,
            config=to_settings(config),
        )
        files.write_text(file, self.run.id)
        # steps of wandb never go back, as rounds do that are made again
        self.run.define_metric("*", step_metric="round")

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self.run.log({**figures, "round": round})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class _MLflow:
    def __init__(self, folder: Path, name: str, config: Config, done: int):
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        self.client = MlflowClient()
        file, known = _identity(folder, "mlflow")
        if known is None:
            run = self.client.create_run(self._experiment(), run_name=name)
            known = run.info.run_id
            given = [Param(k, str(v)) for k, v in to_settings(config).items()]
            self.client.log_batch(known, params=given)
            files.write_text(file, known)
        else:
            self.client.update_run(known, status="RUNNING")
        self.run_id = known

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(name)
        return found.experiment_id if found else self.client.create_experiment(name)

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(1000 * time.time())
        found = [Metric(k, value, now, round) for k, value in figures.items()]
        self.client.log_batch(self.run_id, metrics=found)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")


TRACKERS = {"tensorboard": _TensorBoard, "wandb": _WandB, "mlflow": _MLflow}


def _identity(folder: Path, tracker: str) -> tuple[Path, str | None]:
    """The file that has what a tracker calls the run here, and what it has, or None."""
    path = folder / f"{tracker}.id"
    return path, path.read_text().strip() if path.is_file() else None


def check_tracker(name: str | None) -> None:
    """Raises SettingError if the package of a tracker is not installed."""
    if name is not None and find_spec(PACKAGES[name]) is None:
        raise SettingError(
            f"track={name} needs the package {PACKAGES[name]}; write pip install "
            f"'fedjax-adapt[{name}]', or leave track out."
        )


class Trackers:
    """Those of a run, under None, or of the trials of a sweep that run at once.

    A context: they end with it, as finished unless an exception ends it.
    """

    def __init__(self, of: Mapping[int | None, Tracker] | None = None):
        """Tracks nothing where there is none."""
        self.of = dict(of or {})

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tells each tracker the rows of its trial."""
        for row in rows:
            figures = {
                name: float(value)
                for name, value in row.items()
                if name not in UNTRACKED and isinstance(value, int | float)
            }
            with self._guarded(row["trial"]) as tracker:
                if tracker is not None:
                    tracker.log(row["round"], figures)

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: type | None, error: object, trace: object) -> None:
        for trial in list(self.of):
            with self._guarded(trial) as tracker:
                if tracker is not None:
                    tracker.close(kind is None)
            self.of.pop(trial, None)

    @contextmanager
    def _guarded(self, trial: int | None) -> Iterator[Tracker | None]:
        """The tracker of a trial; one that fails is said to, once, and left out."""
        try:
            yield self.of.get(trial)
        except Exception as error:
            del self.of[trial]
            whose = "" if trial is None else f" of trial {trial}"
            logging.getLogger("fedjax_adapt").warning(
                f"the tracker{whose} failed and gets no more figures, the run goes on "
                f"({type(error).__name__}: {error})."
            )


def trackers(folder: Path, configs: Mapping[int | None, Config], done: int) -> Trackers:
    """The trackers that configs ask for: a run's under None, or trials' by their numbers.

    They lie in the folder of the run or the sweep, and `done` rounds have been logged.
    """
    found: dict[int | None, Tracker] = {}
    for trial, config in configs.items():
        if config.track is None:
            continue
        place, name = folder / FOLDER, folder.absolute().name
        if trial is not None:
            place, name = place / f"{trial:04d}", f"{name}/{trial:04d}"
        place.mkdir(parents=True, exist_ok=True)
        try:
            found[trial] = TRACKERS[config.track](place, name, config, done)
        except Exception as error:  # of a package of others, whatever it may be
            refused = SettingError(
                f"track={config.track} cannot begin ({type(error).__name__}: {error}); "
                "mend that, or leave track out."
            )
            Trackers(found).__exit__(SettingError, refused, None)
            raise refused from error
    return Trackers(found)
