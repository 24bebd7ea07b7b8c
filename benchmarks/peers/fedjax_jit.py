"""FedJAX: federated averaging on its jit backend, clients one after the other, Haiku.

    python benchmarks/peers/fedjax_jit.py --workload w1 --pool reshape

With the jax of the environment: 0.4.38, on which FedJAX 0.0.17 works as it is, or 0.10.2,
which has lost a name that it calls; on the backend that jax takes by itself.
"""
# pyright: reportMissingImports=false

import common
import jax
import numpy as np

if not hasattr(jax, "tree_map"):  # gone from jax; FedJAX 0.0.17 still calls it
    jax.tree_map = jax.tree.map
import fedjax
import haiku as hk
import optax
from fedjax.core.models import create_model_from_haiku

work = common.work
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32"}


def haiku_params(workload) -> dict:
    """Initial parameters {module: {"w": [..., in, out], "b": [out]}}."""
    params, before = {}, None
    for name, value in work.parameters(workload).items():
        layer, _, part = name.rpartition(".")
        if value.ndim == 2 and before is not None and before.ndim == 4:
            # inputs in the order height, width, channels, as Haiku flattens a picture
            channels = len(before)
            side = round((value.shape[1] / channels) ** 0.5)
            value = value.reshape(-1, channels, side, side).transpose(0, 2, 3, 1)
            value = value.reshape(len(value), -1)
        if part == "kernel":
            before = value
        module = params.setdefault(layer.replace(".", "_"), {})
        module["w" if part == "kernel" else "b"] = work.inputs_before_outputs(value)
    return params


def named(workload, params: dict) -> dict[str, np.ndarray]:
    """Parameters of Haiku by the names of work.py."""
    arrays = {}
    for layer in workload.layers:
        module = params[layer.replace(".", "_")]
        arrays |= {f"{layer}.kernel": module["w"], f"{layer}.bias": module["b"]}
    return {name: np.asarray(value) for name, value in arrays.items()}


def model(workload, pool: str):
    """FedJAX's model of the workload.

    Args:
      workload: one of work.py.
      pool: "window", hk.max_pool, or "reshape", the same 2x2 maximum over two axes of a
        reshaped array, whose gradient XLA's CPU backend computes far faster.
    """

    def forward(batch):
        x = batch["x"]
        for name, shape in workload.layers.items():
            name = name.replace(".", "_")
            if len(shape) == 4:
                x = hk.Conv2D(shape[0], shape[2], padding="VALID", name=name)(x)
                x = jax.nn.relu(x)
                if pool == "window":
                    x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                else:
                    n, h, w, c = x.shape
                    x = x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
            else:
                x = hk.Linear(shape[0], name=name)(x.reshape(len(x), -1))
                x = jax.nn.relu(x) if name != "out" else x
        return x

    example = {
        "x": np.zeros((1, *workload.shape), np.float32),
        "y": np.zeros(1, np.int32),
    }
    loss = lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(
        batch["y"], logits
    )
    return create_model_from_haiku(hk.transform(forward), example, loss)


def accelerator() -> dict:
    """What a line says of a GPU; nothing where there is none."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return {}
    held = (device.memory_stats() or {}).get("peak_bytes_in_use")
    named = {"platform": device.platform, "device": device.device_kind}
    return {
        "hardware": common.stopwatch.processor() | named,
        "peak_memory_mb": None if held is None else round(held / 2**20),
    }


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--pool", choices=["window", "reshape"], default="window")
    options.add_argument(
        "--precision", choices=PRECISIONS, help="of products; default: jax's own"
    )
    arguments = common.parse(options)
    if arguments.precision:
        name = PRECISIONS[arguments.precision]
        jax.config.update("jax_default_matmul_precision", name)
    workload = arguments.work
    x, y = common.data(arguments, channels_first=False)
    clients = fedjax.InMemoryFederatedData(
        {f"{i:04d}": {"x": x[i], "y": y[i].astype(np.int32)} for i in range(len(x))}
    )
    fedjax.set_for_each_client_backend("jit")
    optimiser = optax.chain(
        optax.add_decayed_weights(work.WEIGHT_DECAY), optax.sgd(work.LR)
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model(workload, arguments.pool)),
        fedjax.optimizers.create_optimizer_from_optax(optimiser),
        fedjax.optimizers.sgd(learning_rate=1.0),  # the plain average
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch, num_epochs=1, skip_shuffle=arguments.check
        ),
    )
    params = haiku_params(workload)
    state = algorithm.init(jax.tree_util.tree_map(jax.numpy.asarray, params))

    watch = common.stopwatch.Stopwatch()
    cohorts = common.cohorts(arguments)
    for round in range(arguments.num_rounds):
        watch.start()
        ids = [f"{i:04d}" for i in next(cohorts)]
        keys = jax.random.split(jax.random.PRNGKey(round), len(ids))
        chosen = zip(clients.get_clients(ids), keys, strict=True)
        cohort = [(name, examples, key) for (name, examples), key in chosen]
        state, told = algorithm.apply(state, cohort)
        jax.block_until_ready((state.params, told))
        watch.stop()
    common.report(
        arguments,
        "fedjax",
        watch,
        named(workload, params),
        named(workload, state.params),
        ("fedjax", "jax", "jaxlib", "dm-haiku", "optax"),
        pool=arguments.pool,
        **accelerator(),
    )


if __name__ == "__main__":
    main()
