"""Options by name, checked against the function that will take them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import check
from ..errors import SettingError


def option_names(function: Callable) -> list[str]:
    """The options of a loader or a partition: its keyword-only arguments, in order."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def check_options(owner: str, function: Callable, options: Mapping[str, Any]) -> None:
    """Raises ValueError on an option that `function` does not take; names the nearest.

    Args:
      owner: whose options they are, as the sentence says it: "dataset=digits".
      function: what will be called with them.
      options: the options by name.
    """
    known = option_names(function)
    for name in options:
        if name not in known:
            hint = check.nearest(name, known) if known else "It takes none."
            raise SettingError(f"{owner} takes no option {name!r}; {hint}")
