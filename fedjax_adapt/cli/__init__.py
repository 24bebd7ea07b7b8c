"""The command line: `fedjax-adapt run`, `sweep`, `partition` and so on; see USAGE.

A mistake of the user is one sentence on stderr and exit code 2; training that diverges
is exit code 1; Ctrl-C is 130 and SIGTERM 143. JAX is imported only where it is needed.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..errors import SettingError
from . import process
from .output import steady_output

COMMANDS = {  # the module of each
    "run": "run",
    "sweep": "sweep",
    "tune": "tune",
    "partition": "partition",
    "compare": "finished",
    "contributions": "finished",
    "report": "finished",
    "replay": "finished",
    "reproduce": "reproduce",
    "doctor": "doctor",
    "completion": "completion",
}
EXAMPLES = {  # that the help of each command ends with
    "run": (
        "fedjax-adapt run --algorithm fedavg --rounds 100 --seed 1 --folder runs/mine",
        "fedjax-adapt run --dataset mnist --data-dir DIR --participation 0.1 --dry-run",
        "fedjax-adapt run --folder runs/mine --resume",
    ),
    "sweep": (
        "fedjax-adapt sweep SWEEP.toml --folder runs/lr",
        "fedjax-adapt sweep SWEEP.toml --folder runs/lr --shard 2/8 --resume",
        "fedjax-adapt sweep merge runs/lr",
    ),
    "tune": (
        "fedjax-adapt tune SPACE.toml --trials 64 --folder runs/tuned",
        "fedjax-adapt tune SPACE.toml --at-once 9 --halve 3",
        "fedjax-adapt tune SPACE.toml --folder runs/tuned --trials 128 --resume",
    ),
    "partition": (
        "fedjax-adapt partition --partition dirichlet --concentration 0.1",
        "fedjax-adapt partition --config run.toml --output partition.png",
    ),
    "compare": (
        "fedjax-adapt compare runs/mine runs/other --plot both.png",
        "fedjax-adapt compare runs/lr --base fedavg --target 0.9 0.95",
    ),
    "contributions": (
        "fedjax-adapt contributions runs/mine",
        "fedjax-adapt contributions runs/mine --reference shapley --orders 200",
    ),
    "report": (
        "fedjax-adapt report runs/mine runs/other --out report.html",
        "fedjax-adapt report runs/lr --overwrite",
    ),
    "replay": (
        "fedjax-adapt replay runs/mine",
        "fedjax-adapt replay runs/mine --round 3 --devices 1",
    ),
    "reproduce": (
        "fedjax-adapt reproduce list",
        "fedjax-adapt reproduce fedssg-table1 --scale smoke",
        "fedjax-adapt reproduce fedssg-table1 --scale cpu --dry-run",
    ),
    "doctor": (
        "fedjax-adapt doctor",
        "fedjax-adapt doctor --data-dir DIR",
    ),
    "completion": (
        "fedjax-adapt completion bash > "
        "~/.local/share/bash-completion/completions/fedjax-adapt",
        "fedjax-adapt completion zsh >> ~/.zshrc",
    ),
    "list": (
        "fedjax-adapt list",
        "fedjax-adapt list | grep fed",
    ),
}
USAGE = """\
usage: fedjax-adapt COMMAND [OPTIONS]

A vectorised simulator for adaptive federated learning in JAX.

commands:
  run        train a federation; without options: FedSSG on the digits, under a minute
  sweep      run a grid of settings, those that differ in numbers and seeds at once
  tune       choose settings by validation accuracy, proposed by Optuna
  partition  print and draw who would hold what, before anyone trains on it
  compare    rank finished runs, those with no test accuracy apart
  contributions
             rank the clients of a fedgsnr run by what their gradients said, and
             compare that with leave-one-out or Shapley values
  report     write a page of finished runs: settings, curves, figures, clients
  replay     make a round of a run again, and say what of it has other numbers here
  reproduce  make the runs of a paper's table or figure, and print both figures
  doctor     versions, devices, caches and data sets here, and whether a round works
  completion a script by which bash or zsh completes what stands here
  list       algorithms, data sets, partitions and models, one line each

options:
  -h, --help    this text; fedjax-adapt run --help shows every setting of a run
  --version     the version

examples, of which the help of each command has more:
"""
USAGE += "".join(
    f"  {line}\n"
    for command, lines in EXAMPLES.items()
    for line in (lines if command == "run" else lines[:1])
)


BUG = (
    "Nobody expected this. Unless it was raised by code of your own, it is a bug of "
    "fedjax-adapt: please report it with all of these lines."
)


def examples_of(command: str) -> str:
    """The examples that end the help of a command."""
    lines = "".join(f"  {line}\n" for line in EXAMPLES[command])
    return f"examples:\n{lines}"


def main(arguments: Sequence[Any] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Args:
      arguments: words, numbers and paths; None: those of this process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    with steady_output() as failure, process.ending():
        try:
            if isinstance(given, str):
                raise SettingError(
                    f"main got {given!r}; give its words, main({given.split()})."
                )
            code = _main([*map(str, given)])
        except BaseException as error:
            code = process.report_error(error)
            if code is None:
                error.add_note(BUG)
                raise
        if (why := failure()) is None:
            return code
        return process.fail(f"standard output could not be written ({why}).", code or 1)


def run_process() -> NoReturn:
    """Runs the command line of this process and ends it with the exit code.

    After a signal XLA may still be compiling in a thread of its own, under which the end
    of Python takes away what it needs: then the process ends without it.
    """
    code = main()
    if code in process.SIGNALLED:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except (OSError, ValueError):  # a reader has left, or it is closed
            pass
        finally:
            os._exit(code)
    sys.exit(code)


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        from .. import __version__

        print(f"fedjax-adapt {__version__}")
        return 0
    if command == "list":
        return list_choices(rest)
    if command not in COMMANDS:
        from .. import check

        known = check.nearest(command, [*COMMANDS, "list"])
        raise SettingError(f"{command!r} is not a command; {known}")
    with process.importing():
        process.prepare_jax()
        module = import_module(f".{COMMANDS[command]}", __package__)
    try:
        return getattr(module, command)(rest)
    except SystemExit as stop:
        if stop.code:
            raise
        return 0  # --help has been printed


def list_choices(arguments: list[str]) -> int:
    """`fedjax-adapt list`: everything that can be chosen by name."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: fedjax-adapt list\n\nEverything that a run can choose by name.\n")
        print(examples_of("list"), end="")
        return 0
    if arguments:
        raise SettingError(f"list takes no arguments, so leave {arguments[0]!r} out.")
    from ..experiment.options import catalogue

    for title, lines in catalogue().items():
        print(title)
        for name, summary in lines.items():
            print(f"  {name:<18} {summary}")
    return 0
