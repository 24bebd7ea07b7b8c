"""`fedjax-adapt tune`: settings chosen by validation accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table

from .. import check
from ..errors import SettingError
from ..experiment.preview import preview_search
from ..experiment.store import VALIDATED
from ..experiment.sweeps.space import OPTIONS, read_search
from ..experiment.sweeps.tune import BEST, FOLDER, TUNE, Tuned, tune_folder
from ..experiment.sweeps.tune import tune as run_tune
from ..report.tables import percent
from . import process
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
fedjax-adapt tune SPACE.toml [OPTIONS] chooses settings by validation accuracy, with Optuna.

The file has the settings of every run below [run], as in a run's config.toml, and what is
to be chosen below [space]: a range, as in lr = { low = 0.001, high = 1, log = true }, or
a list of values. Settings are proposed --at-once, trained as one sweep, and the next ones
follow from what came of them. They are tested on a tenth of the training set.

With --halve 3 trials first have a part of the rounds, and the best third of them is trained
again with three times as many, until they have all. With --resume and more --trials
a search that is finished goes on."""
SHOWN = 10  # trials of a table
FLAGS = {
    "folder": optional(
        str, "where the search goes; none: as the file says, runs/tuned"
    ),
    "resume": switch("go on with the search in the folder, which needs no SPACE.toml"),
    "trials": optional(int, "in all; none: as the file says, 32"),
    "at_once": optional(int, "proposed and trained at once; none: as the file says, 8"),
    "halve": optional(
        int,
        "the best 1/halve of the trials at once go on to halve times the rounds, again and "
        "again; none: as the file says, all have all rounds",
    ),
    "seed": optional(int, "of the proposals; none: as the file says, 0"),
    **OUTPUT,
}


@dataclass(kw_only=True)
class SearchRequest(Request):
    """What `fedjax-adapt tune` is asked for."""

    file: Path
    folder: str | None
    options: dict[str, int | None]  # of the search


def parse(arguments: Sequence[str]) -> SearchRequest:
    """Reads the arguments of `fedjax-adapt tune`."""
    paths, values = read_command(arguments, "tune", {"tune": FLAGS}, DESCRIPTION)
    options = {name: values.pop(name) for name in OPTIONS}
    if not paths and values["resume"]:
        place = check.expanded("--folder ", values["folder"] or FOLDER)
        if not (place / TUNE).exists():
            raise SettingError(
                f"--folder {place} holds no search to resume: it has no {TUNE}; write the "
                "folder of one, or the file of a new search before its flags."
            )
        paths = [str(place / TUNE)]
    check_paths(paths, "tune", "file")
    file = check.expanded("", paths[0])
    return SearchRequest(file=file, **values, options=options)


def tune(arguments: list[str]) -> int:
    """`fedjax-adapt tune SPACE.toml`: chooses settings, prints the best trials."""
    with process.importing():
        request = parse(arguments)
        search = read_search(request.file, **request.options)
        folder = tune_folder(search, request.folder)
        process.take_devices(search.run.get("devices", "auto"))
        process.import_rest()
    if request.dry_run:
        print_preview(request, preview_search(search, folder, request.resume))
        return 0
    try:
        unfinished = unfinished_as_json(folder, request.json)
        with process.reporting(request.console()) as report, unfinished:
            found = run_tune(search, folder, request.resume, report)
    except KeyboardInterrupt:
        return process.interrupted_trials(folder, process.again("tune", arguments))
    return _show(found, request)


def _show(found: Tuned, request: Request) -> int:
    """Prints the best trials and their settings; returns the exit code."""
    rows = found.trials.to_pylist()
    if request.json:
        best = {"best": found.best, VALIDATED: found.accuracy, "trials": rows}
        print_json({"status": "finished", "folder": str(found.folder), **best})
    console = request.console()
    console.print(_table(rows))
    if found.best is None:
        return process.fail(
            f"all {len(rows)} trials diverged; write lower numbers for lr below [space], "
            "or a clip_norm below [run].",
            1,
        )
    file = found.folder / BEST
    again = f"fedjax-adapt run --config {quote(str(file))} --seed 1 --folder NEW"
    process.say(console, f"settings  {file}")
    process.say(console, f"to test them, {again}")
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
