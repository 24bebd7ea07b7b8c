"""The networks of the work in PyTorch, and one client's training."""
# pyright: reportMissingImports=false

from collections.abc import Callable

import common
import numpy as np
import torch
from torch import nn

work = common.work


class Network(nn.Sequential):
    """A network that knows its loss, and in which layout it wants its pictures."""

    layout = torch.contiguous_format

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of examples x [batch, ...], labels y [batch]."""
        logits = self(x.contiguous(memory_format=self.layout))
        return nn.functional.cross_entropy(logits, y)


def network(
    workload, channels_last: bool = False, kind: type[Network] = Network
) -> Network:
    """The network of a workload at its initial parameters.

    A convolution is followed by ReLU and 2x2 pooling, a dense layer but the last by ReLU.
    """
    layers, before = [], None
    for name, shape in workload.layers.items():
        if len(shape) == 4:
            outputs, inputs, size, _ = shape
            layers += [nn.Conv2d(inputs, outputs, size), nn.ReLU(), nn.MaxPool2d(2)]
        else:
            layers += [nn.Flatten()] if len(before or ()) == 4 else []
            layers += [nn.Linear(shape[1], shape[0])]
            layers += [nn.ReLU()] if name != "out" else []
        before = shape
    built = kind(*layers)
    values = work.parameters(workload).values()
    with torch.no_grad():
        for mine, value in zip(built.parameters(), values, strict=True):
            mine.copy_(torch.from_numpy(value))
    if channels_last:
        built.layout = torch.channels_last
    return built.to(memory_format=built.layout)


def named(workload, parameters) -> dict[str, np.ndarray]:
    """Parameters in the order of the network, by the names of work.py."""
    arrays = [value.detach().cpu().numpy() for value in parameters]
    return dict(zip(work.parameters(workload), arrays, strict=True))


def train(
    parameters,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    batch: int,
    shuffle: bool,
) -> None:
    """One epoch of SGD on one client's examples, in place.

    Args:
      parameters: of the network, an iterable.
      loss: of a batch.
      x: examples [examples, ...].
      y: labels [examples].
      batch: size of a batch.
      shuffle: whether the examples are taken in a new order.
    """
    optimiser = torch.optim.SGD(
        parameters,
        lr=work.LR,
        weight_decay=work.WEIGHT_DECAY,
        fused=True if x.is_cuda else None,  # one kernel for all parameters
    )
    draw = torch.randperm if shuffle else torch.arange
    order = draw(len(x), device=x.device)
    for rows in order.split(batch):
        optimiser.zero_grad()
        loss(x[rows], y[rows]).backward()
        optimiser.step()
