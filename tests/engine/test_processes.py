from typing import NamedTuple

import jax
import numpy as np
import pytest

from fedjax_adapt.engine import mesh, processes
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment.sweeps.sweep import sweep
from fedjax_adapt.experiment.valuation import value_cohort


class Device(NamedTuple):
    process_index: int
    id: int


def test_the_first_devices_are_of_every_process(monkeypatch):
    there = [Device(0, 0), Device(0, 1), Device(0, 2), Device(1, 2048), Device(2, 4096)]
    monkeypatch.setattr(jax, "devices", lambda: there)
    assert [d.id for d in processes.devices()] == [0, 2048, 4096, 1, 2]


def test_a_process_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    assert mesh.count("auto", 3) == 3
    assert mesh.count("auto", 1) == 1  # each for itself, all the same
    says = "2 devices serve a cohort of 2 with devices=auto, but there are 3 processes"
    with pytest.raises(ValueError, match=says):
        mesh.count("auto", 2)


def test_a_process_that_is_alone_agrees_with_itself():
    assert processes.is_first() and processes.from_first("this") == "this"
    array = np.arange(3)
    assert processes.array_from_first(array) is array
    processes.check_same({"settings": 1})
    own = ValueError("its own sentence")
    with pytest.raises(ValueError) as error, processes.agreed():
        raise own
    assert error.value is own


@pytest.fixture
def votes(monkeypatch):
    """What the second of two processes says, one value after the other."""
    said = []
    monkeypatch.setattr(processes, "several", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "of_all", lambda value: [value, said.pop(0)])
    return said


def test_what_one_process_refuses_all_refuse(votes):
    votes += [None, "the other's sentence", "the other's sentence"]
    with processes.agreed():
        pass
    with pytest.raises(processes.Refused, match="the other's sentence"):
        with processes.agreed():
            pass
    with pytest.raises(processes.Refused, match="own") as error, processes.agreed():
        raise SettingError("own")
    assert isinstance(error.value.__cause__, SettingError)


def test_what_differs_is_named(votes):
    votes += [{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}]
    processes.check_same({"lr": 0.1, "seed": 0})
    says = "process 1 has seed=1 but process 0 seed=0; give all the same command"
    with pytest.raises(processes.Refused, match=says):
        processes.check_same({"lr": 0.1, "seed": 0})


def test_what_one_process_makes_is_refused_to_several(votes, tmp_path):
    with pytest.raises(ValueError, match="a sweep is made by one process, but"):
        sweep({"grid": {"seed": [0, 1]}}, tmp_path / "sweep")
    with pytest.raises(ValueError, match="has joined 2; begin it in a process of"):
        value_cohort(tmp_path)
    assert not list(tmp_path.iterdir())
