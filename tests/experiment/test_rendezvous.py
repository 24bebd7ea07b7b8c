"""How processes meet before JAX joins them; threads stand for processes here."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedjax_adapt.experiment import process_group
from fedjax_adapt.experiment.process_group import ProcessGroup


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"127.0.0.1:{port}"


def said(them):
    """The sentence with which a process ends; None: they have met."""
    try:
        return process_group.wait_for_all(them)
    except ValueError as error:
        return str(error)


def met(*processes):
    """What each process says, the last of them begun first."""
    with ThreadPoolExecutor(len(processes)) as threads:
        running = []
        for them in reversed(processes):
            running.append(threads.submit(said, them))
            time.sleep(0.05)
        return [done.result() for done in reversed(running)]


@pytest.mark.slow
def test_processes_meet_in_any_order_and_leave_the_port(address):
    for count in (1, 2, 4):
        assert met(*(ProcessGroup(address, count, i, 20) for i in range(count))) == (
            [None] * count
        )


@pytest.mark.parametrize("first, second", [(2, 3), (3, 2)])
def test_all_are_told_that_they_count_themselves_differently(address, first, second):
    both = met(
        ProcessGroup(address, first, 0, 20), ProcessGroup(address, second, 1, 20)
    )
    says = f"process 1 has num_processes={second} but process 0 num_processes={first};"
    assert [s.startswith(says) for s in both] == [True, True]


def test_an_id_belongs_to_one_process(address):
    ids = (0, 1, 1)
    said = met(*(ProcessGroup(address, 3, i, 20) for i in ids))
    assert set(said) == {"process_id=1 was given to two processes; give each its own."}


@pytest.mark.slow
@pytest.mark.parametrize("own", [0, 1])
def test_nobody_waits_longer_than_was_said(address, own):
    begun = time.monotonic()
    (sentence,) = met(ProcessGroup(address, 2, own, 1))
    assert sentence.startswith(
        f"the other processes have not come to {address} within 1 seconds; begin all"
    )
    assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_those_who_came_are_told_that_others_did_not(address):
    both = met(ProcessGroup(address, 3, 0, 1), ProcessGroup(address, 3, 1, 20))
    assert [s.startswith("the other processes have not come") for s in both] == [
        True,
        True,
    ]


@pytest.mark.parametrize("word", [b"", b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_port_of_another_program_is_found_out_by_all(word):
    """It says nothing, or what is no greeting of ours, and closes."""

    def serve():
        caller, _ = taken.accept()
        with caller:
            caller.sendall(word)

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        server = threading.Thread(target=serve)
        server.start()
        there = f"127.0.0.1:{port}"
        first, second = met(
            ProcessGroup(there, 2, 0, 20), ProcessGroup(there, 2, 1, 20)
        )
        server.join()
    assert first.startswith(f"coordinator_address={there} cannot be listened to")
    assert second.startswith(f"coordinator_address={there} is the port of another")


def test_who_looks_at_the_port_does_not_disturb_the_rendezvous(address):
    host, port = address.split(":")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(said, ProcessGroup(address, 2, 0, 20))
        time.sleep(0.1)
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        second = threads.submit(said, ProcessGroup(address, 2, 1, 20))
        assert first.result() is None and second.result() is None


def test_a_first_process_that_ends_early_is_noticed(address, monkeypatch):
    monkeypatch.setattr(process_group, "_difference", lambda *_: 1 / 0)  # a bug of ours
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(said, ProcessGroup(address, 2, 0, 20))
        second = threads.submit(said, ProcessGroup(address, 2, 1, 20))
        assert isinstance(first.exception(), ZeroDivisionError)
        assert second.result().startswith("process 0 ended before the run began;")
