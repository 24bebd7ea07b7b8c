"""`fedjax-adapt sweep`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import check
from ..errors import SettingError
from ..experiment.controls import check_has_controls, sweep_with_controls
from ..experiment.files import WHOLE
from ..experiment.options import Option
from ..experiment.preview import preview_sweep
from ..experiment.records import Swept, read_swept, trials_in
from ..experiment.store import RESULTS, SWEEP
from ..experiment.sweeps.grid import read_sweep
from ..experiment.sweeps.results import check_holds_no_shards, is_finished, sweep_folder
from ..experiment.sweeps.shards import (
    begin_shard,
    merge,
    part_of,
    shard_folder,
    shard_of,
)
from ..experiment.sweeps.sweep import sweep as run_sweep
from ..report.compare import sheets
from . import EXAMPLES, process
from .finished import print_comparison
from .flags import (
    OUTPUT,
    Request,
    check_paths,
    optional,
    read_command,
    switch,
)
from .output import print_json, unfinished_as_json
from .preview import print_preview

DESCRIPTION = """\
fedjax-adapt sweep SWEEP.toml [OPTIONS] runs a grid of settings and leaves a folder behind.

The file has the settings of every run below [run], as in a run's config.toml, and
below [grid] lists of what varies: every combination is a trial. Several [[grid]] tables
come one after the other. Trials that differ in numbers, in seeds and in options of the
partition alone run at once.

With --shard 2/8 it runs the second eighth of the trials, in FOLDER/shard-2-of-8;
fedjax-adapt sweep merge FOLDER makes one sweep of all shards."""
MERGE = "merge"
MERGE_USAGE = f"""\
usage: fedjax-adapt sweep merge FOLDER

Makes one sweep of the finished shards in a folder, and prints its table.

examples:
  {EXAMPLES["sweep"][-1]}
"""
FIRST = "the sweep begins with its first trial"  # where nothing is resumed
ASKS = 1000  # trials; of more a user is asked
ENDLESS = 10_000  # characters of a line
COUNT = int | Literal["auto"]
FLAGS = {
    "folder": optional(
        str, "where the sweep goes; none: as the file says, runs/sweep-HASH"
    ),
    "resume": switch(
        "go on with the half-finished sweep in the folder, which needs no SWEEP.toml"
    ),
    "devices": optional(
        COUNT, "that share the trials, each on one; none: as the file says, auto"
    ),
    "side_by_side": Option(
        COUNT, "auto", "trials at once on a device; auto: by backend and memory"
    ),
    "shard": optional(
        str, "run one part of the trials, as in 2/8: the second of eight; none: all"
    ),
    **OUTPUT,
    "yes": switch(f"run more than {ASKS:,} trials"),
    "controls": switch(
        "more trials: of those of fnr the controls fnr(weight=0), fedavg_pubft and "
        "public_only"
    ),
}


@dataclass(kw_only=True)
class SweepRequest(Request):
    """What `fedjax-adapt sweep` is asked for."""

    file: Path
    folder: str | None
    devices: COUNT | None
    side_by_side: COUNT
    shard: str | None
    yes: bool
    controls: bool

    @property
    def how(self) -> dict[str, Any]:
        """What a sweep and its preview take besides the trials and the folder."""
        names = ("resume", "devices", "side_by_side")
        return {name: getattr(self, name) for name in names}


def parse(arguments: Sequence[str]) -> SweepRequest:
    """Reads the arguments of `fedjax-adapt sweep`.

    With --resume and --folder, and no file, it is the one in the folder, of its shards
    with --shard too.
    """
    files, values = read_command(arguments, "sweep", {"sweep": FLAGS}, DESCRIPTION)
    if not files and values["resume"] and values["folder"] is not None:
        files = [str(_file_in(values["folder"], values["shard"]))]
    check_paths(files, "sweep", "file")
    return SweepRequest(file=check.expanded("", files[0]), **values)


def _file_in(folder: str, shard: str | None) -> Path:
    """The file that a sweep has left in its folder, to go on with it or a shard of it."""
    place = check.expanded("--folder ", folder)
    whole = shard is not None and (place / WHOLE).is_file()
    file = place / (WHOLE if whole else SWEEP)
    if not file.is_file():
        check_holds_no_shards(place)
        raise SettingError(
            f"--folder {folder} holds no sweep to resume: it has no {SWEEP}; write the "
            "folder of one, or the file of a new sweep before its flags."
        )
    return file


def sweep(arguments: list[str]) -> int:
    """`fedjax-adapt sweep SWEEP.toml`: runs a grid of settings, prints a table."""
    if arguments[:1] == [MERGE]:
        return _merge(arguments[1:])
    with process.importing():
        request = parse(arguments)
        asked = read_sweep(request.file)
        if request.controls:
            asked = sweep_with_controls(asked)
        if len(asked.trials) > ASKS and not (request.yes or request.resume):
            raise SettingError(
                f"{request.file} has {len(asked.trials):,} trials; write --yes to run them "
                "all."
            )
        folder = sweep_folder(asked, request.folder)
        if request.resume and is_finished(folder, asked):
            return _nothing_left(folder, "sweep", request)
        if request.shard is not None:
            part = shard_of(request.shard)
            mine = part_of(asked, *part)
            begin = shard_folder if request.dry_run else begin_shard
            folder, asked = begin(folder, asked, *part), mine
            if request.resume and is_finished(folder, asked):
                return _nothing_left(folder, "shard", request)
        if not request.controls:
            check_has_controls(folder, asked)
        process.take_devices(request.devices or asked.run.get("devices", "auto"))
        process.import_rest()
    unsaved = process.nothing_to_resume(folder, request.resume, FIRST)
    if request.dry_run:
        found = preview_sweep(asked, folder, **request.how)
        process.note(unsaved)
        print_preview(request, found)
        return 0
    unfinished = unfinished_as_json(folder, request.json)
    try:
        with process.reporting(request.console(), unsaved) as report, unfinished:
            run_sweep(asked, folder, **request.how, progress=report)
        return _show(folder, request)
    except KeyboardInterrupt:
        return process.interrupted_trials(folder, process.again("sweep", arguments))


def _merge(folders: Sequence[str]) -> int:
    """`fedjax-adapt sweep merge FOLDER`: makes one sweep of the shards there."""
    if any(word in ("-h", "--help") for word in folders):
        print(MERGE_USAGE, end="")
        return 0
    if len(folders) != 1 or folders[0].startswith("-"):
        raise SettingError(
            f"sweep merge got {' '.join(folders) or 'nothing'}; give the one folder that "
            "has the shards, as in fedjax-adapt sweep merge runs/lr."
        )
    merge(folders[0])
    return _show(Path(folders[0]).expanduser(), Request())


def _show(folder: Path, request: Request) -> int:
    """Prints the tables of a finished sweep; returns the exit code."""
    console = request.console()
    if not request.quiet and any(trials_in(folder).values()):  # else all diverged
        # what is no terminal has no end of a line
        place = console if console.is_terminal else request.console(ENDLESS)
        print_comparison(sheets([folder], settings_in_columns=True), place)
    process.say(console, f"results  {folder / RESULTS}")
    return _end(read_swept(folder), request)


def _nothing_left(folder: Path, what: str, request: Request) -> int:
    """Says that a sweep or a shard is finished; returns the exit code that it had."""
    process.say(request.console(), process.nothing_left(folder, what))
    return _end(read_swept(folder), request)


def _end(found: Swept, request: Request) -> int:
    """The exit code of a finished sweep; says which trials diverged."""
    if request.json:
        results = {"diverged": found.diverged, "results": found.results.to_pylist()}
        print_json({"status": "finished", "folder": str(found.folder), **results})
    if not found.diverged:
        return 0
    trials = ", ".join(map(str, found.diverged))
    return process.fail(
        f"{len(found.diverged)} of {len(found.results)} trials diverged (trial {trials}, "
        f"see diverged_round in {found.folder / RESULTS}); lower lr or clip_norm there.",
        1,
    )
