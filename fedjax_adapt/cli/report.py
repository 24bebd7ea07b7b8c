"""`fedjax-adapt report`: one page of finished runs."""

from rich.console import Console

from .. import check
from ..errors import SettingError
from ..experiment.files import write_text
from ..experiment.options import Option
from ..report.page import report_page
from .flags import read_flags
from .partition import output_path
from .process import paths_and_flags, say

PROGRAM = "fedjax-adapt report"
DESCRIPTION = """\
fedjax-adapt report RUN [RUN ...] [OPTIONS] writes one page of finished runs, which a
browser shows without a network: settings, curves, figures, clients, and how to run each
again. The folder of a sweep stands for its trials, another for the runs below it."""
FLAGS = {
    "out": Option(str, "report.html", "where the page goes"),
    "overwrite": Option(bool, False, "replace the page if it is there"),
}


def report(arguments: list[str]) -> int:
    """`fedjax-adapt report RUN...`: writes a page of finished runs."""
    folders, flags = paths_and_flags(arguments, "report")
    values = read_flags(flags, {"page": FLAGS}, {}, PROGRAM, DESCRIPTION)
    if not folders:
        raise SettingError(
            "report got no folder before its flags; give those of finished runs, as in "
            "fedjax-adapt report runs/mine runs/other."
        )
    wanted = check.expanded("--out ", values["out"])
    path = output_path("--out", wanted, values["overwrite"], [".html"])
    write_text(path, report_page(folders))
    say(Console(), f"page  {path}")
    return 0
