"""A tiny task on which everything compiles fast, and comparisons of pytrees."""

from dataclasses import replace
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_adapt import (
    FederatedDataset,
    Outputs,
    Plan,
    PublicSet,
    Task,
    init_state,
    make_round,
)
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.cli import main
from fedjax_adapt.costs import Clock, lognormal
from fedjax_adapt.experiment import files, records
from fedjax_adapt.generators import Generator, Made

WIDTH, CLASSES = 4, 3
SIZES = (12, 5, 9, 12, 3, 7)


CUDA_COMPILER = (
    *("jax-cuda13-pjrt", "jax-cuda13-plugin", "nvidia-nvvm"),
    "nvidia-cuda-nvcc",
)


def skip_without_cuda_compiler() -> None:
    """Skips a test that compiles for a GPU where the wheels are absent that do."""
    for name in CUDA_COMPILER:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed; pip install '.[aot]'")


def unlist(folder: Path) -> None:
    """Makes a run folder one of a version that listed no checksums."""
    for path in Path(folder).rglob("files.sha256"):
        path.unlink()


def replace_in(folder: Path, *changes: tuple[str, str, str]) -> None:
    """Replaces the first `old` of a file by `new`, for each (file, old, new)."""
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))


def relist(folder: Path) -> None:
    """Lists the files of a run or sweep folder as if they had been written as they are."""
    known = files.listed(Path(folder))
    Path(folder, files.SUMS).unlink(missing_ok=True)
    files.begin(Path(folder), None if known is None else known.of)
    sweep = records.sweep_of(folder)
    if sweep is not None:
        files.strike(sweep, [Path(folder, files.SUMS)])
        files.enter_lists(sweep, [Path(folder)])


def benchmark(name: str) -> ModuleType:
    """A module of benchmarks/, which is no package, anew."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_clients(sizes=SIZES, dtype=np.float32, seed=0):
    """One (x, y) per client: linearly separable but for noise, labels skewed."""
    rng = np.random.default_rng(seed)
    teacher = rng.normal(size=(WIDTH, CLASSES))
    clients = []
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, WIDTH)) + 0.5 * i
        y = (x @ teacher + 0.3 * rng.normal(size=(n, CLASSES))).argmax(1)
        clients.append((x.astype(dtype), y.astype(np.int32)))
    return clients


def make_data(sizes=SIZES, dtype=np.float32, seed=0):
    clients = make_clients(sizes, dtype, seed)
    test = tuple(np.concatenate(part) for part in zip(*clients, strict=True))
    # as whole numbers some of its examples would be in the test set by chance
    public = make_public_set(dtype) if np.issubdtype(dtype, np.floating) else None
    return FederatedDataset.from_clients(
        clients, test=test, public=public, num_classes=CLASSES
    )


def broken(data, *clients):
    """The data set, every input of some clients NaN, which from_clients would refuse."""
    rows = [data.index[client, : int(data.size[client])] for client in clients]
    return replace(data, x=data.x.at[jnp.concatenate(rows)].set(jnp.nan))


def make_public(dtype=np.float32, size=7, seed=67):
    """(x, y) that no client holds, from among all of them, with every label."""
    teacher = np.random.default_rng(0).normal(size=(WIDTH, CLASSES))
    x = np.random.default_rng(seed).normal(size=(size, WIDTH))
    x += 0.5 * (np.arange(size) % len(SIZES))[:, None]
    return x.astype(dtype), (x @ teacher).argmax(1).astype(np.int32)


def make_public_set(dtype=np.float32):
    return PublicSet(
        *make_public(dtype), validation=make_public(dtype, size=25, seed=10)
    )


def make_task(dtype=jnp.float32):
    """Softmax regression."""

    def init(key):
        w = 0.1 * jax.random.normal(key, (WIDTH, CLASSES), dtype)
        return {"w": w, "b": jnp.zeros(CLASSES, dtype)}

    def apply(params, x):
        logits = x @ params["w"] + params["b"][None]
        return Outputs(logits, logits)  # features that move with the parameters

    loss = optax.softmax_cross_entropy_with_integer_labels
    return Task(init, apply, loss, head=lambda params, features: features)


def linear_task(dtype=jnp.float32):
    """Loss <theta, x>: each client's gradient is the mean of its x, everywhere."""
    return Task(
        init=lambda key: jax.random.normal(key, (WIDTH,), dtype),
        apply=lambda params, x: Outputs((x @ params)[:, None]),
        loss=lambda logits, y: logits[:, 0],
    )


def quadratic_task(dtype=jnp.float32):
    """Loss curvature/2 ||theta - x||^2, curvature = y: optima differ between clients."""
    return Task(
        init=lambda key: jax.random.normal(key, (WIDTH,), dtype),
        apply=lambda params, x: Outputs(params[None] - x),
        loss=lambda logits, y: 0.5 * y * (logits**2).sum(1),
    )


def start(algorithm, task, data, plan=None, seed=1):
    """(round function, state before round 0)."""
    plan = plan or Plan(cohort_size=3, batch_size=4)
    state = init_state(algorithm, task, data, plan, jax.random.key(seed))
    return make_round(algorithm, task, data, plan), state


def fast(cases, *names):
    """Named cases as pytest parameters: the named ones, and all among the slow tests."""
    assert set(names) <= set(cases), names
    marks = lambda name: () if name in names else pytest.mark.slow
    return [
        pytest.param(*case, id=name, marks=marks(name))
        if isinstance(case, tuple)
        else pytest.param(case, id=name, marks=marks(name))
        for name, case in cases.items()
    ]


def clocked(algorithm, plan):
    """The plan, with a clock if the algorithm cannot do without; no two clients tie."""
    if algorithm.server.busy is None:
        return plan
    return replace(plan, clock=Clock(step_seconds=lognormal(0.05, 0.5)))


def constructed(name):
    """An algorithm of the list, with what it cannot do without and with few steps."""
    few = {"initial_steps": 5}
    needs = {
        "afl": {"budget": 1e6},
        "gift": few,
        "adacomm": few,
        "feddf": {"distill_steps": 3, "distill_batch": 4, "validate_every": 2},
        "fedgen": {"alpha": 0.1, "beta": 0.1, "hidden": 4, "generator_steps": 2},
        "fedftg": {
            "iterations": 2,
            "generated_batch": 4,
            "noise_size": 2,
            "student_lr": 0.01,
            "generator": table_generator(),  # inputs here are no images
        },
        "fedper": {"personal": "b"},  # the tiny task's head
        "fedrep": {"personal": "b"},
        "fedssg": {"total_rounds": 300},
        "fedbuff": {"concurrency": 6},
        "fedasync": {"concurrency": 5, "alpha": 0.9},
        "public_only": {"epochs": 1, "lr": 0.05},  # on seven examples
    }
    return ALGORITHMS[name](**needs.get(name, {}))


def table_generator():
    """One input for every label, whatever the noise."""

    def init(key, noise_size, num_classes, shape):
        del noise_size
        return Made(jax.random.normal(key, (num_classes, *shape)), ())

    def apply(made, noise, labels, train):
        del noise, train
        return labels @ made.weights, ()

    return Generator(init, apply)


def keys(rounds, seed=2):
    return jax.random.split(jax.random.key(seed), rounds)


def same(a, b):
    """Equal to the bit, structure included."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(u, v, equal_nan=True) for u, v in pairs)


def close(a, b, atol=1e-6, rtol=1e-6):
    """Equal within float error, structure included."""
    chex.assert_trees_all_equal_structs(a, b)
    leaves = jax.tree_util.tree_leaves_with_path(a)
    for (path, u), v in zip(leaves, jax.tree.leaves(b), strict=True):
        name = jax.tree_util.keystr(path)
        assert np.shape(u) == np.shape(v), name
        # r_k is the cotangent of an angle, of differences of sums that are nearly equal
        few = 30 if name.endswith("['gsnr']") else 1
        np.testing.assert_allclose(u, v, atol=atol, rtol=few * rtol, err_msg=name)


# the run of experiment/conftest.py as a command, so that it is compiled once
QUICK_RUN = (
    "run --algorithm scaffold --model linear --num-clients 6 --participation 0.5 "
    "--rounds 7 --epochs 1 --batch-size 100 --devices 1"
)


def fedjax_adapt(capsys, line):
    """(exit code, stdout, stderr) of a command line."""
    code = main(line.split())
    return code, *capsys.readouterr()
