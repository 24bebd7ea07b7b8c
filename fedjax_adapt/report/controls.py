"""Which controls a table lacks: what public data are worth without a method's own idea."""

from collections.abc import Sequence
from typing import Any

from .plots import method_of

Run = tuple[dict[str, Any], dict[str, Any]]  # (config, summary)

WEIGHTLESS = "fnr(weight=0)"  # for FNR-FL alone: others have no such part to switch off
CONTROLS = (WEIGHTLESS, "fedavg_pubft", "public_only")
WORK = (
    "algorithm.fraction",
    "algorithm.epochs",
)  # of a control: as much as its method's


def lacking(runs: Sequence[Run]) -> list[str]:
    """A sentence for each set of controls that methods among the runs stand without.

    A control has the base and the public set of the method it is for, and as many steps on
    that set in a round.
    """
    users = [run for run in runs if run[1].get("public", {}).get("used")]
    controls = [run for run in users if _control(run)]
    without: dict[
        tuple[str, ...], dict[str, None]
    ] = {}  # names are kept in order, once
    for run in users:
        if _control(run) is None:
            names = CONTROLS if run[0]["algorithm"] == "fnr" else CONTROLS[1:]
            here = {_control(other) for other in controls if _stands_for(other, run)}
            lacks = tuple(name for name in names if name not in here)
            without.setdefault(lacks, {})[method_of(*run)] = None
    return [
        f"{', '.join(methods)} {'stands' if len(methods) == 1 else 'stand'} here without "
        f"{'its' if len(methods) == 1 else 'their'} controls {', '.join(lacks)}: what "
        "public data alone are worth is not known."
        for lacks, methods in without.items()
        if lacks
    ]


def _control(run: Run) -> str | None:
    """Which control a run is, if it is one."""
    config = run[0]
    if config["algorithm"] == "fnr":
        return WEIGHTLESS if config.get("algorithm.weight") == 0 else None
    return config["algorithm"] if config["algorithm"] in CONTROLS else None


def _stands_for(control: Run, method: Run) -> bool:
    """Whether a control is one for this method."""
    (theirs, of_theirs), (ours, of_ours) = control, method
    shared = [name for name in WORK if name in ours]
    if _control(control) != "public_only":  # whose clients do not train on any base
        shared.append("algorithm.base")
    sets = [
        (public["protocol"], public["examples"])
        for public in (of_theirs["public"], of_ours["public"])
    ]
    return sets[0] == sets[1] and all(theirs.get(n) == ours.get(n) for n in shared)
