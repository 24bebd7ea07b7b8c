"""The command line: `fedjax-adapt run`, `sweep`, `partition` and so on; see USAGE.

A mistake of the user is one sentence on stderr and exit code 2; training that diverges
is exit code 1; Ctrl-C is 130. JAX is imported only where it is needed.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

USAGE = """\
usage: fedjax-adapt COMMAND [OPTIONS]

A vectorised simulator for adaptive federated learning in JAX.

commands:
  run        train a federation; without options: FedSSG on the digits, under a minute
  sweep      run a grid of settings, those that differ in numbers and seeds at once
  partition  print and draw who would hold what, before anyone trains on it
  compare    rank finished runs, those that trained on their test set apart
  contributions
             rank the clients of a fedgsnr run by what their gradients said, and
             compare that with leave-one-out or Shapley values
  list       algorithms, data sets, partitions and models, one line each

options:
  -h, --help    this text; fedjax-adapt run --help shows what a run can be told
  --version     the version

examples:
  fedjax-adapt run
  fedjax-adapt run --algorithm fedavg --rounds 100 --seed 1
  fedjax-adapt run --dataset mnist --data-dir DIR --num-clients 100 --participation 0.15
  fedjax-adapt run --config run.toml --lr 0.05
  fedjax-adapt run --folder runs/mine --resume
  fedjax-adapt run --algorithm fnr --controls
  fedjax-adapt sweep SWEEP.toml --folder runs/sweep
  fedjax-adapt partition --partition labels_per_client --num-labels 3
  fedjax-adapt compare runs/mine runs/other
  fedjax-adapt contributions runs/mine
  fedjax-adapt contributions runs/mine --reference shapley --orders 200
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(arguments)
    except BaseException as error:
        code = _told(error)
        if code is None:
            raise  # a bug of ours, which a sentence would hide
        return code


def _told(error: BaseException) -> int | None:
    """Says what has gone wrong; returns the exit code, or None if it is no sentence."""
    match error:
        case ValueError() if _raised_by_us(error):
            return _fail(str(error), 2)
        case KeyboardInterrupt():
            return _fail("interrupted.", 130)
        case BrokenPipeError():  # the reader of a pipe has left, as in `list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case OSError():  # a disk that is full, a folder that has gone
            return _fail(f"{error}.", 1)
    return None


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        from . import __version__

        print(f"fedjax-adapt {__version__}")
        return 0
    commands = {
        "run": run,
        "sweep": sweep,
        "partition": partition,
        "compare": compare,
        "contributions": contributions,
        "list": list_choices,
    }
    if command not in commands:
        from . import check

        known = check.nearest(command, commands)
        raise ValueError(f"{command!r} is no command; {known}")
    return commands[command](rest)


def run(arguments: list[str]) -> int:
    """`fedjax-adapt run`: trains, draws the curve, prints a table."""
    with _importing():
        _prepare_jax()
        from .experiment.config import from_settings
        from .experiment.controls import unfinished, with_controls
        from .experiment.flags import parse
        from .experiment.folder import run_folder

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
        config = from_settings(request.settings)
        configs = with_controls(config) if request.controls else [config]
        left = unfinished(configs, request.resume) if request.controls else configs
        others = request.together
        _take_devices(others.share(config.devices) if others else config.devices)
        _import_writers()
    if others:
        return _run_together(config, request)
    for one in left:
        try:
            code = _train(one, run_folder(one), request.resume)
        except KeyboardInterrupt:
            again = f"--folder {run_folder(config)} --resume"
            if request.controls:
                again += " --controls"
            return _interrupted(run_folder(one), again)
        if code:
            return code
    if request.controls:
        _print_comparison([run_folder(one) for one in configs])
    return 0


def _run_together(config, request) -> int:
    """`run` as one of several processes, of which the first prints and draws."""
    from rich.console import Console

    from .experiment.folder import run_folder
    from .experiment.joined import joined
    from .experiment.loop import Stopped
    from .experiment.rows import Diverged
    from .experiment.run import run as train

    folder = run_folder(config)
    try:
        with joined(request.together, _told) as first:
            with _reporting(Console()) as report:
                train(config, request.resume, report)
    except Diverged as error:
        return _fail(str(error), 1)
    except Stopped:
        if not folder.exists():  # another machine's
            return 130
        again = f"--folder {folder} --resume in every process, with its --process-id,"
        return _interrupted(folder, again)
    return _show(folder) if first else 0


def _train(config, folder: Path, resume: bool) -> int:
    from rich.console import Console

    from .experiment.rows import Diverged
    from .experiment.run import run as train

    try:
        with _reporting(Console()) as report:
            train(config, resume, report)
    except Diverged as error:
        return _fail(str(error), 1)
    return _show(folder)


def _show(folder: Path) -> int:
    """Draws and prints what has come of a run."""
    from rich.console import Console

    from .report.plots import learning_curve
    from .report.tables import summary_table

    console = Console()
    picture = learning_curve(folder)
    console.print(summary_table(folder))
    console.print(f"run      {folder}", highlight=False, soft_wrap=True)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0


@contextmanager
def _reporting(console) -> Iterator[Callable]:
    """A function that shows progress and its warnings, and where Ctrl-C takes effect.

    From its first call on freed memory is kept: then rounds begin, and what loading and
    compiling took has been given back.
    """
    from .engine.allocator import keep_memory
    from .report.live import live

    with live(console) as show, _finishing() as stop_if_asked:

        def report(progress):
            keep_memory()
            if progress.warning is not None:
                told = f"warning: {progress.warning}"
                console.print(told, highlight=False, soft_wrap=True, markup=False)
            show(progress)
            stop_if_asked()

        yield report


def _interrupted(folder: Path, again: str) -> int:
    from .experiment.checkpoint import rounds

    if not folder.exists():
        said = f"interrupted before the first round; nothing is written to {folder}."
        return _fail(said, 130)
    saved = rounds(folder / "checkpoints")
    upto = f"saved up to round {saved[-1]}" if saved else "no round is saved yet"
    goal = "to go on" if saved else "to begin again"
    return _fail(f"interrupted, {upto}; write fedjax-adapt run {again} {goal}.", 130)


def sweep(arguments: list[str]) -> int:
    """`fedjax-adapt sweep SWEEP.toml`: runs a grid of settings, prints a table."""
    with _importing():
        _prepare_jax()
        from .experiment.grid import read_sweep
        from .experiment.sweep_flags import parse
        from .experiment.swept import sweep_folder

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
        asked = read_sweep(request.file)
        folder = sweep_folder(asked, request.folder)
        _take_devices(request.devices or asked.run.get("devices", "auto"))
        _import_writers()
    try:
        return _sweep(asked, folder, request)
    except KeyboardInterrupt:
        if not folder.exists():
            return _interrupted(folder, "")
        again = f"fedjax-adapt sweep {request.file} --folder {folder} --resume"
        return _fail(f"interrupted; write {again} to go on.", 130)


def _sweep(asked, folder: Path, request) -> int:
    from rich.console import Console

    from .experiment.store import RESULTS
    from .experiment.sweep import sweep as run_sweep
    from .report.sweep import sweep_tables

    console = Console()
    with _reporting(console) as report:
        _, _, resume, devices, side_by_side = request
        found = run_sweep(asked, folder, resume, devices, side_by_side, report)
    for table in sweep_tables(folder):
        console.print(table)
    console.print(f"results  {folder / RESULTS}", highlight=False, soft_wrap=True)
    if not found.diverged:
        return 0
    trials = ", ".join(map(str, found.diverged))
    return _fail(
        f"{len(found.diverged)} of {len(found.results)} trials diverged (trial {trials}, "
        f"see diverged_round in {folder / RESULTS}); lower lr or clip_norm there.",
        1,
    )


def partition(arguments: list[str]) -> int:
    """`fedjax-adapt partition`: prints and draws who would hold what."""
    with _importing():
        _prepare_jax()
        from rich.console import Console

        from .experiment.preview import parse, preview, title_of
        from .report.partition import MOST_ROWS, clients_table, draw_partition

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
    skew = preview(request.config)
    console = Console()
    console.print(clients_table(skew))
    if len(skew.sizes) > MOST_ROWS:
        print(
            f"the first {MOST_ROWS} of {len(skew.sizes)} clients; the picture has all"
        )
    print(skew.summary())
    picture = draw_partition(skew, title_of(request.config), request.picture)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0


def compare(arguments: list[str]) -> int:
    """`fedjax-adapt compare RUN...`: ranks finished runs, and draws them."""
    with _importing():
        from rich.console import Console

        from .experiment.flags import read_flags
        from .experiment.options import Option
        from .experiment.preview import picture_path
        from .report.plots import Against, comparison_curves

    flags = [i for i, word in enumerate(arguments) if word.startswith("-")]
    folders = arguments[: flags[0]] if flags else arguments
    choices = {
        "plot": Option(str | None, None, "where a picture of all curves goes"),
        "against": Option(Against | None, None, "its horizontal axis; none: round"),
        "overwrite": Option(bool, False, "replace the picture if it is there"),
    }
    about = (
        "fedjax-adapt compare RUN [RUN ...] [OPTIONS] ranks finished runs, those that "
        "trained on their test set apart."
    )
    program = "fedjax-adapt compare"
    try:
        values = read_flags(
            arguments[len(folders) :], {"picture": choices}, {}, program, about
        )
    except SystemExit:  # --help has been printed
        return 0
    if not folders:
        raise ValueError(
            "compare got no folder before its flags; give those of finished runs, as in "
            "fedjax-adapt compare runs/mine runs/other."
        )
    if values["against"] is not None and values["plot"] is None:
        raise ValueError(
            f"against={values['against']} is about a picture; write --plot FILE as well."
        )
    path = None
    if values["plot"] is not None:
        wanted = Path(values["plot"]).expanduser()
        path = picture_path("--plot", wanted, values["overwrite"])
        comparison_curves(folders, path, values["against"] or "round")
    _print_comparison(folders)
    if path is not None:
        Console().print(f"picture  {path}", highlight=False, soft_wrap=True)
    return 0


def _print_comparison(folders: Sequence[str | Path]) -> None:
    from rich.console import Console

    from .report.compare import comparison_tables

    console = Console()
    for table in comparison_tables(folders):
        console.print(table)


def contributions(arguments: list[str]) -> int:
    """`fedjax-adapt contributions`: ranks the clients of a run, and draws it."""
    with _importing():
        _prepare_jax()
        from rich.console import Console

        from .experiment.reference import parse
        from .report.contributions import contributions_table, draw_contributions

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
    columns, lines = {}, []
    if request.options:
        columns, lines = _references(request.folder, request.options)
    console = Console()
    console.print(contributions_table(request.folder, columns))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    picture = draw_contributions(request.folder)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0


def _references(folder: str, options: dict) -> tuple[dict, list[str]]:
    """What `value_cohort` finds: columns of the table, and how it agrees with r_k."""
    from .experiment.replay import config_of
    from .experiment.valuation import value_cohort
    from .report.contributions import agreement
    from .report.contributions import contributions as ranking

    means = {one.client: one.mean for one in ranking(folder)}  # or the run is refused
    devices = config_of(Path(folder), devices=options["devices"]).devices
    _take_devices(devices)
    found = value_cohort(folder, **options)
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


def list_choices(arguments: list[str]) -> int:
    """`fedjax-adapt list`: everything that can be chosen by name."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: fedjax-adapt list\n\nEverything a run can be told by name.")
        return 0
    if arguments:
        raise ValueError(f"list takes no arguments, so leave {arguments[0]!r} out.")
    from .experiment.options import catalogue

    for title, lines in catalogue().items():
        print(title)
        for name, summary in lines.items():
            print(f"  {name:<18} {summary}")
    return 0


@contextmanager
def _importing() -> Iterator[None]:
    """Ctrl-C leaves at once: an exception inside a native import crashes Python."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals cannot be handled
        return
    leave = lambda *_: os._exit(_fail("interrupted; nothing is written.", 130))
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _finishing() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the rounds under way; a second one does not.

    Yields a function to call between rounds, which raises KeyboardInterrupt when it was
    asked for. Until it has been called once there is nothing to wait for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # where signals cannot be handled
        return
    begun, asked = threading.Event(), threading.Event()

    def stop_if_asked():
        begun.set()
        if asked.is_set():
            raise KeyboardInterrupt

    def on_signal(*_):
        if asked.is_set() or not begun.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, before)


def _take_devices(devices: int | str) -> None:
    """Makes so many of the cores devices of JAX; "auto": all."""
    from .engine.mesh import cores_as_devices

    # where JAX has begun already, "auto" takes the devices there are
    with suppress(ValueError):
        cores_as_devices(None if devices == "auto" else devices)


def _import_writers() -> None:
    """What the first checkpoint needs, imported while Ctrl-C may; see `_importing`."""
    import orbax.checkpoint  # noqa: F401
    import pyarrow.parquet  # noqa: F401


def _prepare_jax() -> None:
    """Keeps compiled programs for the next run, and XLA's own log to itself."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import warnings

    import jax

    from .experiment.folder import cache_home

    # a cache that cannot be written costs time, nothing else
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    told = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if told is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_home() / "xla"))


def _raised_by_us(error: BaseException) -> bool:
    """Whether a sentence of this package is what went wrong, not a call it made."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(last.filename).is_relative_to(Path(__file__).parent)
    return ours and (last.line or "raise").startswith("raise")


def _fail(sentence: str, code: int) -> int:
    print(f"fedjax-adapt: {sentence}", file=sys.stderr, flush=True)
    return code
