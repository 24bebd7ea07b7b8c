"""The controls of an FNR-FL run: what public data are worth without its own idea.

    FOLDER-control-weight0   the same clients refined, without any penalty
    FOLDER-control-pubft     the server's average refined, with as many steps
    FOLDER-control-public    the public set alone

All else is as in the run they are for. Those of a sweep are trials of it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import SettingError
from . import store
from .config import Config, common_options
from .folder import check_folder, is_finished, run_folder
from .options import find, options_of
from .sweeps import results
from .sweeps.grid import Sweep, read_sweep

# name -> the algorithm, and the options that are not those of the run
CONTROLS = {
    "weight0": ("fnr", {"weight": 0.0}),
    "pubft": ("fedavg_pubft", {}),
    "public": ("public_only", {}),
}


def with_controls(config: Config) -> list[Config]:
    """A run and its controls, each with its folder; SettingError unless it is of fnr."""
    _check_fnr(config.algorithm)
    given = config.algorithm_options
    folder = run_folder(config)
    named = folder if folder.name.strip(".") else folder.resolve()
    configs = [replace(config, folder=str(folder))]
    for name, (algorithm, fixed) in CONTROLS.items():
        if fixed and given.get("weight") == 0:  # the run is this control
            continue
        known = options_of("algorithm", find("algorithm", algorithm))
        options = {k: v for k, v in given.items() if k in known} | fixed
        place = str(named.with_name(f"{named.name}-control-{name}"))
        chosen = {"algorithm": algorithm, "algorithm_options": options}
        configs.append(replace(config, folder=place, **chosen))
    return configs


def sweep_with_controls(asked: Sweep) -> Sweep:
    """A sweep and the controls of its trials of fnr, which follow as trials of their own.

    Trials that differ in nothing but options of fnr share their controls. A sweep that has
    its controls stays as it is.
    """
    of_algorithm = lambda name: name.partition(".")[0] == "algorithm"
    default = {"algorithm": common_options()["algorithm"].default}
    moved = {n: [v] for n, v in (default | asked.run).items() if of_algorithm(n)}
    run = {name: v for name, v in asked.run.items() if not of_algorithm(name)}
    grids = [moved | grid for grid in asked.grids]
    if not any("fnr" in grid["algorithm"] for grid in grids):
        _check_fnr(grids[0]["algorithm"][0])
    for grid in list(grids):
        for algorithm, fixed in CONTROLS.values():
            control = _control_grid(grid, algorithm, fixed)
            if control is not None and control not in grids:
                grids.append(control)
    return read_sweep({"folder": asked.folder, "run": run, "grid": grids})


def check_has_controls(folder: Path, asked: Sweep) -> None:
    """Raises SettingError if the sweep in `folder` is this one, but with its controls."""
    file = folder / store.SWEEP
    if not file.is_file():
        return
    begun = read_sweep(file)
    try:
        whole = sweep_with_controls(asked)
    except SettingError:  # no trial is of fnr, so the folder holds another sweep
        return
    changed = results.first_change(begun, asked) is not None
    if changed and results.first_change(begun, whole) is None:
        raise SettingError(
            f"folder={folder} holds this sweep with its controls; write --controls as well."
        )


def _control_grid(
    grid: dict[str, list], algorithm: str, fixed: dict[str, Any]
) -> dict[str, list] | None:
    """The grid of a control of the trials of fnr in a grid; None: it needs none."""
    here = grid["algorithm"]
    if "fnr" not in here or (algorithm in here and not fixed):
        return None
    if fixed and 0 in grid.get("algorithm.weight", ()):
        return None
    known = options_of("algorithm", find("algorithm", algorithm))
    accepted = {f"algorithm.{name}" for name in known}
    of_algorithm = lambda name: name.startswith("algorithm.")
    kept = {n: v for n, v in grid.items() if n in accepted or not of_algorithm(n)}
    options = {f"algorithm.{name}": [value] for name, value in fixed.items()}
    return kept | {"algorithm": [algorithm]} | options


def _check_fnr(algorithm: str) -> None:
    if algorithm != "fnr":
        raise SettingError(
            f"controls are those of algorithm=fnr, but algorithm={algorithm}; "
            "leave --controls out."
        )


def unfinished(configs: list[Config], resume: bool) -> list[Config]:
    """Those that are still to be run, or to go on."""
    left = []
    for config in configs:
        folder = run_folder(config)
        if not is_finished(folder, config):
            check_folder(folder, config, resume)
            left.append(config)
    return left
