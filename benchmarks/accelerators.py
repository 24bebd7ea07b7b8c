"""What an H100 or a TPU v5e would run, compiled and counted on a machine without either.

    pip install '.[aot]'
    python benchmarks/accelerators.py                        # H100, everything
    python benchmarks/accelerators.py --only w2 scaffold round --lanes 25
    python benchmarks/accelerators.py --only w2 fedavg round --devices 8
    python benchmarks/accelerators.py --platform tpu --only w1 w2 round bare

XLA's own compilers make the programs that users run: one round, a chunk of rounds with an
evaluation (as `fa.train_and_evaluate` has it) and a sweep of 8 learning rates (as
`fedjax-adapt sweep` has it), each of which gives up the memory of its state; and for every
workload the bare loop, SGD in plain JAX. programs.py builds them, hlo.py reads their text,
launches.py says what it costs. Nothing is run. Lines go to
results/accelerators-DATE.jsonl; one that is there for the same commit is not made again.

Autotuning needs the device and is off: which library computes a product, and in what
tiles, may differ there.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
from hlo import Array, read
from launches import counts
from programs import KINDS, MEMORY, PROGRAMS, build, devices_of, platform_is
from readings import RESULTS, Ledger, Line, evidence, number_or_auto

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.core.precision import PRECISIONS
from fedjax_adapt.engine.footprint import footprint
from fedjax_adapt.models.ways import WAYS

COLUMNS = {  # heads and fields
    "launches a step": "launches_per_step",
    "nested loops": "nested_loops",
    "trips": "step_trips",
    "waits a step": "waits_per_step",
    "launches outside": "launches_outside",
    "dynamic loops": "dynamic_loops_outside",
    "conditionals": "conditionals_outside",
    "table copies": "table_copies",
    "transfers": "transfers",
    "temporary MB": "temp_mb",
    "as predicted": "predicted_temp_mb",
    "peak MB": "peak_mb",
    "predicted": "predicted_mb",
    "arguments MB": "argument_mb",
    "trace s": "trace_s",
    "compile s": "compile_s",
    "H100 ms": "h100_ms",
    "H200 ms": "h200_ms",
    "GB": "gigabytes",
    "GFLOP": "gflop",
    "collectives": "collectives",
}
ROUNDS_ALONE = (
    *("w2-epochs", "w2-unequal", "w2-unequal-auto"),
    *("w2-10000", "w2-504", "w2-504-all"),
)
# algorithms of a workload; of others FedAvg
USUAL = {"w2": [*ALGORITHMS]} | dict.fromkeys(
    ROUNDS_ALONE, ["fedavg", "scaffold", "fedssg", "feddc"]
)
HLO_DTYPES = {"float32": "f32", "bfloat16": "bf16", "int32": "s32", "uint32": "u32"}


def compiled(setting: Line, folder: Path | None) -> Line:
    """What a program takes to compile and to run. `folder`: for its text."""
    jax.clear_caches()  # of what was traced for another platform or number of devices
    platform, num_devices = setting["platform"], setting["devices"]
    devices = devices_of(platform)[:num_devices]
    built = build(setting)
    line: Line = {"num_lanes": built.num_lanes}
    tables = []
    # without it compiling begins with measurements on the device
    options = {"xla_gpu_autotune_level": "0"} if platform == "cuda" else None
    with platform_is(platform, devices if num_devices > 1 else None):
        begin = time.perf_counter()
        traced = jax.jit(built.function, donate_argnums=0).trace(*built.arguments)
        lowered = traced.lower(lowering_platforms=(platform,))
        middle = time.perf_counter()
        program = lowered.compile(options)
        line["trace_s"] = round(middle - begin, 2)
        line["compile_s"] = round(time.perf_counter() - middle, 2)
        if built.state is not None:
            others, jaxpr = built.arguments[1:], traced.jaxpr.jaxpr
            needed = footprint(jaxpr, built.state, others, num_devices)
            line["predicted_temp_mb"] = needed.work >> 20
            line["predicted_mb"] = needed.total >> 20
            tables = tables_of(built.state)
    text = program.as_text() or ""
    if folder:
        name = "-".join(str(value) for value in setting.values() if value)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(text)
    size = built.num_rounds, built.num_steps, built.inner_loops
    found = counts(read(text), *size, tables)
    if platform == "tpu":  # where loops need no host, and kernels are not launched
        kept = ("table_copies", "transfers", "collectives")
        cost = program.cost_analysis() or {}  # one trip of every loop
        found = {name: found[name] for name in kept}
        found["gigabytes"] = round(cost.get("bytes accessed", 0.0) / 1e9, 3)
        found["gflop"] = {"all": round(cost.get("flops", 0.0) / 1e9, 3)}
    return line | _sizes(program) | found


def _sizes(program: Any) -> Line:
    """Memory on a device, in MB."""
    of = program.memory_analysis()
    new = of.output_size_in_bytes - of.alias_size_in_bytes
    temp, argument = of.temp_size_in_bytes, of.argument_size_in_bytes
    sizes = {"temp": temp, "argument": argument, "peak": temp + argument + new}
    return {f"{name}_mb": size >> 20 for name, size in sizes.items()}


def tables_of(state: fa.State) -> list[Array]:
    """The larger arrays of clients' states, as they lie on a device."""
    tables = [
        Array(HLO_DTYPES[leaf.dtype.name], leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(state.clients)
        if leaf.dtype.name in HLO_DTYPES
    ]
    most = max((table.bytes for table in tables), default=0)
    # of a small one, as of biases, many another array has the shape
    return [table for table in tables if 10 * table.bytes >= most]


def settings(given: argparse.Namespace) -> Iterator[Line]:
    """Of the programs that are asked for."""
    named = lambda names: [name for name in names if name in given.only]
    kinds, algorithms, programs = map(named, (KINDS, ALGORITHMS, PROGRAMS))
    options = ("lanes", "convolutions", "precision", "devices")
    for kind in kinds or KINDS:
        usual = USUAL.get(kind, ["fedavg"])
        if algorithms:
            usual = algorithms if kinds else [a for a in algorithms if a in usual]
        some = programs or (["round"] if kind in ROUNDS_ALONE else PROGRAMS)
        if given.devices > 1:
            some = [name for name in some if name in ("round", "chunk")]
        cases = [("", "bare")] if "bare" in some and usual else []
        cases += [(a, name) for a in usual for name in some if name != "bare"]
        for algorithm, name in cases:
            which = {"workload": kind, "algorithm": algorithm, "program": name}
            how = {option: getattr(given, option) for option in options}
            yield {"platform": given.platform} | which | how


def row(line: Line) -> str:
    """A line of the table."""
    names = (line[name] for name in ("workload", "algorithm", "program"))
    shown = (_shown(line.get(field, "")) for field in COLUMNS.values())
    return f"| {' '.join(filter(None, names))} | {' | '.join(shown)} |"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " x ".join("?" if one is None else str(one) for one in value)
    if isinstance(value, dict):
        of = lambda v: f"{v[0]}, {v[1] / 1e6:.3g} MB" if isinstance(v, list) else v
        return "; ".join(f"{kind}: {of(some)}" for kind, some in value.items())
    return str(value)


def measure(given: argparse.Namespace) -> None:
    """Makes the lines that are missing, and prints all that are asked for."""
    ledger = Ledger(given.results)
    same = {name: evidence()[name] for name in ("commit", "versions")}
    changed = str(same["commit"]).endswith("+")  # in an unknown way
    print(f"| program | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for setting in settings(given):
        found = [] if changed else ledger.find(**setting, **same)
        if not found:
            try:
                found = [setting | compiled(setting, given.hlo) | evidence()]
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                which = " ".join(str(value) for value in setting.values() if value)
                said = str(error).partition("\n")[0]
                print(f"left out: {said} ({which})", file=sys.stderr)
                continue
            ledger.add(found[0])
        print(row(found[-1]), flush=True)


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    names = [*KINDS, *ALGORITHMS, *PROGRAMS]
    parser.add_argument("--platform", choices=MEMORY, default="cuda")
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="NAME")
    parser.add_argument("--lanes", type=number_or_auto, help="default: the workload's")
    parser.add_argument("--convolutions", choices=WAYS)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--devices", type=int, default=1, help="up to 4 TPU v5e")
    parser.add_argument("--hlo", type=Path, help="folder that keeps the programs' text")
    today = datetime.now(UTC).date().isoformat()
    file = RESULTS / f"accelerators-{today}.jsonl"
    parser.add_argument("--results", type=Path, default=file)
    return parser


def main() -> None:
    given = options().parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", given.devices)  # for what is traced
    measure(given)


if __name__ == "__main__":
    main()
