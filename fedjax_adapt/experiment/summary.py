"""What came out of a run, and on what: the evidence next to every number."""

import math
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..costs import kappa, rho
from ..engine.mesh import num_cores
from .rows import MODELS, OF_ALL, TOTALS
from .store import (
    ACCURACY,
    accuracy_in,
    accuracy_shown_as,
    figures_of,
    first_reaching,
    shown_accuracy,
)

if TYPE_CHECKING:
    import pyarrow


TEST = shown_accuracy(ACCURACY)
FIGURES = (  # of a summary: what is measured on the test set
    *("accuracy", "loss", "best_accuracy", "best_round", "last_mean", "last_std"),
    *("last_count", "rounds_to", "area_under_curve", "models", "class_accuracy"),
    *("kappa", "rho"),
)


@dataclass(frozen=True, repr=False)
class Summary:
    """The result of a finished run, as summary.json holds it.

    Attributes:
      folder: where the run lies.
      method: the algorithm, with the options that are not its defaults, and its base.
      rounds: rounds done.
      accuracy: on the test set, after the last round.
      loss: likewise.
      best_accuracy: the highest of all evaluations.
      best_round: the first round that reached it.
      last_mean: mean accuracy of the last evaluations.
      last_std: their standard deviation (over evaluations, not over seeds).
      last_count: how many they were: 50, or all if there are fewer.
      rounds_to: for each target accuracy, the first evaluated round that reached it.
      area_under_curve: mean accuracy over the rounds from the first evaluation to the
        last, by the trapezoid rule; in [0, 1].
      models: the figures from `accuracy` to here, likewise, of the models of
        `evaluate_also`, "sel" and "all", and of the "result" that a step policy keeps.
      class_accuracy: after the last round, on the test examples of each label; None for a
        label that has none.
      client_accuracy: of the server's model after the last round on every client's own
        test set, or on its training examples where the data have no such sets: mean, std,
        min and worst_tenth (the mean of the worst tenth) over the clients that hold
        examples; empty where not asked for.
      personal_accuracy: likewise, on the same examples, of each client's own model in
        place of the server's; empty where clients use the server's.
      client_state_bytes: what the tables of all clients' states take, on each device.
      memory: bytes, predicted before anything was compiled: data, clients, models, work,
        host, compiler and predicted_peak, see `Footprint`, with what is held while a
        checkpoint is written; and peak, the most there was, of the device, or of this
        process where cores are devices, which may have run others.
      public: the public set: its protocol and origin, how many examples and bytes it has,
        how many validate, whether the algorithm used it, and `broadcast_bytes`, what it
        takes to send it to all clients that train on it; empty where there is none.
      auxiliary: what the method was given besides the clients' own training.
      accuracy_name: what the figures from `accuracy` to `class_accuracy`, kappa and rho are
        of: "test accuracy", "training accuracy on the public set" where that set is
        tested on, or "validation accuracy" (evaluate_on=validation). Where it is no test
        accuracy summary.json has them below that name alone.
      kappa: accuracy times 1e4 by simulated seconds; None without a clock.
      rho: accuracy times 1e4 by the MiB that clients received and sent.
      local_steps: of all clients over all rounds, on their own examples.
      public_steps: steps on a public set, of clients and at the server.
      bytes_down: received by the clients of all rounds, with a public set sent to them.
      bytes_up: sent by them.
      simulated_seconds: of all rounds on the simulated clock, and of sending a public set
        before them; 0 without one.
      wasted_bytes: received and sent by clients that trained and were not waited for
        (sampler=earliest), which no other figure counts; as if each had gone on to its end.
      wasted_steps: their local steps, likewise.
      left_out: client updates that were not finite and count for nothing
        (nonfinite_updates=leave_out).
      first_left_out_round: the first round that had one; None: no round.
      reported: what the parts of the algorithm show of the last round, the task's
        metrics, and `ideal_distance` where that is asked for, by name; None where it is no
        finite number.
      seconds: of training and evaluation; compilation and files apart.
      compile_seconds: to compile the round.
      calibrate_seconds: to try how many lanes and which convolutions are fastest; next to
        none where that was given, known or not asked.
      rounds_per_second: rounds over seconds.
      config_hash: which numbers the run produces; runs with equal hashes agree, to the bit
        on as many lanes and devices of the same kind, with their convolutions computed
        alike; config.toml has how.
      seeds: of training and of the partition.
      data: the data set, and what the partition made of it; `client_tests` are the test
        examples that clients have of their own, 0 where they are tested on what they
        train on.
      hardware: what its last rounds ran on, and how: devices, lanes, whether freed memory
        was kept, XLA_FLAGS of the environment, and the options that the program was
        compiled with.
      versions: of Python and of the packages that decide the numbers.
      commit: of the git checkout the package was run from; None if it was installed.
      own: what was a user's own, "KIND=NAME", and how to tell it: the SHA-256 of a file or
        of a function's source, or the description of an object, which is no part of
        `config_hash`; and what was another thing in earlier versions.
      stopped_round: the round after which a callback ended the run; None: it went to its
        end.
    """

    folder: str
    method: str
    rounds: int
    accuracy: float
    loss: float
    best_accuracy: float
    best_round: int
    last_mean: float
    last_std: float
    last_count: int
    rounds_to: dict[str, int | None]
    area_under_curve: float
    models: dict[str, dict[str, Any]]
    class_accuracy: list[float | None]
    client_accuracy: dict[str, float]
    personal_accuracy: dict[str, float]
    client_state_bytes: int
    memory: dict[str, int | None]
    public: dict[str, Any]
    auxiliary: list[str]
    accuracy_name: str
    kappa: float | None
    rho: float | None
    local_steps: int
    public_steps: int
    bytes_down: int
    bytes_up: int
    simulated_seconds: float
    wasted_bytes: int
    wasted_steps: int
    left_out: int
    first_left_out_round: int | None
    reported: dict[str, float | None]
    seconds: float
    compile_seconds: float
    calibrate_seconds: float
    rounds_per_second: float
    config_hash: str
    seeds: dict[str, int]
    data: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    own: dict[str, str]
    stopped_round: int | None

    def __repr__(self) -> str:
        """One line; `to_dict` has all fields."""
        figure = f"{self.accuracy_name} {self.accuracy:.4f}"
        return f"Summary({self.folder}: {self.method}, {self.rounds} rounds, {figure})"

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain values.

        Where it is no test accuracy, what would be read as that lies below the key
        "training_accuracy_on_the_public_set" or "validation_accuracy".
        """
        values = asdict(self)
        if self.accuracy_name == TEST:
            return values
        figures = {name: values.pop(name) for name in FIGURES}
        return {accuracy_shown_as(self.accuracy_name): figures} | values


def from_dict(values: Mapping[str, Any]) -> Summary | None:
    """The summary that `Summary.to_dict` gave; None: one of an earlier version."""
    names = Summary.__dataclass_fields__
    found = {n: v for n, v in {**values, **figures_of(values)}.items() if n in names}
    return Summary(**found) if len(found) == len(names) else None


def reported(metrics: "pyarrow.Table", watched: int) -> dict[str, float | None]:
    """`Summary.reported` of the table `metrics`, without the parameters of `watch`."""
    known = OF_ALL | {f"parameter_{i}" for i in range(watched)}
    shown = [name for name in metrics.column_names if name not in known]
    last = {name: metrics[name][-1].as_py() for name in shown}
    # a row has no value where a resumed run no longer shows what it did
    finite = lambda value: value is not None and math.isfinite(value)
    return {name: value if finite(value) else None for name, value in last.items()}


def results(metrics: "pyarrow.Table", targets: tuple[float, ...]) -> dict[str, Any]:
    """The fields of a summary that follow from the table `metrics`."""
    named = accuracy_in(metrics.column_names)
    column = {
        name.replace(named, ACCURACY): metrics[name].to_numpy()
        for name in metrics.column_names
    }
    rounds, seconds = column["round"], float(column["seconds"][-1])
    figures = lambda end: curve_figures(
        rounds, column[f"accuracy{end}"], column[f"loss{end}"], targets
    )
    also = [name for name in MODELS if f"accuracy_{name}" in column]
    # a run of an earlier version counted less
    last = lambda name: column[name][-1] if name in column else 0
    totals = {name: kind(last(name)) for name, kind in TOTALS.items()}
    accuracy, simulated = column[ACCURACY][-1], totals["simulated_seconds"]
    moved = totals["bytes_down"] + totals["bytes_up"]
    return {
        "rounds": int(rounds[-1]),
        "accuracy_name": shown_accuracy(named),
        **figures(""),
        "models": {name: figures(f"_{name}") for name in also},
        **totals,
        "kappa": float(kappa(accuracy, simulated)) if simulated else None,
        "rho": float(rho(accuracy, moved)) if moved else None,
        "seconds": seconds,
        "rounds_per_second": int(rounds[-1]) / max(seconds, 1e-9),
    }


def hardware() -> dict[str, Any]:
    """The accelerator, and the processor it hangs on."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "cpu": _cpu_model(),
        "cores": num_cores(),
    }


def versions() -> dict[str, str]:
    """Python and the packages that decide the numbers."""
    from fedjax_adapt import __version__

    ours = {"fedjax-adapt": __version__, "python": platform.python_version()}
    return ours | {n: metadata.version(n) for n in ("jax", "jaxlib", "numpy")}


def commit() -> str | None:
    """The commit of the checkout this package lies in, with "+" if it is changed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def evidence(commit: str | None) -> dict[str, Any]:
    """The machine, the versions and the commit that results come from, for their file."""
    return {"hardware": hardware(), "versions": versions(), "commit": commit}


def _cpu_model() -> str:
    """The processor by name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


LAST = 50  # evaluations in the mean at the end, as FedSSG's tables have it
WORST = 0.1  # of the clients in the mean of the worst


def curve_figures(
    rounds: np.ndarray,
    accuracy: np.ndarray,
    loss: np.ndarray,
    targets: tuple[float, ...],
) -> dict[str, Any]:
    """What a learning curve comes to; see `Summary` from `accuracy` on."""
    last = accuracy[-LAST:]
    best = int(np.nan_to_num(accuracy, nan=-np.inf).argmax())
    return {
        "accuracy": float(accuracy[-1]),
        "loss": float(loss[-1]),
        "best_accuracy": float(accuracy[best]),
        "best_round": int(rounds[best]),
        "last_mean": float(last.mean()),
        "last_std": float(last.std()),
        "last_count": len(last),
        "rounds_to": {f"{t:g}": first_reaching(rounds, accuracy, t) for t in targets},
        "area_under_curve": area_under_curve(rounds, accuracy),
    }


def area_under_curve(rounds: np.ndarray, accuracy: np.ndarray) -> float:
    """Mean accuracy over the span of `rounds`, by the trapezoid rule."""
    if len(rounds) == 1:
        return float(accuracy[0])
    return float(np.trapezoid(accuracy, rounds) / (rounds[-1] - rounds[0]))


def known_shares(accuracy: Any, counts: Any) -> list[float | None]:
    """The accuracy on each class or client, None for one of which there is no example."""
    pairs = zip(np.asarray(accuracy).tolist(), np.asarray(counts).tolist(), strict=True)
    return [share if count else None for share, count in pairs]


def spread_over_clients(accuracy: Iterable[float | None]) -> dict[str, float]:
    """How the accuracy on their own examples differs between clients that have some."""
    held = np.sort([share for share in accuracy if share is not None])
    worst = held[: math.ceil(WORST * len(held))]
    return {
        "mean": float(held.mean()),
        "std": float(held.std()),
        "min": float(held[0]),
        "worst_tenth": float(worst.mean()),
    }
