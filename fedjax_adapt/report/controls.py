"""Controls that are missing: what public data are worth without a method's own idea."""

from collections.abc import Sequence
from typing import Any

from ..experiment.config import setting_of, unlearned
from .plots import method_of
from .seeds import PUBLIC, Run
from .tables import shown_setting

WEIGHTLESS = "fnr(weight=0)"  # for FNR-FL alone: others have no such part to switch off
CONTROLS = (WEIGHTLESS, "fedavg_pubft", "public_only")
# of a control: as much as its method's
WORK = ("algorithm.fraction", "algorithm.epochs")
PENALTY = ("weight", "variant", "delta_set", "upload")  # of fnr, which no control has
# of whose public training folders of earlier versions did not say all
BEFORE = {"algorithm.batch_size": "none", "algorithm.batch_loss": "mean"}


def lacking(runs: Sequence[Run]) -> list[str]:
    """A sentence for each set of controls that methods among the runs stand without.

    A control has all settings of the run it is for, but for the seed and the method's own,
    and the public set. Of one that has others a further sentence names them.
    """
    users = [run for run in runs if run[1].get("public", {}).get("used")]
    controls = [run for run in users if _control(run)]
    # names are kept in order, once
    without: dict[tuple[str, ...], dict[str, None]] = {}
    others: dict[tuple[str, str], dict[str, None]] = {}
    for run in users:
        if _control(run) is not None:
            continue
        lacks = []
        for name in CONTROLS if run[0]["algorithm"] == "fnr" else CONTROLS[1:]:
            named = [other for other in controls if _control(other) == name]
            apart = [_apart(other, run) for other in named]
            if "" not in apart:
                lacks.append(name)
                for other, differs in zip(named, apart, strict=True):
                    which = f"{other[1]['folder']}, {name},", differs
                    others.setdefault(which, {})[run[1]["folder"]] = None
        without.setdefault(tuple(lacks), {})[method_of(*run)] = None
    return [
        f"{', '.join(methods)} {'stands' if len(methods) == 1 else 'stand'} here without "
        f"{'its' if len(methods) == 1 else 'their'} controls {', '.join(lacks)}: what "
        "public data alone are worth is not known."
        for lacks, methods in without.items()
        if lacks
    ] + [
        f"{which} is not a control of {', '.join(folders)}: it has {differs}."
        for (which, differs), folders in others.items()
    ]


def _control(run: Run) -> str | None:
    """Which control a run is, if it is one."""
    config = run[0]
    if config["algorithm"] == "fnr":
        return WEIGHTLESS if config.get("algorithm.weight") == 0 else None
    return config["algorithm"] if config["algorithm"] in CONTROLS else None


def _apart(control: Run, method: Run) -> str:
    """The settings that a control does not have of this method, in words; "" if none."""
    (theirs, of_theirs), (ours, of_ours) = control, method
    pairs = {
        f"public {what}": (of_theirs["public"][what], of_ours["public"][what])
        for what in PUBLIC
    }
    pairs |= {
        name: (setting_of(BEFORE | theirs, name), setting_of(BEFORE | ours, name))
        for name in dict.fromkeys([*theirs, *ours, *BEFORE])
        if _is_shared(name, theirs["algorithm"], ours)
    }
    return ", ".join(
        f"{name}={shown_setting(one)}, not {shown_setting(other)}"
        for name, (one, other) in pairs.items()
        if one != other
    )


def _is_shared(name: str, control: str, method: dict[str, Any]) -> bool:
    """Whether a control has this setting as its method has it."""
    kind, _, option = name.partition(".")
    if name == "algorithm.base":
        return control != "public_only"  # whose clients do not train on any base
    if option and kind == "algorithm":
        if method["algorithm"] == "fnr":
            return option not in PENALTY
        return name in WORK and name in method
    return name not in ("algorithm", "seed", "public", "public_examples", *unlearned())
