"""`fedjax-adapt sweep`."""

from pathlib import Path

from . import process
from .messages import fail
from .progress import interrupted, nothing_to_resume, reporting


def sweep(arguments: list[str]) -> int:
    """`fedjax-adapt sweep SWEEP.toml`: runs a grid of settings, prints a table."""
    with process.importing():
        process.prepare_jax()
        from ..experiment.controls import sweep_with_controls
        from ..experiment.sweeps.flags import parse
        from ..experiment.sweeps.grid import read_sweep
        from ..experiment.sweeps.results import sweep_folder

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
        asked = read_sweep(request.file)
        if request.controls:
            asked = sweep_with_controls(asked)
        folder = sweep_folder(asked, request.folder)
        process.take_devices(request.devices or asked.run.get("devices", "auto"))
        process.import_rest()
    try:
        return _sweep(asked, folder, request)
    except KeyboardInterrupt:
        if not folder.exists():
            return interrupted(folder, "")
        again = f"fedjax-adapt sweep {request.file} --folder {folder} --resume"
        again += " --controls" * request.controls
        return fail(f"interrupted; write {again} to go on.", 130)


def _sweep(asked, folder: Path, request) -> int:
    from rich.console import Console

    from ..experiment.store import RESULTS
    from ..experiment.sweeps.sweep import sweep as run_sweep
    from ..report.sweep import natural_width, sweep_tables

    console = Console()
    _, _, resume, devices, side_by_side, _ = request
    unsaved = nothing_to_resume(folder, resume, "the sweep begins with its first trial")
    with reporting(console, unsaved) as report:
        found = run_sweep(asked, folder, resume, devices, side_by_side, report)
    for table in sweep_tables(folder, console.width if console.is_terminal else None):
        # what is no terminal has no end of a line
        long = None if console.is_terminal else natural_width(table)
        Console(width=long).print(table)
    console.print(f"results  {folder / RESULTS}", highlight=False, soft_wrap=True)
    if not found.diverged:
        return 0
    trials = ", ".join(map(str, found.diverged))
    return fail(
        f"{len(found.diverged)} of {len(found.results)} trials diverged (trial {trials}, "
        f"see diverged_round in {folder / RESULTS}); lower lr or clip_norm there.",
        1,
    )
