"""What each way of computing a convolution takes, layer by layer, and which is chosen.

    python benchmarks/convolutions.py                      # the CNN of W1, 50 images a step
    python benchmarks/convolutions.py --models cnn resnet18 --lanes 10 --devices 1
    python benchmarks/convolutions.py --precision bf16     # as training in it has them

A reading is a loop of a few steps of one layer: forward and both gradients, of which the
first layer of a model needs but one. `rule` is what models/ways.py takes unmeasured,
`least` the fastest here, which a long run finds by itself (models/timing.py). Printed are
the milliseconds of a step on all devices at once: median (minimum to maximum) over the
passes. Several lanes on a CPU leave out XLA's own convolution, the slowest there by far.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from readings import Case, Ledger, Read, Ready, add_options, described, effort_of, take

import fedjax_adapt as fa
from fedjax_adapt.core import precise
from fedjax_adapt.core.precision import PRECISIONS
from fedjax_adapt.engine.xla import compiler_options
from fedjax_adapt.models import MODELS, timing
from fedjax_adapt.models.ways import WAYS, Layer, by_rule, layers_of

SHAPES = {"fedveca_cnn": (28, 28, 1)}  # of the inputs, if not CIFAR's
CONVOLUTIONAL = ("cnn", "lenet5", "fedveca_cnn", "vgg11", "vgg16", "resnet18")


def layers(model: str, precision: str, batch: int) -> tuple[fa.Task, list[Layer]]:
    """A model as it is trained, and the kinds of its convolutions."""
    shape = SHAPES.get(model, (32, 32, 3))
    task = fa.classification(MODELS[model](shape, 10), shape)
    task = fa.with_precision(task, precision)
    return task, layers_of(task, jax.ShapeDtypeStruct((batch, *shape), jnp.float32))


def build(task: fa.Task, layer: Layer, way: str, first: bool, arguments) -> Ready:
    """A loop, ready to be timed."""
    lanes, devices = arguments.lanes, arguments.devices
    options = compiler_options(lanes)
    try:
        with precise(task):
            loop, given = timing.compiled(layer, way, lanes, devices, options, first)
        jax.block_until_ready(loop(np.int32(1), *given))
    except jax.errors.JaxRuntimeError as error:  # no room, or XLA refuses
        raise ValueError(str(error).partition("\n")[0]) from None
    steps = np.int32(timing.STEPS)
    return Ready(lambda: loop(steps, *given), units=timing.STEPS)


def cases_of(task, model: str, layer: Layer, first: bool, arguments) -> dict[str, Case]:
    """A case for every way to try."""
    here = {"model": model, "layer": str(layer), "backend": jax.default_backend()}
    here |= {name: getattr(arguments, name) for name in ("lanes", "devices")}
    here |= {"precision": arguments.precision, "rule": by_rule(layer)}
    return {
        way: Case(
            here | {"way": way}, partial(build, task, layer, way, first, arguments)
        )
        for way in timing.ways_to_try(layer, arguments.lanes)
    }


def row(layer: Layer, cases: dict[str, Case], ledger: Ledger) -> str:
    """Times, the rule's way and the one that took least."""
    read = Read(ledger, cases)
    times = {
        way: read.value(lambda s: f"{1e3 * s:.3g}", way) if way in cases else ""
        for way in WAYS
    }
    middle = lambda way: sorted(read.of[way].values())[len(read.of[way]) // 2]
    timed = [way for way in cases if read.of[way]]
    least = min(timed, key=middle, default="")
    return " | ".join([str(layer), *times.values(), by_rule(layer), least])


def measure(arguments: argparse.Namespace) -> None:
    """Takes what is missing and prints a table for each model."""
    ledger, used = Ledger(arguments.results), []
    for model in arguments.models:
        rows = []
        task, kinds = layers(model, arguments.precision, arguments.batch)
        for i, layer in enumerate(kinds):
            cases = cases_of(task, model, layer, not i, arguments)
            take([*cases.values()], ledger, effort_of(arguments))
            rows.append(row(layer, cases, ledger))
            used += cases.values()
        how = f"{arguments.lanes} lanes, {arguments.devices} devices"
        print(f"\n{model}, {arguments.precision}, {how}\n")
        head = ["layer", *WAYS, "rule", "least"]
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        print("\n".join(f"| {row} |" for row in rows))
    print(described(line for case in used for line in ledger.find(**case.setting)))


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["cnn"], choices=CONVOLUTIONAL)
    parser.add_argument("--batch", type=int, default=50, help="images a step")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--lanes", type=int, default=1, help="clients side by side")
    parser.add_argument("--devices", type=int, help="at the same time; all of them")
    add_options(parser, "convolutions")
    return parser


def main() -> None:
    arguments = options().parse_args()
    fa.cores_as_devices(arguments.devices)
    arguments.devices = arguments.devices or jax.local_device_count()
    measure(arguments)


if __name__ == "__main__":
    main()
