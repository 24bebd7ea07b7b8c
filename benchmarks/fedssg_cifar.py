"""FedSSG's Table 1 on CIFAR-10 with 500 clients, Dirichlet 0.3, within minutes.

    python benchmarks/fedssg_cifar.py --data-dir DIR --minutes 9    # call it again to go on

The row cifar10-2-did1 of `fedjax-adapt reproduce fedssg-table1`, on a machine that is lent
for minutes and has not what the command line needs. A run of a method that is finished is
not run again; one that the minutes cut short, or a kill, goes on from its last checkpoint.
A line for each method goes to results/fedssg-cifar10.jsonl, and its figures to the output.
"""

import argparse
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from entry import begin
from readings import Ledger

from fedjax_adapt.cli.process import prepare_jax, take_devices
from fedjax_adapt.experiment import Config, Progress, run
from fedjax_adapt.experiment.items import Scale, read_item
from fedjax_adapt.experiment.reproduce import cells_of
from fedjax_adapt.experiment.store import CONFIG, read_summary
from fedjax_adapt.report.reproduce import in_words, measured

RESULTS = Path(__file__).parent / "results" / "fedssg-cifar10.jsonl"
ITEM, ROW = read_item("fedssg-table1"), "cifar10-2-did1"
FIGURES = (*ITEM.figures, "models.all.rounds_to.0.75")
PUBLISHED = {
    ROW: {
        method: figures | read_item("fedssg-table3").published[ROW][method]
        for method, figures in ITEM.published[ROW].items()
    }
}


def config_of(method: str, given: argparse.Namespace) -> Config:
    """The settings of a method's run, the paper's or those to try it out with."""
    scale: Scale = "smoke" if given.tiny else "full"
    (cell,) = cells_of(ITEM, given.folder, scale, [ROW], [method], 1, given.data_dir)
    kind = f"-{given.precision}" if given.precision else ""
    return replace(
        cell.configs[0],
        folder=str(given.folder / f"{method}{kind}"),
        precision=given.precision or "float32",
        devices=given.devices,
        lanes=given.lanes,
        convolutions=given.convolutions,
        checkpoint_every=given.checkpoint_every,
    )


def until(end: float) -> Callable[[Progress], None]:
    """Stops a run, whose rounds are then saved, once `end` has come."""

    def report(progress: Progress) -> None:
        if time.monotonic() > end:
            raise KeyboardInterrupt

    return report


def finished(config: Config, end: float) -> Mapping[str, Any] | None:
    """The summary of a run; None: it did not end in time."""
    folder = Path(str(config.folder))
    # a kill may have come between a run's end and the line that was to tell of it
    if read_summary(folder) is None:
        try:
            run(config, resume=(folder / CONFIG).exists(), progress=until(end))
        except KeyboardInterrupt:
            return None
    shutil.rmtree(folder / "checkpoints", True)  # gigabytes, for each
    return read_summary(folder)


def measure(given: argparse.Namespace) -> bool:
    """Prints the figures as far as they are; whether they are all there."""
    ledger = Ledger(given.results)
    end = time.monotonic() + 60 * given.minutes
    whole = True
    for method in given.only:
        about = {"method": method, "tiny": given.tiny, "precision": given.precision}
        config = config_of(method, given)
        if not ledger.find(**about) and time.monotonic() < end:
            summary = finished(config, end)
            if summary is not None:
                ledger.add({**summary, **about})  # a summary has a method, too
        whole = whole and bool(ledger.find(**about))
        if ledger.find(**about):
            runs = {(ROW, method): {0: Path(str(config.folder))}}
            found = measured(FIGURES, PUBLISHED, runs)
            shown = "; ".join(f"{cell.figure} {in_words(cell)}" for cell in found)
            print(f"{method}: {shown}", flush=True)
    return whole


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary version")
    parser.add_argument("--folder", type=Path, default=Path("runs/fedssg-cifar10"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    methods = list(ITEM.methods)
    parser.add_argument("--only", nargs="+", default=methods, choices=methods)
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="stop, to go on another time",
    )
    whole = lambda text: text if text == "auto" else int(text)
    parser.add_argument("--lanes", type=whole, default="auto")
    parser.add_argument("--devices", type=whole, default="auto")
    parser.add_argument(
        "--convolutions", default="auto", help="as `fedjax-adapt run` takes them"
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        help="rounds between checkpoints of up to 5 GB; default: by the clock",
    )
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
