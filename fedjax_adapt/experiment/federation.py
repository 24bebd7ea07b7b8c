"""All parts of a run that its config is built into, and what its public set is to it.

Where the public set is the test set and the algorithm trains on it, accuracy is training
accuracy; on validation examples it is validation accuracy. It goes by that name wherever
it is written or shown, so that nothing that looks for a test accuracy finds it.
"""

from typing import Any, NamedTuple

import numpy as np

from .. import costs
from ..core import Algorithm, Refinement, Task, as_refinement
from ..data import PROTOCOLS, FederatedDataset, PublicSet, Skew, Source
from ..data.source import default_size
from ..errors import SettingError
from ..plan import Plan
from .algorithm import build_clock
from .config import Config, partition_seed, to_settings
from .store import ACCURACY, TRAINED, VALIDATED


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


ORIGIN = {
    "holdout": "held out of the training set",
    "split_test": "taken out of the test set",
    "published": "the test set itself",
    "given": "given with the data",
}


def uses_public(algorithm: Algorithm) -> bool:
    """Whether an algorithm asks for a public set; who does not, does not get to see one."""
    refine = as_refinement(algorithm.refine)
    return refine is not None and refine.needs_public


def validates(algorithm: Algorithm) -> bool:
    """Whether an algorithm asks for validation examples."""
    refine = as_refinement(algorithm.refine)
    return refine is not None and refine.needs_validation


def with_public(
    config: Config, source: Source, algorithm: Algorithm | None = None
) -> tuple[Source, PublicSet | None]:
    """What clients train on and what is tested on, and the public set besides it.

    Args:
      config: says which protocol; none: holdout if the algorithm needs a public set.
      source: what there is.
      algorithm: that is to be trained; None: only what the config says counts.

    Raises:
      ValueError: there are not so many examples, or nothing asks for a public set.
    """
    needed = algorithm is not None and uses_public(algorithm)
    protocol = config.public or ("holdout" if needed else None)
    if protocol is None:
        for name in ("public_examples", "validation_examples"):
            if config.is_set(name):
                raise SettingError(
                    f"{name}={getattr(config, name)} needs a public set, and algorithm="
                    f"{config.algorithm} uses none; write public=holdout to take one out "
                    f"of the training set all the same, or leave {name} out.",
                    setting=name,
                )
        return source, None
    if source.validates and protocol != "holdout":
        raise SettingError(
            f"public={protocol} takes the test set, but evaluate_on=validation leaves it "
            "alone; write public=holdout.",
            setting="public",
        )
    validation = config.validation_examples
    if validation is None:
        chooses = algorithm is not None and validates(algorithm)
        validation = default_size(source.y_train) if chooses else 0
    seed = partition_seed(config)
    return PROTOCOLS[protocol](source, config.public_examples, validation, seed)


def accuracy_name(federation: Federation) -> str:
    """What the accuracy on what is tested on is to be called in tables."""
    seen = federation.data.public  # by the algorithm
    if seen is not None and seen.protocol == "published":
        return TRAINED
    return VALIDATED if federation.source.validates else ACCURACY


def without_effect(config: Config, federation: Federation) -> list[str]:
    """What to say of settings that do nothing in a run."""
    found, public = [], federation.public
    if public is not None and federation.data.public is None:
        found.append(
            f"{config.algorithm} uses no public set: public={public.protocol} "
            f"({public.num_examples} examples, {ORIGIN[public.protocol]}) only makes its "
            "run comparable with one that does; give both the same validation_examples."
        )
    if config.algorithm == "gift":
        given = to_settings(config)
        detector, warmup = given["algorithm.detector"], given["algorithm.warmup"]
        if detector == "patience" and warmup >= config.rounds:
            found.append(
                f"with warmup={warmup} gift changes no local steps in {config.rounds} "
                "rounds; give fewer, 0 for a short run."
            )
    return found


def broadcast_bytes(federation: Federation) -> int:
    """What all clients receive once if they train on the public set; 0 if they do not.

    A label takes a byte, as in FNR-FL's count of 3073 for an image of CIFAR-10.
    """
    public, refine = federation.data.public, as_refinement(federation.algorithm.refine)
    if public is None or refine is None or refine.clients is None:
        return 0
    labels = 0 if public.y is None else public.num_examples
    return federation.data.num_clients * (int(public.x.nbytes) + labels)


def broadcast_seconds(config: Config, federation: Federation) -> float:
    """Simulated seconds until the last client has it, which the first round waits for."""
    number = federation.data.num_clients
    each = broadcast_bytes(federation) // number
    return costs.broadcast_seconds(build_clock(config), each, number)


def public_summary(federation: Federation) -> dict[str, Any]:
    """The public set of a run, for its summary; empty if there is none."""
    public = federation.public
    if public is None:
        return {}
    return {
        "protocol": public.protocol,
        "origin": ORIGIN[public.protocol],
        "examples": public.num_examples,
        "validation": public.num_validation,
        "bytes": int(public.x.nbytes),
        "broadcast_bytes": broadcast_bytes(federation),
        "used": federation.data.public is not None,
    }


def auxiliary(federation: Federation) -> list[str]:
    """What a method is given besides the clients' own training, in words."""
    algorithm = federation.algorithm
    parts = (algorithm.server, as_refinement(algorithm.refine) or Refinement())
    given = list(dict.fromkeys(part.given for part in parts if part.given))
    public = federation.data.public
    if public is None:
        return given
    if not any("public" in text for text in given):
        given.append("public examples")
    whence = f"({public.num_examples}, {ORIGIN[public.protocol]})"
    given = [f"{text} {whence}" if "public" in text else text for text in given]
    if public.validation is not None and validates(federation.algorithm):
        whence = f"({public.num_validation}, {ORIGIN['holdout']})"
        given.append(f"labelled validation examples {whence}")
    return given
