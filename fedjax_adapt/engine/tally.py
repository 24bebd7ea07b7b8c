"""What rounds count, from their infos on the host, and a callback that is given it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from .. import check
from ..core import Info, PyTree
from ..errors import SettingError

# what is counted from a beginning on
TOTALS = {"local_steps": int, "public_steps": int, "bytes_down": int, "bytes_up": int}
TOTALS |= {"simulated_seconds": float, "wasted_bytes": int, "wasted_steps": int}

Callback = Callable[[dict[str, Any]], bool | None]  # True: stop


def counted(infos: Info, before: Mapping[str, float]) -> dict[str, Any]:
    """The figures of some rounds together.

    Args:
      infos: NumPy arrays [rounds, cohort, ...].
      before: the `TOTALS` before these rounds.
    """
    active = infos.num_steps > 0
    # where nothing is sent no client was asked, and steps only show a loss
    asked = np.asarray(infos.bytes_down + infos.bytes_up > 0)
    counted = infos.num_steps * asked.reshape(-1, 1)
    steps = int(counted.sum(dtype=np.int64))
    losses = infos.loss[active].astype(np.float64)
    clipped = (infos.clipped * infos.num_steps)[active].sum(dtype=np.float64)
    grown = {"local_steps": steps, "simulated_seconds": infos.seconds}
    grown |= {"bytes_down": infos.bytes_down, "bytes_up": infos.bytes_up}
    for name in ("public_steps", "wasted_bytes", "wasted_steps"):
        grown[name] = getattr(infos, name)
    total = lambda name: before[name] + np.sum(grown[name], dtype=np.float64)
    return {
        "train_loss": float(losses.mean()) if losses.size else float("nan"),
        "cohort": float(infos.num_active.mean(dtype=np.float64)),
        **{name: kind(total(name)) for name, kind in TOTALS.items()},
        "clipped": float(clipped / max(steps, 1)),
        "cut": int(np.sum(infos.cut, dtype=np.int64)),
        "delta_norm": float(infos.delta_norm[-1]),
        **{name: float(leaf[-1]) for name, leaf in reports(infos) if leaf.ndim == 1},
    }


def reports(infos: Info) -> list[tuple[str, Any]]:
    """What step policy, refinement and server rule show, with the names of columns."""
    return [*named(infos.policy), *named(infos.refine), *named(infos.server)]


def named(tree: PyTree) -> list[tuple[str, Any]]:
    """The leaves of diagnostics, with the names of their columns."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator=".") or "info", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def each_round(
    infos: Info, done: int, before: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """The figures of each round by itself: its number, and as `counted`.

    Args:
      infos: NumPy arrays [rounds, cohort, ...].
      done: rounds done before these.
      before: the `TOTALS` then.
    """
    for i in range(len(infos.delta_norm)):
        one = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], infos)
        figures = counted(one, before)
        before = {name: figures[name] for name in TOTALS}
        yield {"round": done + i + 1} | figures


def check_callback(call: str, callback: Any) -> None:
    """Raises ValueError if it can be no callback; `call`: what to write."""
    check.kinds(call, callback=(callback, lambda c: c is None or callable(c)))


def asks_to_stop(callback: Callback, figures: dict[str, Any]) -> bool:
    """Calls it.

    Raises:
      ValueError: it returned neither True nor False nor None.
    """
    answer = callback(figures)
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    raise SettingError(
        f"callback returned {check.kind_of(answer)}; return True to stop, or nothing to "
        "go on."
    )
