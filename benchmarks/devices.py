"""What moves in a round between up to 64 devices, and how long it then takes, on paper.

    python benchmarks/devices.py --client-seconds 0.002
    python benchmarks/devices.py --client-seconds 0.002 --link 1.25e9 --latency 5e-5

The seconds of a client are those of a round on one device, which rounds.py times
(`--workload w2 --algorithm scaffold --devices 1`), divided by the clients of a round.

D of the devices serve M of N clients, S is the size of what a client sends, r of
its row in the client tables (of one dtype), and a device sends in a round

    sums     2 (D - 1) / D S      an all-reduce in a ring: what every device has summed up
    passed   2 J (D - 1) r        each device owns N / D rows; J times it sends a row to
                                  each other one, before the clients train, and back

Where D does not divide N, each device has a D-th of every row (the leaves that D divides,
of size d; w is the size of the others), and in place of passed a device sends, with M
rounded up to a multiple of D,

    parts    2 (D - 1) / D M / D d      whole rows of the cohort, gathered and scattered
    wholes   (D - 1) / D M w            new rows of the leaves that all devices have

The model is not sent: each device has it, and moves it by the same sums. J, the most rows
that pass between any two devices, is counted: the mean over cohorts that are assigned as
the engine does on a CPU. A round takes

    ceil(M / D) t + sent / link + hops latency,   hops = (D - 1) (2 + 2 J, or up to 5)

with t seconds of a client. Infos and test scores, some bytes per client and example, are
left out, and so is that a link may be shared.
"""

import argparse
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounds

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.core import Algorithm, Params, tree_bytes
from fedjax_adapt.costs import messages, traffic_of
from fedjax_adapt.engine import mesh
from fedjax_adapt.engine.client_store.device import divided_axis
from fedjax_adapt.engine.client_store.exchange import plan_exchange
from fedjax_adapt.engine.round import checked

METHODS = ("fedavg", "scaffold")
DEVICES = (1, 2, 4, 8, 16, 32, 64)
DRAWS = 50  # cohorts over which rows are counted


class Moved(NamedTuple):
    """Bytes that each device sends in a round, and messages one after the other."""

    devices: int  # that serve the round
    sums: float
    rows: float
    hops: float


def moved(
    algorithm: Algorithm, params: Params, num_clients: int, cohort_size: int, most: int
) -> Moved:
    """What a round moves on at most so many devices.

    Args:
      algorithm: whose clients send and keep something, `checked`.
      params: of its model; shapes are enough.
      num_clients: in all.
      cohort_size: in the round.
      most: how many devices there are.
    """
    sent = messages(traffic_of(algorithm), params)[1]
    row = jax.eval_shape(algorithm.local.init, params)
    size, leaves = tree_bytes(row), jax.tree.leaves(row)
    used = mesh.serving(most, cohort_size)
    others = used - 1
    sums = 2 * others / used * sent
    if used == 1 or not size:
        return Moved(used, sums, 0.0, 2.0 * others)
    if num_clients % used:
        axis = lambda leaf: divided_axis((num_clients, *leaf.shape), used)
        divided = [leaf for leaf in leaves if axis(leaf) is not None]
        whole = [leaf for leaf in leaves if axis(leaf) is None]
        slots = -(-cohort_size // used) * used
        parts = 2 * others / used * slots / used * tree_bytes(divided)
        wholes = others / used * slots * tree_bytes(whole)
        kinds = lambda leaves: len({leaf.dtype for leaf in leaves})
        hops = others * (2.0 + 2 * kinds(divided) + kinds(whole))
        return Moved(used, sums, parts + wholes, hops)
    times = blocks(num_clients, cohort_size, used)
    passed = 2 * times * others * size
    num_messages = len({leaf.dtype for leaf in leaves})
    return Moved(used, sums, passed, others * (2 + 2 * times * num_messages))


def blocks(num_clients: int, cohort_size: int, num_devices: int) -> float:
    """How often devices pass rows, on average over cohorts of equal steps."""
    num_rows, empty = num_clients // num_devices, -cohort_size % num_devices
    steps = jnp.pad(jnp.ones(cohort_size, jnp.int32), (0, empty))

    @jax.jit
    def most(ids):
        owner = jnp.minimum(ids // num_rows, num_devices)
        order, _ = mesh.assign(steps, owner, num_devices, swaps=0)
        _, passed = plan_exchange(
            ids[order], steps[order] > 0, num_rows, num_devices, swaps=0
        )
        return 0 if passed is None else passed.blocks

    rng = np.random.default_rng(0)
    draw = lambda: rng.choice(num_clients, cohort_size, False)
    pad = lambda ids: np.pad(ids, (0, empty), constant_values=num_clients)
    return float(np.mean([most(jnp.asarray(pad(draw()))) for _ in range(DRAWS)]))


def on_paper(
    name: str,
    workload: rounds.Workload,
    client_seconds: float,
    link: float,
    latency: float,
) -> list[dict]:
    """A row for each number of devices.

    Args:
      name: of the method.
      workload: of the round.
      client_seconds: what a client takes on one device.
      link: bytes that a device sends in a second.
      latency: seconds of a message, whatever its size.
    """
    rows, alone = [], workload.cohort * client_seconds
    params = jax.eval_shape(lambda: rounds.initial_params(workload))
    task, data = rounds.task_of(workload), rounds.examples(workload, 2)
    algorithm = checked(ALGORITHMS[name](), task, data, fa.Plan())
    clients = workload.clients, workload.cohort
    for most in DEVICES:
        found = moved(algorithm, params, *clients, most)
        moving = (found.sums + found.rows) / link + found.hops * latency
        seconds = -(-workload.cohort // found.devices) * client_seconds + moving
        rows.append(
            {
                "method": name,
                "devices": most,
                "serving": found.devices,
                "sums_mb": found.sums / 1e6,
                "rows_mb": found.rows / 1e6,
                "moving_s": moving,
                "round_s": seconds,
                "speedup": alone / seconds,
                "efficiency": alone / seconds / found.devices,
            }
        )
    return rows


def stops(rows: Sequence[dict]) -> str:
    """Where more devices no longer help, and where they no longer pay."""
    best = min(rows, key=lambda row: row["round_s"])
    pays = max((r for r in rows if r["efficiency"] >= 0.5), key=lambda r: r["serving"])
    return (
        f"fastest on {best['serving']} devices ({best['speedup']:.1f} times one); "
        f"half of each is used up to {pays['serving']}"
    )


def print_table(rows: Sequence[dict]) -> None:
    """Rows in Markdown."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        shown = (f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values())
        print("| " + " | ".join(shown) + " |")


def _above_0(text: str) -> float:
    number = float(text) if re.fullmatch(r"[\d.e+-]+", text) else math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}; write a number above 0.")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["w2", "w1"])
    parser.add_argument(
        "--client-seconds", type=_above_0, required=True, help="on one device"
    )
    parser.add_argument(
        "--link", type=_above_0, default=1.25e9, help="bytes per second"
    )
    parser.add_argument("--latency", type=float, default=5e-5, help="s per message")
    given = parser.parse_args()
    for work in given.workloads:
        workload, client = rounds.WORKLOADS[work], given.client_seconds
        for name in METHODS:
            rows = on_paper(name, workload, client, given.link, given.latency)
            print(f"\n{work}, {1e3 * client:.3g} ms a client: {stops(rows)}\n")
            print_table(rows)


if __name__ == "__main__":
    main()
