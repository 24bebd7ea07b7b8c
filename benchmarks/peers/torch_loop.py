"""A plain PyTorch loop: one client after the other, one network.

    python benchmarks/peers/torch_loop.py --workload w1 --channels-last

As the reference codes of FedDyn, FedDC and FedSSG do it, without their evaluation of
every client before and after training, and with batches indexed out of one tensor, which
is faster than a DataLoader.
"""
# pyright: reportMissingImports=false

import common
import torch
import torch_network


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--channels-last", action="store_true", help="for w1")
    options.add_argument(
        "--compile", action="store_true", help="torch.compile the loss"
    )
    options.add_argument("--threads", type=int, default=0, help="0: PyTorch's default")
    arguments = common.parse(options)
    workload = arguments.work
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    x, y = map(torch.from_numpy, common.data(arguments, not arguments.channels_last))
    if arguments.channels_last:
        x = x.permute(0, 1, 4, 2, 3)  # [clients, examples, channels, height, width]
    server = torch_network.network(workload, arguments.channels_last)
    local = torch_network.network(workload, arguments.channels_last)
    loss = torch.compile(local.loss) if arguments.compile else local.loss
    before = torch_network.named(workload, map(torch.clone, server.parameters()))

    watch = common.stopwatch.Stopwatch()
    cohorts = common.cohorts(arguments)
    for _ in range(arguments.num_rounds):
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
        watch.stop()
    common.report(
        arguments,
        "torch_loop",
        watch,
        before,
        torch_network.named(workload, server.parameters()),
        ("torch",),
        channels_last=arguments.channels_last,
        compile=arguments.compile,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
