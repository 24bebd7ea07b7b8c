"""`fedjax-adapt tune`: settings chosen by validation accuracy."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from rich.table import Table

from .. import check
from ..errors import SettingError
from ..experiment.options import Option
from ..experiment.store import VALIDATED
from ..experiment.sweeps.preview import preview_search
from ..experiment.sweeps.space import OPTIONS, read_search
from ..experiment.sweeps.tune import (
    BEST,
    FOLDER,
    TUNE,
    Tuned,
    tune_folder,
)
from ..experiment.sweeps.tune import tune as run_tune
from ..report.tables import percent
from . import process
from .flags import AS_JSON, DRY_RUN, QUIET, check_shown, read_flags, shown_flags
from .output import Shown, console_of, print_json, unfinished_as_json
from .preview import print_search_preview
from .process import fail, interrupted, paths_and_flags, reporting, say, stopped

PROGRAM = "fedjax-adapt tune"
DESCRIPTION = """\
fedjax-adapt tune SPACE.toml [OPTIONS] chooses settings by validation accuracy, with Optuna.

The file has the settings of every run below [run], as in a run's config.toml, and below
[space] what is to be chosen: a range, as in lr = { low = 0.001, high = 1, log = true }, or
a list of values. Settings are proposed --at-once, trained as one sweep, and the next ones
follow from what came of them. They are tested on a tenth of the training set.

With --halve 3 trials first have a part of the rounds, and the best third of them is trained
again with three times as many, until they have all. A search that is finished goes on with
--resume and more --trials."""
SHOWN = 10  # trials of a table
FLAGS = {
    "folder": Option(
        str | None, None, "where the search goes; none: as the file says, runs/tuned"
    ),
    "resume": Option(
        bool, False, "go on with the search in the folder, which needs no SPACE.toml"
    ),
    "trials": Option(int | None, None, "in all; none: as the file says, 32"),
    "at_once": Option(
        int | None, None, "proposed and trained at once; none: as the file says, 8"
    ),
    "halve": Option(
        int | None,
        None,
        "the best 1/halve of the trials at once go on to halve times the rounds, again and "
        "again; none: as the file says, all have all rounds",
    ),
    "seed": Option(int | None, None, "of the proposals; none: as the file says, 0"),
    "dry_run": DRY_RUN,
    "json": AS_JSON,
    "quiet": QUIET,
}


class Request(NamedTuple):
    """What a command line asks for."""

    file: Path
    folder: str | None
    resume: bool
    dry_run: bool
    json: bool
    quiet: bool
    options: dict[str, int | None]  # of the search


def parse(arguments: Sequence[str]) -> Request:
    """Reads the arguments of `fedjax-adapt tune`.

    Raises:
      ValueError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    paths, flags = paths_and_flags(arguments, "tune")
    values = read_flags(flags, {"tune": FLAGS}, {}, PROGRAM, DESCRIPTION)
    check_shown(values)
    options = {name: values.pop(name) for name in OPTIONS}
    if not paths and values["resume"]:
        place = check.expanded("--folder ", values["folder"] or FOLDER)
        if not (place / TUNE).exists():
            raise SettingError(
                f"--folder {place} holds no search to resume: it has no {TUNE}; write the "
                "folder of one, or the file of a new search before its flags."
            )
        paths = [str(place / TUNE)]
    if len(paths) != 1:
        raise SettingError(
            f"tune got {len(paths)} files before its flags; give one, as in fedjax-adapt "
            "tune SPACE.toml --folder runs/tuned."
        )
    return Request(check.expanded("", paths[0]), **values, options=options)


def tune(arguments: list[str]) -> int:
    """`fedjax-adapt tune SPACE.toml`: chooses settings, prints the best trials."""
    with process.importing():
        request = parse(arguments)
        search = read_search(request.file, **request.options)
        folder = tune_folder(search, request.folder)
        process.take_devices(search.run.get("devices", "auto"))
        process.import_rest()
    if request.dry_run:
        found = preview_search(search, folder, request.resume)
        if request.json:
            print_json({"status": "dry run", **found.to_dict()})
        else:
            print_search_preview(console_of(request), found)
        return 0
    try:
        with reporting(console_of(request)) as report:
            with unfinished_as_json(folder, request.json):
                found = run_tune(search, folder, request.resume, report)
    except KeyboardInterrupt:
        if not folder.exists():
            return interrupted(folder, "")
        file, place = quote(str(request.file)), quote(str(folder))
        again = f"fedjax-adapt tune {file} --folder {place} --resume"
        for name, value in request.options.items():
            again += "" if value is None else f" --{name.replace('_', '-')} {value}"
        again += shown_flags(request)
        return stopped(f"interrupted; write {again} to go on.")
    return _show(found, request)


def _show(found: Tuned, request: Shown) -> int:
    """Prints the best trials and their settings; returns the exit code."""
    rows = found.trials.to_pylist()
    if request.json:
        best = {"best": found.best, VALIDATED: found.accuracy, "trials": rows}
        print_json({"status": "finished", "folder": str(found.folder), **best})
    console = console_of(request)
    console.print(_table(rows))
    if found.best is None:
        return fail(
            f"all {len(rows)} trials diverged; write lower numbers for lr below [space], "
            "or a clip_norm below [run].",
            1,
        )
    file = found.folder / BEST
    again = f"fedjax-adapt run --config {quote(str(file))} --seed 1 --folder NEW"
    say(console, f"settings  {file}")
    say(console, f"to test them, {again}")
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """The best trials that finished, and the best of the others."""
    worth = lambda row: (row["outcome"] == "finished", row[VALIDATED] or -1.0)
    best = sorted(rows, key=worth, reverse=True)[:SHOWN]
    table = Table(title=f"the best of {len(rows)} trials", caption_justify="left")
    names = [name for name in rows[0] if name != VALIDATED]
    for name in (*names, "validation accuracy"):
        table.add_column(name, justify="right")
    for row in best:
        value = row[VALIDATED]
        cells = [_cell(row[name]) for name in names]
        table.add_row(*cells, "-" if value is None else percent(value))
    return table


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
