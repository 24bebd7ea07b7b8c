"""The kinds of what runs choose by name, and the functions of each."""

from collections.abc import Callable, Mapping

KINDS = ("algorithm", "model", "partition", "dataset")

# Arguments the run itself gives to partitions and data sets: no options of theirs.
FROM_RUN = {
    "partition": {"num_clients", "seed"},
    "dataset": {"data_dir", "num_clients", "seed"},
}

OBJECT = "object"  # the name of what is given as one, see objects.py
# functions of a user's own, by kind and name, see own.py
REGISTERED: dict[str, dict[str, Callable]] = {kind: {} for kind in KINDS}


def registry(kind: str) -> Mapping[str, Callable]:
    """The functions of one kind by name; there are patterns too, see `find`."""
    return {**built_in(kind), **REGISTERED[kind]}


def built_in(kind: str) -> Mapping[str, Callable]:
    """Those of them that come with this package."""
    if kind == "algorithm":
        from ..algorithms import ALGORITHMS

        return ALGORITHMS
    if kind == "model":
        from ..models import MODELS

        return MODELS
    if kind == "partition":
        from ..data import PARTITIONS

        return PARTITIONS
    from ..data import SOURCES

    return {name: spec.load for name, spec in SOURCES.items()}
