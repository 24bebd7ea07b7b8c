"""`fedjax-adapt run`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from .. import check
from ..engine.processes import agreed, from_first
from ..errors import SettingError
from ..experiment.config import Config, common_options, from_settings, to_settings
from ..experiment.controls import unfinished, with_controls
from ..experiment.folder import is_finished, run_folder, stored_settings
from ..experiment.loop import Stopped
from ..experiment.options import Option
from ..experiment.preview import preview
from ..experiment.process_group import (
    OPTIONS,
    ProcessGroup,
    process_group,
    process_group_of,
)
from ..experiment.reading import read_settings
from ..experiment.run import run as train
from ..experiment.schema import settings, settings_that_are
from ..experiment.store import read_summary
from ..report.compare import sheets
from ..report.plots import learning_curve
from ..report.tables import summary_table
from . import process
from .finished import print_comparison
from .flags import (
    OUTPUT,
    Request,
    chosen,
    file_settings,
    group_of,
    optional,
    read_flags,
    switch,
    without_name,
    words_of,
)
from .output import print_json, steady_output, unfinished_as_json
from .preview import print_preview

DESCRIPTION = """\
Trains a federation and leaves a run folder behind.

The last groups are the options of the chosen algorithm, model, partition and data set:
fedjax-adapt run --algorithm NAME --help shows those of another."""
ABOUT_THE_RUN = {
    "config": optional(str, "a TOML file of settings; flags win over it"),
    "resume": switch("go on with the half-finished run in the folder"),
    "controls": switch(
        "after a run of fnr its controls, fnr(weight=0), fedavg_pubft and public_only, in "
        "folders next to it, and a table of all; those that are finished stay as they are"
    ),
    **OUTPUT,
}


@dataclass(kw_only=True)
class RunRequest(Request):
    """What `fedjax-adapt run` is asked for."""

    settings: dict[str, Any]  # by full names; see `config`
    controls: bool
    processes: ProcessGroup | None  # with which processes
    note: str | None  # what of the file does not count


def parse(arguments: Sequence[str]) -> RunRequest:
    """Reads the arguments of `fedjax-adapt run`.

    Flags win over the file of --config. With --resume and --folder, and no --config,
    the file is the one in the folder: that alone goes on with a run.
    """
    arguments = without_name(arguments)
    words = words_of(arguments)
    settings = _settings_file(words)
    choices, note = chosen(words, settings)
    groups = _groups(choices)
    values = read_flags(arguments, "run", groups, settings, DESCRIPTION, choices)
    asked = {name: values.pop(name) for name in ABOUT_THE_RUN}
    del asked["config"]
    others = process_group_of({name: values.pop(name) for name in OPTIONS})
    if others and asked["controls"]:
        raise SettingError(
            "controls are run by one process; leave --controls out, or the flags about "
            "other processes."
        )
    if others and asked["dry_run"]:
        raise SettingError(
            "--dry-run is about the devices of one process; leave it out, or the flags "
            "about other processes."
        )
    if asked["json"] and asked["controls"]:
        raise SettingError(
            "--json is of one run, and --controls makes several; leave it out, and write "
            "fedjax-adapt compare with their folders and --format json afterwards."
        )
    return RunRequest(settings=values, **asked, processes=others, note=note)


def _settings_file(words: Mapping[str, list[str]]) -> dict[str, Any]:
    """The settings of --config, or of the run to resume."""
    if words.get("config"):
        return file_settings(words)
    if "resume" in words and words.get("folder"):
        path = check.expanded("--folder ", words["folder"][0]) / "config.toml"
        if os.path.lexists(path):
            return read_settings(path)
        if set(words) <= {"folder", *ABOUT_THE_RUN, *OPTIONS}:
            raise SettingError(
                f"--folder {words['folder'][0]} holds no run to resume; write the folder "
                "of one, or the settings of a new run."
            )
    return {}


def _groups(choices: Mapping[str, str]) -> dict[str, dict[str, Option]]:
    """The flags of a run: title -> name -> option."""
    groups: dict[str, dict[str, Option]] = {}
    for name, option in common_options().items():
        groups.setdefault(settings()[name].group, {})[name] = option
    groups["record"].update(ABOUT_THE_RUN)
    groups["several processes"] = OPTIONS
    for kind, name in choices.items():
        flags = group_of(kind, name)
        if flags:
            groups[f"{kind} {name}" if name in groups else name] = flags
    return groups


FIRST = "the run begins at round 1"  # where nothing is resumed


def run(arguments: list[str]) -> int:
    """`fedjax-adapt run`: trains, draws the curve, prints a table."""
    with process.importing():
        request = parse(arguments)
        process.note(request.note)
        config = from_settings(request.settings)
        configs = with_controls(config) if request.controls else [config]
        left = unfinished(configs, request.resume) if request.controls else configs
        others = request.processes
        if request.resume and not others and not request.controls:
            if is_finished(run_folder(config), config):
                return _nothing_left(run_folder(config), config, request)
        process.take_devices(others.share(config.devices) if others else config.devices)
        process.import_rest()
    if others:
        again = process.again("run", arguments)
        return _run_in_processes(config, request, again)
    unsaved = process.nothing_to_resume(run_folder(config), request.resume, FIRST)
    if request.dry_run:
        return _dry_run(configs, left, request, unsaved)
    for one in left:
        try:
            as_json = unfinished_as_json(run_folder(one), request.json)
            with process.reporting(request.console(), unsaved) as report, as_json:
                train(one, request.resume, report)
            _show(run_folder(one), request)
        except KeyboardInterrupt:
            return process.interrupted(run_folder(one), process.again("run", arguments))
        unsaved = None  # controls that have not begun are no surprise
    if request.controls and not request.quiet:
        print_comparison(sheets([run_folder(one) for one in configs]))
    return 0


def _dry_run(configs, left, request: RunRequest, unsaved: str | None) -> int:
    """Says what would be run of a run and its controls, of which some may be finished."""
    found = [preview(one, request.resume) for one in left]
    process.note(unsaved)
    for one in configs:
        if one not in left:
            process.say(request.console(), process.nothing_left(run_folder(one), "run"))
    for one in found:
        print_preview(request, one)
    return 0


def _nothing_left(folder: Path, config: Config, request: Request) -> int:
    """Says that a run is finished; returns the exit code."""
    process.say(request.console(), process.nothing_left(folder, "run"))
    asked, has = to_settings(config), stored_settings(folder)
    ends = settings_that_are("at_end")
    late = [name for name in ends if name in has and asked[name] != has[name]]
    if late:
        which = ", ".join(f"--{name.replace('_', '-')}" for name in late)
        hint = ""
        if "targets" in late:
            hint = f"; compare {quote(str(folder))} --target tells of other accuracies"
        process.note(
            f"{which} came after the end of the run and changed nothing{hint}."
        )
    if request.json:
        print_json(_result(folder))
    return 0


def _run_in_processes(config: Config, request: RunRequest, again: str) -> int:
    """`run` as one of several processes, of which the first prints and draws."""
    folder = run_folder(config)
    unsaved = process.nothing_to_resume(folder, request.resume, FIRST)
    try:
        group = process_group(request.processes, process.report_error)
        with group as first, steady_output():
            with agreed():
                ended = first and request.resume and is_finished(folder, config)
            if from_first(ended):
                return _nothing_left(folder, config, request) if first else 0
            unfinished = unfinished_as_json(folder, first and request.json)
            with process.reporting(request.console(), unsaved) as report, unfinished:
                train(config, request.resume, report)
    except Stopped:
        if not folder.exists():  # another machine's
            return 130
        return process.interrupted(
            folder, f"{again} here, and so in every other process,"
        )
    with steady_output():
        if first:
            _show(folder, request)
    return 0


def _show(folder: Path, request: Request) -> None:
    """Draws and prints what has come of a run."""
    console = request.console()
    picture = learning_curve(folder)
    console.print(summary_table(folder))
    process.say(console, f"run      {folder}")
    process.say(console, f"picture  {picture}")
    if request.json:
        print_json(_result(folder))


def _result(folder: Path) -> dict[str, Any]:
    """A finished run, for `--json`."""
    summary = read_summary(folder) or {}
    return {"status": "finished", **summary, "folder": str(folder)}
