import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from eight import ALONE, CASES

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("eight.py")


def begin(*arguments):
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )


def numbers(folder, *, processes):
    """What each process has written, after all have ended well."""
    outs = [folder / f"{processes}-{i}.json" for i in range(processes)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if processes == 1:
        running = [begin(outs[0])]
    else:
        running = [begin(out, port, i) for i, out in enumerate(outs)]
    try:
        for process in running:
            _, said = process.communicate(timeout=900)
            assert process.returncode == 0, said.decode()[-3000:]
    finally:
        for process in running:
            process.kill()
    return [json.loads(out.read_text()) for out in outs]


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("one"), processes=1)[0]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("two"), processes=2)


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for path, values in ours.items():
        # r_k is the cotangent of an angle, of differences of sums that are nearly equal
        few = 3 if path.endswith("['gsnr']") else 1
        np.testing.assert_allclose(
            values, theirs[path], atol=1e-5, rtol=few * 1e-5, err_msg=path
        )


@pytest.mark.parametrize("case", CASES)
def test_eight_devices_give_the_numbers_of_one(of_one, case):
    alone, spread = of_one[case]
    close(spread, alone)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_numbers_of_one(of_one, of_two, case):
    first, second = of_two
    assert first[case] == second[case]  # both have all of them, to the bit
    alone, spread = first[case]
    if case in ALONE:  # each can run a round for itself
        assert alone == of_one[case][0]
    close(spread, of_one[case][1])
