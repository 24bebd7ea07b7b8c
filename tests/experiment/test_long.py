"""Long runs, and many: nothing grows but what they write."""

import os
import time

import numpy as np
import pytest
from tiny_runs import TINY

from fedjax_adapt.experiment import Config, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.skipif(
        not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc"
    ),
]


def reading():
    """Bytes, file descriptors and memory maps of this process."""
    with open("/proc/self/statm") as said:
        pages = int(said.read().split()[1])
    with open("/proc/self/maps") as said:
        maps = sum(1 for _ in said)
    size = os.sysconf("SC_PAGE_SIZE")
    return pages * size, len(os.listdir("/proc/self/fd")), maps


def test_ten_thousand_rounds_take_no_more_memory_files_or_time(tmp_path):
    rows = []

    def progress(now):
        rows.append((now.round, time.perf_counter(), *reading()))

    settings = {name: v for name, v in TINY.items() if name != "epochs"}
    settings |= dict(
        folder=str(tmp_path / "run"),
        rounds=10_000,
        evaluate_every=10,
        checkpoint_every=100,
        num_steps=1,
        batch_size=20,
        evaluate_clients=False,
    )
    run(Config(**settings), progress=progress)
    table = np.array(rows, float)
    rounds, seconds, memory, descriptors, maps = table.T
    late = rounds >= 1000
    assert memory[late].max() < 1.02 * memory[late][0]
    assert descriptors[late].max() < 60
    assert maps[late].max() < 1.05 * maps[late][0] + 20
    middle = np.interp([1000, 5000, 9000], rounds, seconds)
    first, second = np.diff(middle)
    assert second < 1.5 * first


def test_after_60_of_200_runs_in_a_process_nothing_grows(tmp_path):
    readings = []
    for number in range(200):
        run(Config(**TINY | {"rounds": 4}, folder=str(tmp_path / f"{number}")))
        readings.append(reading())
    memory, descriptors, maps = np.array(readings, float)[60:].T
    assert memory.max() < 1.02 * memory[0]
    assert descriptors.max() < 60
    assert maps.max() < 1.05 * maps[0]
