"""The public set of a run: where it comes from, who uses it, and what accuracy is then.

Where the public set is the test set and the algorithm trains on it, accuracy is training
accuracy. It goes by that name wherever it is written or shown, so that nothing that
looks for a test accuracy finds it.
"""

import re
from typing import Any

from ..core import Algorithm
from ..data import PROTOCOLS, FederatedDataset, PublicSet, Source
from .config import Config, partition_seed
from .limits import is_set
from .store import ACCURACY, TRAINED

ORIGIN = {
    "holdout": "held out of the training set",
    "split_test": "taken out of the test set",
    "published": "the test set itself",
}

# what algorithms are given beside their clients' training
GIVEN = {
    "feddisco": "label counts of every client",
    "fedgen": "label counts of every client",
    "fedftg": "label counts of every client",
    "feddf": "unlabelled public examples",
    "fnr": "labelled public examples",
}


def uses_public(algorithm: Algorithm) -> bool:
    """Whether something of an algorithm trains on the public set."""
    refine = algorithm.refine
    return refine is not None and getattr(refine, "needs_public", True)


def with_public(
    config: Config, source: Source, algorithm: Algorithm | None = None
) -> tuple[Source, PublicSet | None]:
    """What clients train on and what is tested on, and the public set beside it.

    Args:
      config: says which protocol; none: holdout if the algorithm needs a public set.
      source: what there is.
      algorithm: that is to be trained; None: only what the config says counts.

    Raises:
      ValueError: there are not so many examples, or nobody asked for a public set.
    """
    needed = algorithm is not None and uses_public(algorithm)
    protocol = config.public or ("holdout" if needed else None)
    if protocol is None:
        for name in ("public_examples", "validation_examples"):
            if is_set(config, name):
                raise ValueError(
                    f"{name}={getattr(config, name)} needs a public set, and algorithm="
                    f"{config.algorithm} uses none; write public=holdout to take one out "
                    f"of the training set all the same, or leave {name} out."
                )
        return source, None
    return PROTOCOLS[protocol](
        source,
        config.public_examples,
        validation=config.validation_examples,
        seed=partition_seed(config),
    )


def accuracy_name(algorithm: Algorithm, data: FederatedDataset) -> str:
    """What the accuracy on the test set is to be called in tables."""
    published = data.public is not None and data.public.protocol == "published"
    return TRAINED if published and uses_public(algorithm) else ACCURACY


def unused(config: Config, algorithm: Algorithm, data: FederatedDataset) -> str | None:
    """What to say of a public set that the algorithm does not use; None: nothing."""
    if data.public is None or uses_public(algorithm):
        return None
    return (
        f"{config.algorithm} uses no public set: public={data.public.protocol} "
        f"({data.public.num_examples} examples, {ORIGIN[data.public.protocol]}) only "
        "makes its run comparable with one that does."
    )


def described(algorithm: Algorithm, data: FederatedDataset) -> dict[str, Any]:
    """The public set of a run, for its summary; empty if there is none."""
    if data.public is None:
        return {}
    public = data.public
    judged = 0 if public.validation is None else len(public.validation[1])
    return {
        "protocol": public.protocol,
        "origin": ORIGIN[public.protocol],
        "examples": public.num_examples,
        "validation": judged,
        "bytes": int(public.x.nbytes),
        "used": uses_public(algorithm),
    }


def auxiliary(
    config: Config, algorithm: Algorithm, data: FederatedDataset
) -> list[str]:
    """What a method is given beside the clients' own training, in words."""
    bases = re.findall(r"\w+", str(config.algorithm_options.get("base") or ""))
    given = [GIVEN[name] for name in (config.algorithm, *bases) if name in GIVEN]
    if not uses_public(algorithm) or data.public is None:
        return given
    held = data.public
    if not any("public" in text for text in given):
        given.append("public examples")
    found = [
        f"{text} ({held.num_examples}, {ORIGIN[held.protocol]})"
        if "public" in text
        else text
        for text in given
    ]
    if held.validation is not None:
        count = len(held.validation[1])
        found.append(f"labelled validation examples ({count} of the training set)")
    return found
