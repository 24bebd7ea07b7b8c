"""`fedjax-adapt compare`, `contributions`, `report` and `replay`: of finished runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.measure import Measurement

from ..errors import SettingError
from ..experiment import valuation
from ..experiment.config import common_options
from ..experiment.files import write_text
from ..experiment.folder import devices_of
from ..experiment.options import Option
from ..experiment.records import read_run
from ..experiment.replay import replay_round
from ..experiment.store import TRIALS
from ..experiment.valuation import ORDERS, Reference, Value
from ..report.clients import agreement, contributions_table, draw_contributions
from ..report.clients import contributions as ranking
from ..report.compare import sheets
from ..report.page import report_page
from ..report.plots import Against, comparison_curves
from ..report.tables import Format, Sheet, as_text, comparison_tables
from . import process
from .flags import optional, read_command, switch, words_of
from .partition import output_path

DEVICES = int | Literal["auto"]
CONTRIBUTIONS = {
    "reference": optional(
        Reference,
        "a client's worth: how much worse the model is without it, or its Shapley value; "
        "none: r_k only",
    ),
    "value": optional(Value, "of a model, on the same; none: loss"),
    "orders": optional(
        int, f"random orders for shapley, more say more; none: {ORDERS}"
    ),
    "tolerance": optional(
        float, "how near to the value of all an order of shapley may end"
    ),
    "data_dir": common_options()["data_dir"],
    "devices": optional(DEVICES, "that share the round; none: as in the run"),
}
COMPARE = {
    "base": optional(
        str,
        "a method, or the folder of a run, that others differ from; none: the best, where "
        "no method has several lines of test accuracy",
    ),
    "best": switch(
        "of each method only the settings with the best validation accuracy, and their "
        "test accuracy if runs have it"
    ),
    "target": Option(
        tuple[float, ...], (), "accuracies to say the rounds to, and the speed-up"
    ),
    "format": Option(
        Format,
        "table",
        "md and latex have the cells of the table, csv and json all numbers in full",
    ),
    "plot": optional(str, "where a picture of all curves goes"),
    "against": optional(Against, "its horizontal axis; none: round"),
    "overwrite": switch("replace the picture if it is there"),
}
REPORT = {
    "out": Option(str, "report.html", "where the page goes"),
    "overwrite": switch("replace the page if it is there"),
}
REPLAY = {
    "round": optional(int, "its number, 1 is the first; none: the last"),
    "data_dir": common_options()["data_dir"],
    "devices": optional(
        DEVICES,
        "how many devices share the clients of a round; none: as many as the run had",
    ),
}
ABOUT = {
    "contributions": """\
fedjax-adapt contributions RUN [OPTIONS] ranks the clients of a run of fedgsnr by the mean
of their r_k, and draws contributions.png in its folder, anew each time.

With --reference the round after the newest checkpoint is run again, outside the run, and
its clients are valued on what the run was tested on; Spearman's rho says how r_k agrees
with that.""",
    "compare": """\
fedjax-adapt compare RUN [RUN ...] [OPTIONS] ranks finished runs, those that differ in the
seed alone as one, and those with no test accuracy apart. The folder of a sweep stands for
its trials, another for the runs below it.""",
    "report": """\
fedjax-adapt report RUN [RUN ...] [OPTIONS] writes one page of finished runs, which a
browser shows without a network: settings, curves, figures, clients, and how to run each
again. The folder of a sweep stands for its trials, another for the runs below it.""",
    "replay": """\
fedjax-adapt replay RUN [OPTIONS] makes a round of a run again, from the newest state
before it, and says which of its numbers are other bits here. The run stays as it is.""",
}


def _read(
    arguments: Sequence[str],
    command: str,
    groups: dict[str, dict[str, Option]],
    kind: str = "folder",
) -> tuple[list[str], dict[str, Any]]:
    """The folders and the values of the flags, as `read_command`."""
    return read_command(arguments, command, groups, ABOUT[command], kind)


def parse_contributions(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A folder and the options of `value_cohort`; none of them: rank by r_k only."""
    folders, values = _read(arguments, "contributions", {"reference": CONTRIBUTIONS})
    if values["reference"] is not None:
        return folders[0], values | {"value": values["value"] or "loss"}
    for name in words_of(arguments):
        if name != "reference":
            which = "shapley" if name in ("orders", "tolerance") else "leave_one_out"
            raise SettingError(
                f"--{name.replace('_', '-')} is about what r_k is compared with; write "
                f"--reference {which} as well, or leave it out."
            )
    return folders[0], {}


def contributions(arguments: list[str]) -> int:
    """`fedjax-adapt contributions`: ranks the clients of a run, and draws it."""
    with process.importing():
        folder, options = parse_contributions(arguments)
    columns, lines = _references(folder, options) if options else ({}, [])
    console = Console()
    console.print(contributions_table(folder, columns))
    for line in lines:
        process.say(console, line)
    process.say(console, f"picture  {draw_contributions(folder)}")
    return 0


def _references(folder: str, options: dict) -> tuple[dict, list[str]]:
    """What `value_cohort` finds: columns of the table, and how it agrees with r_k."""
    means = {one.client: one.mean for one in ranking(folder)}  # or the run is refused
    process.take_devices(options["devices"] or devices_of(folder))
    found = valuation.value_cohort(folder, **options)
    of_clients = lambda column: dict(
        zip(found.clients.tolist(), column.tolist(), strict=True)
    )
    values = of_clients(found.values)
    title = options["reference"].replace("_", " ")
    columns, lines = {title: values}, [f"{title}: of the cohort of round {found.round}"]
    if found.gsnr is not None:
        gsnr = of_clients(found.gsnr)
        columns = {f"r_k in {found.round}": gsnr} | columns
        lines.append(
            f"Spearman's rho with r_k of that round: {agreement(values, gsnr)}"
        )
    lines.append(f"Spearman's rho with the mean r_k: {agreement(values, means)}")
    return columns, lines


def compare(arguments: list[str]) -> int:
    """`fedjax-adapt compare RUN...`: ranks finished runs, and draws them."""
    folders, values = _read(arguments, "compare", {"comparison": COMPARE}, "folders")
    if values["against"] is not None and values["plot"] is None:
        raise SettingError(
            f"against={values['against']} is about a picture; write --plot FILE as well."
        )
    path = None
    if values["plot"] is not None:
        path = output_path("--plot", values["plot"], values["overwrite"])
    found = sheets(folders, values["base"], values["target"], values["best"])
    if path is not None:  # before anything is printed, for it may be refused
        if values["best"]:
            lines = [line for sheet in found for line in sheet.numbers]
            folders = [run for line in lines for run in line["folders"]]
        comparison_curves(folders, path, values["against"] or "round")
    if values["format"] == "table":
        print_comparison(found)
    else:
        print(as_text(found, values["format"]), end="")
        if values["format"] == "csv":  # which has no place for them
            for line in (line for sheet in found for line in sheet.notes):
                process.say(Console(stderr=True), line)
    if path is not None:  # not among what another program reads
        process.say(Console(stderr=values["format"] != "table"), f"picture  {path}")
    return 0


def print_comparison(found: Sequence[Sheet], console: Console | None = None) -> None:
    """Prints ranked runs, as `comparison_tables` has them."""
    console = console or Console()
    for table in comparison_tables(found):
        # where the terminal is too narrow it breaks lines, so that no column is cut off
        least = Measurement.get(console, console.options, table).minimum
        console.print(table, width=max(console.width, least), crop=False)


def report(arguments: list[str]) -> int:
    """`fedjax-adapt report RUN...`: writes a page of finished runs."""
    folders, values = _read(arguments, "report", {"page": REPORT}, "folders")
    path = output_path("--out", values["out"], values["overwrite"], [".html"])
    write_text(path, report_page(folders))
    process.say(Console(), f"page  {path}")
    return 0


def parse_replay(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The folder and the options of `replay_round` that a command line asks for."""
    folders, values = _read(arguments, "replay", {"replay": REPLAY})
    return folders[0], values


def replay(arguments: list[str]) -> int:
    """`fedjax-adapt replay RUN`: 0 if the round has the same numbers, 1 if it has not."""
    folder, values = parse_replay(arguments)
    read_run(folder)  # or it is refused
    process.take_devices(values["devices"] or devices_of(folder))
    console = Console()
    with process.reporting(console) as report:
        found = replay_round(folder, progress=report, **values)
    began = (
        f"from the state after round {found.start}" if found.start else "from the start"
    )
    process.say(console, f"round {found.round} of {folder}, made again {began}")
    for name, (then, now) in found.changed.items():
        process.say(console, f"{name}: {then} then, {now} now")
    other = {name: value for name, value in found.differences.items() if value != 0}
    for name, value in other.items():
        process.say(console, f"{name}: differs by up to {value:.3g}")
    count = len(found.differences)
    if not other:
        process.say(console, f"all {count} columns have the same bits")
        return 0
    process.say(console, f"{len(other)} of {count} columns have other bits")
    if Path(folder).absolute().parent.name == TRIALS:
        why = "a trial was trained next to others, so it may differ by rounding"
        process.say(console, why)
    return 1
