"""A plain PyTorch loop: one client after the other, one network.

    python benchmarks/peers/torch_loop.py --workload w1 --channels-last

As the reference codes of FedDyn, FedDC and FedSSG do it, without their evaluation of
every client before and after training, and with batches indexed out of one tensor, which
is faster than a DataLoader.
"""
# pyright: reportMissingImports=false

import common
import torch
import torch_device
import torch_network


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--channels-last", action="store_true", help="for w1")
    torch_device.add_options(options)
    arguments = common.parse(options)
    torch_device.prepare(options, arguments)
    workload, device = arguments.work, arguments.device
    examples = common.data(arguments, not arguments.channels_last)
    x, y = (torch.from_numpy(values).to(device) for values in examples)
    if arguments.channels_last:
        x = x.permute(0, 1, 4, 2, 3)  # [clients, examples, channels, height, width]
    server = torch_network.network(workload, arguments.channels_last).to(device)
    local = torch_network.network(workload, arguments.channels_last).to(device)
    plain = torch.compile(local.loss) if arguments.compile else local.loss

    def loss(x, y):
        with torch_device.products(arguments):
            return plain(x, y)

    before = torch_network.named(workload, map(torch.clone, server.parameters()))

    watch = common.stopwatch.Stopwatch()
    cohorts = common.cohorts(arguments)
    for _ in range(arguments.num_rounds):
        torch_device.wait(arguments)
        watch.start()
        ids = next(cohorts)
        sums = [torch.zeros_like(value) for value in server.parameters()]
        for i in ids:
            local.load_state_dict(server.state_dict())
            torch_network.train(
                local.parameters(), loss, x[i], y[i],
                workload.batch, not arguments.check,
            )  # fmt: skip
            for total, value in zip(sums, local.parameters(), strict=True):
                total += value.detach()
        with torch.no_grad():
            for value, total in zip(server.parameters(), sums, strict=True):
                value.copy_(total / len(ids))
        torch_device.wait(arguments)
        watch.stop()
    common.report(
        arguments,
        "torch_loop",
        watch,
        before,
        torch_network.named(workload, server.parameters()),
        ("torch",),
        channels_last=arguments.channels_last,
        **torch_device.figures(arguments),
    )


if __name__ == "__main__":
    main()
