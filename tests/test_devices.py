"""What benchmarks/devices.py says of a round, against the round that XLA makes."""

import importlib
import math
import re
import sys
from pathlib import Path

import jax
import pytest
from helpers import keys, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.engine import processes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def devices(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("devices")


def floats_moved(program):
    """kind of collective -> float32 numbers that come out of all of that kind."""
    found = {}
    for line in program.splitlines():
        kind = re.search(r" (all-reduce|all-gather|all-to-all)\(", line)
        if kind:
            shapes = re.findall(r"f32\[([\d,]*)\]", line[: kind.start()])
            sizes = [math.prod(map(int, filter(None, s.split(",")))) for s in shapes]
            found[kind[1]] = found.get(kind[1], 0) + sum(sizes)
        assert not re.search(r" (reduce-scatter|collective-permute)\(", line)
    return {kind: size for kind, size in found.items() if size}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_clients"), [("fedavg", 8), ("scaffold", 8), ("scaffold", 6)]
)
def test_a_round_of_processes_moves_what_is_counted(
    devices, task, monkeypatch, name, num_clients
):
    monkeypatch.setattr(processes, "several", lambda: True)
    algorithm, data = ALGORITHMS[name](), make_data((5,) * num_clients)
    plan = fa.Plan(cohort_size=4, batch_size=4, devices=4)
    round_fn, state = start(algorithm, task, data, plan)
    program = jax.jit(round_fn).lower(state, keys(1)[0]).compile().as_text()
    found = floats_moved(program)

    said = devices.moved(round_fn.step.algorithm, state.params, num_clients, 4, 4)
    assert said.devices == 4
    losses_and_clipped = 2 * 4  # added up with the rest, where clients change places
    summed = said.sums / 4 / (2 * 3 / 4)
    row = 0 if name == "fedavg" else fa.num_parameters(state.params)
    if name == "fedavg":
        assert (said.rows, said.hops) == (0, 2 * 3)
        assert found == {"all-reduce": summed, "all-gather": losses_and_clipped}
    elif num_clients == 8:  # a row for each of four devices, and one back
        times = devices.blocks(8, 4, 4)
        assert said.rows == 2 * times * 3 * 4 * row
        assert said.hops == 3 * (2 + 2 * times)
        # a message there and one back, whatever the leaves
        assert len(re.findall(r" all-to-all\(", program)) == 2
        summed += losses_and_clipped
        assert found == {"all-reduce": summed, "all-to-all": 2 * 4 * row}
    else:  # 4 divides the 12 weights, not the 3 biases, of 4 rows
        assert said.rows == 4 * (2 * 3 / 4 * 12 + 3 / 4 * 4 * 3)
        assert said.hops == 3 * (2 + 2 + 1)
        assert len(re.findall(r" all-(?:to-all|gather)\(", program)) == 3
        summed += losses_and_clipped
        moved = {"all-to-all": 2 * 12, "all-gather": 4 * 3}
        assert found == {"all-reduce": summed} | moved


@pytest.mark.slow
def test_more_devices_pay_until_moving_takes_as_long_as_training(devices):
    workload = devices.rounds.WORKLOADS["w2"]
    rows = devices.on_paper("fedavg", workload, 0.002, math.inf, 0.0)
    assert [row["serving"] for row in rows] == [1, 2, 4, 8, 13, 25, 50]
    assert (
        rows[1]["efficiency"] == 1.0
    )  # 25 and 25 clients, and a link that costs nothing
    assert devices.stops(rows).startswith("fastest on 50 devices (50.0 times one)")
    # an all-reduce of 797 kB takes as long as a client: 1 / (1/2 + 1/50) at two devices
    link = 4 * 199_210 / 0.002
    rows = devices.on_paper("fedavg", workload, 0.002, link, 0.0)
    assert rows[1]["speedup"] == pytest.approx(50 / 26)
    assert rows[-1]["speedup"] == pytest.approx(50 / (1 + 2 * 49 / 50))


@pytest.mark.slow
def test_the_seconds_of_a_client_are_given(devices, monkeypatch, capsys):
    words = ["devices.py", "--workloads", "w2"]
    monkeypatch.setattr(sys, "argv", [*words, "--client-seconds", "0.002"])
    devices.main()
    table = capsys.readouterr().out
    assert table.count("w2, 2 ms a client: fastest on ") == len(devices.METHODS)
    assert "| fedavg | 1 | 1 | 0 | 0 | 0 | 0.1 | 1 | 1 |" in table  # 50 clients
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        devices.main()
    assert "required: --client-seconds" in capsys.readouterr().err
