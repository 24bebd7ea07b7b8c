"""Two processes of the command line make one run together, on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import pytest
from helpers import same

from fedjax_adapt import init_state
from fedjax_adapt.experiment import build, checkpoint, lost_process, read_run
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.program import run_keys
from fedjax_adapt.experiment.reading import read_settings

pytestmark = pytest.mark.slow
RUN = (
    "run --algorithm scaffold --model linear --num-clients 6 --participation 0.5 "
    "--rounds 7 --epochs 1 --batch-size 100 --checkpoint-every 2 --devices 2"
)
ENDLESS = RUN.replace("--rounds 7", "--rounds 100000")
WAIT = 300  # seconds for a process that does what it should


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder, and the environment of processes that share compiled programs."""
    place = tmp_path_factory.mktemp("together")
    return place, dict(os.environ, JAX_PLATFORMS="cpu", XDG_CACHE_HOME=str(place))


def begin(place, line):
    folder, environment = place
    return subprocess.Popen(
        [sys.executable, "-m", "fedjax_adapt", *line.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(running):
    """(exit code, standard output, standard error) of each."""
    try:
        said = [process.communicate(timeout=WAIT) for process in running]
    finally:
        for process in running:
            process.kill()
    codes = [process.returncode for process in running]
    return [(code, *texts) for code, texts in zip(codes, said, strict=True)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pair(place, *lines):
    """Two processes that know each other, by the lines of both."""
    address = f"--coordinator-address 127.0.0.1:{free_port()} --num-processes 2"
    return [
        begin(place, f"run {address} --process-id {i} {line.removeprefix('run ')}")
        for i, line in enumerate(lines)
    ]


def saved(place, folder):
    """Waits until a run has a checkpoint."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        if checkpoint.rounds(place[0] / folder / "checkpoints"):
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} has no checkpoint")


def sentences(said):
    """What is no note of JAX, which warns of proxies in the environment."""
    return [line for line in said.splitlines() if line.startswith("fedjax-adapt:")]


@pytest.fixture(scope="module")
def alone(place):
    """The run of one process with two devices."""
    (ended,) = ends([begin(place, f"{RUN} --folder alone")])
    assert ended[0] == 0, ended
    return read_run(place[0] / "alone")


@pytest.fixture(scope="module")
def together(place):
    """What the two processes said, and the run they have made."""
    line = f"{RUN} --folder together"
    return ends(pair(place, line, line)), read_run(place[0] / "together")


def final_state(folder):
    config = from_settings(read_settings(folder / "config.toml"))
    f, (key, _) = build(config), run_keys(config.seed)
    init = partial(init_state, f.algorithm, f.task, f.data, f.plan)
    return checkpoint.restore(folder / "checkpoints", jax.eval_shape(init, key))


def check_equal(ours, theirs):
    """The same rows; sums over the test set are taken in another order."""
    assert ours.clients.equals(theirs.clients)
    for name in set(ours.metrics.column_names) - {"seconds"}:
        mine, other = (record.metrics[name].to_pylist() for record in (ours, theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=name)
    assert ours.summary["accuracy"] == theirs.summary["accuracy"]


@pytest.mark.optimised
def test_two_processes_make_the_run_of_one(alone, together):
    said, record = together
    check_equal(record, alone)
    hardware = alone.summary["hardware"]
    assert record.summary["hardware"] == hardware | {"processes": 2}
    assert hardware["devices"] == 2
    assert same(final_state(record.folder), final_state(alone.folder))


def test_the_first_alone_prints(together):
    (first, second), _ = together
    assert first[0] == second[0] == 0
    assert "test accuracy" in first[1] and "Gloo" not in first[1]
    assert second[1] == "" and sentences(first[2] + second[2]) == []


def test_a_run_together_goes_on_together_and_alone(place, together):
    before = together[1]
    for run in ("pair", "one"):
        folder = place[0] / "together"
        (folder / "summary.json").unlink()
        newest = folder / "checkpoints" / "000000007"
        newest.rename(folder / "checkpoints" / "away")
        line = "run --folder together --resume"
        running = pair(place, line, line) if run == "pair" else [begin(place, line)]
        assert [code for code, *_ in ends(running)] == [0] * len(running)
        check_equal(read_run(folder), before)
        assert newest.exists()
        (folder / "checkpoints" / "away").rename(place[0] / f"away-{run}")
    (first, second) = ends(pair(place, line, line))
    said = "together holds this run, finished; nothing is left to run.\n"
    assert first[:2] == (0, said) and second[:2] == (0, "")


@pytest.mark.parametrize(
    "second, says",
    [
        ("--seed 1", "process 1 has seed=1 but process 0 seed=0; give all the same"),
        (
            "--dataset mnist --data-dir nowhere",
            "data_dir=nowhere does not exist; write",
        ),
    ],
)
def test_a_mistake_in_one_process_is_a_sentence_in_both(place, second, says):
    line = f"{RUN} --folder refused"
    ended = ends(pair(place, line, f"{line} {second}"))
    for code, out, error in ended:
        assert (code, out) == (2, "")
        assert [s.startswith(f"fedjax-adapt: {says}") for s in sentences(error)] == [
            True
        ]
    assert not (place[0] / "refused").exists()


def check_lost(ended):
    """It has said, in one sentence and nothing else, that another one is lost."""
    assert ended[0] in (1, -signal.SIGABRT)  # of Python, or of JAX if it sees it first
    error = ended[2]
    said = [line for line in error.splitlines(True) if "proxy variable" not in line]
    assert said == [lost_process.SENTENCE]


@pytest.fixture(scope="module")
def silent(place):
    """A pair of which the first does not answer, and what the second says in the end.

    JAX waits for more than a minute, in which tests that use this fixture run.
    """
    line = f"{ENDLESS} --folder silent"
    running = pair(place, line, line)
    saved(place, "silent")
    begun = time.monotonic()
    running[0].send_signal(signal.SIGSTOP)

    def second():
        (other,) = ends(running[1:])
        return other, time.monotonic() - begun

    with ThreadPoolExecutor() as thread:
        yield running, thread.submit(second)
        for process in running:
            process.kill()


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_dies_ends_the_others(place, dies):
    line = f"{ENDLESS} --folder killed-{dies}"
    running = pair(place, line, line)
    saved(place, f"killed-{dies}")
    running[dies].kill()
    check_lost(ends(running)[1 - dies])


@pytest.mark.usefixtures("silent")
def test_a_process_that_is_stopped_for_20_seconds_changes_nothing(place, together):
    line = f"{RUN} --folder paused"
    running = pair(place, line, line)
    until = time.monotonic() + WAIT
    while not (place[0] / "paused").exists() and time.monotonic() < until:
        time.sleep(0.02)
    running[1].send_signal(signal.SIGSTOP)
    time.sleep(20)
    assert running[0].poll() is None
    running[1].send_signal(signal.SIGCONT)
    assert [code for code, *_ in ends(running)] == [0, 0]
    check_equal(read_run(place[0] / "paused"), together[1])


@pytest.mark.usefixtures("silent")
def test_ctrl_c_in_one_process_saves_and_ends_all(place):
    line = f"{ENDLESS} --folder stopped"
    running = pair(place, line, line)
    saved(place, "stopped")
    running[1].send_signal(signal.SIGINT)
    ended = ends(running)
    assert [code for code, *_ in ended] == [130, 130]
    done = checkpoint.rounds(place[0] / "stopped" / "checkpoints")[-1]
    said = f"interrupted, saved up to round {done} in stopped; write fedjax-adapt run "
    again = "--folder stopped --resume here, and so in every other process, to go on."
    for number, (*_, error) in enumerate(ended):
        assert said in error and f"--process-id {number} " in error and again in error
    assert read_run(place[0] / "stopped").metrics["round"].to_pylist()[-1] == done


@pytest.mark.parametrize("process_id", [0, 1])
def test_processes_that_do_not_come_are_not_waited_for_without_end(place, process_id):
    address = f"127.0.0.1:{free_port()}"
    line = f"run --coordinator-address {address} --num-processes 2"
    line += f" --process-id {process_id} --initialization-timeout 2"
    ((code, _, error),) = ends([begin(place, line)])
    assert code == 2
    says = f"fedjax-adapt: the other processes have not come to {address} within 2 sec"
    assert sentences(error)[0].startswith(says)


def test_a_host_that_nobody_knows_is_not_waited_for(place):
    there = "--coordinator-address no.such.host.invalid:2100 --num-processes 2"
    (ended,) = ends([begin(place, f"{RUN} {there} --process-id 1")])
    assert ended[0] == 2
    (said,) = sentences(ended[2])
    assert "names a host that is not known" in said


def test_a_port_that_is_taken_is_one_sentence_in_each_process(place):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = f"run --coordinator-address 127.0.0.1:{port} --num-processes 2"
        line += " --initialization-timeout 2"
        ended = ends([begin(place, f"{line} --process-id {i}") for i in (0, 1)])
    assert [code for code, *_ in ended] == [2, 2]
    first, second = (sentences(error) for *_, error in ended)
    assert f":{port} cannot be listened to" in first[0]
    assert f":{port} is the port of another program" in second[0]


def test_processes_that_count_themselves_differently_end_with_one_sentence(place):
    address = f"--coordinator-address 127.0.0.1:{free_port()}"
    lines = [f"run {address} --num-processes {2 + i} --process-id {i}" for i in (0, 1)]
    for code, out, error in ends([begin(place, line) for line in lines]):
        assert (code, out) == (2, "")
        (said,) = sentences(error)
        assert "process 1 has num_processes=3 but process 0 num_processes=2" in said


def test_a_process_that_no_longer_answers_ends_the_others_within_five_minutes(silent):
    """The last test here, as the others run while it waits."""
    running, second = silent
    other, seconds = second.result()
    assert seconds < 300
    check_lost(other)
    running[0].send_signal(signal.SIGCONT)
    (first,) = ends(running[:1])
    check_lost(first)
