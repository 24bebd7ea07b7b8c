"""How the time of a round grows: with the cohort, the clients, the steps, the parameters.

    python benchmarks/scaling.py                       # all series; call it again to go on
    python benchmarks/scaling.py --series cohort steps --passes 3

An MLP as in W2 of rounds.py, of which one number changes per series; growth.py has the
line that is fitted to each. With the number of clients only the client tables and the
index grow: the examples of 500 clients are reused for those beyond.
"""

import argparse
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from growth import Panel, Points, plot, points, tables
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
    """What changes."""

    field: str
    values: tuple[int, ...]
    panel: Panel
    algorithm: str = "fedavg"


COHORTS = (1, 2, 4, 10, 20, 50, 100, 200, 500)
STEPS = (1, 2, 5, 10, 20, 50, 100)
WIDTHS = (50, 100, 200, 400, 800)
CLIENTS = (100, 300, 1000, 3000, 10_000)
# the tables of 10,000 clients come last: the allocator may not give them back
SERIES = {
    "cohort": Series(
        "cohort", COHORTS, Panel(0, "clients in a round, up to full devices")
    ),
    "steps": Series("steps", STEPS, Panel(2, "local steps of a client")),
    "parameters": Series("width", WIDTHS, Panel(3, "parameters")),
    "clients": Series("clients", CLIENTS, Panel(1, "clients", flat=True)),
    "clients, SCAFFOLD": Series(
        "clients", CLIENTS, Panel(1, "clients", flat=True), "scaffold"
    ),
}


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
        # clients that do not fill a row of devices keep one as busy as a full row all
        devices = plan.devices
        devices = jax.local_device_count() if devices == "auto" else int(devices)
        x = -(-x // devices) * devices
    return found._replace(about=found.about | {"x": x})


def cases(name: str, arguments: argparse.Namespace) -> dict[int, Case]:
    """What is varied -> the case, the largest first: it needs most memory to be built."""
    series, found = SERIES[name], {}
    where = {"lanes": arguments.lanes, "devices": arguments.devices}
    for value in sorted(
        getattr(arguments, series.field) or series.values, reverse=True
    ):
        changed = {"algorithm": series.algorithm, series.field: value}
        setting = {"series": name} | BASE | changed | where
        found[value] = Case(setting, partial(ready, setting))
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Points]:
    """Takes what is missing; returns all that was asked for."""
    ledger, found, used = Ledger(arguments.results), {}, []
    for name in arguments.series:
        wanted = cases(name, arguments)
        take([*wanted.values()], ledger, effort_of(arguments))
        lines = {value: ledger.find(**case.setting) for value, case in wanted.items()}
        of = points(lines)
        if of is not None:
            found[name] = of
        used += sum(lines.values(), [])
    print(tables(found), described(used), sep="\n\n")
    panels = {name: series.panel for name, series in SERIES.items()}
    plot(found, panels, arguments.results.with_suffix(".png"))
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", nargs="*", default=[*SERIES], choices=SERIES)
    for field in dict.fromkeys(series.field for series in SERIES.values()):
        parser.add_argument(f"--{field}", type=int, nargs="*", metavar="N")
    parser.add_argument("--lanes", type=number_or_auto, default="auto")
    parser.add_argument("--devices", type=number_or_auto, default="auto")
    add_options(parser, "scaling")
    return parser


if __name__ == "__main__":
    given = parser().parse_args()
    fa.cores_as_devices(None if given.devices == "auto" else given.devices)
    measure(given)
