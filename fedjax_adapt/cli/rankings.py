"""`fedjax-adapt compare` and `fedjax-adapt contributions`."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.measure import Measurement

from .. import check
from ..errors import SettingError
from ..experiment import valuation
from ..experiment.config import common_options
from ..experiment.folder import devices_of
from ..experiment.options import Option
from ..experiment.valuation import ORDERS, Reference, Value
from ..report.clients import agreement, contributions_table, draw_contributions
from ..report.clients import contributions as ranking
from ..report.compare import Sheet, sheets
from ..report.forms import Format, as_text, comparison_tables
from ..report.plots import Against, comparison_curves
from . import process
from .flags import read_flags, words_of
from .partition import output_path
from .process import paths_and_flags, say

PROGRAM = "fedjax-adapt contributions"
DESCRIPTION = """\
fedjax-adapt contributions RUN [OPTIONS] ranks the clients of a run of fedgsnr by the mean
of their r_k, and draws contributions.png in its folder, anew each time.

With --reference the round after the newest checkpoint is run again, outside the run, and
its clients are valued on what the run was tested on; Spearman's rho says how r_k agrees
with that."""
FLAGS = {
    "reference": Option(
        Reference | None,
        None,
        "a client's worth: how much worse the model is without it, or its Shapley value; "
        "none: r_k only",
    ),
    "value": Option(Value | None, None, "of a model, on the same; none: loss"),
    "orders": Option(
        int | None, None, f"random orders for shapley, more say more; none: {ORDERS}"
    ),
    "tolerance": Option(
        float | None, None, "how near to the value of all an order of shapley may end"
    ),
    "data_dir": common_options()["data_dir"],
    "devices": Option(
        int | Literal["auto"] | None, None, "that share the round; none: as in the run"
    ),
}


class Request(NamedTuple):
    """What a command line asks for."""

    folder: str
    options: dict[str, Any]  # of `value_cohort`; empty: rank by r_k only


def parse(arguments: Sequence[str]) -> Request:
    """Reads the arguments of `fedjax-adapt contributions`.

    Raises:
      ValueError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    asks = any(word in ("-h", "--help") for word in arguments)
    folders, given = paths_and_flags(arguments, "contributions")
    if len(folders) != 1 and not asks:
        raise SettingError(
            f"contributions got {len(folders)} folders before its flags; give the folder "
            "of one run, as in fedjax-adapt contributions runs/mine."
        )
    values = read_flags(given, {"reference": FLAGS}, {}, PROGRAM, DESCRIPTION)
    (folder,) = folders
    if values["reference"] is not None:
        return Request(folder, values | {"value": values["value"] or "loss"})
    for name in words_of(given):
        if name != "reference":
            which = "shapley" if name in ("orders", "tolerance") else "leave_one_out"
            raise SettingError(
                f"--{name.replace('_', '-')} is about what r_k is compared with; write "
                f"--reference {which} as well, or leave it out."
            )
    return Request(folder, {})


def contributions(arguments: list[str]) -> int:
    """`fedjax-adapt contributions`: ranks the clients of a run, and draws it."""
    with process.importing():
        request = parse(arguments)
    columns, lines = {}, []
    if request.options:
        columns, lines = _references(request.folder, request.options)
    console = Console()
    console.print(contributions_table(request.folder, columns))
    for line in lines:
        say(console, line)
    picture = draw_contributions(request.folder)
    say(console, f"picture  {picture}")
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
    folders, flags = paths_and_flags(arguments, "compare")
    choices = {
        "base": Option(
            str | None,
            None,
            "a method, or the folder of a run, that others differ from; none: the best, "
            "where no method has several lines of test accuracy",
        ),
        "best": Option(
            bool,
            False,
            "of each method only the settings with the best validation accuracy, and their "
            "test accuracy if runs have it",
        ),
        "target": Option(
            tuple[float, ...], (), "accuracies to say the rounds to, and the speed-up"
        ),
        "format": Option(
            Format,
            "table",
            "md and latex have the cells of the table, csv and json all numbers in full",
        ),
        "plot": Option(str | None, None, "where a picture of all curves goes"),
        "against": Option(Against | None, None, "its horizontal axis; none: round"),
        "overwrite": Option(bool, False, "replace the picture if it is there"),
    }
    about = (
        "fedjax-adapt compare RUN [RUN ...] [OPTIONS] ranks finished runs, those that "
        "differ in the seed alone as one, and those with no test accuracy apart. "
        "The folder of a sweep stands for its trials, another for the runs below it."
    )
    program = "fedjax-adapt compare"
    values = read_flags(flags, {"comparison": choices}, {}, program, about)
    if not folders:
        raise SettingError(
            "compare got no folder before its flags; give those of finished runs, as in "
            "fedjax-adapt compare runs/mine runs/other."
        )
    if values["against"] is not None and values["plot"] is None:
        raise SettingError(
            f"against={values['against']} is about a picture; write --plot FILE as well."
        )
    path = None
    if values["plot"] is not None:
        wanted = check.expanded("--plot ", values["plot"])
        path = output_path("--plot", wanted, values["overwrite"])
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
                say(Console(stderr=True), line)
    if path is not None:  # not among what another program reads
        say(Console(stderr=values["format"] != "table"), f"picture  {path}")
    return 0


def print_comparison(found: Sequence[Sheet]) -> None:
    """Prints ranked runs, as `comparison_tables` has them."""
    console = Console()
    for table in comparison_tables(found):
        # where the terminal is too narrow it breaks lines, so that no column is cut off
        least = Measurement.get(console, console.options, table).minimum
        console.print(table, width=max(console.width, least), crop=False)
