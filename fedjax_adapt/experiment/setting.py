"""What a field of `Config` says of itself, besides its type and its default."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import check
from ..errors import SettingError

Check = Callable[[str, Any], None]  # (name, value); raises SettingError


class Setting(NamedTuple):
    """What a setting is for, as metadata: `rounds: Annotated[int, Setting(...)] = 60`.

    Attributes:
      help: what it means, as `--help` says it.
      group: the heading in `--help` that it stands below.
      check: refuses values out of range.
      needs: "NAME, what that is": another setting without which this one means nothing.
      incidental: changes no number of a run beyond rounding; a run resumes with another.
      untimed: changes neither a shape nor how long a round takes.
      splits: decides who holds which examples, so `fedjax-adapt partition` has it.
      matched: the same in a run and in the one that `match` names.
    """

    help: str
    group: str
    check: Check | None = None
    needs: str = ""
    incidental: bool = False
    untimed: bool = False
    splits: bool = False
    matched: bool = False


def at_least(low: int, none: str | None = None) -> Check:
    """A check for integers from `low` on; `none` says what None means."""
    return lambda name, value: check.at_least(name, value, low, none=none)


def between(low: float, high: float, closed: str = "both") -> Check:
    """A check for numbers in a range, or for several of them."""

    def in_range(name: str, value: Any) -> None:
        for one in value if isinstance(value, Iterable) else (value,):
            check.between(name, one, low, high, closed)

    return in_range


def check_seed(name: str, value: int | None) -> None:
    """Raises SettingError unless `value` is a seed, or None."""
    check.between(name, value or 0, 0, 2**32 - 1)


def check_path(name: str, value: object) -> None:
    """Raises SettingError if a path is empty, which would be the working folder."""
    if value == "":
        raise SettingError(
            f"{name}='' is empty; write the path of a folder, or leave {name} out.",
            setting=name,
        )


def check_ways(name: str, value: str) -> None:
    """Raises SettingError unless `value` names ways to compute convolutions."""
    if value in ("auto", "rule"):
        return
    from ..models.ways import WAYS  # and flax, which takes its time

    if "," not in value:
        check.one_of(name, value, ("auto", "rule", *WAYS))
        return
    for way in value.removesuffix(",").split(","):
        check.one_of(name, way.strip(), WAYS)
