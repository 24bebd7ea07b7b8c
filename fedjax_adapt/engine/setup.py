"""What a round is made from, and what must hold of it."""

from typing import Any, NamedTuple

import jax
import numpy as np

from .. import check
from ..core import Algorithm, Setting, Task
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import SCALARS, Plan
from .cohort import expected_share, participation_of
from .contract import check_parts
from .steps import Pace


class Setup(NamedTuple):
    """What a round is made from.

    Attributes:
      algorithm: as for `make_round`, like the next three.
      task: what is learnt.
      data: the federation.
      plan: how clients train.
      pace: what is known of the clients' steps before a round is traced.
    """

    algorithm: Algorithm
    task: Task
    data: FederatedDataset
    plan: Plan
    pace: Pace = Pace()


def check_kinds(call: str, setup: Setup, **others: tuple[Any, Any]) -> None:
    """`check.kinds` of what a round is made from, and of others.

    Raises:
      SettingError: one of them is of another kind, or a part of the algorithm is.
    """
    if isinstance(setup.algorithm, Algorithm):
        check_parts(setup.algorithm)
    check.kinds(
        call,
        algorithm=(setup.algorithm, Algorithm),
        task=(setup.task, Task),
        data=(setup.data, FederatedDataset),
        plan=(setup.plan, Plan),
        **others,
    )


def check_rule(setup: Setup, done: int = 0) -> None:
    """Raises SettingError where the local or the server rule contradicts the run.

    `done` are rounds that the run will at least have.
    """
    algorithm, _, data, plan = setup[:4]
    sgd = algorithm.local.optimizer is None
    if not sgd and not is_zero(plan.momentum):
        raise SettingError(
            f"momentum={plan.momentum} is of local SGD, but the clients have another "
            "optimizer; write momentum=0, and give the optimizer its own.",
            setting="momentum",
        )
    setting = Setting(
        round=done,
        lr=plan.lr,
        base_lr=plan.lr,
        weight_decay=plan.weight_decay,
        momentum=plan.momentum if sgd else None,
        mean_steps=None,
        share=None,
        num_clients=data.num_clients,
        clip_norm=plan.clip_norm,
        rounds=plan.rounds,
        participation=expected_share(data, plan),
        num_holders=data.num_holders,
        lr_decay=plan.lr_decay,
    )
    if algorithm.local.check is not None:
        algorithm.local.check(setting)
    if algorithm.server.busy is not None:
        _check_under_way(algorithm, plan)


def _check_under_way(algorithm: Algorithm, plan: Plan) -> None:
    """Raises SettingError unless clients may be under way when a round begins."""
    if plan.clock is None:
        raise SettingError(
            "the server rule goes by who ends first, but the plan has no clock; write "
            "Plan(clock=Clock(step_seconds=0.05))."
        )
    if participation_of(plan).order is None:
        raise SettingError(
            "the server rule passes over clients that are still under way, but the plan's "
            "participation cannot; write Plan(cohort_size=10) for ten clients a round."
        )
    if algorithm.refine is not None:
        raise SettingError(
            "the algorithm refines models on a public set, for which a round's clients "
            "must have ended, but its server rule does not wait for them; leave one out."
        )


def is_zero(value) -> bool:
    """Whether a number is known to be 0 now, so that its term can be left out."""
    return not isinstance(value, jax.Array) and value == 0


def scalars_of(plan: Plan) -> dict[str, Any]:
    """The plan's `SCALARS`, but for those that leave a term out, and rounds.

    As host scalars, which go to whatever devices a program runs on.
    """
    given = {name: getattr(plan, name) for name in SCALARS}
    found = {
        name: _host_scalar(number)
        for name, number in given.items()
        if number is not None and not is_zero(number)
    }
    rounds = plan.rounds  # an integer to `Plan`, which a round makes again
    if rounds is not None:
        found["rounds"] = rounds if check.is_tracer(rounds) else int(rounds)
    return found


def _host_scalar(number: Any) -> Any:
    """The same number, whose dtype gives way to others, but for an array of JAX's own."""
    if check.is_tracer(number):
        return number
    if isinstance(number, jax.Array) and not number.weak_type:
        return np.asarray(number)[()]
    # 1 and np.float32(0.5) are no other program than 0.5
    if isinstance(number, jax.Array | np.generic | np.ndarray | int):
        return float(number)
    return number
