"""The simulated clock of a config, its quantities written as numbers or laws."""

import ast
import inspect

from ..costs import LAWS, Clock, Law
from ..errors import SettingError
from .config import Config, partition_seed

UNREADABLE = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)


def build_clock(config: Config) -> Clock | None:
    """What a round takes; None without `step_seconds`.

    Raises:
      ValueError: a quantity is neither a number nor a law, or out of range.
    """
    if config.step_seconds is None:
        return None
    of = lambda name: quantity(name, getattr(config, name))
    download = config.download_bandwidth
    return Clock(
        step_seconds=of("step_seconds"),
        bandwidth=of("bandwidth"),
        download_bandwidth=None if download is None else of("download_bandwidth"),
        latency=config.latency,
        delay=of("delay"),
        delay_persists=config.delay_persists,
        seed=clock_seed(config),
    )


def clock_seed(config: Config) -> int:
    """The seed of the clock: that of the partition, unless another is given."""
    return partition_seed(config) if config.clock_seed is None else config.clock_seed


def quantity(name: str, value: float | str) -> float | Law:
    """A number as it is, a text such as "lognormal(0.05, 0.5)" as the law it names."""
    if not isinstance(value, str):
        return value
    try:
        call = ast.parse(value, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise TypeError("no law")
        law = LAWS[call.func.id]
        arguments = [float(ast.literal_eval(node)) for node in call.args]
        options = {str(k.arg): float(ast.literal_eval(k.value)) for k in call.keywords}
        inspect.signature(law).bind(*arguments, **options)
    except (*UNREADABLE, KeyError, OverflowError):
        known = ", ".join(f"{n}({', '.join(_arguments(n))})" for n in LAWS)
        raise SettingError(
            f"{name}={value!r} is neither a number nor a law; write one of {known}.",
            setting=name,
        ) from None
    try:
        return law(*arguments, **options)
    except ValueError as error:  # out of range
        raise SettingError(f"{name}={value!r}: {error}", setting=name) from None


def _arguments(law: str) -> list[str]:
    return list(inspect.signature(LAWS[law]).parameters)
