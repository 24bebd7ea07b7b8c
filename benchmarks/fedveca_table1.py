"""FedVeca's Table I on MNIST, published beside ours, and its Fig. 8.

    python benchmarks/fedveca_table1.py --data-dir DIR

Five clients, Case 3, 100 rounds, lr 0.01, batches of 32 drawn with replacement, pixels in
[0, 1]: AFL's SVM on even against odd over 10 seeds, the CNN over 3. All seeds
of a method are one program, side by side but for the CNN on a CPU, where convolutions of
several models at once are slow. The paper's protocol: FedVeca runs first and takes tau_all
local steps in all; a baseline's client takes tau_i = floor(tau_all / K n_i / n) of them in
each of the K rounds, at least 1, and SGD on the pooled data tau_all, seed by seed.

A method is a line of results/fedveca-table1-mnist.jsonl; one that is there already is not
run again: call it again to go on, delete the line to measure anew.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from entry import begin

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fednova, fedprox, fedveca, scaffold
from fedjax_adapt.engine.xla import compiler_options
from fedjax_adapt.experiment.build import build_task, load_source, split_source
from fedjax_adapt.experiment.config import Config
from fedjax_adapt.experiment.summary import commit, hardware, versions

RESULTS = Path(__file__).parent / "results"
CLIENTS = 5
PLAN = fa.Plan(batch_size=32, lr=0.01, shuffle="replacement")


class Case(NamedTuple):
    """A row of blocks of Table I."""

    model: str
    labels: str
    seeds: int
    every: int  # rounds between evaluations
    passes: bool  # whether a pass over all data in every round is affordable
    slow_together: bool  # whether a CPU trains several models more slowly than in turn


CASES = {
    "SVM": Case("svm", "parity", seeds=10, every=1, passes=True, slow_together=False),
    "CNN": Case(
        "fedveca_cnn", "own", seeds=3, every=20, passes=False, slow_together=True
    ),
}
FIRST, CENTRAL = "FedVeca", "central SGD"
METHODS = {
    FIRST: fedveca(),
    "FedVeca, accept local": fedveca(accept="local"),
    "FedVeca, accept global": fedveca(accept="global"),
    "FedVeca, all data": fedveca(full_gradient=True),
    "FedVeca, all data, accept local": fedveca(accept="local", full_gradient=True),
    "FedAvg": fedavg(),
    "FedNova": fednova(),
    "FedProx": fedprox(),
    "SCAFFOLD": scaffold(),
    CENTRAL: fedavg(),
}
PASSES = [name for name in METHODS if "all data" in name]  # of gradients and losses
PUBLISHED = {  # loss, accuracy in %
    "SVM": {
        FIRST: (0.2222, 86.63),
        "FedAvg": (0.2313, 85.75),
        "FedNova": (0.2344, 85.32),
        "FedProx": (0.2314, 85.76),
        "SCAFFOLD": (0.2207, 86.92),
        CENTRAL: (0.2206, 86.87),
    },
    "CNN": {
        FIRST: (0.2425, 93.04),
        "FedAvg": (0.3232, 90.67),
        "FedNova": (0.3305, 90.37),
        "FedProx": (0.3276, 90.47),
        "SCAFFOLD": (0.2080, 93.86),
        CENTRAL: (0.2267, 93.43),
    },
}


class Setup(NamedTuple):
    """The data of all seeds: they differ in the order of a client's rows."""

    in_turn: bool  # seeds one after another
    task: fa.Task
    data: fa.FederatedDataset  # of the first seed
    index: jax.Array  # [seeds, clients, longest]
    pooled: fa.FederatedDataset


def setup(case: Case, seeds: int, data_dir: str | None) -> Setup:
    """Loads MNIST and splits it once per seed."""
    config = lambda seed: Config(
        dataset="mnist",
        model=case.model,
        labels=case.labels,
        partition="fedveca_case",
        num_clients=CLIENTS,
        data_dir=data_dir,
        partition_seed=seed,
    )
    source = load_source(config(0)).of_pixels()
    splits = [split_source(config(seed), source) for seed in range(seeds)]
    if case.labels == "parity":
        source = source.parity()
    federated = [source.federated(rows) for rows in splits]
    first = federated[0]
    for other in federated:  # Case 3 draws the order of rows alone
        np.testing.assert_array_equal(other.size, first.size)
    index = jnp.stack([other.index for other in federated])
    in_turn = case.slow_together and jax.default_backend() == "cpu"
    return Setup(in_turn, build_task(config(0), source), first, index, first.pooled())


def fixed_steps(table: jax.Array) -> fa.StepPolicy:
    """Local steps written down, [rounds, clients]."""
    return fa.StepPolicy(
        lambda state, cohort, measured: table[cohort.round, cohort.ids]
    )


def matched(tau_all: np.ndarray, sizes: np.ndarray, rounds: int) -> np.ndarray:
    """floor(E_avg n_i / B), E_avg = tau_all / K B / n: [seeds, rounds, clients]."""
    steps = tau_all[:, None] * sizes.astype(np.int64) // (rounds * sizes.sum())
    return np.repeat(np.maximum(steps, 1)[:, None], rounds, axis=1)


def spread(tau_all: np.ndarray, rounds: int) -> np.ndarray:
    """tau_all over the rounds of one client, as evenly as integers go."""
    until = np.arange(rounds + 1) * tau_all[:, None] // rounds
    return np.diff(until)[:, :, None]


def train(
    parts: Setup, method: str, steps: np.ndarray | None, rounds: int, every: int
) -> tuple[fa.Info, fa.Metrics]:
    """All seeds at once. Leading axes: seeds, rounds (of metrics: evaluations)."""
    seeds = len(parts.index)
    data, index = parts.data, parts.index
    if method == CENTRAL:
        data = parts.pooled
        index = jnp.broadcast_to(data.index, (seeds, *data.index.shape))

    def one(data, index, steps, key):
        data, algorithm = replace(data, index=index), METHODS[method]
        if steps is not None:
            algorithm = fa.with_steps(algorithm, fixed_steps(steps))
        key_init, key_rounds = jax.random.split(key)
        state = fa.init_state(algorithm, parts.task, data, PLAN, key_init)
        _, infos, metrics = fa.train_and_evaluate(
            fa.make_round(algorithm, parts.task, data, PLAN),
            state,
            jax.random.split(key_rounds, rounds),
            lambda state: fa.evaluate(parts.task, state.params, data.test),
            every=every,
            chunk_size=rounds,
        )
        return infos, metrics

    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))

    def together(data, *of_seeds):
        for_one = lambda of_seed: one(data, *of_seed)
        if parts.in_turn:
            return jax.lax.map(for_one, of_seeds)
        return jax.vmap(for_one)(of_seeds)

    options = compiler_options(1 if parts.in_turn else seeds)
    run = jax.jit(together, compiler_options=options)
    return jax.device_get(run(data, index, steps, keys))


def measured(
    parts: Setup, name: str, method: str, first: dict | None, rounds: int, every: int
) -> dict:
    """One line of the results, as plain values; per seed, unless said."""
    steps = None
    if first is not None and not method.startswith(FIRST):
        tau_all = np.array(first["local_steps"])
        sizes = np.asarray(parts.data.size, np.int64)
        if method == CENTRAL:
            steps = spread(tau_all, rounds)
        else:
            steps = matched(tau_all, sizes, rounds)
    infos, metrics = train(parts, method, steps, rounds, every)
    line = {
        "model": name,
        "method": method,
        "rounds": rounds,
        "seeds": list(range(len(parts.index))),
        "local_steps": infos.num_steps.sum((1, 2)).tolist(),
        "accuracy": rounded(metrics.accuracy[:, -1], 4),
        "loss": rounded(metrics.loss[:, -1], 5),
        "evaluated_every": every,
        "accuracies": rounded(metrics.accuracy, 4),  # [seeds, evaluations]
        "losses": rounded(metrics.loss, 5),
        "published_loss_accuracy": PUBLISHED[name].get(method),
        "data": "mnist, fedveca_case 3 as in AFL's code, pixels in [0, 1]",
        "plan": "5 clients, batches of 32 with replacement, lr 0.01",
        "command": "python benchmarks/fedveca_table1.py",
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }
    if steps is not None:
        return line | {"tau": steps[:, 0].tolist()}  # of the first round
    shown = infos.policy
    scalars = {n: rounded(shown[n][0], 4) for n in ("tau_bar", "L", "premise")}
    of_clients = {n: rounded(shown[n][0], 5) for n in ("beta", "delta", "A")}
    return line | {
        "accepted": shown["accepted_rounds"][:, -1].tolist(),
        "nonfinite": shown["nonfinite"][:, -1].tolist(),
        "tau": infos.num_steps.tolist(),  # [seeds, rounds, clients]
        "first_seed": scalars | of_clients,  # [rounds], [rounds, clients]
    }


def rounded(values: np.ndarray, digits: int) -> list:
    """Few digits, significant ones: a line is read by people too."""
    return np.vectorize(lambda v: float(f"{v:.{digits}g}"))(values).tolist()


def row(line: dict) -> str:
    """One line of the table."""
    paper = PUBLISHED[line["model"]].get(line["method"])
    loss, accuracy = np.array(line["loss"]), 100 * np.array(line["accuracy"])
    cells = [
        line["method"],
        f"{np.mean(line['local_steps']):.0f}",
        f"{paper[1]:.2f}" if paper else "",
        f"{accuracy.mean():.2f} ± {accuracy.std():.2f}",
        f"{paper[0]:.4f}" if paper else "",
        f"{loss.mean():.4f} ± {loss.std():.4f}",
        str(round(float(np.mean(line["accepted"])))) if "accepted" in line else "",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| method | local steps | accuracy, published | ours | loss, published | ours "
    "| rounds taken |\n" + "|---" * 7 + "|"
)


def plot(line: dict, path: Path) -> None:
    """Fig. 8: what one run of FedVeca measured, a line per client; and its premise."""
    shown = {"tau_i": line["tau"][0], **line["first_seed"]}
    names = ("tau_i", "tau_bar", "L", "beta", "delta", "A", "premise")
    figure, axes = plt.subplots(2, 4, figsize=(14, 5), layout="constrained")
    for name, axis in zip(names, axes.flat, strict=False):
        values = np.array(shown[name][:50], float)
        if name in ("L", "delta", "A", "premise"):
            values[0] = np.nan  # nothing to compare the first round with
        axis.plot(values, linewidth=1)
        axis.set(title="lr tau L" if name == "premise" else name, xlabel="round")
        if name in ("beta", "delta", "A"):
            axis.set_yscale("log", nonpositive="clip")
    axes.flat[len(names) - 1].axhline(1, color="grey", linestyle=":")
    legend = [f"client {i}" for i in range(CLIENTS)]
    axes.flat[-1].axis("off")
    figure.legend(axes.flat[0].lines, legend, loc="lower right", fontsize="small")
    figure.suptitle(f"FedVeca, {line['model']} on MNIST, Case 3, seed 0")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=None, help="10 and 3 unless given")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    file = arguments.results / "fedveca-table1-mnist.jsonl"
    for name in arguments.models:
        case, rounds = CASES[name], arguments.rounds
        seeds = arguments.seeds or case.seeds
        every = case.every if rounds % case.every == 0 else 1
        lines = file.read_text().splitlines() if file.exists() else []
        there = {
            line["method"]: line
            for line in map(json.loads, lines)
            if (line["model"], line["rounds"]) == (name, rounds)
            and len(line["seeds"]) == seeds
        }
        parts = None
        print(f"\n{name}\n\n{HEAD}", flush=True)
        for method in [FIRST, *(m for m in arguments.only if m != FIRST)]:
            if method in PASSES and not case.passes:
                continue
            if method not in there:
                parts = parts or setup(case, seeds, arguments.data_dir)
                line = measured(parts, name, method, there.get(FIRST), rounds, every)
                there[method] = line
                with file.open("a") as end:
                    end.write(json.dumps(line) + "\n")
            print(row(there[method]), flush=True)
        plot(there[FIRST], arguments.results / f"fedveca-{name.lower()}.png")


if __name__ == "__main__":
    begin(main)
