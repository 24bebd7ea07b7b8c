"""The numbers of a run that JAX may trace, so that many runs are one program."""

import copy
import types
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...plan import NUMBERS
from ..config import Config
from ..schema import kind_options


def number_names(config: Config) -> list[str]:
    """The settings of a trial that may be traced: numbers, and none of them None."""
    given = [name for name in NUMBERS if getattr(config, name) is not None]
    return [*given, *_own(config)]


def _own(config: Config) -> dict[str, str]:
    """The options of the algorithm that are numbers, by their full names."""
    known = kind_options("algorithm", config.algorithm)
    value = lambda own: config.algorithm_options.get(own, known[own].default)
    return {f"algorithm.{own}": own for own in known if isinstance(value(own), float)}


def number(config: Config, name: str) -> float:
    """A setting that `number_names` names."""
    if name in NUMBERS:
        return getattr(config, name)
    own = _own(config)[name]
    known = kind_options("algorithm", config.algorithm)
    return config.algorithm_options.get(own, known[own].default)


def with_numbers(config: Config, numbers: Mapping[str, Any]) -> Config:
    """`config` with some numbers that JAX may be tracing, which cannot be checked."""
    changed = copy.copy(config)
    put = partial(object.__setattr__, changed)
    own, options = _own(config), dict(config.algorithm_options)
    for name, value in numbers.items():
        if name in NUMBERS:
            put(name, value)
        else:
            options[own[name]] = value
    put("algorithm_options", types.MappingProxyType(options))
    return changed
