"""What a round on a GPU spends in kernels, between them, and waiting for the host.

    python benchmarks/kernels.py --workload w2 --algorithm fedssg

jax.profiler writes down when each kernel of some rounds began and ended. A gap between two
kernels that is shorter than LONG is the device waiting for the next launch; a longer one is
the host waiting for the device, or doing something else. One line of JSON, whose figures
are of a round; launches.py assumes LAUNCH and WAIT, and these are what they are compared
with. Beside them are the milliseconds of a round without the profiler, with a wait after
each and without, and the kernels that take longest in all. Without a GPU there are no
kernels to see: `--plane /host:CPU` tries the script.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import rounds
from jax.profiler import ProfileData

LONG = 8e-6  # seconds
GPU = "/device:GPU:0"
LONGEST, LETTERS = 10, 70  # kernels that are named, and of their names


class Span(NamedTuple):
    """When a kernel began and ended, in seconds."""

    begin: float
    end: float
    name: str = ""


def spans_of(folder: Path, plane: str) -> list[Span]:
    """What ran on a device, of what the profiler has written below a folder."""
    (path,) = folder.rglob("*.xplane.pb")
    found = []
    for one in ProfileData.from_file(str(path)).planes:
        if one.name != plane:
            continue
        for line in one.lines:
            # other lines say again which step, module or operation it was
            if line.name.startswith("Stream") or plane != GPU:
                found += [
                    Span(e.start_ns / 1e9, e.end_ns / 1e9, e.name) for e in line.events
                ]
    return found


def figures(spans: Iterable[Span], num_rounds: int) -> dict[str, float]:
    """Where the time of a round went, in milliseconds.

    Returns:
      kernels: how many there were.
      kernel_ms: that at least one ran.
      launch_ms: of gaps up to LONG.
      wait_ms: of longer ones; waits: how many.
      kernel_us, launch_us, wait_us: medians of one.
    """
    spans = sorted(spans)
    if not spans:
        raise SystemExit(f"there is no kernel to be seen; {GPU} is no device here.")
    busy, gaps, until = 0.0, [], spans[0].begin
    for begin, end, _ in spans:
        if begin > until:
            gaps.append(begin - until)
        busy += max(end - max(begin, until), 0.0)
        until = max(until, end)
    short = [gap for gap in gaps if gap <= LONG]
    long = [gap for gap in gaps if gap > LONG]
    each = lambda seconds: round(1e3 * sum(seconds) / num_rounds, 4)
    middle = lambda seconds: round(1e6 * sorted(seconds)[len(seconds) // 2], 2)
    of_one = {"kernel": [s.end - s.begin for s in spans], "launch": short, "wait": long}
    return {
        "kernels": len(spans) / num_rounds,
        "kernel_ms": each([busy]),
        "launch_ms": each(short),
        "wait_ms": each(long),
        "waits": len(long) / num_rounds,
        **{f"{name}_us": middle(some) for name, some in of_one.items() if some},
    }


def longest(spans: Iterable[Span], num_rounds: int) -> list[list]:
    """The kernels that take longest in all: name, times a round, milliseconds a round."""
    times, seconds = Counter(), Counter()
    for span in spans:
        times[span.name] += 1
        seconds[span.name] += span.end - span.begin
    a_round = lambda number: round(number / num_rounds, 4)
    return [
        [name[:LETTERS], a_round(times[name]), a_round(1e3 * taken)]
        for name, taken in seconds.most_common(LONGEST)
    ]


def profile(arguments: argparse.Namespace) -> dict:
    """The figures of some rounds, after others that are not looked at."""
    built = rounds.build(arguments)
    num_rounds = arguments.rounds * arguments.rounds_a_call
    first, timed = built.keys[: arguments.warmup], built.keys[arguments.warmup :]

    def train(state, keys, wait: bool):
        """The state after some calls, and the milliseconds of a round."""
        began = time.perf_counter()
        for key in keys:
            state, _ = built.step(built.round_fn, state, key)
            state = jax.block_until_ready(state) if wait else state
        jax.block_until_ready(state)
        return state, round(1e3 * (time.perf_counter() - began) / num_rounds, 4)

    state, _ = train(built.state, first, wait=True)
    state, waited = train(state, timed, wait=True)
    state, queued = train(state, timed, wait=False)
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder)
        train(state, timed, wait=True)
        jax.profiler.stop_trace()
        spans = spans_of(Path(folder), arguments.plane)
    return {
        "workload": arguments.workload,
        "algorithm": arguments.algorithm,
        "precision": arguments.precision,
        "lanes": built.round_fn.num_lanes,
        "rounds": num_rounds,
        "rounds_a_call": arguments.rounds_a_call,
        "waited_ms": waited,
        "queued_ms": queued,
        **figures(spans, num_rounds),
        "longest": longest(spans, num_rounds),
        "commit": rounds.commit(),
        "hardware": rounds.hardware(),
    }


def options() -> argparse.ArgumentParser:
    """Those of rounds.py, and which device to look at."""
    parser = rounds.options()
    parser.description = __doc__.partition("\n")[0]
    parser.add_argument("--plane", default=GPU, help=f"a plane of the trace; {GPU}")
    parser.set_defaults(check=False, devices="1")
    return parser


def main() -> None:
    arguments = options().parse_args()
    rounds.check(options(), arguments)
    print(json.dumps(profile(arguments)))


if __name__ == "__main__":
    main()
