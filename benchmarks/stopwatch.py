"""How long rounds take, what else the machine did meanwhile, and which machine it is.

NumPy alone: peers are timed by it in environments of their own.
"""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# How the allocator is tuned: freed memory stays with the process, where glibc would hand
# big pieces back to the kernel and every step would fault them in again.
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


class Stopwatch:
    """Seconds of every round, and the processor seconds that others used meanwhile.

    Attributes:
      seconds: of each round so far.
      elsewhere: processor seconds of other processes, likewise.
    """

    def __init__(self, root: int | None = None):
        """Args:
        root: process whose descendants do the work with it; None: this process alone.
        """
        self.root = root
        self.seconds: list[float] = []
        self.elsewhere: list[float] = []
        self.start()

    def start(self) -> None:
        """A round begins."""
        self.busy = busy_elsewhere(self.root)
        self.began = time.perf_counter()

    def stop(self) -> None:
        """It ends."""
        self.seconds.append(time.perf_counter() - self.began)
        self.elsewhere.append(busy_elsewhere(self.root) - self.busy)

    def figures(self, warmup: int, steps: Sequence[int]) -> dict[str, float | int]:
        """What the rounds after the first `warmup` took.

        Args:
          warmup: rounds that are not counted.
          steps: local steps of each round, over all clients.
        """
        seconds = np.array(self.seconds[warmup:])
        per_second = np.array(steps[warmup:]) / seconds
        elsewhere = sum(self.elsewhere[warmup:])
        return {
            "seconds_per_round": round(float(np.median(seconds)), 5),
            "min": round(float(seconds.min()), 5),
            "max": round(float(seconds.max()), 5),
            "n": len(seconds),
            "steps_per_second": round(float(np.median(per_second)), 1),
            "other_cores": round(elsewhere / float(seconds.sum()), 2),
        }


def busy_elsewhere(root: int | None = None) -> float:
    """Processor seconds that other processes have used; 0 where /proc is missing.

    Args:
      root: process whose descendants are not others either; None: this process alone.
    """
    try:
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, ticks)
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    if root is None:
        return busy - sum(os.times()[:2])
    # of a process and of its children that have ended: utime, stime, cutime, cstime
    own = sum(int(ticks) for pid in family(root) for ticks in _stat(pid)[11:15])
    return busy - own / os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """A process and all its descendants, by id."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))):
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    found = [root]
    for pid in found:  # which grows meanwhile
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: its parent is second; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def peak_memory_mb(root: int | None = None) -> float | None:
    """The largest resident memory so far, in MB of 2**20 bytes; None without /proc.

    Args:
      root: sums over this process and its descendants, where shared pages count more
        than once; None: of this process.
    """
    peaks = []
    for pid in ["self"] if root is None else family(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        # one that is just ending has no memory any more
        peaks += [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    return round(sum(peaks) / 1024) if peaks else None


def allocator_is_tuned() -> bool:
    """Whether this process was started under `TUNED`, or something like it."""
    return "MALLOC_MMAP_THRESHOLD_" in os.environ


def processor() -> dict[str, str | int | None]:
    """The processor by name, where the system tells, and the cores we may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    name = names[0] if names else platform.processor() or platform.machine()
    some = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if some else os.cpu_count()
    return {"platform": "cpu", "cpu": name, "cores": cores}
