"""pfl-research: federated averaging on its simulated backend, one process or several.

    python benchmarks/peers/pfl_simulation.py --workload w1 --workers 2

Several processes are pfl's own distributed simulation, under torchrun with gloo.
"""
# pyright: reportMissingImports=false

import itertools
import os
import sys

import common
import numpy as np
import torch
import torch_network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

work = common.work


class Network(torch_network.Network):
    """A network with what pfl asks of it."""

    def metrics(self, x, y):
        """Is never called: nothing is evaluated here."""
        raise AssertionError("pfl evaluated a model")


class Timer(TrainingProcessCallback):
    """Times pfl's central iterations, what lies between them included."""

    def __init__(self, watch):
        self.watch = watch

    def on_train_begin(self, *, model):
        self.watch.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.watch.stop()
        self.watch.start()
        return False, Metrics()


def launch(workers: int) -> None:
    """Becomes torchrun, which runs this command `workers` times."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc_per_node={workers}", *sys.argv]
    os.execv(sys.executable, command)


def datasets(arguments, x, y) -> FederatedDataset:
    """pfl's clients, from x [clients, examples, ...] and y [clients, examples].

    pfl takes a client's examples in the order they have, so they are shuffled here, once
    for every time that a client takes part.
    """

    def dataset(i):
        order = np.arange(len(y[i]))
        if not arguments.check:
            order = torch.randperm(len(y[i])).numpy()
        mine = [torch.from_numpy(values[i][order]) for values in (x, y)]
        return Dataset(mine, user_id=str(i))

    if arguments.check:
        turn = itertools.cycle(range(arguments.num_clients))
        return FederatedDataset(dataset, lambda: next(turn))
    ids = np.random.RandomState(0).permutation(arguments.num_clients)
    return FederatedDataset(dataset, get_user_sampler("minimize_reuse", list(ids)))


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--workers", type=int, default=1, help="processes")
    options.add_argument(
        "--threads", type=int, default=0, help="of a process; 0: cores by processes"
    )
    options.add_argument("--channels-last", action="store_true", help="for w1")
    arguments = common.parse(options)
    workload, workers = arguments.work, arguments.workers
    if workers < 1:
        options.error(f"--workers {workers}: write 1 or more.")
    x_file, y_file = common.data_files(arguments)
    if workers > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        launch(workers)
    cores = common.stopwatch.processor()["cores"]
    threads = arguments.threads or max(cores // workers, 1)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)  # pfl draws from NumPy's own stream, alike in all processes
    network = torch_network.network(workload, arguments.channels_last, Network)
    before = torch_network.named(workload, map(torch.clone, network.parameters()))
    model = PyTorchModel(
        model=network,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, weight_decay=work.WEIGHT_DECAY
        ),
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),  # plain average
    )
    data = datasets(arguments, np.load(x_file, mmap_mode="r"), np.load(y_file))
    backend = SimulatedBackend(
        training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]
    )
    # torchrun is the parent of its workers
    watch = common.stopwatch.Stopwatch(os.getppid() if workers > 1 else None)
    algorithm = FederatedAveraging()
    # in iteration 0 pfl evaluates, whatever one asks for
    algorithm._current_central_iteration = 1
    algorithm.run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=arguments.num_rounds + 1,
            evaluation_frequency=10**9,  # never
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.LR,
            local_num_epochs=1,
            local_batch_size=workload.batch,
        ),
        model_eval_params=None,
        callbacks=[Timer(watch)],
        send_metrics_to_platform=False,
    )
    if get_framework_module().distributed.global_rank == 0:
        common.report(
            arguments,
            "pfl",
            watch,
            before,
            torch_network.named(workload, network.parameters()),
            ("pfl", "torch"),
            channels_last=arguments.channels_last,
            workers=workers,
            threads=threads,
        )


if __name__ == "__main__":
    main()
