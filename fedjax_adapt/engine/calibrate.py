"""The fastest number of lanes on this machine, by trying.

A few steps of a round are timed, of as many clients as a real round has in the mean, the
longest of them as many times longer as there: side by side they wait for it, packed they
do not. Where the steps follow from what clients measure, or are learnt, some real rounds
come first, and say how unequal they are.

It begins with the number that `lanes.choose` gives by rule. From there the candidates are
climbed, up and then down, as long as none is much slower than the fastest.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Algorithm, Info, Task, as_refinement, no_report
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import Plan
from . import lanes, memory, mesh, xla
from .batches import batch_size
from .build import lanes_that_fit, make_round
from .cohort import num_devices_of, slots_per_device
from .footprint import footprint
from .initial import init_state
from .lanes import client_steps, cohorts
from .setup import Setup, check_kinds, check_rule
from .step_time import work_of

CANDIDATES = (1, 5, 25, 100, 500)  # each is a program to compile
STEPS = 3  # of a client, in the mean
FAR = 1.1  # of the fastest: what lies beyond something so slow is not tried
LEAST = 3  # rounds timed, the fastest of which counts
SECONDS = 0.3  # and at least so long
# before steps that are learnt are looked at: FedVeca compares two rounds for the third
REAL = 3


def fastest_lanes(
    algorithm: Algorithm,
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    tell: Callable[[int, float], object] = lambda number, seconds: None,
) -> int:
    """The number of lanes to write into a `Plan` for this work on this machine.

    It compiles and times some short rounds, but for those without room. Numbers of a run
    change by rounding only, whatever the number of lanes.

    Args:
      algorithm: what is trained by; its refinement on a public set is not timed.
      task: what is learnt.
      data: the federation; some of its clients are timed.
      plan: how clients train; `plan.lanes` does not matter.
      tell: called with a number of lanes and the seconds of a short round, as they come;
        infinitely many where there is no room.

    Raises:
      SettingError: as `init_state` and `make_round` do.
    """
    call = "fastest_lanes(algorithm, task, data, plan)"
    setup = Setup(algorithm, task, data, plan)
    check_kinds(call, setup)
    check_rule(setup)
    # options that describe the federation do not hold of the few clients that are timed
    algorithm = algorithm._replace(local=algorithm.local._replace(check=None))
    data, plan = _usual_cohort(data, replace(plan, lanes="auto"))
    refine = as_refinement(algorithm.refine)
    if refine is not None:  # what it begins with, clients may read
        refine = refine._replace(clients=None, server=None)
    server = algorithm.server
    if server.busy is not None:  # whoever it waits for, a round trains as many
        stay = lambda params, extra, upload, cohort: (params, extra)
        server = server._replace(busy=None, update=stay, report=no_report)
    algorithm = algorithm._replace(refine=refine, server=server)
    setup = Setup(algorithm, task, data, plan)
    steps = _few_steps(setup)
    policy = algorithm.policy._replace(steps=lambda *_: jnp.asarray(steps))
    # caps were on the real number of steps
    algorithm = algorithm._replace(policy=policy._replace(max_steps=None))
    plan = replace(plan, max_steps=None)
    setup = setup._replace(algorithm=algorithm, plan=plan)
    each = slots_per_device(data, plan)
    first = lanes.choose(
        "auto",
        each,
        jax.eval_shape(task.init, jax.random.key(0)),
        batch_size(data, plan),
        num_devices_of(data, plan),
        lambda: steps[None],
        partial(work_of, setup),
    )
    first = lanes_that_fit(setup, first, lambda text: None)

    def seconds(number: int) -> float:
        found = _seconds(setup._replace(plan=replace(plan, lanes=number)))
        tell(number, found)
        return found

    return climb(seconds, candidates(each, first), first)


def candidates(most: int, first: int) -> list[int]:
    """Numbers of lanes to try, in order: `first`, in place of its nearest, and others."""
    known = {*(n for n in CANDIDATES if n < most), most}
    nearest = min(known, key=lambda n: abs(math.log(n / first)))
    return sorted((known - {nearest}) | {first, most})


def climb(seconds: Callable[[int], float], candidates: list[int], first: int) -> int:
    """The fastest of the candidates that are tried, one after the other.

    Args:
      seconds: of a candidate; asked once for each. Infinite where there is no room for
        it: then fewer lanes are tried, and if none fit it is the first.
      candidates: in order.
      first: where to begin: the candidate nearest to it. More lanes are tried as long as
        none takes `FAR` times the fastest, then fewer if none of those was faster.
    """
    at = min(range(len(candidates)), key=lambda i: abs(math.log(candidates[i] / first)))
    start, best = at, seconds(candidates[at])
    while best == math.inf and at > 0:  # no room
        at -= 1
        best = seconds(candidates[at])
    if best == math.inf:
        return candidates[start]
    for way in (1, -1) if at == start else (-1,):
        begun = next_one = at
        while 0 <= (next_one := next_one + way) < len(candidates):
            found = seconds(candidates[next_one])
            if found >= FAR * best:
                break
            if found < best:
                at, best = next_one, found
        if at != begun:  # the other way lies what was slower
            break
    return candidates[at]


def _usual_cohort(data: FederatedDataset, plan: Plan) -> tuple[FederatedDataset, Plan]:
    """The clients of a round as a data set of its own, all of whom take part.

    Of some rounds the one that has about as many as they have in the mean; its empty
    slots are clients without examples, whom lanes pass over likewise.
    """
    num_devices = num_devices_of(data, plan)
    drawn = cohorts(data, plan)
    present = drawn < data.num_clients
    some = np.abs(present.sum(1) - present.sum(1).mean()).argmin()
    ids, present = np.where(present, drawn, 0)[some], present[some]
    # of all clients a part lies on each device, and so it must be of these
    more = -len(ids) % num_devices
    ids, present = np.pad(ids, (0, more)), np.pad(present, (0, more))
    size = np.where(present, np.asarray(data.size)[ids], 0)
    data = replace(data, test=None, noise=None, client_tests=None)
    data = data.with_changed(index=data.index[ids], size=jnp.asarray(size, jnp.int32))
    clock = None if plan.clock is None else plan.clock.of_clients(ids)
    plan = replace(plan, cohort_size=None, participation=None, clock=clock)
    return data, replace(plan, devices=mesh.serving(num_devices, len(ids)))


def _few_steps(setup: Setup) -> np.ndarray:
    """Fewer local steps for each client, in the proportions of the policy, [clients]."""
    steps = None
    if setup.algorithm.policy.update is None:  # else later rounds may have other steps
        steps = client_steps(setup)
    if steps is None:
        steps = _steps_of_a_real_round(setup)
    holds = np.asarray(setup.data.size) > 0
    # who sits a round out takes part in others
    steps = np.where(holds, np.maximum(steps, 1), 0)
    return np.ceil(STEPS * steps / steps[holds].mean()).astype(np.int32)


def _steps_of_a_real_round(setup: Setup) -> np.ndarray:
    """The clients' steps after some rounds of the policy, [clients]; else all alike."""
    steps = np.ones(setup.data.num_clients)
    try:
        again = _compiled(setup)
        if again is not None:
            for _ in range(REAL):
                steps = np.asarray(again().num_steps)
    except jax.errors.JaxRuntimeError as error:
        if not memory.is_exhausted(error):
            raise
    return steps


def _seconds(setup: Setup) -> float:
    """The fastest of some rounds; infinite where they do not fit into memory."""
    taken: list[float] = []
    try:
        again = _compiled(setup)
        if again is None:
            return math.inf
        again()
        while len(taken) < LEAST or sum(taken) < SECONDS:
            began = time.perf_counter()
            again()
            taken.append(time.perf_counter() - began)
    except jax.errors.JaxRuntimeError as error:
        if memory.is_exhausted(error):  # more than the footprint says
            return math.inf
        raise
    return min(taken)


def _compiled(setup: Setup) -> Callable[[], Info] | None:
    """A function that runs the next round, from the first on; None: there is no room."""
    algorithm, task, data, plan = setup[:4]
    state = init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = make_round(algorithm, task, data, plan)
    arrays, rebuild = xla.arrays_of(round_fn)
    step = jax.jit(lambda state, of, key: rebuild(of)(state, key), donate_argnums=0)
    options = xla.compiler_options(round_fn.num_lanes)
    key = jax.random.key(1)
    traced = step.trace(state, arrays, key)
    devices = num_devices_of(data, plan)
    try:
        memory.check_room(footprint(traced.jaxpr.jaxpr, state, round_fn.data, devices))
    except SettingError:
        return None
    program = traced.lower().compile(options)

    def again() -> Info:
        nonlocal state
        state, info = jax.block_until_ready(program(state, arrays, key))
        return info

    return again
