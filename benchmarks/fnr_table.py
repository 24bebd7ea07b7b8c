"""FNR-FL beside its controls: what public data are worth, and what leakage is worth.

    python benchmarks/fnr_table.py --data-dir DIR                       # the whole table
    python benchmarks/fnr_table.py --data-dir DIR --seeds 0 --skews label --rounds 2 \
        --train-examples 2000                                           # a quick look

CIFAR-10, 10 clients that all take part, 10 rounds of 2 epochs, batches of 64, public
ones of 32, the CNN of FedVeca; SGD at 0.01 with momentum 0.9 and weight decay 1e-5, as
FNR-FL's README has it. The committed lines, in results/fnr-table-cifar10-former.jsonl, are
of public batches of 64, and of that CNN with PyTorch's first weights, inputs standardised
by the data set's moments and no response normalisation, as it was before AFL's code.
Protocol `holdout` for everybody: a stratified tenth of the training examples, 5000 of
50,000, is taken out before partitioning, so that the clients of FedAvg hold what those of
FNR-FL hold, and all are tested on the same 10,000 clean images. Skews: labels ~ Dir(0.5)
per class, quantities ~ Dir(0.5), noise on inputs up to 0.5; mixed ones by --skews.

Below that table stands one run under the published protocol, whose public set is the test
set: its number is training accuracy and compares with no other. Beside it stands a run
that differs in nothing but the protocol: its public set is as large and held out, and its
clients hold as many examples. Both refine for one epoch in place of five.

Accuracies are those after the last round: nothing was chosen on the test set.

A run is a line of results/fnr-table-cifar10.jsonl. One that has its line is not run again,
one that was killed is resumed: call it again to go on.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from cells import cell

RESULTS = Path(__file__).parent / "results" / "fnr-table-cifar10.jsonl"
EXAMPLES, ROUNDS, TESTED = 50_000, 10, 10_000
TRAINED = "training_accuracy_on_the_public_set"
COMMON = {
    "dataset": "cifar10",
    "model": "fedveca_cnn",
    "num_clients": 10,
    "participation": 1,
    "epochs": 2,
    "batch_size": 64,
    "lr": 0.01,
    "lr_decay": 1,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "clip_norm": "none",
    "augment": "reflect_crop",
    "targets": (0.3, 0.4, 0.5),
    "evaluate_every": 5,
}
SKEWS = {
    "label": {"partition": "dirichlet_classes", "concentration": 0.5},
    "quantity": {"partition": "quantity_dirichlet", "concentration": 0.5},
    "feature": {"partition": "iid", "feature_noise": 0.5},
    "label+feature": {
        "partition": "dirichlet_classes",
        "concentration": 0.5,
        "feature_noise": 0.5,
    },
    "label+quantity": {"partition": "label_quantity", "concentration": 0.5},
}
DEFAULT_SKEWS = ("label", "quantity", "feature")
PUBLIC = {"algorithm_batch_size": 32}  # Sec. 6.1
METHODS = {
    "FedAvg": {"algorithm": "fedavg"},
    "FedProx": {"algorithm": "fedprox", "mu": 0.01},
    "SCAFFOLD": {"algorithm": "scaffold"},
    "MOON": {"algorithm": "moon", "mu": 5},
    "FedNova": {"algorithm": "fednova"},
    "FNR-FL (squared norms, ours)": {"algorithm": "fnr"} | PUBLIC,
    "FNR-FL (literal)": {"algorithm": "fnr", "variant": "literal"} | PUBLIC,
    "control: weight 0": {"algorithm": "fnr", "weight": 0} | PUBLIC,
    "control: FedAvg + public": {"algorithm": "fedavg_pubft"} | PUBLIC,
    "control: public alone": {"algorithm": "public_only"} | PUBLIC,
}
# what leakage is worth: alike but for whether the public set is the test set
ONCE = {"algorithm": "fnr", "variant": "literal", "algorithm_epochs": 1} | PUBLIC
PUBLISHED = "FNR-FL (literal, 1 epoch), published protocol"
EQUAL = "FNR-FL (literal, 1 epoch), as much held out"


def cells_of(arguments) -> list[dict]:
    """What identifies a run: skew, method, protocol and seed."""
    cells = [
        {"skew": skew, "method": method, "public": "holdout", "seed": seed}
        for seed in arguments.seeds
        for skew in arguments.skews
        for method in arguments.only
    ]
    if arguments.published:
        pair = {EQUAL: "holdout", PUBLISHED: "published"}
        cells += [
            {"skew": "label", "method": method, "public": public, "seed": seed}
            for method, public in pair.items()
            for seed in arguments.seeds[:1]
        ]
    return cells


def settings_of(this: dict, arguments) -> dict:
    """What a run is asked for, by the names of the options."""
    size = {"rounds": arguments.rounds, "train_examples": arguments.train_examples}
    told = {"public": this["public"], "seed": this["seed"]}
    if this["method"] == EQUAL:  # the clients' examples, and as many as are tested on
        size["train_examples"] += TESTED
        told["public_examples"] = TESTED
    method = METHODS.get(this["method"], ONCE)
    return COMMON | SKEWS[this["skew"]] | method | size | told


def line_of(this: dict, arguments, more: list[str], lines: list[dict]) -> dict:
    """One run, which is made if it is not there."""
    size = {"rounds": arguments.rounds, "train_examples": arguments.train_examples}
    settings = settings_of(this, arguments)
    words = [str(value) for value in (this | size).values()]
    name = "".join(c if c.isalnum() else "-" for c in "-".join(words).lower())
    return this | size | cell(arguments.folder / name, settings, more, lines)


def table(lines: list[dict], skews: list[str]) -> str:
    """The honest runs: a row per method, a column per skew, in % over the seeds.

    What follows +- is the deviation of the seeds themselves, not an estimate from them.
    """
    titles = ["method", "also given", *skews, "MiB", "local steps", "public steps"]
    rows = [f"| {' | '.join([*titles, 'seeds'])} |", "|---" * (len(titles) + 1) + "|"]
    honest = [line for line in lines if line["method"] in METHODS]
    for method in dict.fromkeys(line["method"] for line in honest):
        own = [line for line in honest if line["method"] == method]
        shown = [_mean([x for x in own if x["skew"] == skew]) for skew in skews]
        given = "; ".join(own[0]["auxiliary"]) or "nothing"
        moved = (own[0]["bytes_up"] + own[0]["bytes_down"]) / 2**20
        seeds = len({line["seed"] for line in own})
        local = own[0]["local_steps"] if moved else 0  # or they serve to show its loss
        counts = [f"{n:,.0f}" for n in (moved, local, own[0]["public_steps"])]
        rows.append(f"| {' | '.join([method, given, *shown, *counts, str(seeds)])} |")
    return "\n".join(rows)


def _mean(lines: list[dict]) -> str:
    found = 100 * np.array([line["accuracy"] for line in lines])
    if not len(found):
        return ""
    return f"{found.mean():.2f}" + (f" ± {found.std():.2f}" if len(found) > 1 else "")


def leaks(lines: list[dict]) -> str:
    """The pair: what was tested on what it trained on, and the same without that."""
    rows = []
    for line in lines:
        if line["method"] not in METHODS:
            name, figure = figure_of(line)
            note = ", which is no test accuracy and compares with nothing above"
            rows.append(
                f"{line['method']}, {line['skew']} skew, seed {line['seed']}: "
                f"{name} {100 * figure:.2f} %{note if TRAINED in line else ''}."
            )
    return "\n".join(rows)


def figure_of(line: dict) -> tuple[str, float]:
    """What the accuracy after the last round is called, and what it is."""
    if TRAINED in line:
        return TRAINED.replace("_", " "), line[TRAINED]["accuracy"]
    return "test accuracy", line["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/fnr-table"))
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--skews", nargs="*", default=DEFAULT_SKEWS, choices=SKEWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--train-examples", type=int, default=EXAMPLES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-published", dest="published", action="store_false")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments, more = parser.parse_known_args()  # the rest is for `fedjax-adapt run`
    text = arguments.results.read_text() if arguments.results.exists() else ""
    lines, mine = [json.loads(line) for line in text.splitlines()], []
    for this in cells_of(arguments):
        line = line_of(this, arguments, more, lines)
        mine.append(line)
        lines = [old for old in lines if old["command"] != line["command"]] + [line]
        arguments.results.write_text("".join(json.dumps(x) + "\n" for x in lines))
        name, figure = figure_of(line)
        print(*this.values(), f"{name} {100 * figure:.2f} %", flush=True)
    print(table(mine, list(arguments.skews)))
    print(leaks(mine))


if __name__ == "__main__":
    main()
