"""The figures of a summary: what curves, classes and clients come to."""

import math
from typing import Any

import numpy as np

LAST = 50  # evaluations in the mean at the end, as FedSSG's tables have it
WORST = 0.1  # of the clients in the mean of the worst


def curve_figures(
    rounds: np.ndarray,
    accuracy: np.ndarray,
    loss: np.ndarray,
    targets: tuple[float, ...],
) -> dict[str, Any]:
    """What a learning curve comes to; see `Summary` from `accuracy` on."""
    last = accuracy[-LAST:]
    best = int(np.argmax(accuracy))
    return {
        "accuracy": float(accuracy[-1]),
        "loss": float(loss[-1]),
        "best_accuracy": float(accuracy[best]),
        "best_round": int(rounds[best]),
        "last_mean": float(last.mean()),
        "last_std": float(last.std()),
        "last_count": len(last),
        "rounds_to": {f"{t:g}": first_reaching(rounds, accuracy, t) for t in targets},
        "area_under_curve": area_under_curve(rounds, accuracy),
    }


def area_under_curve(rounds: np.ndarray, accuracy: np.ndarray) -> float:
    """Mean accuracy over the span of `rounds`, by the trapezoid rule."""
    if len(rounds) == 1:
        return float(accuracy[0])
    widths, middles = np.diff(rounds), (accuracy[1:] + accuracy[:-1]) / 2
    return float((widths * middles).sum() / widths.sum())


def per_class(accuracy: Any, counts: Any) -> list[float | None]:
    """The accuracy on each class, None for a class of which there is no example.

    Args:
      accuracy: on each class, [classes].
      counts: of test examples, [classes].
    """
    pairs = zip(accuracy, counts, strict=True)
    return [float(share) if count else None for share, count in pairs]


def spread_over_clients(accuracy: Any, sizes: Any) -> dict[str, float]:
    """How the accuracy on their own examples differs between clients that have some.

    Args:
      accuracy: of each client, [clients].
      sizes: how many examples it has, [clients].
    """
    held = np.sort(np.asarray(accuracy, float)[np.asarray(sizes) > 0])
    worst = held[: math.ceil(WORST * len(held))]
    return {
        "mean": float(held.mean()),
        "std": float(held.std()),
        "min": float(held[0]),
        "worst_tenth": float(worst.mean()),
    }


def first_reaching(rounds: Any, accuracy: Any, target: float) -> int | None:
    """The first of `rounds` whose accuracy is at least `target`."""
    # in float32, as the device counts: 9,000 of 10,000 reach 0.9
    accuracy = np.asarray(accuracy, np.float32)
    reached = np.flatnonzero(accuracy >= np.float32(target))
    return int(rounds[reached[0]]) if len(reached) else None
