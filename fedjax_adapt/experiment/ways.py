"""The setting `convolutions` as a task understands it.

"auto" and "rule" leave it open, WAY is for all that can, and WAY,WAY,... are for the kinds
of layers that local training has, in their order.
"""

import jax

from ..core import Task
from ..data import FederatedDataset
from ..engine.batches import batch_size
from ..errors import SettingError
from ..models.ways import Layer, layers_of, with_ways
from ..plan import Plan

AUTO, RULE = "auto", "rule"


def listed(ways: list[str]) -> str:
    """The setting that gives each layer its way."""
    return ",".join(ways) if len(ways) > 1 else f"{ways[0]},"


def with_told_ways(
    convolutions: str, task: Task, data: FederatedDataset, plan: Plan
) -> Task:
    """The task, its convolutions computed as the setting says.

    Raises:
      ValueError: it names more or fewer ways than there are kinds of layers, or one that
        a layer cannot be computed in.
    """
    if convolutions in (AUTO, RULE):
        return task
    if "," not in convolutions:
        return with_ways(task, convolutions)
    ways = [way.strip() for way in convolutions.split(",") if way.strip()]
    layers = trained_layers(task, data, plan)
    if len(ways) != len(layers):
        raise SettingError(
            f"convolutions={convolutions} names {len(ways)} ways, but the model has "
            f"{len(layers)} kinds of convolutions; write one for each, or one for all.",
            setting="convolutions",
        )
    try:
        return with_ways(task, dict(zip(layers, ways, strict=True)))
    except ValueError as error:
        raise SettingError(
            f"convolutions={convolutions}: {error}", setting="convolutions"
        ) from None


def trained_layers(task: Task, data: FederatedDataset, plan: Plan) -> list[Layer]:
    """The kinds of convolutions of a local step, in their order."""
    shape = (batch_size(data, plan), *data.x.shape[1:])
    return layers_of(task, jax.ShapeDtypeStruct(shape, data.x.dtype))
