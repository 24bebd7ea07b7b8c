"""FedGSNR's Fig. 13: r_k of client 0, attacked and not, LeNet-5 on CIFAR-10.

    python benchmarks/fedgsnr_fig13.py --data-dir DIR

30 clients that all take part, iid and NonBalance, batch 64, E 20 local steps on average
(matched budget), lr 0.01 (the paper gives none) falling by 0.998 a round. Client 0 has
its own data; or its labels shifted by 3; or, for inputs, U(-1, 1) as the model sees them.
Partition, initial model and draws are the same in all three, and nobody else's data
change. The claim is that an attacked client's r_k falls well below its own, further under
random inputs.

A setting is a line of results/fedgsnr-fig13.jsonl, with r_k of every client and round;
one that is there already is not run again: call it again to go on, delete the line to
measure anew. The picture lies beside it.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from entry import begin
from matplotlib.figure import Figure

import fedjax_adapt as fa
from fedjax_adapt.experiment.build import (
    build_algorithm,
    build_plan,
    build_task,
    load_source,
    skewed,
    split_source,
)
from fedjax_adapt.experiment.config import Config
from fedjax_adapt.experiment.program import run_keys
from fedjax_adapt.experiment.summary import commit, hardware, versions

RESULTS = Path(__file__).parent / "results" / "fedgsnr-fig13.jsonl"
PARTITIONS = {"iid": "iid", "nonbalance": "NonBalance"}
ATTACKS = {
    "none": "unattacked",
    "label_shift": "labels + 3",
    "random_inputs": "U(-1, 1)",
}
STRENGTHS = {"none": None, "label_shift": 3, "random_inputs": 1}
COLORS = {"none": "#2a6fbb", "label_shift": "#d9822b", "random_inputs": "#222222"}
HEAD = (
    "| partition | client 0 | mean r_0 | median | rank by mean, by median | "
    "r_k of the others, mean | accuracy |\n" + "|---" * 7 + "|"
)


def config_of(partition: str, attack: str, arguments: argparse.Namespace) -> Config:
    return Config(
        algorithm="fedgsnr",
        dataset="cifar10",
        train_examples=arguments.train_examples,
        model="lenet5",
        partition=partition,
        num_clients=arguments.clients,
        participation=1.0,
        corrupt=None if attack == "none" else attack,
        corrupt_strength=STRENGTHS[attack],
        rounds=arguments.rounds,
        batch_size=64,
        lr=arguments.lr,
        lr_decay=0.998,
        weight_decay=0.0,
        clip_norm=None,
        seed=arguments.seed,
        data_dir=arguments.data_dir,
        algorithm_options={"num_steps": 20},
    )


def measured(partition: str, attack: str, arguments: argparse.Namespace) -> dict:
    """One line of the results, as plain values; per client, unless said."""
    config = config_of(partition, attack, arguments)
    source = load_source(config)
    split = source.federated(split_source(config, source))
    data = skewed(config, source, split)
    task, plan = build_task(config, source), build_plan(config)
    algorithm = build_algorithm(config)
    key_init, key_rounds = run_keys(config.seed)
    state = fa.init_state(algorithm, task, data, plan, key_init)
    round_fn = fa.make_round(algorithm, task, data, plan)
    # the data are arguments of the program, not constants in it
    step = jax.jit(lambda round_fn, state, key: round_fn(state, key))
    gsnr, seconds = [], []  # the first round compiles
    for t in range(config.rounds):
        began = time.perf_counter()
        key = jax.random.fold_in(key_rounds, t)
        state, info = jax.block_until_ready(step(round_fn, state, key))
        seconds.append(time.perf_counter() - began)
        gsnr.append(np.where(info.policy["measured"], info.policy["gsnr"], np.nan))
        told = f"{partition}, {attack}, round {t + 1}: r_0 {gsnr[-1][0]:.3f}"
        print(told, file=sys.stderr, flush=True)
    gsnr = np.stack(gsnr)
    mean, median = np.nanmean(gsnr, 0), np.nanmedian(gsnr, 0)
    metrics = fa.evaluate(task, state.params, data.test)
    flags = {
        name.replace("_", "-"): value for name, value in setting(arguments).items()
    }
    given = " ".join(f"--{name} {value}" for name, value in flags.items())
    return {
        "partition": partition,
        "attack": attack,
        **setting(arguments),
        "n": 1,  # seeds
        "mean": rounded(mean),
        "median": rounded(median),
        "rank_of_client_0": {"mean": rank(mean), "median": rank(median)},  # 1 is best
        "gsnr": rounded(gsnr),  # [rounds, clients], null where it says nothing
        "accuracy": round(float(metrics.accuracy), 4),
        "labels_of_client_0": np.asarray(split.label_counts)[0].tolist(),  # its own
        "sizes": np.asarray(data.size).tolist(),
        "data": f"cifar10, {len(source.y_train)} training images",
        "plan": "fedgsnr, matched, E 20, batch 64, lr x 0.998 a round, all take part",
        "seconds_per_round": round(float(np.median(seconds[1:] or seconds)), 3),
        "command": f"python benchmarks/fedgsnr_fig13.py --data-dir DIR {given}",
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def rank(values: np.ndarray) -> int:
    """Of client 0; 1 is the best."""
    return 1 + int((values > values[0]).sum())


def rounded(values: np.ndarray) -> list:
    """Four significant digits; None where there is no number."""
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [float(f"{v:.4g}") if np.isfinite(v) else None for v in values]


def setting(arguments: argparse.Namespace) -> dict:
    """What tells the lines apart, beside partition and attack."""
    names = ("rounds", "clients", "train_examples", "lr", "seed")
    return {name: getattr(arguments, name) for name in names}


def row(line: dict) -> str:
    """One line of the table."""
    ranks, others = line["rank_of_client_0"], line["mean"][1:]
    cells = [
        PARTITIONS[line["partition"]],
        ATTACKS[line["attack"]],
        f"{line['mean'][0]:.3f}",
        f"{line['median'][0]:.3f}",
        f"{ranks['mean']}, {ranks['median']} of {line['clients']}",
        f"{np.mean(others):.3f} ({min(others):.3f} to {max(others):.3f})",
        f"{100 * line['accuracy']:.2f} %",
    ]
    return "| " + " | ".join(cells) + " |"


def plot(lines: dict[tuple[str, str], dict], path: Path) -> None:
    """r_k of client 0 by round, a curve per attack and a panel per partition."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(PARTITIONS))
    for axes, (partition, title) in zip(panels, PARTITIONS.items(), strict=True):
        for attack, label in ATTACKS.items():
            line = lines.get((partition, attack))
            if line is None:
                continue
            values = np.array([of_round[0] for of_round in line["gsnr"]], float)
            rounds = np.arange(1, len(values) + 1)
            axes.plot(rounds, values, label=label, color=COLORS[attack])
        axes.set(title=title, xlabel="round", ylim=(0, None))
        axes.grid(True, axis="y", alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False)
    panels[0].set_ylabel("r_k of client 0")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--train-examples", type=int, default=50_000)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--partitions", nargs="*", default=[*PARTITIONS], choices=PARTITIONS
    )
    parser.add_argument("--attacks", nargs="*", default=[*ATTACKS], choices=ATTACKS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    text = arguments.results.read_text() if arguments.results.exists() else ""
    there = {
        (line["partition"], line["attack"]): line
        for line in map(json.loads, text.splitlines())
        if setting(arguments).items() <= line.items()
    }
    print(HEAD, flush=True)
    for partition in arguments.partitions:
        for attack in arguments.attacks:
            if (partition, attack) not in there:
                line = measured(partition, attack, arguments)
                there[partition, attack] = line
                with arguments.results.open("a") as end:
                    end.write(json.dumps(line) + "\n")
            print(row(there[partition, attack]), flush=True)
    plot(there, arguments.results.with_suffix(".png"))


if __name__ == "__main__":
    begin(main)
