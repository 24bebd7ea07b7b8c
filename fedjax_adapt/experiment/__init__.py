"""Runs: a config in, a run folder out.

from fedjax_adapt.experiment import Config, read_run, run

summary = run(Config(algorithm="fedavg", rounds=20, folder="runs/first"))
read_run("runs/first").metrics.to_pandas()  # with the extra "notebooks"

grid = {"lr": [0.1, 0.03], "seed": [0, 1, 2]}
sweep({"run": {"algorithm": "fedavg", "partition_seed": 0}, "grid": grid}).results
"""

from .build import Federation as Federation
from .build import build as build
from .config import Config as Config
from .folder import Loaded as Loaded
from .folder import load_run as load_run
from .records import Record as Record
from .records import Swept as Swept
from .records import read_run as read_run
from .records import read_swept as read_swept
from .rows import Diverged as Diverged
from .run import Progress as Progress
from .run import run as run
from .summary import Summary as Summary
from .sweeps.sweep import sweep as sweep
from .sweeps.tune import Tuned as Tuned
from .sweeps.tune import tune as tune
from .user_functions import register as register
from .valuation import CohortValues as CohortValues
from .valuation import value_cohort as value_cohort
