"""Whether simulators do the same work: fingerprints of one round, held against ours.

W2 agrees to rounding. At W1 a learning rate of 0.1 makes rounding grow: where one unit's
ReLU or maximum flips, ten steps later a client's update has moved by percents. Without
weight decay the projection would be off by nine tenths, with 9 steps in place of 10 by 9 %.
"""

from collections.abc import Mapping, Sequence

TOLERANCE = {"w1": 0.03, "w2": 1e-3}  # by the first part of a workload's name

Fingerprint = Mapping[str, Sequence[float]]  # name -> norm, maximum, projection


def differences(ours: Fingerprint, theirs: Fingerprint) -> tuple[float, float]:
    """The largest relative differences: of a norm, and of a kernel's projection."""
    if set(ours) != set(theirs):
        return float("inf"), float("inf")
    norm = max(abs(theirs[name][0] / ours[name][0] - 1) for name in ours)
    projection = max(
        abs(theirs[name][2] / ours[name][2] - 1)
        for name in ours
        if name.endswith("kernel")  # the decay of a bias is lost in its gradient
    )
    return norm, projection


def tolerance(workload: str) -> float:
    """How much two rounds may differ."""
    return TOLERANCE[workload.partition("-")[0]]


def agree(workload: str, ours: Fingerprint, theirs: Fingerprint) -> bool:
    """Whether a round did what ours does, within the tolerance of the workload."""
    return all(
        difference < tolerance(workload) for difference in differences(ours, theirs)
    )
