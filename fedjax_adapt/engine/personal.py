"""The metrics of models for each client, and the clients' personal models."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .. import check
from ..core import (
    Algorithm,
    Array,
    Metrics,
    Params,
    PyTree,
    State,
    Task,
    precise,
    rows_are_like,
    shapes_of,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from . import mesh
from .client_store import host
from .client_store.device import table_shardings
from .evaluate import by_client, named_metrics_by_client, score, scores, shapes_made
from .processes import put
from .xla import jit_newest, wait_for_shared_cpu_state

BLOCK = 64  # clients whose states are fetched from the host's memory at a time


class ClientExamples(NamedTuple):
    """Examples of which each client holds some."""

    x: Array  # [examples, ...]
    y: Array  # [examples, ...]
    index: Array  # the rows each client holds, [clients, longest]
    size: Array  # how many of them count, [clients]


def personal_models(algorithm: Algorithm, state: State) -> Params:
    """Every client's own model, stacked: parameters with a leading axis num_clients.

    A client that never took part has what its state began as makes of the server's model.

    Args:
      algorithm: whose clients have models of their own, such as fedper() or ditto().
      state: a state of its rounds.

    Raises:
      SettingError: its clients use the server's model, or the state is another algorithm's.
    """
    blocks = list(blocks_of(algorithm, state))
    stacked = [
        _models(algorithm.local.personal, state.params, rows) for _, rows in blocks
    ]
    if len(stacked) == 1:
        return stacked[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacked)


def evaluate_clients(
    task: Task,
    params: Params,
    data: FederatedDataset,
    batch_size: int = 500,
    devices: int | str = 1,
    on: Literal["test", "train"] | None = None,
) -> Metrics:
    """Accuracy, mean loss and metrics on every client's own examples, [clients].

    Of one model, in one pass over all examples, or of a model per client, each on those
    of its client; then the task's metrics are left out. No copy of the examples is made,
    and they are seen without noise. All are 0 for a client without examples: average over
    the others.

    Args:
      task: the task.
      params: parameters of its model; or a stack of them, leading axis clients, as from
        `personal_models`.
      data: the federated data set.
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.
      on: the clients' "test" sets, `data.client_tests`, or what they "train" on; None:
        their test sets where the data have them, else what they train on.

    Raises:
      SettingError: there are fewer than `devices` devices, or no test sets of clients, or
        `params` are neither of one model nor of one for each client.
    """
    check.kinds(
        "evaluate_clients(task, params, data)",
        task=(task, Task),
        params=(params, check.tree),
        data=(data, FederatedDataset),
    )
    check.at_least("batch_size", batch_size, 1)
    examples = client_examples(data, on)
    if one_for_each(task, params, data.num_clients):
        return _model_metrics(task, _row, (), params, examples, batch_size, devices)
    scored = scores(task, params, (examples.x, examples.y), batch_size, devices)
    metrics = by_client(scored, examples.index, examples.size)
    if not task.metrics:
        return metrics
    named = named_metrics_by_client(task, scored.each, examples.index, examples.size)
    return metrics._replace(named=named)


def evaluate_personal(
    algorithm: Algorithm,
    task: Task,
    state: State,
    data: FederatedDataset,
    batch_size: int = 500,
    devices: int | str = 1,
    on: Literal["test", "train"] | None = None,
) -> Metrics:
    """As `evaluate_clients` of `personal_models`, which are never there all at once."""
    examples, found = client_examples(data, on), []
    model_of, shared = algorithm.local.personal, state.params
    for ids, rows in blocks_of(algorithm, state):
        block = examples._replace(index=examples.index[ids], size=examples.size[ids])
        found.append(
            _model_metrics(task, model_of, shared, rows, block, batch_size, devices)
        )
        wait_for_shared_cpu_state(found[-1])
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def _row(shared: tuple[()], row: Params) -> Params:
    """A client's model, of a stack of models."""
    return row


@jit_newest(static=1)
def _models(personal: Callable, params: Params, clients: PyTree) -> Params:
    return jax.vmap(personal, in_axes=(None, 0))(params, clients)


def blocks_of(algorithm: Algorithm, state: State) -> Iterator[tuple[slice, PyTree]]:
    """(ids, states) of some clients at a time, where a device can read them.

    Raises:
      SettingError: as `personal_models`.
    """
    check.kinds(
        "personal_models(algorithm, state)",
        algorithm=(algorithm, Algorithm),
        state=(state, State),
    )
    local, table = algorithm.local, state.clients
    if local.personal is None:
        raise SettingError(
            "personal_models got an algorithm whose clients use the server's model; take "
            "state.params, or an algorithm such as ditto() or with_personal(fedavg())."
        )
    leaves = jax.tree.leaves(table)
    kept = jax.eval_shape(local.init, state.params)
    if not leaves or not rows_are_like(table, kept):
        raise SettingError(
            "personal_models got a state whose clients do not keep what this algorithm's "
            "keep; give a state of its own rounds, of a client_memory that keeps it as it "
            "is, such as device."
        )
    lies = getattr(leaves[0], "sharding", None)
    if lies is None or lies.memory_kind != mesh.HOST_MEMORY:
        yield slice(None), table
        return
    for begin in range(0, leaves[0].shape[0], BLOCK):
        ids = jnp.arange(begin, min(begin + BLOCK, leaves[0].shape[0]))
        rows = host.rows_of(table, ids, len(lies.device_set))
        yield slice(begin, begin + BLOCK), rows


def client_examples(
    data: FederatedDataset, on: Literal["test", "train"] | None = None
) -> ClientExamples:
    """The clients' test sets, or what they train on; None: test sets where there are some.

    Raises:
      SettingError: the data have no test sets of clients, or `on` is neither.
    """
    if on is not None:
        check.one_of("on", on, ("test", "train"))
    tests: Any = getattr(data, "client_tests", None)
    if on == "test" and tests is None:
        raise SettingError(
            'on="test" asks for test sets of clients but the data have none; write '
            'on="train" for the examples that they train on.'
        )
    held = data if on == "train" or tests is None else tests
    return ClientExamples(held.x, held.y, held.index, held.size)


def one_for_each(task: Task, params: Params, num_clients: int) -> bool:
    """Whether these are parameters of `num_clients` models, not of one.

    Raises:
      SettingError: they are neither.
    """
    structure, shapes = shapes_made(task)
    found = shapes_of(params)
    if found == (structure, shapes):
        return False
    if found == (structure, [(num_clients, *shape) for shape in shapes]):
        return True
    raise SettingError(
        f"params are {check.shown(params)}, neither a model of the task nor one for each "
        f"of {num_clients} clients; give state.params or personal_models(algorithm, state)."
    )


def _model_metrics(
    task: Task,
    model_of: Callable[[PyTree, PyTree], Params],
    shared: PyTree,
    table: PyTree,
    examples: ClientExamples,
    batch_size: int,
    devices: int | str,
) -> Metrics:
    """The metrics of each client's personal model on its examples, [clients].

    Args:
      task: the task.
      model_of: (shared, row of `table`) -> a client's model.
      shared: the same for all clients.
      table: leading axis clients.
      examples: who holds which examples.
      batch_size: examples at a time.
      devices: how many devices share the clients; "auto": all.
    """
    num_clients, longest = examples.index.shape
    num_devices = mesh.count(devices, num_clients)
    width = min(batch_size, longest)
    at_once = min(max(batch_size // width, 1), -(-num_clients // num_devices))
    if num_devices > 1:
        shared = mesh.everywhere(shared, num_devices)
        examples = mesh.to_read(examples, num_devices)
        table = jax.tree.map(put, table, table_shardings(table, num_devices))
    sizes = width, at_once, num_devices
    return _means_of_models(task, model_of, sizes, shared, table, examples)


@jit_newest(static=3)
def _means_of_models(task, model_of, sizes, shared, table, examples):
    width, at_once, num_devices = sizes
    num_clients = examples.size.shape[0]
    each = -(-num_clients // num_devices)
    ids = jnp.minimum(jnp.arange(each * num_devices), num_clients - 1)
    fill = lambda leaf: leaf if len(ids) == num_clients else leaf[ids]
    clients = jax.tree.map(fill, (table, examples.index, examples.size))

    def on_device(given, clients, nothing):
        shared, x, y = given

        @precise(task)
        def mean(client):
            row, index, size = client
            params = model_of(shared, row)

            def scores(step):
                position = step * width + jnp.arange(width)
                rows = index[jnp.clip(position, 0, jnp.maximum(size - 1, 0))]
                found = score(task, params, x[rows], y[rows])._replace(each={})
                real = lambda leaf: jnp.where(position < size, leaf, 0).sum()
                return jax.tree.map(lambda leaf: real(leaf).astype(float), found)

            add = lambda step, total: jax.tree.map(jnp.add, total, scores(step))
            zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(scores, 0))
            total = jax.lax.fori_loop(0, -(-size // width), add, zeros)
            return jax.tree.map(lambda leaf: leaf / jnp.maximum(size, 1), total)

        found = jax.lax.map(mean, clients, batch_size=at_once)
        return (), found, nothing

    given = shared, examples.x, examples.y
    _, found, _ = mesh.run_on_devices(on_device, given, clients, (), num_devices)
    found = jax.tree.map(lambda leaf: leaf[:num_clients], found)
    found = mesh.everywhere(found, num_devices)
    return Metrics(accuracy=found.right, loss=found.loss)
