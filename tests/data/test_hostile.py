"""Files bent at random: each is read, or refused in a sentence, within a second."""

import functools
import gc
import random
import shutil
import time
import warnings

import jax
import pytest
from test_leaf import write_femnist
from test_tfds import PAIR, images
from written import prepare, write_cifar10, write_mnist, write_npz

from fedjax_adapt.data import load
from fedjax_adapt.engine.initial import init_state
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import (
    Config,
    build,
    checkpoint,
    files,
    read_run,
    read_swept,
    run,
    sweep,
)
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.sweeps.grid import read_sweep

# what orbax leaves behind where it gives up a checkpoint
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine")
TINY = {
    **{"algorithm": "fedssg", "model": "linear", "num_clients": 4, "num_steps": 1},
    **{"batch_size": 8, "rounds": 2, "evaluate_clients": False, "devices": 1},
}
EXTREME = (b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"1e999")
WORDS = (
    b"nan",
    b"-inf",
    b"[[",
    b'"""',
    b"{}",
    b"null",
    b"\x1b[31m",
    b"\xc3\x28",
    b"../",
)


def bent(held, draw):
    """Bytes with one to four changes."""
    held = bytearray(held)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(held) + 1)
        # as often in what a file begins with, which says how large it is
        at = min(at, draw.randrange(32)) if draw.random() < 0.5 else at
        match draw.randrange(6):
            case 0 if at < len(held):
                held[at] ^= 1 << draw.randrange(8)
            case 1:
                del held[at:]
            case 2:
                del held[at : at + draw.randrange(16)]
            case 3:
                held[at : at + 4] = draw.choice(EXTREME)
            case 4:
                held[at:at] = draw.choice(WORDS)
            case 5:
                held[at:at] = held[: draw.randrange(64)]
    return bytes(held)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each kind of file."""
    place = tmp_path_factory.mktemp("hostile")
    write_mnist(place / "mnist")
    write_mnist(place / "raw", suffix="")
    write_cifar10(place / "cifar10", examples=1)
    (place / "npz").mkdir()
    write_npz(place / "npz" / "own.npz")
    write_femnist(place / "leaf")
    prepare(place / "tfds", "tiny", PAIR, {"train": images(9), "test": images(5)})
    run(Config(**TINY, folder=str(place / "run")))
    grid = {"run": TINY, "grid": {"lr": [0.1, 0.2]}}
    sweep(grid, place / "sweep")
    for path in place.rglob(files.SUMS):  # which would refuse what is bent
        path.unlink()
    for kind in ("settings", "summary", "states"):
        shutil.copytree(place / "run", place / kind)
    shutil.copytree(place / "sweep", place / "grids")
    (place / "list").mkdir()
    (place / "list" / "a.toml").write_text("x = 1\n")
    files.enter(place / "list", {})
    return place


@functools.cache
def state():
    """What a checkpoint of TINY holds: shapes and dtypes."""
    f = build(Config(**TINY))
    init = functools.partial(init_state, f.algorithm, f.task, f.data, f.plan)
    return jax.eval_shape(init, jax.random.key(0))


READERS = {
    "mnist": (lambda at: load("mnist", at), "*"),
    "raw": (lambda at: load("mnist", at), "*"),
    "cifar10": (lambda at: load("cifar10", at), "*"),
    "npz": (lambda at: load(str(at / "own.npz")), "*"),
    "leaf": (lambda at: load("leaf_femnist", at), "*/*"),
    "tfds": (lambda at: load("tfds:tiny", at), "tiny/*/*"),
    "run": (read_run, "[mcs]*/part-*"),
    "summary": (read_run, "summary.json"),
    "states": (lambda at: checkpoint.restore(at / "checkpoints", state()), "c*s/**/*"),
    "settings": (lambda at: read_settings(at / "config.toml"), "config.toml"),
    "sweep": (read_swept, "results.parquet"),
    "grids": (lambda at: read_sweep(at / "sweep.toml"), "sweep.toml"),
    "list": (files.listed, "*"),
}


def campaign(folders, kind, place, seeds):
    """Bends a file of a kind for each seed; returns how many were refused."""
    read, pattern = READERS[kind]
    refused = 0
    for seed in seeds:
        draw = random.Random(f"{kind} {seed}")
        folder = place / "bent"
        shutil.copytree(folders / kind, folder)
        path = draw.choice(sorted(p for p in folder.glob(pattern) if p.is_file()))
        path.write_bytes(bent(path.read_bytes(), draw))
        began, computed = time.perf_counter(), time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                read(folder)
        except SettingError as error:
            assert "\x1b" not in str(error), (kind, seed)
            refused += 1
        except Exception as error:
            raise AssertionError(f"{kind} {seed} {path.name}: {error!r}") from error
        assert time.process_time() - computed < 1, (kind, seed)
        assert time.perf_counter() - began < 10, (kind, seed)  # on a busy machine
        shutil.rmtree(folder)
    gc.collect()  # here, where its warnings are filtered
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_what_is_bent_is_read_or_refused(folders, kind, tmp_path):
    assert campaign(folders, kind, tmp_path, range(60)) > 5


# a case takes 50 ms and more, so they have those of the test above alone
SLOW = ("leaf", "tfds", "states")


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in SLOW])
def test_what_is_bent_500_times_is_read_or_refused(folders, kind, tmp_path):
    assert campaign(folders, kind, tmp_path, range(100, 600)) > 25
