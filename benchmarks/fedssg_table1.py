"""FedSSG's Tables 1 and 3 on MNIST, published beside ours.

    python benchmarks/fedssg_table1.py --data-dir DIR

100 clients, each in a round with probability 15 %, 784-200-200-10, 300 rounds of 5 epochs,
batch 50, lr 0.1 x 0.998^t, weight decay 1e-3, clip 10, no momentum; eight methods on three
splits: 24 runs of a minute or two each. A run that is finished is not run again, one that
was killed is resumed: call it again to go on. The table goes to the output as it grows,
the figures behind it into results/fedssg-table1-mnist.jsonl.

The published figures and the committed ones are of this protocol. Further options are for
`fedjax-adapt run`; one that changes a number needs --results, another file, and the table
then has no published figures.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cells import cell

from fedjax_adapt.experiment.schema import settings_that_are

RESULTS = Path(__file__).parent.resolve() / "results" / "fedssg-table1-mnist.jsonl"

COMMON = {
    "dataset": "mnist",
    "model": "mlp",
    "num_clients": 100,
    "participation": 0.15,
    "rounds": 300,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "lr_decay": 0.998,
    "weight_decay": 1e-3,
    "clip_norm": 10,
    "targets": 0.97,
    "seed": 0,
    "partition_seed": 20,  # the data seed of the published code; its generator is another
}
SPLITS = {
    "iid": {"partition": "iid"},
    "Dirichlet 0.3": {"partition": "dirichlet", "concentration": 0.3},
    "Dirichlet 0.6": {"partition": "dirichlet", "concentration": 0.6},
}
BESIDE = {"evaluate_also": "sel"}  # where the server's model is no mean of the cohort
# as the authors' code runs them; alpha of FedSSG by split, in the order above
METHODS = {
    "FedAvg": {"algorithm": "fedavg"},
    "FedProx": {"algorithm": "fedprox", "variant": "ssg_code"},
    "SCAFFOLD": {
        "algorithm": "scaffold",
        "control_lr": "base",
        "control_steps": "mean",
    },
    "FedDyn": {"algorithm": "feddyn", "alpha": 0.01, **BESIDE},
    "FedDC": {"algorithm": "feddc", "alpha": 0.1, **BESIDE},
    "FedVRA": {"algorithm": "fedvra", "variant": "ssg_code", **BESIDE},
    "FedDisco": {"algorithm": "feddisco", "base": "feddyn", **BESIDE},
    "FedSSG": {"algorithm": "fedssg", "alpha": (0.03, 0.05, 0.04), **BESIDE},
}


class Published(NamedTuple):
    """A cell of Table 1 (mean, std of the last 50 tests, %) and of Table 3 (rounds)."""

    mean: float
    std: float
    rounds: str


def published(means: str, stds: str, rounds: str) -> dict[str, Published]:
    columns = zip(METHODS, means.split(), stds.split(), rounds.split(), strict=True)
    return {
        name: Published(float(mean), float(std) / 100, first)
        for name, mean, std, first in columns
    }


PUBLISHED = {
    "iid": published(
        "98.08 98.06 98.39 98.38 98.38 98.28 98.23 98.43",
        "3 2 2 2 2 4 2 4",
        "45 45 26 28 25 27 29 22",
    ),
    "Dirichlet 0.3": published(
        "97.70 97.70 98.32 98.10 98.29 98.10 98.08 98.42",
        "3 4 3 4 3 2 2 4",
        "76 79 35 39 31 35 37 24",
    ),
    "Dirichlet 0.6": published(
        "97.84 97.81 98.41 98.12 98.40 98.17 98.13 98.46",
        "2 2 2 3 2 2 3 2",
        "61 62 34 35 31 33 32 23",
    ),
}

HEAD = (
    "| method | published | server | cohort mean | R97 published | server | cohort mean "
    "|\n" + "|---" * 7 + "|"
)


def measured(split: str, method: str, root: Path, more: list[str]) -> dict:
    """One cell of the table."""
    settings = COMMON | SPLITS[split] | METHODS[method]
    if method == "FedSSG":
        settings["alpha"] = settings["alpha"][list(SPLITS).index(split)]
    folder = root / f"{split}-{method}".replace(" ", "-").lower()
    return {"split": split, "method": method} | cell(folder, settings, more)


def changed(more: Sequence[str]) -> list[str]:
    """The options that make another protocol of it, of further words of the command."""
    free = set(settings_that_are("incidental")) - {"targets"}  # R97 is a column
    names = [
        word[2:].partition("=")[0].replace("-", "_")
        for word in more
        if word[:2] == "--"
    ]
    return [name for name in names if name not in free]


def row(
    result: Mapping[str, Any], paper: Published | None, target: str = "0.97"
) -> str:
    """One line of the table; None: there are no published figures of this protocol."""
    models = [result, result["models"].get("sel")]
    accuracy = lambda f: f"{100 * f['last_mean']:.2f} ± {100 * f['last_std']:.2f}"
    first = lambda f: str(f["rounds_to"][target] or "never")
    cells = [
        result["method"],
        f"{paper.mean:.2f} ± {paper.std:.2f}" if paper else "",
        *("the same" if f is None else accuracy(f) for f in models),
        paper.rounds if paper else "",
        *("the same" if f is None else first(f) for f in models),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/fedssg-table1-mnist"))
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--splits", nargs="*", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--results", type=Path)
    arguments, more = parser.parse_known_args()  # the rest is for `fedjax-adapt run`
    path, others = arguments.results or RESULTS, changed(more)
    committed = path.resolve() == RESULTS
    if others and committed:
        raise SystemExit(
            f"{', '.join(others)} would make the committed figures those of another "
            f"protocol; give --results, a file other than {RESULTS.name}."
        )
    results = []
    for split in arguments.splits:
        print(f"\n{split}\n\n{HEAD}", flush=True)
        for method in arguments.only:
            results.append(measured(split, method, arguments.folder, more))
            paper = None if others else PUBLISHED[split][method]
            print(row(results[-1], paper), flush=True)
    whole = len(results) == len(SPLITS) * len(METHODS)
    if whole or not committed:
        lines = (json.dumps(result) for result in results)
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
