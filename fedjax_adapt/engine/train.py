"""Many rounds on the device, and what they count.

They are a scan, in chunks, with the state donated from one to the next and evaluation
inside the program. A callback is given the figures of each round, on the host.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Info, Key, PyTree, RoundFn, State, no_state
from ..errors import SettingError
from . import memory
from .round import Round
from .xla import compiler_options, jit_newest, wait_for_shared_cpu_state

# what is counted from a beginning on
TOTALS = dict.fromkeys(("local_steps", "public_steps", "bytes_down", "bytes_up"), int)
TOTALS |= {"simulated_seconds": float, "wasted_bytes": int, "wasted_steps": int}
TOTALS |= {"left_out": int}

# the other names of `counted` and `each_round`
FIGURES = ("round", "train_loss", "cohort", *TOTALS, "clipped", "cut", "delta_norm")

Callback = Callable[[dict[str, Any]], bool | None]  # True: stop


def train(
    round_fn: RoundFn,
    state: State,
    keys: Key,
    chunk_size: int = 100,
    callback: Callback | None = None,
) -> tuple[State, Info]:
    """Runs one round per key.

    Args:
      round_fn: from `make_round`, or any (state, key) -> (state, info).
      state: the state before the first round; it stays valid.
      keys: one key per round, [rounds].
      chunk_size: rounds per dispatch. Chunks change no result.
      callback: called after each chunk, once for each of its rounds, with a dict: round
        (1 is the first after `init_state`), train_loss (mean local objective of the
        clients that trained, without those left out), cohort (how many trained),
        local_steps, public_steps, bytes_down, bytes_up, simulated_seconds, wasted_bytes,
        wasted_steps and left_out, the updates of `Info.left_out` (since the call of
        `train`), clipped, cut, delta_norm and the scalars that the algorithm reports. If
        it returns True no other chunk begins. The rounds of the chunk after that one have
        been run by then: state and infos are those of the chunk's end, and the callback is
        not called for them; `chunk_size=1` stops at once. What it raises is raised;
        `state` is valid.

    A method whose equations have the number of rounds (FedSSG) is given those before and
    those of this call, unless the plan says: write `Plan(rounds=...)` where several calls
    make one run.

    Returns:
      The state after the last round, and the infos of all rounds, [rounds, ...].

    Raises:
      SettingError: an argument is not of its kind, there is no key, the plan or the
        algorithm says another number of rounds, or a callback has no figures to be called
        with: the infos are not those of `make_round`, two figures have one name, or
        JAX is tracing.
    """
    check.kinds(
        "train(round_fn, state, jax.random.split(key, rounds))",
        round_fn=(round_fn, Callable),
        state=(state, _is_state),
        keys=(keys, check.array),
    )
    state, infos, _ = train_and_evaluate(
        round_fn, state, keys, no_state, 1, chunk_size, callback
    )
    return state, infos


def train_and_evaluate(
    round_fn: RoundFn,
    state: State,
    keys: Key,
    measure: Callable[[State], PyTree],
    every: int = 1,
    chunk_size: int = 100,
    callback: Callback | None = None,
) -> tuple[State, Info, PyTree]:
    """Runs one round per key and measures the state after each `every` rounds.

    Args:
      round_fn: from `make_round`, or any (state, key) -> (state, info).
      state: the state before the first round; it stays valid.
      keys: one key per round, [rounds]; rounds is a multiple of `every`.
      measure: what to take down, e.g. `jax.tree_util.Partial(f, test_set)`, whose arrays
        become arguments of the program rather than constants in it.
      every: rounds between measurements.
      chunk_size: rounds per dispatch, rounded down to a multiple of `every`.
      callback: as for `train`; what is measured is not among its figures.

    Returns:
      The last state, infos [rounds, ...] and measures [rounds / every, ...].

    Raises:
      SettingError: the number of keys is no multiple of `every`, or an argument is not of
        its kind.
    """
    check.kinds(
        "train_and_evaluate(round_fn, state, jax.random.split(key, rounds), measure)",
        round_fn=(round_fn, Callable),
        state=(state, _is_state),
        keys=(keys, check.array),
        measure=(measure, Callable),
    )
    if isinstance(round_fn, Round):
        check.kinds("train(round_fn, state, keys)", state=(state, State))
    if check.key(keys):
        raise SettingError(
            "keys is one key, for no number of rounds; write jax.random.split(key, rounds)."
        )
    if not check.keys(keys):
        raise SettingError(
            f"keys is {check.leaf(keys)}, no vector of keys; write "
            "jax.random.split(key, rounds)."
        )
    if keys.ndim == 2:  # of jax.random.PRNGKey
        keys = jax.random.wrap_key_data(keys)
    check.at_least("every", every, 1)
    check.at_least("chunk_size", chunk_size, 1)
    rounds = keys.shape[0]
    if not rounds:
        raise SettingError("keys is empty; write jax.random.split(key, rounds).")
    if rounds % every:
        raise SettingError(
            f"got {rounds} round keys with every={every}; give a multiple of {every}."
        )
    chunk = max(chunk_size // every, 1) * every
    place = getattr(round_fn, "placed", lambda state: state)
    if isinstance(round_fn, Round):
        round_fn = round_fn.for_rounds(state.round, rounds)
    functions = (_as_pytree(round_fn), _as_pytree(measure))
    leaves, structure = jax.tree.flatten(functions)
    state = place(state)
    memory.check_copy(state)
    state = jax.tree.map(jnp.copy, state)  # the chunks below donate it
    check_callback("train(round_fn, state, keys, callback=callback)", callback)
    traced = any(map(check.is_tracer, jax.tree.leaves((leaves, state, keys))))
    options = None if traced else compiler_options(getattr(round_fn, "num_lanes", 1))
    reporter = None if callback is None else _Reporter(callback, state, traced)
    parts = []
    for begin in range(0, rounds, chunk):
        some = keys[begin : begin + chunk]
        with warnings.catch_warnings():
            # under an outer vmap the state may be shared, and is copied instead
            warnings.filterwarnings("ignore", message="Some donated buffers")
            state, *part = _chunk(
                structure, every, leaves, state, some, compiler_options=options
            )
        parts.append(part)
        wait_for_shared_cpu_state(state)
        if reporter is not None and reporter.stops(part[0]):
            break
    if len(parts) > 1:
        parts = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)]
    return state, *parts[0]


class _Reporter:
    """A callback, and what was counted so far."""

    def __init__(self, callback: Callback, state: State, traced: bool):
        _refuse_traced(traced)
        self.callback = callback
        self.done = int(state.round) if isinstance(state, State) else 0
        self.totals = dict.fromkeys(TOTALS, 0)

    def stops(self, infos: Info) -> bool:
        """Calls it for each round, until it returns True."""
        # of a number in the closure of a part nothing was seen before
        _refuse_traced(any(map(check.is_tracer, jax.tree.leaves(infos))))
        if not isinstance(infos, Info):
            raise SettingError(
                f"callback has no figures to be given: round_fn returned "
                f"{check.kind_of(infos)}, no Info; take a round_fn of make_round."
            )
        infos = jax.device_get(infos._replace(clients=()))
        check_names(infos, FIGURES)
        for figures in each_round(infos, self.done, self.totals):
            self.done = figures["round"]
            self.totals = {name: figures[name] for name in TOTALS}
            if asks_to_stop(self.callback, figures):
                return True
        return False


def _refuse_traced(traced: bool) -> None:
    """Raises SettingError if JAX is tracing train as a whole."""
    if traced:
        raise SettingError(
            "callback is called between chunks, but JAX is tracing train as a whole; "
            "leave callback out, or call train outside of jit, vmap and scan."
        )


def _is_state(value: PyTree) -> bool:
    """Whether rounds may begin with it: a State, or a tree of a user's own."""
    return isinstance(value, State) or check.tree(value)


@jit_newest(static=2, donate_argnums=1)
def _chunk(structure, every, leaves, state, keys):
    round_fn, measure = jax.tree.unflatten(structure, leaves)

    def block(state, keys):
        state, infos = jax.lax.scan(round_fn, state, keys)
        return state, (infos, measure(state))

    grouped = keys.reshape(-1, every)
    state, (infos, measures) = jax.lax.scan(block, state, grouped)
    infos = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), infos)
    return state, infos, measures


def _as_pytree(function: Callable) -> Callable:
    """A callable that jit takes as an argument: its arrays are leaves, its code static."""
    leaves = jax.tree.leaves(function)
    if len(leaves) == 1 and leaves[0] is function:
        return jax.tree_util.Partial(function)
    return function


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
    counts = active if isinstance(infos.left_out, tuple) else active & ~infos.left_out
    losses = infos.loss[counts].astype(np.float64)
    clipped = (infos.clipped * infos.num_steps)[active].sum(dtype=np.float64)
    more = {"local_steps": steps, "simulated_seconds": infos.seconds}
    grown = infos._asdict() | more
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
    """The reports of step policy, refinement and server rule, by column."""
    return [*named(infos.policy), *named(infos.refine), *named(infos.server)]


def check_names(
    infos: Info, taken: Collection[str], of_clients: Collection[str] | None = None
) -> None:
    """Raises SettingError if something that a part shows has the name of something else.

    Args:
      infos: of some rounds, [rounds, ...], or their shapes.
      taken: the names of other figures of a round.
      of_clients: likewise of a client; None: what is shown of clients does not count.
    """
    shown = [
        ("StepPolicy.report", named(infos.policy)),
        ("the refinement's report", named(infos.refine)),
        ("ServerRule.report", named(infos.server)),
        ("Upload.info", named(infos.clients)),
    ]
    known: dict[str, dict[str, str]] = {
        "round": dict.fromkeys(taken, "a figure of the run itself"),
        "client": dict.fromkeys(of_clients or (), "a figure of the run itself"),
    }
    for part, pairs in shown:
        for name, leaf in pairs:
            kind = "client" if leaf.ndim > 1 else "round"
            if kind == "client" and of_clients is None:
                continue
            if name in known[kind]:
                raise SettingError(
                    f"{part} shows {name!r} of each {kind}, which is the name of "
                    f"{known[kind][name]}; give it another name."
                )
            known[kind][name] = f"what {part} shows"


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
    """Raises SettingError if it can be no callback; `call`: what to write."""
    check.kinds(call, callback=(callback, lambda c: c is None or callable(c)))


def asks_to_stop(callback: Callback, figures: dict[str, Any]) -> bool:
    """Calls it.

    Raises:
      SettingError: it returned neither True nor False nor None.
    """
    answer = callback(figures)
    if answer is None or isinstance(answer, bool | np.bool_):
        return bool(answer)
    raise SettingError(
        f"callback returned {check.kind_of(answer)}; return True to stop, or nothing to "
        "go on."
    )
