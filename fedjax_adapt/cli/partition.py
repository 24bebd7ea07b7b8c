"""`fedjax-adapt partition`: what a partition looks like, before anyone trains on it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from .. import check
from ..data import Skew, skew
from ..errors import SettingError
from ..experiment.build import load_source, split_source, with_public
from ..experiment.config import Config, common_options, from_settings
from ..experiment.folder import dataset_label
from ..experiment.schema import settings_that_are
from ..experiment.user_functions import label
from ..report.clients import MOST_ROWS, clients_table, draw_partition
from . import process
from .flags import (
    chosen,
    file_settings,
    group_of,
    optional,
    read_flags,
    switch,
    without_name,
    words_of,
)

DESCRIPTION = """\
Prints and draws who would hold what in a run with these flags; trains nothing.

The last groups are the options of the chosen partition and data set:
fedjax-adapt partition --partition NAME --help shows those of another."""
DECIDE = ("partition", "dataset")  # the choices that decide who holds what
PICTURE = {
    "config": optional(str, "a TOML file of a run; flags win over it"),
    "output": optional(
        str, "the picture; none: partition-DATASET-PARTITION-CLIENTS.png"
    ),
    "overwrite": switch("replace the picture if it is there"),
}
FORMATS = (".png", ".pdf", ".svg")


class PartitionRequest(NamedTuple):
    """What `fedjax-adapt partition` is asked for."""

    config: Config
    picture: Path
    note: str | None  # what of the file does not count


def parse(arguments: Sequence[str]) -> PartitionRequest:
    """Reads the arguments of `fedjax-adapt partition`."""
    arguments = without_name(arguments)
    words = words_of(arguments)
    settings = file_settings(words)
    given = {k: v for k, v in words.items() if k in DECIDE}
    choices, note = chosen(given, settings)
    common = common_options()
    groups = {
        "clients": {name: common[name] for name in settings_that_are("splits")},
        "picture": PICTURE,
    }
    for kind in DECIDE:
        groups[choices[kind]] = group_of(kind, choices[kind])
    groups = {title: flags for title, flags in groups.items() if flags}
    known = {name for flags in groups.values() for name in flags}
    settings = {name: value for name, value in settings.items() if name in known}
    values = read_flags(arguments, "partition", groups, settings, DESCRIPTION, choices)
    output, overwrite = values.pop("output"), values.pop("overwrite")
    del values["config"]
    config = from_settings(values)
    if output is None:
        clients = "all" if config.num_clients is None else config.num_clients
        name = f"{dataset_label(config)}-{label(config.partition)}-{clients}"
        output = f"partition-{name}.png"
    picture = output_path("--output", output, overwrite)
    return PartitionRequest(config, picture, note)


def preview(config: Config) -> Skew:
    """Loads the data, splits it as a run would and measures the split.

    Raises:
      SettingError: one sentence, as `build`.
    """
    source, _ = with_public(config, load_source(config))
    return skew(split_source(config, source), source.y_train, source.num_classes)


def title_of(config: Config) -> str:
    """What the picture shows, in a line: the split and the options that do something."""
    on = {k: v for k, v in config.partition_options.items() if v and k != "min_size"}
    given = ", ".join(f"{name}={value}" for name, value in on.items())
    how = f"{config.partition}({given})" if given else config.partition
    return f"{dataset_label(config)}, {how}"


def output_path(
    flag: str, given: str, overwrite: bool, formats: Sequence[str] = FORMATS
) -> Path:
    """Where a file goes that was asked for by `flag`, a picture unless `formats` say so."""
    path = check.expanded(f"{flag} ", given)
    if path.suffix.lower() not in formats:
        raise SettingError(f"{flag} {path} must end in {', '.join(formats)}.")
    if not path.parent.is_dir():
        raise SettingError(f"{flag} {path}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SettingError(
            f"{flag} {path}: the folder {path.parent} cannot be written to; choose another."
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise SettingError(
            f"{path} is there already; write --overwrite to replace it, or another "
            f"{flag} FILE."
        )
    return path


def partition(arguments: list[str]) -> int:
    """`fedjax-adapt partition`: prints and draws who would hold what."""
    with process.importing():
        request = parse(arguments)
    process.note(request.note)
    skew = preview(request.config)
    console = Console()
    console.print(clients_table(skew))
    if len(skew.sizes) > MOST_ROWS:
        print(
            f"the first {MOST_ROWS} of {len(skew.sizes)} clients; the picture has all"
        )
    print(skew.summary())
    picture = draw_partition(skew, title_of(request.config), request.picture)
    process.say(console, f"picture  {picture}")
    return 0
