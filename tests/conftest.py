"""Strict JAX for every test: ranks never promote silently, warnings are errors."""

import gc
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from helpers import make_data, make_task
from tiny_runs import sharing_programs

# Most of a test is compiling, which takes a third of the time if XLA does not optimise.
# Those marked "optimised" need it, and `-m slow` has it for all, but for the step that
# takes longest.
PLAIN = "--xla_cpu_use_fusion_emitters=false"
# A program in one piece: in many it is compiled by many threads, which the workers take.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
QUICKLY = (  # what is selected by -m
    *("not slow", "campaign", "slow and not optimised"),
    "slow and not optimised and not campaign",
    "not optimised",
)


def pytest_configure(config):
    slow = config.option.markexpr not in QUICKLY
    if not ("PYTEST_XDIST_WORKER" in os.environ or "XLA_FLAGS" in os.environ):
        # a flag that this XLA does not know would end the process, as PLAIN in JAX 0.12
        begin = [sys.executable, "-c", "import jax; jax.devices()"]
        for flags in [PLAIN] if slow else [f"{QUICK} {PLAIN}", QUICK]:
            env = {**os.environ, "XLA_FLAGS": flags}
            if not subprocess.run(begin, env=env, capture_output=True).returncode:
                os.environ["XLA_FLAGS"] = flags
                break
    if getattr(config.option, "dist", None) == "load":  # what -n means by itself
        # each worker begins with a half of its own: fixtures of a module are made once
        config.option.dist = "worksteal"
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # where in the code an operation comes from: a stack as deep as pytest's for each
    jax.config.update("jax_traceback_in_locations_limit", 0)
    cache = getattr(config, "cache", None)  # None: pytest was told to have none
    if cache is not None:  # workers share programs, and the next run has them
        folder = str(cache.mkdir("jax"))
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.local_devices()  # now: a run of the command line would choose as many as cores


# Linux grants a process 65,530 mappings of memory, and XLA aborts where there is none
# left: a program takes hundreds, and a session compiles more than a thousand.
MOST_MAPPINGS = 35_000
COUNT_EVERY = 25  # programs, as counting 30,000 mappings takes 30 ms
compiled = []  # programs since mappings were counted


def count_programs(event, seconds, **kwargs):
    if event.endswith("/backend_compile_duration"):
        compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(count_programs)


def pytest_runtest_logfinish(nodeid, location):
    if len(compiled) < COUNT_EVERY:
        return
    compiled.clear()
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


def pytest_collection_finish(session):
    """The collector looks at no module, test or fixture again, and less often at all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture
def x64():
    """Double precision, for comparisons with float64 NumPy."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def task():
    return make_task()


@pytest.fixture(scope="session")
def data():
    return make_data()


@pytest.fixture
def shared_programs():
    """Programs are shared as `sharing_programs` says."""
    with sharing_programs():
        yield


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, and the cache of compiled programs left as it is."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)
