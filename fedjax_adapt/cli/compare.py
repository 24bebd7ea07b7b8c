"""`fedjax-adapt compare`."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import SettingError
from . import process


def compare(arguments: list[str]) -> int:
    """`fedjax-adapt compare RUN...`: ranks finished runs, and draws them."""
    with process.importing():
        from rich.console import Console

        from ..experiment.flag_errors import paths_and_flags
        from ..experiment.flags import read_flags
        from ..experiment.options import Option
        from ..experiment.preview import picture_path
        from ..report.plots import Against, comparison_curves

    folders, flags = paths_and_flags(arguments, "compare")
    choices = {
        "plot": Option(str | None, None, "where a picture of all curves goes"),
        "against": Option(Against | None, None, "its horizontal axis; none: round"),
        "overwrite": Option(bool, False, "replace the picture if it is there"),
    }
    about = (
        "fedjax-adapt compare RUN [RUN ...] [OPTIONS] ranks finished runs, those that "
        "trained on their test set apart. The folder of a sweep stands for its trials."
    )
    program = "fedjax-adapt compare"
    try:
        values = read_flags(flags, {"picture": choices}, {}, program, about)
    except SystemExit:  # --help has been printed
        return 0
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
        wanted = Path(values["plot"]).expanduser()
        path = picture_path("--plot", wanted, values["overwrite"])
        comparison_curves(folders, path, values["against"] or "round")
    print_comparison(folders)
    if path is not None:
        Console().print(f"picture  {path}", highlight=False, soft_wrap=True)
    return 0


def print_comparison(folders: Sequence[str | Path]) -> None:
    """Prints the runs of folders, ranked."""
    from rich.console import Console

    from ..report.compare import comparison_tables

    console = Console()
    for table in comparison_tables(folders):
        console.print(table)
