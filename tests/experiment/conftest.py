"""Runs that take a second: a linear model on the digits."""

import resource

import pytest
from tiny_runs import TINY, sharing_programs

from fedjax_adapt.experiment import Config, run


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A finished run of the tiny config, never interrupted; only to be read."""
    config = Config(folder=str(tmp_path_factory.mktemp("runs") / "whole"), **TINY)
    with sharing_programs():
        run(config)
    return config


@pytest.fixture(scope="session")
def also(tmp_path_factory):
    """The same run, with the other models evaluated too; only to be read."""
    folder = str(tmp_path_factory.mktemp("runs") / "also")
    config = Config(folder=folder, **TINY, evaluate_also=("sel", "all"))
    run(config)
    return config


@pytest.fixture(scope="session")
def stopped(tmp_path_factory):
    """Two runs of the tiny config, of two seeds, that were saved after rounds 2 and 4."""

    class Stop(Exception):
        pass

    def stop(now):
        if now.round >= 5:
            raise Stop

    place, configs = tmp_path_factory.mktemp("runs"), []
    for seed in (0, 1):
        configs.append(Config(folder=str(place / f"stopped{seed}"), **TINY, seed=seed))
        with sharing_programs(), pytest.raises(Stop):
            run(configs[-1], progress=stop)
    return configs


@pytest.fixture
def tiny(tmp_path):
    """A config that runs in a second; keywords change it."""

    def make(folder="run", **changes):
        return Config(folder=str(tmp_path / folder), **{**TINY, **changes})

    return make


@pytest.fixture
def limited():
    """limited(size): no file may grow beyond so many bytes; None: any may again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    put = lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    yield lambda size: put(soft if size is None else size)
    put(soft)
