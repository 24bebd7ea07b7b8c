"""How the time of a round grows: with the cohort, the clients, the steps, the parameters.

    python benchmarks/scaling.py                       # all series; call it again to go on
    python benchmarks/scaling.py --series cohort steps --passes 3

An MLP as in W2 of rounds.py, of which one number changes per series. With the number of
clients only the client tables and the index grow: the examples of 500 clients are dealt
out again to those beyond. To each series a line a + b x is fitted, by least squares of

    (a + b x) / t - 1

so that all points count alike; the largest of these is the series' deviation. The x of a
cohort is filled up to a multiple of the devices: what is left over keeps one of them as
busy as a full row keeps all.
"""

import argparse
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from matplotlib.figure import Figure
from one_round import one_round
from readings import (
    Case,
    Ledger,
    Ready,
    add_options,
    described,
    effort_of,
    number_or_auto,
    take,
)

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.models import MODELS

BASE = {
    "algorithm": "fedavg",
    "clients": 500,
    "cohort": 50,
    "steps": 10,
    "width": 200,  # of both hidden layers
    "inputs": 784,
    "examples": 100,  # of each client
    "batch": 10,
}
POOL = 500  # clients that have examples of their own


class Series(NamedTuple):
    """What changes, and how it is drawn."""

    field: str
    values: tuple[int, ...]
    label: str  # of the x axis
    panel: int
    flat: bool = False  # the ideal: no growth at all
    algorithm: str = "fedavg"


# the tables of 10,000 clients come last: they are given back when all is read
SERIES = {
    "cohort": Series(
        "cohort", (1, 2, 4, 10, 20, 50, 100, 200, 500), "clients in a round", 0
    ),
    "steps": Series("steps", (1, 2, 5, 10, 20, 50, 100), "local steps of a client", 2),
    "parameters": Series("width", (50, 100, 200, 400, 800), "parameters", 3),
    "clients": Series(
        "clients", (100, 300, 1000, 3000, 10_000), "clients", 1, flat=True
    ),
    "clients, SCAFFOLD": Series(
        "clients", (100, 300, 1000, 3000, 10_000), "clients", 1, True, "scaffold"
    ),
}


class Straight(NamedTuple):
    """a + b x."""

    a: float
    b: float

    def at(self, x: Any) -> Any:
        """Its value at a number or at many."""
        return self.a + self.b * x


def fit(x: np.ndarray, t: np.ndarray) -> Straight:
    """The line of least squares of (a + b x) / t - 1."""
    x, t = np.asarray(x, float), np.asarray(t, float)
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / t, x / t], 1), np.ones_like(t))
    return Straight(float(a), float(b))


def deviations(line: Straight, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """How far each t lies off the line, as a share of t."""
    return 1 - line.at(np.asarray(x, float)) / np.asarray(t, float)


@cache
def pool(inputs: int, examples: int) -> fa.FederatedDataset:
    """The clients with examples of their own."""
    workload = rounds.WORKLOADS["w2"]._replace(shape=(inputs,), examples=examples)
    return rounds.examples(workload, POOL)


def federation(setting: dict[str, Any]) -> fa.FederatedDataset:
    """So many clients; those beyond the pool hold the examples of its first again."""
    data, clients = pool(setting["inputs"], setting["examples"]), setting["clients"]
    if clients == POOL:
        return data
    index = np.resize(np.asarray(data.index), (clients, data.index.shape[1]))
    size = np.resize(np.asarray(data.size), clients)
    return data.with_changed(index=jnp.asarray(index), size=jnp.asarray(size))


def ready(setting: dict[str, Any]) -> Ready:
    """A round of this setting, and where it stands on the x axis.

    Raises:
      ValueError: a number is out of range, or a table does not fit into memory.
    """
    shape, widths = (setting["inputs"],), (setting["width"],) * 2
    task = fa.classification(MODELS["mlp"](shape, 10, widths=widths), shape)
    algorithm = ALGORITHMS[setting["algorithm"]]()
    plan = fa.Plan(
        cohort_size=setting["cohort"],
        batch_size=setting["batch"],
        lr=0.01,  # a small one: hundreds of rounds have to stay finite
        weight_decay=1e-3,
        lanes=setting["lanes"],
        devices=setting["devices"],
    )
    algorithm = fa.with_steps(algorithm, fa.constant_steps(setting["steps"]))
    found = one_round(algorithm, task, federation(setting), plan)
    field = SERIES[setting["series"]].field
    x = found.about["parameters"] if field == "width" else setting[field]
    if field == "cohort":
        present = jax.local_device_count()
        devices = present if plan.devices == "auto" else int(plan.devices)
        x = -(-x // devices) * devices
    return found._replace(about=found.about | {"x": x})


def cases(name: str, arguments: argparse.Namespace) -> list[Case]:
    """The points of a series, the largest first, as it needs most memory to be built."""
    series = SERIES[name]
    values = getattr(arguments, series.field) or series.values
    where = {"lanes": arguments.lanes, "devices": arguments.devices}
    found = []
    for value in sorted(set(values), reverse=True):
        changed = {"algorithm": series.algorithm, series.field: value}
        setting = {"series": name} | BASE | changed | where
        found.append(Case(setting, partial(ready, setting)))
    return found


class Points(NamedTuple):
    """What was read of a series, all passes taken together; [points]."""

    value: np.ndarray  # of what was varied
    x: np.ndarray  # what the line is a function of
    t: np.ndarray  # seconds per round, the median of the passes' medians
    low: np.ndarray
    high: np.ndarray

    @property
    def line(self) -> Straight | None:
        """None for so few points that any line would do."""
        return fit(self.x, self.t) if len(set(self.x.tolist())) > 2 else None


def points(ledger: Ledger, wanted: list[Case]) -> Points | None:
    """What the ledger says of these cases; None: nothing."""
    rows = []
    for case in wanted:
        lines = ledger.find(**case.setting)
        if lines:
            of = lambda name, lines=lines: [line[name] for line in lines]
            value = case.setting[SERIES[case.setting["series"]].field]
            t = float(np.median(of("seconds")))
            rows.append((value, lines[0]["x"], t, min(of("min")), max(of("max"))))
    return Points(*map(np.array, zip(*sorted(rows), strict=True))) if rows else None


def tables(found: dict[str, Points]) -> str:
    """Every point beside its line, and every series with its largest deviation."""
    each = ["| series | value | ms per round | min to max | line | off |", "|---" * 6 + "|"]
    all_ = [
        "| series | a, ms | b, ms | largest deviation | at | last by first |",
        "|---" * 6 + "|",
    ]
    for name, of in found.items():
        line = of.line
        on = np.full(len(of.x), np.nan) if line is None else line.at(of.x)
        off = 1 - on / of.t
        for value, t, low, high, there, share in zip(
            of.value, of.t, of.low, of.high, on, off, strict=True
        ):
            each.append(
                f"| {name} | {value:,} | {1e3 * t:.4g} | {1e3 * low:.4g} to "
                f"{1e3 * high:.4g} | {1e3 * there:.4g} | {100 * share:+.1f} % |"
            )
        if line is not None:
            worst = int(abs(off).argmax())
            all_.append(
                f"| {name} | {1e3 * line.a:.4g} | {1e3 * line.b:.4g} | "
                f"{100 * abs(off[worst]):.1f} % | {of.value[worst]:,} | "
                f"{of.t[-1] / of.t[0]:.2f} |"
            )
    return "\n".join([*each, "", *all_])


def plot(found: dict[str, Points], path: Path) -> None:
    """A panel each for cohort, clients, steps and parameters."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for number, (name, of) in enumerate(found.items()):
        series = SERIES[name]
        axes, color = panels[series.panel], f"C{number}"
        x = of.x if series.field == "width" else of.value
        bars = 1e3 * np.stack([of.t - of.low, of.high - of.t])
        axes.errorbar(x, 1e3 * of.t, bars, fmt="o", ms=4, color=color, label=name)
        if of.line is not None:
            along = np.geomspace(of.x.min(), of.x.max(), 200)
            axes.plot(along, 1e3 * of.line.at(along), color=color, linewidth=1)
        axes.set(xlabel=series.label, ylabel="ms per round", xscale="log")
        if series.flat:
            axes.set_ylim(0, None)
        else:
            axes.set_yscale("log")
        axes.grid(True, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def measure(arguments: argparse.Namespace) -> dict[str, Points]:
    """Takes what is missing; returns all that was asked for."""
    ledger, found, used = Ledger(arguments.results), {}, []
    for name in arguments.series:
        wanted = cases(name, arguments)
        take(wanted, ledger, effort_of(arguments))
        here = points(ledger, wanted)
        if here is not None:
            found[name] = here
        used += [line for case in wanted for line in ledger.find(**case.setting)]
    print(tables(found), described(used), sep="\n\n")
    plot(found, arguments.results.with_suffix(".png"))
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", nargs="*", default=[*SERIES], choices=SERIES)
    many = {"type": int, "nargs": "*", "metavar": "N"}
    parser.add_argument("--cohort", **many, help="clients in a round")
    parser.add_argument("--clients", **many)
    parser.add_argument("--steps", **many, help="local steps")
    parser.add_argument("--width", **many, help="of both hidden layers")
    parser.add_argument("--lanes", type=number_or_auto, default="auto")
    parser.add_argument("--devices", type=number_or_auto, default="auto")
    add_options(parser, "scaling")
    return parser


if __name__ == "__main__":
    given = parser().parse_args()
    fa.cores_as_devices(None if given.devices == "auto" else given.devices)
    measure(given)
