"""The flags of `fedjax-adapt contributions`: a run, and what to compare its r_k with."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ..errors import SettingError
from .config import common_options
from .flag_errors import paths_and_flags, words_of
from .flags import read_flags
from .options import Option
from .valuation import ORDERS, Reference, Value

PROGRAM = "fedjax-adapt contributions"
DESCRIPTION = """\
fedjax-adapt contributions RUN [OPTIONS] ranks the clients of a run of fedgsnr by the mean
of their r_k, and draws it.

With --reference the round after the newest checkpoint is run again, outside the run, and
its clients are valued on the test set; Spearman's rho says how r_k agrees with that."""
FLAGS = {
    "reference": Option(
        Reference | None,
        None,
        "a client's worth: how much worse the model is without it, or its Shapley value; "
        "none: r_k only",
    ),
    "value": Option(Value | None, None, "of a model, on the test set; none: loss"),
    "orders": Option(
        int | None, None, f"random orders for shapley, more say more; none: {ORDERS}"
    ),
    "tolerance": Option(
        float | None, None, "how near to the value of all an order of shapley may end"
    ),
    "data_dir": common_options()["data_dir"],
    "devices": Option(
        int | Literal["auto"] | None, None, "that share the round; none: as in the run"
    ),
}


class Request(NamedTuple):
    """What a command line asks for."""

    folder: str
    options: dict[str, Any]  # of `value_cohort`; empty: rank by r_k only


def parse(arguments: Sequence[str]) -> Request:
    """Reads the arguments of `fedjax-adapt contributions`.

    Raises:
      ValueError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    asks = any(word in ("-h", "--help") for word in arguments)
    folders, given = paths_and_flags(arguments, "contributions")
    if len(folders) != 1 and not asks:
        raise SettingError(
            f"contributions got {len(folders)} folders before its flags; give the folder "
            "of one run, as in fedjax-adapt contributions runs/mine."
        )
    values = read_flags(given, {"reference": FLAGS}, {}, PROGRAM, DESCRIPTION)
    (folder,) = folders
    if values["reference"] is not None:
        return Request(folder, values | {"value": values["value"] or "loss"})
    for name in words_of(given):
        if name != "reference":
            which = "shapley" if name in ("orders", "tolerance") else "leave_one_out"
            raise SettingError(
                f"--{name.replace('_', '-')} is about what r_k is compared with; write "
                f"--reference {which} as well, or leave it out."
            )
    return Request(folder, {})
