"""How clients train: what is the same for every algorithm compared."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from . import check
from .core import Array, Participation
from .costs import Clock
from .errors import SettingError

ClientMemory = Literal["device", "host"]  # the client stores of the engine
NonfiniteUpdates = Literal["stop", "leave_out"]
# that may be tracers
SCALARS = ("lr", "lr_decay", "momentum", "weight_decay", "clip_norm")


@dataclass(frozen=True)
class Plan:
    """How clients train: what is the same for every algorithm compared.

    Attributes:
      cohort_size: clients per round, drawn uniformly without replacement; None means
        everyone, in client order.
      batch_size: examples per local step; None means full-batch steps.
      lr: local learning rate of round 0 (may be a tracer, as may the next four).
      lr_decay: the learning rate of round t is lr * lr_decay**t.
      momentum: of local SGD, buffer zeroed at the start of every round.
      weight_decay: added to the gradient after clipping.
      clip_norm: the global norm to which gradient plus correction is clipped; None: no.
      max_steps: cap on the local steps of a client in a round; None: no cap. A policy that
        learns should be built with a cap that is no larger: it does not see this one.
      lanes: how many clients run side by side on a device, cut to the most it has in a
        round; "auto" chooses by backend and model, on an accelerator by how unequal the
        steps are that the policy says it will ask for and, with a warning, by how many
        its memory has room for (`make_round(...).num_lanes`). With fewer lanes than clients
        whoever is done makes room for the next: as many as the cohort's steps hold those
        of its longest client waste little.
      devices: how many of JAX's devices share the clients of a round; "auto": all, those
        of other processes too after `jax.distributed.initialize`. On a CPU begin with
        `cores_as_devices()`.
      shuffle: "epoch" (without replacement, the last partial batch kept),
        "replacement", or "none" (in order, for comparisons).
      participation: who takes part, e.g. `bernoulli(0.15)`; None: `cohort_size` decides.
      client_memory: "device", or "host" where the state of all clients is too large for
        it: then only the rows of a cohort visit the device.
      clock: what a round takes, in simulated seconds; None: they are not counted.
      rounds: the rounds the run will have, for methods whose equations have it (FedSSG;
        may be a tracer); None: those before a call of `fa.train` and those of the call.
      nonfinite_updates: what becomes of a client that sends a number which is not finite.
        "stop": it counts as any other, then the model is not finite and a run stops.
        "leave_out": it is in no aggregate and keeps the state it had, and `Info.left_out`
        says so. An algorithm that weighs its clients neither by examples nor uniformly
        then has the uploads of a whole cohort held at once.
    """

    cohort_size: int | None = None
    batch_size: int | None = 50
    lr: float | Array = 0.1
    lr_decay: float | Array = 1.0
    momentum: float | Array = 0.0
    weight_decay: float | Array = 0.0
    clip_norm: float | Array | None = None
    max_steps: int | None = None
    lanes: int | str = "auto"
    shuffle: str = "epoch"
    participation: Participation | None = None
    devices: int | str = 1
    client_memory: str = "device"
    clock: Clock | None = None
    rounds: int | Array | None = None
    nonfinite_updates: str = "stop"

    def __post_init__(self):
        check.at_least("cohort_size", self.cohort_size, 1, none="everyone")
        check.at_least("batch_size", self.batch_size, 1, none="full-batch steps")
        check.positive("lr", self.lr)
        check.positive("lr_decay", self.lr_decay)
        check.between("momentum", self.momentum, 0, 1, closed="left")
        check.representable("momentum", self.momentum)
        check.nonnegative("weight_decay", self.weight_decay)
        if self.clip_norm is not None:
            check.positive("clip_norm", self.clip_norm)
        check.at_least("max_steps", self.max_steps, 1, none="no cap")
        check.at_least("rounds", self.rounds, 1, none="those of train", most=math.inf)
        check.at_least("lanes", self.lanes, 1, auto=True)
        check.at_least("devices", self.devices, 1, auto=True)
        check.one_of("shuffle", self.shuffle, ("epoch", "replacement", "none"))
        check.one_of("client_memory", self.client_memory, get_args(ClientMemory))
        updates = self.nonfinite_updates
        check.one_of("nonfinite_updates", updates, get_args(NonfiniteUpdates))
        if not isinstance(self.participation, Participation | None):
            raise SettingError(
                f"participation must be a Participation, got "
                f"{check.kind_of(self.participation)}; write bernoulli(q) for a coin per "
                "client, uniform(m) or everyone().",
                setting="participation",
            )
        if not isinstance(self.clock, Clock | None):
            raise SettingError(
                f"clock must be a Clock, got {check.kind_of(self.clock)}; write "
                "Clock(step_seconds=0.05).",
                setting="clock",
            )
        waits = self.participation is not None and self.participation.first_to_end
        if waits and self.clock is None:
            raise SettingError(
                "participation=earliest(...) needs to know who ends first; give a clock, "
                "as in Plan(clock=Clock(step_seconds=0.05)).",
                setting="participation",
            )
        if self.cohort_size is not None and self.participation is not None:
            raise SettingError(
                f"Plan got both cohort_size={self.cohort_size} and participation; "
                "write one of them."
            )
