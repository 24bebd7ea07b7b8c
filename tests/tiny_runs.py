"""The settings of a run that takes a second, and programs that such runs share."""

import json
from collections import OrderedDict
from contextlib import contextmanager
from functools import wraps
from importlib import import_module

import pytest

from fedjax_adapt.experiment import Config
from fedjax_adapt.experiment.config import to_settings

TINY = {
    "algorithm": "scaffold",
    "model": "linear",
    "partition": "dirichlet",
    "num_clients": 6,
    "participation": 0.5,
    "rounds": 7,
    "epochs": 1.0,
    "batch_size": 100,
    "checkpoint_every": 2,
    "devices": 1,
}

MADE = OrderedDict()  # by the name of what made it and the settings of runs
MOST_MADE = 24
OF_FOLDERS = ("folder", "checkpoint_every", "targets", "track", "evaluate_clients")
SHARED = [  # what takes long, where it is called
    ("run", "compile_program"),
    ("sweeps.sweep", "compile_group"),
    ("sweeps.groups", "can_trace"),
    ("sweeps.groups", "check_values"),
]


def settings_of(config):
    told = to_settings(config)
    return {name: value for name, value in told.items() if name not in OF_FOLDERS}


def once_for_equal_settings(make):
    """As `make` of a config or several, but what it returned before for equal ones."""

    @wraps(make)
    def made(configs, federation, *more, **told_to):
        several = [configs] if isinstance(configs, Config) else configs
        told = [make.__name__, [*map(settings_of, several)], more]
        key = json.dumps(told, sort_keys=True, default=str)
        if key not in MADE:
            MADE[key] = make(configs, federation, *more, **told_to)
        MADE.move_to_end(key)
        while len(MADE) > MOST_MADE:
            MADE.popitem(last=False)
        return MADE[key]

    return made


@contextmanager
def sharing_programs():
    """Runs and sweeps of equal settings share a program, in place of tracing it again.

    For tests about folders. It knows algorithms and data by their names alone.
    """
    with pytest.MonkeyPatch.context() as patch:
        for where, name in SHARED:
            # not the function of the name `run`
            module = import_module(f"fedjax_adapt.experiment.{where}")
            make = once_for_equal_settings(getattr(module, name))
            patch.setattr(module, name, make)
        yield
