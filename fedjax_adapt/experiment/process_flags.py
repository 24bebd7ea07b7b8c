"""The flags of a run that other processes take part in."""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .. import check
from ..errors import SettingError
from .options import Option

AUTO = "auto"
LAST_PORT = 2**16 - 1
DAY = 24 * 3600
OPTIONS = {  # by the names of the arguments of jax.distributed.initialize
    "coordinator_address": Option(
        str | None,
        None,
        "HOST:PORT of process 0, to make one run together with processes on other "
        "machines; auto: as Slurm, Open MPI or Kubernetes says",
    ),
    "num_processes": Option(int | None, None, "how many processes make the run"),
    "process_id": Option(
        int | None, None, "which of them this is, from 0; process 0 writes and prints"
    ),
    "initialization_timeout": Option(
        int, 300, "seconds that each of them waits for the others to come"
    ),
}


class ProcessGroup(NamedTuple):
    """Which of how many processes this is, and where the first can be found."""

    coordinator_address: str
    num_processes: int | None  # None: as the cluster says
    process_id: int | None
    initialization_timeout: int = 300  # seconds

    def share(self, devices: int | Literal["auto"]) -> int | Literal["auto"]:
        """How many devices each process should have, for `devices` in all.

        Raises:
          ValueError: not each process can have one.
        """
        if devices == "auto" or self.num_processes is None:
            return "auto"
        if devices < self.num_processes:
            raise SettingError(
                f"devices={devices} are too few for num_processes={self.num_processes}, "
                f"which share them; write devices={self.num_processes} or more, or auto."
            )
        return -(-devices // self.num_processes)


def process_group_of(values: Mapping[str, Any]) -> ProcessGroup | None:
    """What the flags of a run say about other processes; None: there are none.

    Raises:
      ValueError: a flag is missing, or not as it must be.
    """
    address, count, own, timeout = (values[name] for name in OPTIONS)
    check.at_least("initialization_timeout", timeout, 1, most=DAY)
    if address == AUTO:
        if (count, own) != (None, None):
            raise SettingError(
                "coordinator_address=auto finds out num_processes and process_id by "
                "itself; leave them out."
            )
        return ProcessGroup(AUTO, None, None, timeout)
    missing = [name for name in OPTIONS if values[name] is None]
    if all(values[name] == option.default for name, option in OPTIONS.items()):
        return None
    if missing:
        flags = " and ".join("--" + name.replace("_", "-") for name in missing)
        raise SettingError(
            "processes that make a run together need --coordinator-address HOST:PORT, "
            f"--num-processes and --process-id each; write {flags} as well."
        )
    found = re.fullmatch(r"(.+):(\d+)", address)
    if found is None or not 1 <= int(found[2]) <= LAST_PORT:
        raise SettingError(
            f"coordinator_address={address} names no port from 1 to {LAST_PORT}; write "
            "HOST:PORT of process 0, such as 10.0.0.1:1234."
        )
    if count < 1:
        raise SettingError(f"num_processes={count} must be an integer >= 1.")
    if not 0 <= own < count:
        last = f"to {count - 1}" if count > 1 else "alone"
        raise SettingError(
            f"process_id={own} but the processes of num_processes={count} are numbered 0 "
            f"{last}; give each its own."
        )
    return ProcessGroup(address, count, own, timeout)
