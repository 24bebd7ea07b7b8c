"""A Flower client on the work; Ray's actors import it, and keep what they load."""
# pyright: reportMissingImports=false

import functools

import common
import numpy as np
import torch
import torch_network
from flwr.client import NumPyClient


@functools.cache
def data(x_file: str, y_file: str) -> tuple[np.ndarray, np.ndarray]:
    """All clients' examples; those on the disk are read when they are needed."""
    return np.load(x_file, mmap_mode="r"), np.load(y_file)


@functools.cache
def network(name: str, channels_last: bool, threads: int) -> torch_network.Network:
    """One network for all clients of an actor."""
    torch.set_num_threads(threads)
    return torch_network.network(common.work.WORKLOADS[name], channels_last)


class Client(NumPyClient):
    """One client: trains from what the server sent, as `config` says."""

    def __init__(self, i: int):
        self.i = i

    def fit(self, parameters, config):
        """Returns parameters after an epoch, and how many examples it had."""
        given = [config[name] for name in ("workload", "channels_last", "threads")]
        local = network(*given)
        x, y = data(config["x_file"], config["y_file"])
        with torch.no_grad():
            for mine, value in zip(local.parameters(), parameters, strict=True):
                mine.copy_(torch.from_numpy(value))
        torch_network.train(
            local.parameters(),
            local.loss,
            torch.from_numpy(np.array(x[self.i])),
            torch.from_numpy(y[self.i]),
            common.work.WORKLOADS[config["workload"]].batch,
            config["shuffle"],
        )
        after = [value.detach().numpy().copy() for value in local.parameters()]
        return after, len(y[self.i]), {}


def client(context):
    """What Flower calls for every client."""
    return Client(int(context.node_config["partition-id"])).to_client()
