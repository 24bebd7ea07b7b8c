"""The curves of the site's pages of methods, from the sweep of methods.toml.

    fedjax-adapt sweep benchmarks/methods.toml --folder runs/methods
    python benchmarks/methods.py runs/methods benchmarks/results/methods-DATE.csv

The file has a row for each method and round: test accuracy, mean and deviation over seeds,
and the mean of what all rounds so far have moved and trained.
"""

import sys
from pathlib import Path

import pandas as pd

from fedjax_adapt.experiment import read_swept
from fedjax_adapt.experiment.records import read_finished, trial_folder

COSTS = ["bytes_down", "bytes_up", "local_steps", "public_steps"]


def curves(folder: str | Path) -> pd.DataFrame:
    """A row for each method and round of a sweep: n, accuracy, deviation and `COSTS`."""
    swept = read_swept(folder)
    methods = swept.results.select(["trial", "algorithm"]).to_pandas()
    columns = ["trial", "round", "accuracy", *COSTS]
    rounds = swept.metrics.select(columns).to_pandas().merge(methods, on="trial")
    by = rounds.groupby(["algorithm", "round"])
    found = by.accuracy.agg(n="count", accuracy="mean", deviation="std").round(5)
    return found.join(by[COSTS].mean().round().astype(int)).reset_index()


def origin(folder: str | Path) -> str:
    """On what the sweep was run, in a line."""
    _, summary = read_finished(Path(folder) / trial_folder(0))
    hardware, versions = summary["hardware"], summary["versions"]
    return (
        f"commit {summary['commit'][:8]}, {hardware['cpu']}, {hardware['cores']} cores, "
        f"jax {versions['jax']}"
    )


if __name__ == "__main__":
    folder, out = sys.argv[1:]
    text = f"# {origin(folder)}\n{curves(folder).to_csv(index=False)}"
    with open(out, "x") as file:
        file.write(text)
