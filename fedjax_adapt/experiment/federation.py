"""All parts of a run that its config is built into."""

from typing import NamedTuple

import numpy as np

from ..core import Algorithm, Task
from ..data import FederatedDataset, PublicSet, Skew, Source
from ..plan import Plan


class Federation(NamedTuple):
    """What `init_state` and `make_round` take, and how skewed the clients are."""

    algorithm: Algorithm
    task: Task
    data: FederatedDataset
    plan: Plan
    source: Source  # what the clients learn from, and what is tested on
    skew: Skew
    public: PublicSet | None = None  # set apart; data.public if the algorithm uses it
    labels: np.ndarray | None = None  # that the training examples were split by
