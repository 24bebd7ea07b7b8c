"""What settings may be, alone and together; a mistake is one sentence."""

from typing import TYPE_CHECKING

from .. import check
from ..errors import SettingError

if TYPE_CHECKING:
    from .schema import Config

CLIENTS = 30  # unless a number is given or the data have one


def check_limits(config: "Config") -> None:
    """Raises ValueError on the first setting out of range or at odds with others."""
    for name in ("data_dir", "folder", "match"):
        check_path(name, getattr(config, name))
    check.at_least("projection", config.projection, 1, none="no head")
    check.at_least(
        "num_clients", config.num_clients, 1, none="30, or as many as own rows"
    )
    check.at_least("train_examples", config.train_examples, 1, none="all of them")
    check.at_least("public_examples", config.public_examples, 1, none="a tenth")
    check.at_least(
        "validation_examples", config.validation_examples, 0, none="as needed"
    )
    check.between("participation", config.participation, 0, 1, closed="right")
    check.nonnegative("feature_noise", config.feature_noise)
    if config.feature_noise_mask and config.feature_noise == 0:
        raise SettingError(
            "feature_noise_mask=True needs feature_noise above 0.",
            setting="feature_noise_mask",
        )
    for name in ("corrupt_strength", "corrupt_clients"):
        if config.corrupt is None and is_set(config, name):
            raise SettingError(
                f"{name} needs corrupt, which says what is wrong with them."
            )
    check.between("epochs", config.epochs, 0, 1_000_000, closed="right")
    check.at_least("num_steps", config.num_steps, 1, none="epochs")
    check.at_least("max_local_steps", config.max_local_steps, 1, none="no cap")
    if config.num_steps is not None and is_set(config, "epochs"):
        raise SettingError(
            f"epochs={config.epochs:g} and num_steps={config.num_steps} both say how long "
            "a client trains; write one of them.",
            setting="epochs",
        )
    for name in ("epochs", "num_steps"):
        value = getattr(config, name)
        if config.match is not None and is_set(config, name):
            raise SettingError(
                f"match={config.match} and {name}={value:g} both say how long a client "
                "trains; write one of them.",
                setting="match",
            )
    if config.match is None and is_set(config, "match_by"):
        raise SettingError("match_by needs match, the folder of the run to be matched.")
    if config.client_memory == "host" and "all" in config.evaluate_also:
        raise SettingError(
            "evaluate_also=all averages the models of all clients on the device, which "
            "client_memory=host is there to avoid; leave one of them out.",
            setting="evaluate_also",
        )
    _check_ways(config.convolutions)
    _check_clock(config)
    check.at_least("rounds", config.rounds, 1)
    check.at_least("evaluate_every", config.evaluate_every, 1)
    check.at_least("checkpoint_every", config.checkpoint_every, 1, none="by the clock")
    for target in config.targets:
        check.between("targets", target, 0, 1)
    for seed in ("seed", "partition_seed", "clock_seed"):
        check.between(seed, getattr(config, seed) or 0, 0, 2**32 - 1)


def check_path(name: str, path: object) -> None:
    """Raises ValueError if a path is empty, which would be the working folder."""
    if path == "":
        raise SettingError(
            f"{name}='' is empty; write the path of a folder, or leave {name} out.",
            setting=name,
        )


def _check_ways(convolutions: str) -> None:
    if convolutions in ("auto", "rule"):
        return
    from ..models.ways import WAYS  # and flax, which takes its time

    if "," not in convolutions:
        check.one_of("convolutions", convolutions, ("auto", "rule", *WAYS))
        return
    for way in convolutions.removesuffix(",").split(","):
        check.one_of("convolutions", way.strip(), WAYS)


def _check_clock(config: "Config") -> None:
    if config.step_seconds is not None:
        return
    if config.sampler == "earliest":
        raise SettingError(
            "sampler=earliest needs step_seconds, the simulated seconds of a local step.",
            setting="sampler",
        )
    clock = ("bandwidth", "download_bandwidth", "latency", "delay", "delay_persists")
    for name in (*clock, "clock_seed"):
        if is_set(config, name):
            raise SettingError(
                f"{name} needs step_seconds, the simulated seconds of a local step."
            )


def is_set(config: "Config", name: str) -> bool:
    """Whether a setting is not at its default."""
    usual = [getattr(type(config), name)]
    if name == "num_clients":
        usual.append(CLIENTS)
    return getattr(config, name) not in usual
