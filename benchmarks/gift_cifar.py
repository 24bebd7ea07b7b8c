"""GIFT's Fig. 5: who decides tau, LeNet-5 on CIFAR-10, accuracy against simulated time.

    python benchmarks/gift_cifar.py --data-dir DIR --minutes 8

20 clients that all take part, label shares Dirichlet(1) by client, batch 32, lr 0.01,
weight decay 0.01, tau_0 = 100. The plan's clock counts simulated seconds: 0.0522 a local
step (from the paper's Table II) and the upload, 62,006 parameters at 5 Mbit/s. Each
method stops after --rounds rounds or --minutes of wall time. One that was stopped goes on
when it is called again with more; a line of results/gift-cifar.jsonl is an evaluation.
AFL's tau comes from a trial run of 10 rounds with 10 steps and a budget of what FedAvg
needs for all rounds.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from entry import begin

import fedjax_adapt as fa
from fedjax_adapt.algorithms import adacomm, afl, fedavg, gift
from fedjax_adapt.experiment import checkpoint
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.config import Config
from fedjax_adapt.experiment.federation import Federation
from fedjax_adapt.experiment.summary import commit, hardware

RESULTS = Path(__file__).parent / "results" / "gift-cifar.jsonl"
STEP = 0.0522  # simulated seconds
UPLOAD = 62_006 * 32 / 5e6  # which the clock counts by itself; AFL plans with it
METHODS = ("FedAvg", "GIFT", "AdaComm", "AdaComm without fix", "AFL")
PANELS = {"accuracy": "test accuracy", "tau": "tau", "consistency": "consistency C"}


def federation(arguments: argparse.Namespace) -> Federation:
    """Data, model and plan; the algorithm is each method's."""
    config = Config(
        algorithm="fedavg",
        dataset="cifar10",
        model="lenet5",
        partition="gift_mix",
        num_clients=arguments.clients,
        participation=1.0,
        batch_size=32,
        lr=0.01,
        lr_decay=1.0,
        weight_decay=0.01,
        clip_norm=None,
        seed=arguments.seed,
        data_dir=arguments.data_dir,
    )
    parts = build(config)
    clock = fa.Clock(step_seconds=STEP, bandwidth=5e6)
    return parts._replace(plan=replace(parts.plan, clock=clock))


def algorithm_of(
    method: str, parts: Federation, arguments: argparse.Namespace
) -> fa.Algorithm:
    tau, plain = arguments.initial_steps, fedavg("uniform")
    if method == "GIFT":
        return gift(tau, warmup=arguments.warmup)
    if method.startswith("AdaComm"):
        return adacomm(tau, fix=method == "AdaComm", base=plain)
    if method == "AFL":
        return fa.with_steps(plain, fixed_by_trial(parts, arguments))
    return fa.with_steps(plain, fa.constant_steps(tau))


def fixed_by_trial(parts: Federation, arguments: argparse.Namespace) -> fa.StepPolicy:
    """The tau of AFL, from beta, delta and rho of a trial run."""
    trial = afl(trial_steps=10, base=fedavg("uniform"))
    key_state, key_rounds = jax.random.split(jax.random.key(arguments.seed))
    state = fa.init_state(trial, parts.task, parts.data, parts.plan, key_state)
    round_fn = fa.make_round(trial, parts.task, parts.data, parts.plan)
    _, infos = fa.train(round_fn, state, jax.random.split(key_rounds, 10))
    constants = {name: float(x) for name, x in fa.afl_constants(infos).items()}
    print("AFL, trial:", constants, flush=True)
    return fa.afl_fixed(
        **constants,
        budget=arguments.rounds * (arguments.initial_steps * STEP + UPLOAD),
        lr=0.01,
        phi=arguments.phi,
        step_seconds=STEP,
        aggregation_seconds=UPLOAD,
    )


def evaluations(
    method: str, parts: Federation, kept: list[dict], arguments: argparse.Namespace
) -> Iterator[dict]:
    """The evaluations that are still to be made; each is in the checkpoint it follows."""
    folder = arguments.folder / method.replace(" ", "-").lower()
    folder.mkdir(parents=True, exist_ok=True)
    algorithm = algorithm_of(method, parts, arguments)
    key_state, key_rounds = jax.random.split(jax.random.key(arguments.seed))
    state = fa.init_state(algorithm, parts.task, parts.data, parts.plan, key_state)
    round_fn = fa.make_round(algorithm, parts.task, parts.data, parts.plan)
    restored = checkpoint.restore(folder, jax.eval_shape(lambda: state))
    done, last = 0, {"steps": 0, "simulated_seconds": 0.0}
    if restored is not None:
        state, done = restored
        at = [line for line in kept if line["round"] == done]
        if not at:
            raise SystemExit(
                f"{folder} has done {done} rounds that {arguments.results} does not know "
                "of; give another --folder."
            )
        last = at[0]
    evaluate = jax.jit(lambda params, test: fa.evaluate(parts.task, params, test))
    began = time.perf_counter()
    while done < arguments.rounds:
        keys = [
            jax.random.fold_in(key_rounds, done + i) for i in range(arguments.every)
        ]
        state, infos = fa.train(round_fn, state, jax.numpy.stack(keys))
        done += arguments.every
        metrics = evaluate(state.params, parts.data.test)
        last = {
            "method": method,
            "round": done,
            "accuracy": round(float(metrics.accuracy), 4),
            "loss": round(float(metrics.loss), 4),
            "tau": int(infos.num_steps[-1].max()),
            "steps": last["steps"] + int(np.sum(infos.num_steps)),
            "simulated_seconds": round(
                last["simulated_seconds"] + float(np.sum(infos.seconds)), 3
            ),
        }
        if "consistency" in infos.policy:
            last["consistency"] = round(float(infos.policy["consistency"][-1]), 4)
        yield last  # written first: a line beyond the checkpoint is dropped
        checkpoint.save(folder, state, done)
        if time.perf_counter() - began > 60 * arguments.minutes:
            return


def plot(lines: list[dict], path: Path) -> None:
    """Accuracy, tau and C of every method against simulated hours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    for axes, (name, title) in zip(
        figure.subplots(1, len(PANELS)), PANELS.items(), strict=True
    ):
        for color, method in enumerate(METHODS):
            mine = [line for line in lines if line["method"] == method and name in line]
            hours = [line["simulated_seconds"] / 3600 for line in mine]
            if mine:
                values = [line[name] for line in mine]
                axes.plot(hours, values, label=method, color=f"C{color}")
        axes.set(title=title, xlabel="simulated hours")
        if name == "tau":
            axes.set_yscale("log")
    figure.axes[0].legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="per method"
    )
    parser.add_argument("--every", type=int, default=10, help="rounds to an evaluation")
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--initial-steps", type=int, default=100)
    parser.add_argument(
        "--warmup", type=int, default=50, help="of GIFT; 0 for short runs"
    )
    parser.add_argument("--phi", type=float, default=5e-5, help="of AFL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/gift-cifar"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    text = arguments.results.read_text() if arguments.results.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    parts = federation(arguments)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    on = {"commit": commit(), "hardware": hardware(), "seed": arguments.seed}
    for method in arguments.only:
        mine = [line for line in lines if line["method"] == method]
        for line in evaluations(method, parts, mine, arguments):
            later = lambda old, new=line: (
                old["method"] == new["method"] and old["round"] >= new["round"]
            )
            lines = [old for old in lines if not later(old)] + [line | on]
            arguments.results.write_text("".join(json.dumps(x) + "\n" for x in lines))
            shown = {k: v for k, v in line.items() if k != "method"}
            print(method, shown, flush=True)
    if arguments.plot is not None:
        plot(lines, arguments.plot)


if __name__ == "__main__":
    begin(main)
