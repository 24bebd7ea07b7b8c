"""`fedjax-adapt doctor`: what is installed and found here, and whether a round works."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import jax
import numpy as np
from rich.console import Console

from ..algorithms import fedavg
from ..data import SOURCES, load, split
from ..data.files import DATA_VARIABLE, data_folder
from ..engine.build import make_round
from ..engine.initial import init_state
from ..engine.mesh import check_environment
from ..errors import RunError, SettingError
from ..experiment.schema import common_options
from ..experiment.summary import hardware, versions
from ..experiment.tuning import cache_folder
from ..models import classification, mlp
from ..plan import Plan
from .flags import read_command
from .process import fail, say, take_devices

DESCRIPTION = """\
Prints versions, devices, caches and the data sets that are found, and trains two rounds.

The exit code is 1 if the rounds do not work."""
FLAGS = {"data_dir": common_options()["data_dir"]}
MiB = 2**20
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
    for name, spec in SOURCES.items():
        try:
            source = spec.load(folder)
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
    """Trains FedAvg on the digits for two rounds, twice; RunError if they differ."""
    source = load("digits")
    data = source.federated(split("iid", source.y_train, num_clients=4))
    task = classification(mlp(source.shape, 10, (16,)), source.shape)
    plan, algorithm = Plan(cohort_size=2, batch_size=20, lr=0.05), fedavg()
    round_fn = jax.jit(make_round(algorithm, task, data, plan))
    key = jax.random.key(0)

    def train():
        state = init_state(algorithm, task, data, plan, key)
        for step in range(2):
            state, _ = round_fn(state, jax.random.fold_in(key, step))
        return jax.block_until_ready(state.params)

    began = time.perf_counter()
    first = jax.device_get(train())
    compiled = time.perf_counter()
    second = jax.device_get(train())
    ended = time.perf_counter()
    leaves = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    if not all(np.isfinite(a).all() for a, _ in leaves):
        raise RunError("the model is not finite")
    if not all(np.array_equal(a, b) for a, b in leaves):
        raise RunError("the same rounds gave two models")
    return (
        f"two work and give the same twice: {compiled - began:.1f} s with compiling, "
        f"{1000 * (ended - compiled):.0f} ms without"
    )
