"""`fedjax-adapt doctor`: what is installed and found here, and whether a round works."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import jax
from rich.console import Console

from ..data import SOURCES
from ..data.files import DATA_VARIABLE, data_folder
from ..engine.mesh import check_environment
from ..errors import RunError, SettingError
from ..experiment.config import Config
from ..experiment.records import read_run
from ..experiment.run import run
from ..experiment.schema import common_options
from ..experiment.summary import hardware, versions
from ..experiment.tuning import cache_folder
from .flags import read_command
from .process import fail, say, take_devices

DESCRIPTION = """\
Prints versions, devices, caches and the data sets that are found, and trains two rounds.

The exit code is 1 if the rounds do not work."""
FLAGS = {"data_dir": common_options()["data_dir"]}
MiB = 2**20
SMALL = Config(
    algorithm="fedavg", model="linear", num_clients=4, participation=1.0, rounds=2
)
LONGEST = 200  # of what a run with the data set would say in full


def parse(arguments: Sequence[str]) -> Path | None:
    """The data folder that the arguments of `fedjax-adapt doctor` give, if any."""
    words, given = read_command(arguments, "doctor", {"doctor": FLAGS}, DESCRIPTION)
    if words:
        raise SettingError(f"doctor takes flags alone, so leave {words[0]!r} out.")
    return data_folder(given["data_dir"])


def doctor(arguments: Sequence[str]) -> int:
    """`fedjax-adapt doctor`: prints what is here; returns the exit code."""
    folder, console = parse(arguments), Console()
    take_devices("auto")  # as a run does
    check_environment()
    here = hardware()
    say(console, f"versions  {', '.join(f'{n} {v}' for n, v in versions().items())}")
    say(console, f"devices   {len(jax.devices())} x {here['device']}")
    say(console, f"processor {here['cpu']}, {here['cores']} cores")
    say(console, f"cache     {_cache(cache_folder())}")
    say(console, f"data      {folder or f'no folder; set {DATA_VARIABLE} to one'}")
    for name, read in SOURCES.items():
        try:
            source = read(folder)
        except (SettingError, ImportError) as error:
            if folder is not None:
                said = shorten(str(error), LONGEST, placeholder=" ...")
                say(console, f"          {name}: {said}")
            continue
        sizes = f"{len(source.y_train):,} and {len(source.y_test):,} examples"
        say(console, f"          {name}: {sizes}, {source.num_classes} classes")
    try:
        say(console, f"rounds    {_rounds()}")
    except Exception as error:  # whatever is wrong with what is installed
        return fail(f"two rounds do not work ({type(error).__name__}: {error}).", 1)
    return 0


def _cache(folder: Path) -> str:
    """How large the cache of compiled programs is, and whether it can be written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / MiB
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror}); runs compile anew"
    return f"{folder}, {size:,.0f} MiB in {len(files):,} files"


def _rounds() -> str:
    """Runs FedAvg on the digits for two rounds, twice; RunError if they differ."""
    with tempfile.TemporaryDirectory() as place:
        folders = [f"{place}/first", f"{place}/second"]
        said, _ = [run(replace(SMALL, folder=folder)) for folder in folders]
        tables = [read_run(f).metrics.drop_columns("seconds") for f in folders]
    if not tables[0].equals(tables[1]):
        raise RunError("the same rounds gave other numbers")
    return (
        f"two work and give the same twice: {said.compile_seconds:.1f} s to compile, "
        f"{1000 * said.seconds:.0f} ms to train and test"
    )
