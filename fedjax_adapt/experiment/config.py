"""The settings of a run in one flat space, from TOML, flags or Python, and as TOML again.

They are the fields of `Config` besides the options of the chosen algorithm, model,
partition and data set, by their full names, as in `dataset.alpha`. How else a user may
write them is in spelling.py. At the end: in which of them runs differ.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SettingError
from . import toml
from .objects import KINDS, registry
from .options import Option, suggestion
from .schema import (
    CLIENTS,
    Config,
    common_options,
    kind_options,
    settings,
    settings_that_are,
)
from .spelling import canonical, choices_in, flat_name, nested, spellings, writable
from .user_functions import revised

# What options that came later are in runs of before: at these values they are left out of
# the hash, as a setting is that is `later`.
LATER_OPTIONS = {
    "dataset.client_feature": None,
    "algorithm.batch_loss": "mean",
    "algorithm.first_gradient": False,
}


def all_options(choices: Mapping[str, str]) -> dict[str, Option]:
    """Every setting a run with these choices has, by its full name."""
    options = dict(common_options())
    for kind in KINDS:
        for short, option in kind_options(kind, choices[kind]).items():
            options[f"{kind}.{short}"] = option
    return options


def is_setting(name: str, kinds: Iterable[str] = KINDS) -> bool:
    """Whether it is a setting of any run, an option of these kinds or of no choice.

    It may be written in any way.
    """
    names = list(common_options())
    for kind in kinds:
        for choice in registry(kind):
            names += [f"{kind}.{short}" for short in kind_options(kind, choice)]
    return name in spellings(names)


def choices_of(config: Config) -> dict[str, str]:
    """The algorithm, model, partition and data set of a run."""
    return {kind: getattr(config, kind) for kind in KINDS}


def from_settings(settings: Mapping[str, Any]) -> Config:
    """The config with these settings, flat, else defaults; SettingError for a wrong one."""
    settings = canonical(settings)
    known = all_options(choices_in(settings))
    given: dict[str, Any] = {f"{kind}_options": {} for kind in KINDS}
    for name, value in settings.items():
        if name not in known:
            raise SettingError(
                f"setting {name} is unknown; {suggestion(name, writable(known))}"
            )
        kind, dot, short = name.partition(".")
        if dot:
            given[f"{kind}_options"][short] = value
        else:
            given[name] = value
    return Config(**given)


def read_config(path: Path) -> Config:
    """The config in a TOML file that a run wrote, with which an error begins."""
    try:
        return from_settings(toml.read(path))
    except SettingError as error:
        raise SettingError(f"{path}: {error}", error.setting) from None


def to_settings(config: Config) -> dict[str, Any]:
    """Every setting, flat and resolved; the inverse of `from_settings`."""
    settings = {name: getattr(config, name) for name in common_options()}
    settings["partition_seed"] = partition_seed(config)
    for kind in KINDS:
        given = getattr(config, f"{kind}_options")
        for short, option in kind_options(kind, getattr(config, kind)).items():
            settings[f"{kind}.{short}"] = given.get(short, option.default)
    return settings


def method_of(config: Config) -> str:
    """The algorithm with the options that are not its defaults, and what it stands on."""
    known = kind_options("algorithm", config.algorithm)
    given = {
        flat_name(f"algorithm.{short}"): value
        for short, option in known.items()
        if short != "base"
        and (value := config.algorithm_options.get(short)) not in (None, option.default)
    }
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    method = f"{config.algorithm}({options})" if given else config.algorithm
    base = config.algorithm_options.get("base")
    return method if base is None else f"{method} on {base}"


def partition_seed(config: Config) -> int:
    """The seed of the partition: `seed`, unless another is given."""
    return config.seed if config.partition_seed is None else config.partition_seed


def to_toml(config: Config) -> str:
    """The resolved config as a TOML file that `--config` reads back.

    `folder` and `data_dir` are left out: they say where things lie on this machine.
    """
    settings = to_settings(config)
    del settings["folder"], settings["data_dir"]
    known = all_options(choices_in(settings))
    for name, value in settings.items():
        if value is None and known[name].default is not None:
            settings[name] = "none"
    return toml.dumps(nested(settings))


def identity(config: Config) -> dict[str, Any]:
    """The settings that say which numbers a run will produce.

    Until the data are loaded a number of clients that they decide counts as the default.
    """
    settings = to_settings(config)
    settings["num_clients"] = settings["num_clients"] or CLIENTS
    defaults = {n: common_options()[n].default for n in settings_that_are("later")}
    before = defaults | LATER_OPTIONS
    old = {name for name, value in before.items() if settings.get(name) == value}
    left_out = {*settings_that_are("incidental"), *old}
    return {name: v for name, v in settings.items() if name not in left_out}


def hashed(config: Config) -> dict[str, Any]:
    """The `identity` under the names that hashes have always been taken of.

    What another thing had the name of in earlier versions has another hash than that.
    """
    found: dict[str, Any] = {}
    for name, value in identity(config).items():
        flat = flat_name(name)
        found[name if flat in found else flat] = value
    return found | revised(config)


def config_hash(config: Config) -> str:
    """Eight hexadecimal digits of the `identity`."""
    text = json.dumps(hashed(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def first_difference(
    then: Mapping[str, Any], now: Mapping[str, Any], but: Iterable[str] = ()
) -> tuple[str, Any, Any] | None:
    """The first setting in which two runs differ: its name, then, now; None: in none."""
    for name in {**now, **then}:
        if name not in but and then.get(name) != now.get(name):
            return name, then.get(name), now.get(name)
    return None


def differing(
    configs: Sequence[Mapping[str, Any]], *besides: str
) -> list[dict[str, Any]]:
    """The settings of each run, by full names, that differ between them.

    Not method, seed and incidental ones, but for those of them that are named `besides`.
    """
    shown = {"algorithm", "seed", *settings_that_are("incidental")}.difference(besides)
    names = dict.fromkeys(name for config in configs for name in config)
    names = [n for n in names if n not in shown and not n.startswith("algorithm.")]
    options, unset = common_options(), object()  # unset: an option of another choice

    def of(config: Mapping[str, Any], name: str) -> Any:
        known = name in config or name in options
        return setting_of(config, name) if known else unset

    found = [{n: of(config, n) for n in names} for config in configs]
    written = lambda n: {json.dumps(one[n]) for one in found if one[n] is not unset}
    differ = [name for name in names if len(written(name)) > 1]
    return [{n: one[n] for n in differ if one[n] is not unset} for one in found]


def unlearned() -> list[str]:
    """The settings that change nothing that is learned: incidental, or of records."""
    record = [name for name, setting in settings().items() if setting.group == "record"]
    return [*settings_that_are("incidental"), *record]


def setting_of(config: Mapping[str, Any], name: str) -> Any:
    """A setting of a run, by full names; one that is not written has its default."""
    options = common_options()
    default = options[name].default if name in options else None
    value = config.get(name, default)
    return None if value == "none" else value


def learned_from(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings that decide what a run learns, those that are not written too."""
    names = {*config, *common_options()}.difference(unlearned())
    return {name: setting_of(config, name) for name in sorted(names)}


def is_chosen(name: str) -> bool:
    """Whether a setting is chosen for a method; others say what it is to learn."""
    if name.partition(".")[0] == "algorithm":
        return name not in ("algorithm", "algorithm.base")
    setting = settings().get(name)
    # what a run and the one that it matches have in common is no choice of either
    return setting is not None and setting.group == "training" and not setting.matched
