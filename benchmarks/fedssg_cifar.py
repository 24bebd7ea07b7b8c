"""FedSSG's Table 1 on CIFAR-10 with 500 clients, Dirichlet 0.3, published beside ours.

    python benchmarks/fedssg_cifar.py --data-dir DIR --minutes 9    # call it again to go on

500 clients, each in a round with probability 2 %, the CIFAR network, 1500 rounds of 5
epochs, batch 50, lr 0.1 x 0.998^t, weight decay 1e-3, clip 10, no momentum, images flipped
and shifted; eight methods. A run of a method that is finished is not run again; one that
the minutes cut short, or a kill, goes on from its last checkpoint. Lines go to
results/fedssg-cifar10.jsonl, and the table to the output. Without the command line of
`fedjax-adapt`, whose packages need not be there.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cells import KEPT
from entry import begin
from fedssg_table1 import COMMON, HEAD, METHODS, published, row
from readings import Ledger

from fedjax_adapt.cli.process import prepare_jax, take_devices
from fedjax_adapt.experiment import Progress, run
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.store import CONFIG, read_summary

RESULTS = Path(__file__).parent / "results" / "fedssg-cifar10.jsonl"
TARGET = 0.75
BLOCK = COMMON | {
    "dataset": "cifar10",
    "model": "cnn",
    "num_clients": 500,
    "participation": 0.02,
    "rounds": 1500,
    "augment": "flip_crop",
    "targets": (TARGET,),
    "partition": "dirichlet",
    "concentration": 0.3,
}
TINY = {  # to try it out
    "dataset": "digits",
    "model": "mlp",
    "num_clients": 10,
    "participation": 0.3,
    "rounds": 2,
    "epochs": 1,
    "augment": "none",
}
ALPHA = {"FedDC": 0.05, "FedSSG": 0.2}  # where 500 clients have another than 100
PUBLISHED = published(
    "74.66 74.25 77.75 76.51 77.59 75.84 76.25 80.17",
    "10 6 9 17 17 8 9 17",
    ">1500 >1500 679 838 699 880 880 544",
)


def settings_of(method: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Of a run, flat."""
    settings = BLOCK | METHODS[method] | (TINY if given.tiny else {})
    if method in ALPHA:
        settings["alpha"] = ALPHA[method]
    if "evaluate_also" in settings:
        settings["evaluate_also"] = (settings["evaluate_also"],)
    settings |= {"folder": str(folder), "data_dir": given.data_dir}
    if given.precision is not None:
        settings["precision"] = given.precision
    return settings | {"devices": given.devices, "lanes": given.lanes}


def until(end: float) -> Callable[[Progress], None]:
    """Stops a run, whose rounds are then saved, once `end` has come."""

    def report(progress: Progress) -> None:
        if time.monotonic() > end:
            raise KeyboardInterrupt

    return report


def folder_of(method: str, given: argparse.Namespace) -> Path:
    """Where a method's run lies."""
    kind = f"-{given.precision}" if given.precision else ""
    return given.folder / f"{method.lower()}{kind}"


def measured(
    method: str, given: argparse.Namespace, end: float
) -> Mapping[str, Any] | None:
    """What came of a method's run; None: it did not end in time."""
    folder = folder_of(method, given)
    config = from_settings(settings_of(method, folder, given))
    # a kill may have come between a run's end and the line that was to tell of it
    if read_summary(folder) is None:
        try:
            run(config, resume=(folder / CONFIG).exists(), progress=until(end))
        except KeyboardInterrupt:
            return None
    figures = read_summary(folder) or {}
    return {name: figures[name] for name in (*KEPT, "memory") if name in figures}


def measure(given: argparse.Namespace) -> bool:
    """Prints the table as far as it is; whether it is whole."""
    ledger = Ledger(given.results)
    end = time.monotonic() + 60 * given.minutes
    print(HEAD.replace("R97", f"R{round(100 * TARGET)}"), flush=True)
    whole = True
    for method in given.only:
        told = {"method": method, "tiny": given.tiny, "precision": given.precision}
        if not ledger.find(**told) and time.monotonic() < end:
            found = measured(method, given, end)
            if found is not None:
                ledger.add({**told, **found})
                # gigabytes, for each
                shutil.rmtree(folder_of(method, given) / "checkpoints", True)
        lines = ledger.find(**told)
        whole = whole and bool(lines)
        if lines:
            print(row(lines[-1], PUBLISHED[method], str(TARGET)), flush=True)
    return whole


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary version")
    parser.add_argument("--folder", type=Path, default=Path("runs/fedssg-cifar10"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="stop, to go on another time",
    )
    whole = lambda text: text if text == "auto" else int(text)
    parser.add_argument("--lanes", type=whole, default="auto")
    parser.add_argument("--devices", type=whole, default="auto")
    parser.add_argument("--precision", help="as `fedjax-adapt run` takes it")
    parser.add_argument(
        "--tiny", action="store_true", help="two rounds on digits, to try it out"
    )
    return parser


def main() -> None:
    given = options().parse_args()
    prepare_jax()
    take_devices(given.devices)
    if not measure(given):
        print(f"\n{given.minutes:g} minutes are over; call it again to go on.")


if __name__ == "__main__":
    begin(main)
