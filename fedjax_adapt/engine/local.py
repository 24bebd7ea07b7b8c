"""One client's round: as many local steps as it was given, from the broadcast model.

    G     <- grad objective(theta; batch) + correction
    G     <- G min(1, C / (||G|| + 1e-6))                 one norm over all tensors
    theta <- theta - lr (G + decay + weight_decay theta)

or, for the last line, what an optimizer of the local rule makes of that sum.
steps.py has the loop over the steps: unequal step counts are exact.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import check
from ..core import (
    Array,
    Batch,
    ClientState,
    Key,
    LocalRule,
    LocalRun,
    LocalView,
    Params,
    PyTree,
    RefineState,
    ServerExtra,
    Setting,
    clip,
    of_widened,
    weighted_loss,
)
from ..data.dataset import FederatedDataset
from ..plan import Plan
from .batches import Rows, batch_at, batch_of, batch_size, epoch_steps, rows_at
from .setup import Setup, is_zero
from .steps import Pace, Parts, accumulator, repeat

# what a client's key is folded in by for `LocalRun.key`: no part of the split key
AFTERWARDS = np.uint32(2**32 - 1)


class Broadcast(NamedTuple):
    """The broadcast of a round, the same for every client."""

    params: Params
    server: ServerExtra
    setting: Setting
    refine: RefineState = ()


class Client(NamedTuple):
    """The inputs of one client for a round. No client axis anywhere."""

    id: Array
    state: ClientState
    num_steps: Array
    key: Key
    key_batch: Key  # this and the next are split from `key`, once for all steps
    key_objective: Key


def client_of(id: Array, state: ClientState, num_steps: Array, key: Key) -> Client:
    """A client, its key split by purpose."""
    return Client(id, state, num_steps, key, *jax.random.split(key))


class Ready(NamedTuple):
    """The values of a client that its local steps do not change."""

    client: Client
    prepared: PyTree


class Progress(NamedTuple):
    """The carry of a client's local steps."""

    params: Params
    optimizer: PyTree
    probe: PyTree
    loss: Array  # sums over the steps taken
    clipped: Array


def optimizer(setup: Setup, setting: Setting) -> optax.GradientTransformation:
    """The optax chain behind clipping: weight decay, then SGD or the rule's optimizer.

    The order is that of torch's SGD. Another optimizer than SGD is given no half precision.
    """
    plan, of_lr = setup.plan, setup.algorithm.local.optimizer
    if of_lr is None:
        momentum = None if is_zero(plan.momentum) else plan.momentum
        inner = optax.sgd(setting.lr, momentum)
    else:
        inner = of_widened(of_lr(setting.lr))
    if is_zero(plan.weight_decay):
        return inner
    return optax.chain(optax.add_decayed_weights(plan.weight_decay), inner)


def start(setup: Setup, before: LocalView) -> Progress:
    """Where a client stands before its first local step."""
    params, probe = before.params, setup.algorithm.policy.probe
    zero = jnp.zeros((), jnp.result_type(float))
    return Progress(
        params=params,
        optimizer=optimizer(setup, before.setting).init(params),
        probe=() if probe is None else probe.init(before),
        loss=zero,
        clipped=zero,
    )


def advance(setup: Setup, progress: Progress, view: LocalView, key: Key) -> Progress:
    """Takes one local step."""
    algorithm, params = setup.algorithm, progress.params
    loss, grads = jax.value_and_grad(algorithm.local.objective)(params, view, key)
    correct, decay = algorithm.local.correct, algorithm.local.decay
    decayed = lambda grads: grads if decay is None else decay(grads, view)
    grads = grads if correct is None else correct(grads, view)
    probe = progress.probe
    if algorithm.policy.probe is not None:  # it sees gradients that are not clipped
        probe = algorithm.policy.probe.update(probe, decayed(grads), view)
    grads, clipped = clip(grads, setup.plan.clip_norm)
    grads = decayed(grads)
    transform = optimizer(setup, view.setting)
    moves, state = transform.update(grads, progress.optimizer, params)
    moved = jax.tree.map(lambda p, move: (p + move).astype(p.dtype), params, moves)
    return Progress(
        params=moved,
        optimizer=optax.tree.cast_like(state, progress.optimizer),
        probe=probe,
        loss=progress.loss + loss.astype(progress.loss.dtype),
        clipped=progress.clipped + clipped.astype(progress.clipped.dtype),
    )


def view_before(
    setup: Setup, broadcast: Broadcast, client: Client, prepared: PyTree = None
) -> LocalView:
    """The view of a client before its first step. `prepared`: by its rule; None: now."""
    weight_decay = broadcast.setting.weight_decay
    _, full_gradient = full_loss_and_gradient(setup, client, weight_decay)
    before = LocalView(
        task=setup.task,
        params=broadcast.params,
        anchor=broadcast.params,
        client=client.state,
        server=broadcast.server,
        batch=None,
        step=jnp.zeros((), jnp.int32),
        size_ratio=size_ratio(setup.data, client.id),
        setting=broadcast.setting,
        full_gradient=full_gradient,
        refine=broadcast.refine,
        id=client.id,
        num_steps=client.num_steps,
    )
    if setup.algorithm.local.start is not None:
        params = setup.algorithm.local.start(before)
        before = before._replace(params=params, anchor=params)
    if prepared is None:
        prepared = setup.algorithm.local.prepare(before)
    before = before._replace(prepared=prepared)
    return before._replace(corrected=correction(setup.algorithm.local, before))


def view_of(setup: Setup, before: LocalView, client: Client):
    """A function (params, step) -> (LocalView, key for the objective) of one client.

    It takes the rows of the step's batch, too, where they are known.
    """
    batch_at, rule = batches_of(setup, client), setup.algorithm.local

    def view(params, step, rows=None):
        if rows is None:
            batch = batch_at(step)
        else:
            batch = batch_of(setup.data, rows, client.id, client.key_batch, step)
        here = before._replace(params=params, batch=batch, step=step)
        here = here._replace(batch_at=batch_at, corrected=correction(rule, here))
        return here, jax.random.fold_in(client.key_objective, step)

    return view


def correction(rule: LocalRule, view: LocalView) -> Callable[[Params], Params] | None:
    """A gradient with all that the local rule adds to it, never clipped; None: nothing."""
    changes = [change for change in (rule.correct, rule.decay) if change is not None]
    if not changes:
        return None

    def corrected(grads: Params) -> Params:
        for change in changes:
            grads = change(grads, view)
        return grads

    return corrected


def batches_of(setup: Setup, client: Client) -> Callable[[Array], Batch]:
    """A function step -> the client's batch of that local step."""
    return partial(batch_at, setup.data, setup.plan, client.id, client.key_batch)


def folded_over_steps(setup: Setup, client: Client) -> Callable[..., PyTree]:
    """`LocalRun.over_steps` of a client.

    Where the number of steps is known when a round is traced, the trips of the loop are.
    """
    draw = partial(rows_at, setup.data, setup.plan, client.id, client.key_batch)

    def fold(
        one: Callable[[PyTree, Batch, Array], PyTree],
        begin: PyTree,
        number: int | Array | None = None,
    ) -> PyTree:
        def of_batch(value: PyTree, step: Array, rows: Rows) -> PyTree:
            batch = batch_of(setup.data, rows, client.id, client.key_batch, step)
            return one(value, batch, step)

        num_steps, pace = client.num_steps, setup.pace
        if number is not None:
            num_steps = jnp.minimum(num_steps, 1) * number
            pace = Pace(None if check.is_tracer(number) else number)
        return repeat(of_batch, draw, begin, num_steps, alone=True, pace=pace)

    return fold


def size_ratio(data: FederatedDataset, client: Array) -> Array:
    """n_i over the mean client size, N n_i / n; 1 for a client that can never train."""
    size = data.size[client]
    return jnp.where(size > 0, size * (data.num_holders / data.size.sum()), 1.0)


def full_loss_and_gradient(
    setup: Setup, client: Client, weight_decay: Array | float
) -> tuple[Callable[[Params], Array], Callable[[Params], Params]]:
    """Functions params -> the client's mean loss, and its gradient plus weight decay.

    They pass once over all the client's examples, in order, in evaluation mode.
    """
    task, data = setup.task, setup.data
    in_order = Plan(batch_size=setup.plan.batch_size, shuffle="none")
    size = jnp.maximum(data.size[client.id], 1)
    steps = epoch_steps(size, batch_size(data, in_order))
    draw = lambda step: rows_at(data, in_order, client.id, client.key, step)

    def batch_loss(params, step, rows):
        batch = batch_of(data, rows, client.id, client.key, step)
        outputs = task.apply(params, batch.x)
        return weighted_loss(task, outputs, batch) * batch.weight.sum() / size

    def added_up(of_batch, zero):
        add = lambda total, step, rows: optax.tree.add(total, of_batch(step, rows))
        return repeat(add, draw, zero, steps, alone=True, pace=Pace())

    def loss(params):
        zero = jnp.zeros((), jnp.result_type(float))
        return added_up(partial(batch_loss, params), zero)

    def gradient(params):
        of_batch = partial(jax.grad(batch_loss), params)
        total = added_up(of_batch, accumulator(params))
        total = optax.tree.add_scale(total, weight_decay, params)
        return optax.tree.cast_like(total, params)

    return loss, gradient


def train_loss(setup: Setup, params: Params) -> Array:
    """The mean loss over the examples of all clients, in evaluation mode. A scalar.

    Its derivative passes over them once more: the loop over a client's batches has none.
    """
    size = setup.data.size

    def of(id: Array) -> tuple[Callable[[Params], Array], Callable[[Params], Params]]:
        key = jax.random.key(0)
        client = Client(id, (), jnp.zeros((), jnp.int32), key, key, key)
        return full_loss_and_gradient(setup, client, weight_decay=0)

    ids = jnp.arange(setup.data.num_clients)

    @jax.custom_vjp
    def loss(params):
        losses = jax.lax.map(lambda id: of(id)[0](params), ids)
        return (losses * size).sum() / size.sum()

    def backward(params, cotangent):
        def add(total, id):
            return optax.tree.add_scale(total, size[id], of(id)[1](params)), ()

        total, _ = jax.lax.scan(add, accumulator(params), ids)
        total = optax.tree.scale(cotangent / size.sum(), total)
        return (optax.tree.cast_like(total, params),)

    loss.defvjp(lambda params: (loss(params), params), backward)
    return loss(params)


def finished(
    setup: Setup, broadcast: Broadcast, client: Client, progress: Progress
) -> LocalRun:
    """The `LocalRun` of a client, for `LocalRule.finish` and the policies."""
    weight_decay = broadcast.setting.weight_decay
    full_loss, full_gradient = full_loss_and_gradient(setup, client, weight_decay)
    taken = jnp.maximum(client.num_steps, 1)  # an idle client's mean loss is 0, not NaN
    return LocalRun(
        params=progress.params,
        anchor=anchor_of(setup, broadcast, client),
        client=client.state,
        server=broadcast.server,
        num_steps=client.num_steps,
        loss=progress.loss / taken,
        probe=progress.probe,
        size_ratio=size_ratio(setup.data, client.id),
        setting=broadcast.setting,
        full_gradient=full_gradient,
        full_loss=full_loss,
        batch_at=batches_of(setup, client),
        over_steps=folded_over_steps(setup, client),
        task=setup.task,
        id=client.id,
        key=jax.random.fold_in(client.key, AFTERWARDS),
    )


def anchor_of(setup: Setup, broadcast: Broadcast, client: Client) -> Params:
    """The model a client starts the round from."""
    if setup.algorithm.local.start is None:
        return broadcast.params
    return view_before(setup, broadcast, client, prepared=()).anchor


def parts_of(
    setup: Setup, broadcast: Broadcast, left_by: Callable[[LocalRun, Array], PyTree]
) -> Parts:
    """A client's round in parts. No client axis anywhere.

    Args:
      setup: of the run.
      broadcast: of the round.
      left_by: (run, share of its steps that were clipped) -> what is kept of a client.
    """

    def begin(client: Client) -> tuple[Ready, Progress]:
        before = view_before(setup, broadcast, client)
        return Ready(client, before.prepared), start(setup, before)

    def draw(ready: Ready, step: Array) -> Rows:
        client = ready.client
        return rows_at(setup.data, setup.plan, client.id, client.key_batch, step)

    def step(ready: Ready, progress: Progress, step: Array, rows: Rows) -> Progress:
        before = view_before(setup, broadcast, *ready)
        view = view_of(setup, before, ready.client)
        return advance(setup, progress, *view(progress.params, step, rows))

    def end(ready: Ready, progress: Progress) -> PyTree:
        client = ready.client
        run = finished(setup, broadcast, client, progress)
        return left_by(run, progress.clipped / jnp.maximum(client.num_steps, 1))

    return Parts(begin, draw, step, end)
