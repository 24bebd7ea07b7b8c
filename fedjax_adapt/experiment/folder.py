"""Who may write into a run folder, and what it already holds."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine import processes
from ..errors import SettingError
from . import store
from .config import Config, config_hash, from_settings, to_settings, to_toml
from .reading import read_settings
from .schema import settings_that_are
from .scripts import label, origins

AUTO = ("devices", "lanes", "convolutions", "num_clients")  # what may be left open


def run_folder(config: Config) -> Path:
    """Where a run lies: as given, or runs/DATASET-ALGORITHM-HASH."""
    if config.folder is not None:
        return Path(config.folder).expanduser()
    dataset = Path(label(config.dataset)).name.removesuffix(".npz")
    dataset = re.sub(r"[^\w.-]+", "_", dataset)
    name = f"{dataset}-{label(config.algorithm)}-{config_hash(config)}"
    return Path("runs") / name


def cache_home() -> Path:
    """Where what one run keeps for others lies."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return home / "fedjax-adapt"


def check_folder(folder: Path, config: Config, resume: bool) -> None:
    """Raises ValueError unless this run may start, or go on, in `folder`."""
    check_can_write(folder)
    if not folder.exists():
        return
    if not (folder / store.CONFIG).exists():
        if any(path.name not in (store.LOCK, store.OWN) for path in folder.iterdir()):
            raise SettingError(
                f"folder={folder} holds files that are no run; give a new folder."
            )
        return
    change = first_change(folder, config)
    if change is not None:
        name, old, new = change
        if resume:
            raise SettingError(
                f"folder={folder} holds a run with {name}={old}, not {name}={new}; "
                f"resume it with {name}={old}, or give another folder."
            )
        raise SettingError(
            f"folder={folder} holds another run ({name}={old}, here {name}={new}); "
            "give another folder."
        )
    if (folder / store.SUMMARY).exists():
        raise SettingError(
            f"folder={folder} holds this run, finished; a finished run is never "
            "overwritten, so give another folder."
        )
    if resume:
        check_own(folder, [config])
    else:
        raise SettingError(
            f"folder={folder} holds this run, half finished; write --resume "
            "(run(config, resume=True) in Python), or give another folder."
        )


def check_own(folder: Path, configs: Iterable[Config]) -> None:
    """Raises ValueError if what is a user's own is not what the folder was begun with."""
    before, now = store.read_own(folder), origins(configs)
    for choice, origin in now.items():
        then = before.get(choice, "not recorded")
        if then != origin:
            raise SettingError(
                f"folder={folder} was begun with another {choice}: it was {then}, and is "
                f"{origin} now; put it back as it was, or give another folder."
            )


def check_can_write(folder: Path) -> None:
    """Raises ValueError if the folder cannot be made, or nothing be written there."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        what = "is a file" if there == folder else f"lies below {there}, a file"
        raise SettingError(f"folder={folder} {what}; give the path of a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(
            f"folder={folder} cannot be written; give a folder where you may write."
        )


def first_change(folder: Path, config: Config) -> tuple[str, Any, Any] | None:
    """The first setting in which the run in `folder` differs: its name, then, now."""
    old = to_settings(from_settings(read_settings(folder / store.CONFIG)))
    new = to_settings(config)
    if new["num_clients"] is None:  # the data say it, and are not loaded yet
        new["num_clients"] = old["num_clients"]
    incidental = settings_that_are("incidental")
    for name in [*new, *(n for n in old if n not in new)]:
        if name not in incidental and old.get(name) != new.get(name):
            return name, old.get(name), new.get(name)
    return None


def as_begun(folder: Path, config: Config) -> Config:
    """The config, where what it leaves open is as the run in `folder` took it."""
    if not (folder / store.CONFIG).exists():
        return config
    # a run of an earlier version had its convolutions by the rule
    before = {"convolutions": "rule"} | read_settings(folder / store.CONFIG)
    begun = from_settings(before)
    left = [name for name in AUTO if getattr(config, name) in ("auto", None)]
    return replace(config, **{name: getattr(begun, name) for name in left})


def create(folder: Path) -> None:
    """Makes the folder, or raises a ValueError that says why it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / store.LOCK).touch()
    except OSError as error:
        raise SettingError(
            f"folder={folder} cannot be written ({error.strerror}); "
            "give another folder."
        ) from None


@contextmanager
def held(folder: Path, config: Config, resume: bool) -> Iterator[bool]:
    """The folder, its settings written, held for this process while the block runs.

    Of several processes the first holds it. Yields whether that is this one.

    Raises:
      ValueError: another run holds it, or has begun in it meanwhile.
    """
    with ExitStack() as stack:
        with processes.agreed():
            if processes.is_first():
                stack.enter_context(store.locked(folder))
                check_folder(folder, config, resume)
                if not (folder / store.CONFIG).exists():
                    store.write_own(folder, origins([config]))
                    store.write_text(folder / store.CONFIG, to_toml(config))
        yield processes.is_first()
