"""The parts of a round of W1 or W2, each timed in a program of its own or left out of one.

What can be left out of a round is: the round with it less the round without. A client
that sends nothing leaves out what the server makes of uploads; one that keeps a row of
the size of the model, and adds 1 to it, adds to that a table's reads and writes.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from bare import bare_loop
from one_round import KEYS, one_round
from readings import Case, Ready, scratch, short

import fedjax_adapt as fa
from fedjax_adapt.engine import mesh, steps, xla
from fedjax_adapt.engine.batches import batch_at
from fedjax_adapt.engine.build import num_lanes_of
from fedjax_adapt.engine.cohort import num_devices_of, sample_cohort
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.experiment import checkpoint
from fedjax_adapt.experiment.program import measure
from fedjax_adapt.experiment.rows import Log

TEST = 10_000  # examples of an evaluation


class Work(NamedTuple):
    """A workload of rounds.py and how it is run."""

    task: fa.Task
    data: fa.FederatedDataset
    plan: fa.Plan
    params: Any
    steps: int  # of one client in a round

    @property
    def num_devices(self) -> int:
        """That serve a round."""
        return num_devices_of(self.data, self.plan)

    @property
    def num_lanes(self) -> int:
        """Clients side by side on each."""
        algorithm = fa.algorithms.fedavg()
        return num_lanes_of(Setup(algorithm, self.task, self.data, self.plan))


def send_nothing(run: fa.LocalRun) -> tuple[fa.Upload, Any]:
    """Trains, and uploads nothing."""
    return fa.Upload(()), run.client


def keep_a_row(run: fa.LocalRun) -> tuple[fa.Upload, Any]:
    """Likewise, with something to read and to write in the client table."""
    return fa.Upload(()), jax.tree.map(lambda leaf: leaf + 1, run.client)


def stay(params: Any, extra: Any, upload: fa.Upload, cohort: fa.Cohort) -> tuple:
    """The server's model stays as it was."""
    del upload, cohort
    return params, extra


def without_uploads(row: bool) -> Any:
    """FedAvg that sends nothing; `row`: and keeps a model per client."""
    algorithm = fa.algorithms.fedavg()
    local = algorithm.local._replace(finish=send_nothing)
    if row:
        zeros = lambda params: jax.tree.map(jnp.zeros_like, params)
        local = local._replace(init=zeros, finish=keep_a_row)
    server = algorithm.server._replace(update=stay)
    return algorithm._replace(local=local, server=server)


def round_of(work: Work, algorithm: Any, **changes: Any) -> Ready:
    """A whole round; `changes`: of its plan."""
    plan = replace(work.plan, **changes)
    return one_round(algorithm, work.task, work.data, plan, work.params)


def local_steps(work: Work) -> Ready:
    """As many steps on batches that lie ready; see bare.py."""
    where = work.num_devices, work.num_lanes
    return bare_loop(work.task, work.data, work.plan, work.params, "ready", *where)


def batches(work: Work) -> Ready:
    """The batches of a round: shuffled, gathered and summed up, so that they are read."""
    num_devices, num_lanes = work.num_devices, work.num_lanes

    def read_batches(data, slots, own):
        def one(slot):
            client, key = slot

            def add(i, total):
                batch = batch_at(data, work.plan, client, key, i)
                return total + batch.x.sum() + batch.y.sum()

            return jax.lax.fori_loop(0, work.steps, add, jnp.zeros(()))

        read = steps.side_by_side(one, num_lanes)
        step = lambda total, group: (total + read(group).sum(), ())
        total, _ = steps.in_groups(step, jnp.zeros(()), slots, num_lanes)
        return total, (), own

    def program(data, key):
        ids = sample_cohort(data, work.plan, key)
        slots = ids, jax.vmap(partial(jax.random.fold_in, key))(ids)
        extra = -ids.shape[0] % (num_lanes * num_devices)
        if extra:
            raise ValueError(
                f"{ids.shape[0]} clients do not fill {num_lanes} lanes on {num_devices} "
                "devices; give --lanes that they do."
            )
        return mesh.run_on_devices(read_batches, data, slots, (), num_devices)[0]

    data = mesh.to_read(work.data, num_devices)
    keys = itertools.cycle(list(jax.random.split(jax.random.key(2), KEYS)))
    return compiled(program, num_lanes, (data,), keys)


def evaluation(work: Work) -> Ready:
    """What `fedjax-adapt run` evaluates after a group of rounds, on 10,000 examples."""
    test = work.data.x[:TEST], work.data.y[:TEST]
    test = mesh.to_read(test, work.num_devices)
    algorithm = fa.algorithms.fedavg()
    task, devices = work.task, work.num_devices
    program = partial(measure, algorithm, task, devices, work.data.num_classes)
    state = fa.init_state(algorithm, task, work.data, work.plan, jax.random.key(0))
    last = itertools.repeat(state)
    ready = compiled(program, work.num_lanes, (test, None), last)
    return ready._replace(about=ready.about | {"examples": len(test[1])})


def compiled(
    program: Callable, num_lanes: int, fixed: Sequence, last: Iterator
) -> Ready:
    """A program under the options of a round; `last`: its last argument, call by call."""
    begin = time.perf_counter()
    options = xla.compiler_options(num_lanes)
    run = jax.jit(program).lower(*fixed, next(last)).compile(options)
    spent = round(time.perf_counter() - begin, 2)
    return Ready(lambda: run(*fixed, next(last)), {"compile_seconds": spent})


def save(work: Work, algorithm: Any) -> Ready:
    """A checkpoint of a state, as `fedjax-adapt run` takes it: until it is on disk.

    Its numbers are random: a table of zeros would be compressed to nothing.
    """
    key = jax.random.key(0)
    state = fa.init_state(algorithm, work.task, work.data, work.plan, key)

    def filled(leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return leaf + 0.01 * jax.random.normal(key, leaf.shape, leaf.dtype)

    state = jax.tree.map(filled, state)
    folder, numbers = scratch(), itertools.count(1)
    call = lambda: checkpoint.save(folder, state, next(numbers))
    leaves = jax.tree.leaves(state)
    megabytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 1e6
    return Ready(call, {"megabytes": short(megabytes)})


def results(work: Work) -> Ready:
    """The rows of one round and its evaluation, made and written as Parquet."""
    algorithm = fa.algorithms.fedavg()
    state = fa.init_state(algorithm, work.task, work.data, work.plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, work.task, work.data, work.plan)
    test = work.data.x[:TEST], work.data.y[:TEST]
    measured = partial(
        measure, algorithm, work.task, work.num_devices, work.data.num_classes
    )
    program = jax.tree_util.Partial(measured, test, None)
    keys = jax.random.split(jax.random.key(1), 1)
    _, *part = fa.train_and_evaluate(round_fn, state, keys, program)
    parts = [jax.tree.map(np.asarray, tuple(part))]
    log, done = Log(scratch(), work.data.num_clients), 0

    def call():
        nonlocal done
        done, _ = log.add(done, parts, 1.0)
        log.write(done)

    return Ready(call)


def cases(work: Work, setting: dict) -> dict[str, Case]:
    """A round, rounds with something left out, and parts by themselves."""
    fedavg, scaffold = fa.algorithms.fedavg(), fa.algorithms.scaffold()
    whole = partial(round_of, work)
    builds = {
        "round": partial(whole, fedavg),
        "in order": partial(whole, fedavg, shuffle="none"),
        "nothing sent": partial(whole, without_uploads(row=False)),
        "row kept": partial(whole, without_uploads(row=True)),
        "SCAFFOLD": partial(whole, scaffold),
        "batches": partial(batches, work),
        "local steps": partial(local_steps, work),
        "evaluation": partial(evaluation, work),
        "results": partial(results, work),
        "checkpoint": partial(save, work, fedavg),
        "checkpoint, SCAFFOLD": partial(save, work, scaffold),
    }
    return {
        name: Case({"part": "profile", "what": name} | setting, build)
        for name, build in builds.items()
    }
