"""The controls of an FNR-FL run: what public data are worth without its own idea.

    FOLDER-control-weight0   the same clients refined, without any penalty
    FOLDER-control-pubft     the server's average refined, with as many steps
    FOLDER-control-public    the public set alone

All else is as in the run they are for.
"""

from dataclasses import replace

from ..errors import SettingError
from . import store
from .config import Config
from .folder import check_folder, first_change, run_folder
from .options import find, options_of


def with_controls(config: Config) -> list[Config]:
    """A run and its controls, each with its folder.

    Raises:
      ValueError: the algorithm is not fnr.
    """
    if config.algorithm != "fnr":
        raise SettingError(
            f"controls are those of algorithm=fnr, but algorithm={config.algorithm}; "
            "leave --controls out."
        )
    given = config.algorithm_options
    others = [
        ("pubft", "fedavg_pubft", given),
        ("public", "public_only", given),
    ]
    if given.get("weight") != 0:  # or the run is this control
        others.insert(0, ("weight0", "fnr", {**given, "weight": 0.0}))
    folder = run_folder(config)
    named = folder if folder.name.strip(".") else folder.resolve()
    configs = [replace(config, folder=str(folder))]
    for name, algorithm, options in others:
        known = options_of("algorithm", find("algorithm", algorithm))
        configs.append(
            replace(
                config,
                algorithm=algorithm,
                algorithm_options={k: v for k, v in options.items() if k in known},
                folder=str(named.with_name(f"{named.name}-control-{name}")),
            )
        )
    return configs


def unfinished(configs: list[Config], resume: bool) -> list[Config]:
    """Those that are still to be run, or to go on.

    Raises:
      ValueError: a folder holds another run, or a half-finished one that is not to be
        resumed; nothing has been written.
    """
    left = []
    for config in configs:
        folder = run_folder(config)
        there = all((folder / name).exists() for name in (store.CONFIG, store.SUMMARY))
        if not (there and first_change(folder, config) is None):
            check_folder(folder, config, resume)
            left.append(config)
    return left
