"""Flower's simulation on Ray: FedAvg, NumPy clients that train with PyTorch.

    python benchmarks/peers/flower_ray.py --workload w1 --client-cpus 1

With one core for a client as many are trained at once as there are cores.
"""
# pyright: reportMissingImports=false

import os
from pathlib import Path

# Ray's actors find our files by this; nothing is sent to anybody
FOLDER = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (FOLDER, os.environ.get("PYTHONPATH")))
)
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import logging  # noqa: E402

import common  # noqa: E402
import flower_client  # noqa: E402
from flwr.client import ClientApp  # noqa: E402
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays  # noqa: E402
from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # noqa: E402
from flwr.server.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402


class TimedFedAvg(FedAvg):
    """FedAvg that times its rounds, what lies between them included."""

    def __init__(self, watch, num_rounds: int, finish, **more):
        super().__init__(**more)
        self.watch, self.num_rounds, self.finish = watch, num_rounds, finish

    def configure_fit(self, server_round, parameters, client_manager):
        if server_round == 1:
            self.watch.start()
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
        if failures:
            raise RuntimeError(f"{len(failures)} clients failed: {failures[0]}")
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.watch.stop()
        if server_round == self.num_rounds:  # while the actors are there to be counted
            self.finish(parameters_to_ndarrays(parameters))
        self.watch.start()
        return parameters, metrics


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--client-cpus", type=int, default=1, help="cores of a client")
    options.add_argument("--channels-last", action="store_true", help="for w1")
    arguments = common.parse(options)
    workload, cpus = arguments.work, arguments.client_cpus
    if cpus < 1:
        options.error(f"--client-cpus {cpus}: write 1 or more.")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    x_file, y_file = common.data_files(arguments)
    config = {
        "workload": arguments.workload,
        "channels_last": arguments.channels_last,
        "threads": cpus,
        "shuffle": not arguments.check,
        "x_file": str(x_file),
        "y_file": str(y_file),
    }
    before = common.work.parameters(workload)

    def finish(values):
        common.report(
            arguments,
            "flower",
            watch,
            before,
            dict(zip(before, values, strict=True)),
            ("flwr", "ray", "torch"),
            channels_last=arguments.channels_last,
            client_cpus=cpus,
        )

    def server(context):
        strategy = TimedFedAvg(
            watch,
            arguments.num_rounds,
            finish,
            fraction_fit=workload.cohort / arguments.num_clients,
            fraction_evaluate=0.0,
            min_fit_clients=workload.cohort,
            min_evaluate_clients=0,
            min_available_clients=arguments.num_clients,
            initial_parameters=ndarrays_to_parameters(list(before.values())),
            on_fit_config_fn=lambda server_round: config,
            accept_failures=False,
        )
        rounds = ServerConfig(num_rounds=arguments.num_rounds)
        return ServerAppComponents(strategy=strategy, config=rounds)

    watch = common.stopwatch.Stopwatch(os.getpid())
    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=flower_client.client),
        num_supernodes=arguments.num_clients,
        backend_config={"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
