"""`fedjax-adapt run`."""

from pathlib import Path

from . import process
from .compare import print_comparison
from .messages import note, report_error
from .progress import interrupted, nothing_to_resume, reporting

FIRST = "the run begins at round 1"  # where nothing is resumed


def run(arguments: list[str]) -> int:
    """`fedjax-adapt run`: trains, draws the curve, prints a table."""
    with process.importing():
        process.prepare_jax()
        from ..experiment.config import from_settings
        from ..experiment.controls import unfinished, with_controls
        from ..experiment.flags import parse
        from ..experiment.folder import run_folder

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
        note(request.note)
        config = from_settings(request.settings)
        configs = with_controls(config) if request.controls else [config]
        left = unfinished(configs, request.resume) if request.controls else configs
        others = request.processes
        process.take_devices(others.share(config.devices) if others else config.devices)
        process.import_rest()
    if others:
        return _run_in_processes(config, request)
    unsaved = nothing_to_resume(run_folder(config), request.resume, FIRST)
    for one in left:
        try:
            code = _train(one, run_folder(one), request.resume, unsaved)
        except KeyboardInterrupt:
            again = f"--folder {run_folder(config)} --resume"
            if request.controls:
                again += " --controls"
            return interrupted(run_folder(one), again)
        if code:
            return code
        unsaved = None  # controls that have not begun are no surprise
    if request.controls:
        print_comparison([run_folder(one) for one in configs])
    return 0


def _run_in_processes(config, request) -> int:
    """`run` as one of several processes, of which the first prints and draws."""
    from rich.console import Console

    from ..experiment.folder import run_folder
    from ..experiment.loop import Stopped
    from ..experiment.process_group import process_group
    from ..experiment.run import run as train

    folder = run_folder(config)
    unsaved = nothing_to_resume(folder, request.resume, FIRST)
    try:
        with process_group(request.processes, report_error) as first:
            with reporting(Console(), unsaved) as report:
                train(config, request.resume, report)
    except Stopped:
        if not folder.exists():  # another machine's
            return 130
        again = f"--folder {folder} --resume {_flags(request.processes)}"
        return interrupted(folder, again)
    return _show(folder) if first else 0


def _flags(group) -> str:
    """What every process is begun with again."""
    address = f"--coordinator-address {group.coordinator_address}"
    if group.num_processes is None:
        return f"{address} in every process,"
    return (
        f"{address} --num-processes {group.num_processes} in every process, with its "
        "--process-id,"
    )


def _train(config, folder: Path, resume: bool, warning: str | None) -> int:
    from rich.console import Console

    from ..experiment.run import run as train

    with reporting(Console(), warning) as report:
        train(config, resume, report)
    return _show(folder)


def _show(folder: Path) -> int:
    """Draws and prints what has come of a run."""
    from rich.console import Console

    from ..report.plots import learning_curve
    from ..report.tables import summary_table

    console = Console()
    picture = learning_curve(folder)
    console.print(summary_table(folder))
    console.print(f"run      {folder}", highlight=False, soft_wrap=True)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0
