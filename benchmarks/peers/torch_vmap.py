"""PyTorch with the clients side by side: torch.func.vmap of the gradient.

python benchmarks/peers/torch_vmap.py --workload w2 --chunk 50 --compile
"""
# pyright: reportMissingImports=false

import common
import torch
import torch_device
import torch_network
from torch.func import functional_call, grad, vmap

LR, WEIGHT_DECAY = common.work.LR, common.work.WEIGHT_DECAY


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--chunk", type=int, help="clients side by side; default: all")
    torch_device.add_options(options)
    arguments = common.parse(options)
    workload, device = arguments.work, arguments.device
    chunk = workload.cohort if arguments.chunk is None else arguments.chunk
    if chunk < 1:
        options.error(f"--chunk {chunk}: write 1 or more.")
    torch_device.prepare(options, arguments)
    examples = common.data(arguments, True)
    x, y = (torch.from_numpy(values).to(device) for values in examples)
    network = torch_network.network(workload).to(device)
    params = {name: value.detach() for name, value in network.named_parameters()}
    before = torch_network.named(workload, map(torch.clone, params.values()))

    def loss(mine, x, y):
        return torch.nn.functional.cross_entropy(
            functional_call(network, mine, (x,)), y
        )

    gradients = vmap(grad(loss))

    def step(stacked, x, y):
        grads = gradients(stacked, x, y)
        return {
            name: value - LR * (grads[name] + WEIGHT_DECAY * value)
            for name, value in stacked.items()
        }

    def step_in_place(stacked, x, y):
        for name, slope in gradients(stacked, x, y).items():
            slope.add_(stacked[name], alpha=WEIGHT_DECAY)
            stacked[name].add_(slope, alpha=-LR)
        return stacked

    # in place is faster in eager mode; a compiled program keeps no intermediate anyway
    step = torch.compile(step) if arguments.compile else step_in_place

    def train(ids):
        """Parameters [clients, ...] after an epoch of clients side by side."""
        stacked = {
            name: value.expand(len(ids), *value.shape).clone()
            for name, value in params.items()
        }
        order = torch.arange(workload.examples, device=device).expand(len(ids), -1)
        if not arguments.check:
            order = torch.rand(order.shape, device=device).argsort(1)
        with torch_device.products(arguments):
            for rows in order.split(workload.batch, dim=1):
                stacked = step(stacked, x[ids[:, None], rows], y[ids[:, None], rows])
        return stacked

    watch = common.stopwatch.Stopwatch()
    cohorts = common.cohorts(arguments)
    for _ in range(arguments.num_rounds):
        torch_device.wait(arguments)
        watch.start()
        ids = torch.as_tensor(next(cohorts), device=device)
        with torch.no_grad():
            sums = {name: torch.zeros_like(value) for name, value in params.items()}
            for some in ids.split(chunk):
                for name, value in train(some).items():
                    sums[name] += value.sum(0)
            for name, total in sums.items():
                params[name] = total / len(ids)
        torch_device.wait(arguments)
        watch.stop()
    common.report(
        arguments,
        "torch_vmap",
        watch,
        before,
        torch_network.named(workload, params.values()),
        ("torch",),
        chunk=chunk,
        **torch_device.figures(arguments),
    )


if __name__ == "__main__":
    main()
