"""`fedjax-adapt replay`: a round of a run made again, and what of it differs."""

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ..errors import SettingError
from ..experiment.config import common_options
from ..experiment.folder import devices_of
from ..experiment.options import Option
from ..experiment.records import read_run
from ..experiment.replay import replay_round
from ..experiment.store import TRIALS
from .flags import read_flags
from .process import paths_and_flags, reporting, say, take_devices

PROGRAM = "fedjax-adapt replay"
DESCRIPTION = """\
fedjax-adapt replay RUN [OPTIONS] makes a round of a run again, from the newest state
before it, and says which of its numbers are other bits here. The run stays as it is."""
FLAGS = {
    "round": Option(int | None, None, "its number, 1 is the first; none: the last"),
    "data_dir": common_options()["data_dir"],
    "devices": Option(
        int | Literal["auto"] | None,
        None,
        "how many devices share the clients of a round; none: as many as the run had",
    ),
}


def parse(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The folder and the options of `replay_round` that a command line asks for.

    Raises:
      SettingError: one sentence on the first mistake.
    """
    folders, flags = paths_and_flags(arguments, "replay")
    values = read_flags(flags, {"replay": FLAGS}, {}, PROGRAM, DESCRIPTION)
    if len(folders) != 1:
        raise SettingError(
            f"replay takes one folder, got {len(folders)}; write that of a run, as in "
            "fedjax-adapt replay runs/mine --round 3."
        )
    return folders[0], values


def replay(arguments: list[str]) -> int:
    """`fedjax-adapt replay RUN`: 0 if the round has the same numbers, 1 if it has not."""
    folder, values = parse(arguments)
    read_run(folder)  # or it is refused
    take_devices(values["devices"] or devices_of(folder))
    console = Console()
    with reporting(console) as report:
        found = replay_round(folder, progress=report, **values)
    began = (
        f"from the state after round {found.start}" if found.start else "from the start"
    )
    say(console, f"round {found.round} of {folder}, made again {began}")
    for name, (then, now) in found.changed.items():
        say(console, f"{name}: {then} then, {now} now")
    other = {name: value for name, value in found.differences.items() if value != 0}
    for name, value in other.items():
        say(console, f"{name}: differs by up to {value:.3g}")
    count = len(found.differences)
    if not other:
        say(console, f"all {count} columns have the same bits")
        return 0
    say(console, f"{len(other)} of {count} columns have other bits")
    if Path(folder).absolute().parent.name == TRIALS:
        say(console, "a trial was trained next to others, so it may differ by rounding")
    return 1
