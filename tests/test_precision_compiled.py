"""What XLA's compiler for an H100 makes of a precision, on a machine that has none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import skip_without_cuda_compiler

DEVICE = Path(__file__).parents[1] / "benchmarks" / "h100.txtpb"

PROGRAM = """
import json, re, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
import fedjax_adapt as fa

device, precision, folder = sys.argv[1:]
spec = Path(device).read_text()
where = {"target_config": spec, "topology": "1x1x1"}
h100 = topologies.get_topology_desc("h100", "cuda", **where).devices[0]
values = np.random.default_rng(0)
x = values.normal(size=(400, 28, 28, 1)).astype(np.float32)
y = values.integers(0, 10, 400)
data = fa.FederatedDataset.from_clients(
    [(x[i :: 4], y[i :: 4]) for i in range(4)], num_classes=10
)
model = fa.models.fedveca_cnn((28, 28, 1), 10)
task = fa.with_precision(fa.classification(model, (28, 28, 1)), precision)
plan = fa.Plan(batch_size=32, lanes=4)
state = fa.init_state(fa.algorithms.scaffold(), task, data, plan, jax.random.key(0))
round_fn = fa.make_round(fa.algorithms.scaffold(), task, data, plan)
jax.default_backend = lambda: "gpu"
on_it = jax.sharding.SingleDeviceSharding(h100)
shaped = lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.asarray(a).dtype, sharding=on_it)
given = jax.tree.map(shaped, (round_fn, state, jax.random.key(1)))
traced = jax.jit(lambda round_fn, *given: round_fn(*given)).trace(*given)
text = traced.lower(lowering_platforms=("cuda",)).compile().as_text()

LINE = r"%?([\\w.\\-]+) = \\(?(\\w+)\\[.* ([a-z][\\w\\-]*)\\(([^)]*)\\)(.*)"
products, sums = [], []
for block in text.split("\\n\\n"):  # names are those of one computation
    dtypes = {}
    for name, dtype, op, taken, rest in re.findall(LINE, block):
        dtypes[name] = dtype
        of = [dtypes[one] for one in re.findall(r"%([\\w.\\-]+)", taken) if one in dtypes]
        where = re.search(r'op_name="([^"]*)"', rest)
        if op == "dot" or "__cudnn$conv" in rest:
            asked = re.search(r"operand_precision={(\\w+)", rest)
            asked = asked.group(1) if asked else "default"
            products.append([op, *of[:2], asked])
        if op == "reduce" and where and "jvp" not in where[1]:  # not of a model
            sums.append(of[0])
kernels = "".join(file.read_text() for file in Path(folder).glob("*.ptx"))
products_of = r"mma\\.sync[\\w.]*\\.(tf32|bf16|f16)\\."
print(json.dumps({
    "products": products,
    "sums": sums,
    "tensor_cores": sorted(set(re.findall(products_of, kernels))),
    "state": [leaf.dtype.name for leaf in jax.tree.leaves(traced.out_info[0])],
}))
"""


@pytest.fixture(scope="module", params=["float32", "tf32", "bf16"])
def compiled(request, tmp_path_factory):
    """The precision, and what a round of SCAFFOLD in it multiplies and adds up."""
    skip_without_cuda_compiler()
    folder = tmp_path_factory.mktemp(request.param)
    flags = f"--xla_gpu_autotune_level=0 --xla_dump_to={folder}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(DEVICE), request.param, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return request.param, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_products_are_of_the_precision_in_the_compiled_program(compiled):
    precision, found = compiled
    kinds = {op for op, *_ in found["products"]}
    assert kinds == {"dot", "custom-call"} and len(found["products"]) >= 11
    dtype = "bf16" if precision == "bf16" else "f32"
    asked = "default" if precision == "tf32" else "highest"
    for _, *of in found["products"]:
        assert of == [dtype, dtype, asked]
    cores = {"float32": [], "tf32": ["tf32"], "bf16": ["bf16"]}
    assert found["tensor_cores"] == cores[precision]


@pytest.mark.slow
def test_sums_over_clients_and_states_are_float32_in_the_compiled_program(compiled):
    _, found = compiled
    assert "f32" in found["sums"] and "bf16" not in found["sums"]
    assert "bfloat16" not in found["state"] and "float32" in found["state"]
