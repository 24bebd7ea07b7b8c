"""benchmarks/peers and the work that it shares with rounds.py; no peer is run here."""

import argparse
import hashlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = (
    *("work", "stopwatch", "rounds", "common", "settings", "readings", "sitting"),
    *("table", "picture", "run"),
)


@pytest.fixture(scope="module")
def peers():
    before = list(sys.path)
    sys.path[:0] = [str(FOLDER / "peers"), str(FOLDER)]
    try:
        modules = {name: importlib.import_module(name) for name in MODULES}
        yield SimpleNamespace(**modules)
    finally:
        sys.path[:] = before


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


# of rounds.py, before it shared its work with anybody: x and y of the first two clients,
# and parameters in our layout; x to three places, as the last bit is libm's
DATA = {
    "w1": ("4d4f8b28df3dac6a", "1314e09c52cfa079"),
    "w2": ("964372280e438ff9", "39fb7792d992333a"),
}
PARAMETERS = {
    "w1": {
        "conv1.kernel": "26a8d2c74d4e808b", "conv1.bias": "10f9eda5b357dcd9",
        "conv2.kernel": "8e0fdb161b2746ec", "conv2.bias": "c492fe509d3aee5b",
        "fc1.kernel": "6347b0957c13d65b", "fc1.bias": "6210925c572aa534",
        "fc2.kernel": "72c53788be95afbb", "fc2.bias": "7fe61ad65160be4a",
        "out.kernel": "d58c1d9f429a8c22", "out.bias": "4e18f6581011b7da",
    },
    "w2": {
        "hidden.0.kernel": "10999506d405ed09", "hidden.0.bias": "9362d0045ad25797",
        "hidden.1.kernel": "dba709cf6f3a72a0", "hidden.1.bias": "193d4569708574ac",
        "out.kernel": "b0ba35ed4b708b18", "out.bias": "1858d03c3aa9a2b3",
    },
}  # fmt: skip
COUNTS = {"w1": 797_962, "w2": 199_210}


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_the_work_is_what_it_was(peers, name):
    workload = peers.work.WORKLOADS[name]
    x, y = zip(*(peers.work.client(workload, i) for i in (0, 1)), strict=True)
    x = np.round(np.concatenate(x), 3)
    found = digest(x), digest(np.concatenate(y).astype(np.int32))
    assert found == DATA[name]
    params = peers.work.parameters(workload)
    assert sum(value.size for value in params.values()) == COUNTS[name]
    ours = {name: peers.work.inputs_before_outputs(v) for name, v in params.items()}
    assert {name: digest(value) for name, value in ours.items()} == PARAMETERS[name]


def test_the_products_of_a_round_are_counted(peers):
    w1, w2 = (peers.work.WORKLOADS[name] for name in ("w1", "w2"))
    dense = [784 * 200, 200 * 200, 200 * 10]
    assert w2.flops == 50 * 100 * 2 * (3 * sum(dense) - dense[0])
    first, second = 75 * 64 * 28 * 28, 1600 * 64 * 10 * 10
    every = first + second + 1600 * 384 + 384 * 192 + 192 * 10
    assert w1.flops == 10 * 500 * 2 * (3 * every - first)
    assert peers.work.WORKLOADS["w1-500"].flops == 50 * w1.flops


def test_rounds_does_that_work(peers):
    workload = peers.work.WORKLOADS["w2"]
    data = peers.rounds.examples(workload, 2)
    x = np.round(np.asarray(data.x), 3)
    assert (digest(x), digest(np.asarray(data.y, np.int32))) == DATA["w2"]
    params = peers.rounds.named(peers.rounds.initial_params(workload))
    assert {name: digest(value) for name, value in params.items()} == PARAMETERS["w2"]


def test_a_fingerprint_is_what_it_was_whatever_the_layout(peers):
    before = peers.work.parameters(peers.work.WORKLOADS["w2"])
    after = {name: 2 * value + np.float32(0.5) for name, value in before.items()}
    turned = [
        {name: value.T for name, value in some.items()} for some in (before, after)
    ]
    expected = [198.17667640688566, 0.5357142090797424, 1.0557735486990616]
    for pair in ((before, after), turned):
        found = peers.work.fingerprint(*pair)
        assert list(found) == list(before)
        np.testing.assert_allclose(found["hidden.0.kernel"], expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"was \(784, 200\) and is \(200, 784\)"):
        peers.work.fingerprint(turned[0], after)


def test_a_stopwatch_leaves_out_the_warm_up(peers):
    watch = peers.stopwatch.Stopwatch()
    watch.seconds, watch.elsewhere = [9.0, 1.0, 4.0, 2.0], [9.0, 0.1, 0.1, 0.15]
    assert watch.figures(1, [700, 10, 20, 30]) == {
        "seconds_per_round": 2.0,
        "min": 1.0,
        "max": 4.0,
        "n": 3,
        "steps_per_second": 10.0,
        "other_cores": 0.05,
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_what_children_do_is_not_done_elsewhere(peers):
    program = (
        "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    )
    me = os.getpid()
    alone, together = (peers.stopwatch.busy_elsewhere(root) for root in (None, me))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in peers.stopwatch.family(me)
        seen = peers.stopwatch.busy_elsewhere() - alone
        own = peers.stopwatch.busy_elsewhere(me) - together
        memory = peers.stopwatch.peak_memory_mb(me), peers.stopwatch.peak_memory_mb()
        child.communicate(b"\n")
    assert seen - own > 0.3  # which others add to both
    assert memory[0] > memory[1]


def arguments_of(peers, check=False):
    workload = peers.work.WORKLOADS["w1"]._replace(clients=5, examples=4, cohort=2)
    return argparse.Namespace(
        workload="w1", work=workload, check=check, num_rounds=1 if check else 3,
        num_clients=2 if check else 5,
    )  # fmt: skip


def parsed(peers, monkeypatch, *words):
    options = peers.common.parser("A peer.")
    options.add_argument("--channels-last", action="store_true")
    options.add_argument("--threads", type=int, default=0)
    monkeypatch.setattr(sys, "argv", ["peer.py", *words])
    return peers.common.parse(options)


def test_a_check_is_one_round_of_one_cohort(peers, monkeypatch):
    found = parsed(peers, monkeypatch, "--workload", "w1", "--channels-last", "--check")
    assert (found.num_rounds, found.num_clients) == (1, 10)
    found = parsed(peers, monkeypatch, "--workload", "w2", "--rounds", "5")
    assert (found.num_rounds, found.num_clients, found.work.batch) == (7, 500, 10)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--channels-last"], "--channels-last: w2 has no pictures; leave out."),
        (["--rounds", "0"], "--rounds 0 --warmup 2: write --rounds 1 or more"),
        (["--threads", "-1"], "--threads -1: write 1 or more, or leave it out."),
    ],
)
def test_a_mistake_in_a_script_is_a_sentence(peers, monkeypatch, capsys, words, said):
    with pytest.raises(SystemExit) as end:
        parsed(peers, monkeypatch, "--workload", "w2", *words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_clients_take_turns_and_are_in_order_in_a_check(peers):
    turns = [ids.tolist() for ids in peers.common.cohorts(arguments_of(peers))]
    assert len(turns) == 3 and all(len(set(ids)) == 2 for ids in turns)
    assert turns == [i.tolist() for i in peers.common.cohorts(arguments_of(peers))]
    (ids,) = peers.common.cohorts(arguments_of(peers, check=True))
    assert ids.tolist() == [0, 1]


def test_files_hold_the_data_with_channels_first(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers.common.tempfile, "tempdir", str(tmp_path))
    arguments = arguments_of(peers)
    x, y = map(np.load, peers.common.data_files(arguments))
    mine, labels = peers.work.client(arguments.work, 3)
    np.testing.assert_array_equal(x[3], mine.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(y[3], labels)
    (last, _) = peers.common.data(arguments, channels_first=False)
    np.testing.assert_array_equal(last[3], mine)
    monkeypatch.setattr(peers.common, "data", None)  # they are not made again
    assert all(file.exists() for file in peers.common.data_files(arguments))


def line_of(run, seconds, other_cores=0.0):
    return run.key | {
        "seconds_per_round": seconds, "min": 0.9 * seconds, "max": 1.5 * seconds,
        "n": 5, "peak_memory_mb": 100 * seconds, "other_cores": other_cores,
        "disturbed": other_cores > 0.06, "commit": "abc",
        "versions": {"torch": "2.13.0"},
        "hardware": {"platform": "cpu", "cpu": "Some CPU", "cores": 2},
    }  # fmt: skip


def runs_of(peers, passes=(1, 2)):
    """Ours and the PyTorch loop at w2, in every pass."""
    settings = peers.settings
    loop = settings.Setting("loop", "torch")
    both = [settings.OURS, loop]
    runs = [peers.sitting.Run("w2", s, turn, (5, 2)) for turn in passes for s in both]
    return {"w2": both}, runs


def test_a_ratio_is_that_of_two_lines_of_one_pass(peers):
    settings, runs = runs_of(peers, (1, 2, 3))
    seconds = [1.0, 3.0, 2.0, 4.0, 4.0, 20.0]
    lines = [line_of(run, s) for run, s in zip(runs, seconds, strict=True)]
    ours, loop = peers.table.rows(settings["w2"], lines)
    assert loop.ratios == [3.0, 2.0, 5.0]  # 4 / 2 = 2 is the ratio of the medians
    assert (ours.seconds, ours.fastest, ours.slowest) == (2.0, 0.9, 6.0)
    text = peers.table.table(settings, lines)
    assert "| fedjax_adapt | defaults | 2 | 0.9 to 6 | 3 x 5 | 1 | 400 |" in text
    row = "| PyTorch loop | defaults | 4 | 2.7 to 30 | 3 x 5 | 3.00 (2.00 to 5.00) | 2000 |"
    assert row in text
    assert "Some CPU, 2 cores. Commit abc." in text
    assert "PyTorch loop: torch 2.13.0" in text


def test_the_fastest_comes_first(peers):
    settings, runs = runs_of(peers, (1,))
    lines = [line_of(run, s) for run, s in zip(runs, (2.0, 1.0), strict=True)]
    assert [row.setting.title for row in peers.table.rows(settings["w2"], lines)] == [
        "PyTorch loop",
        "fedjax_adapt",
    ]


def runs_on_cuda(peers):
    """Ours and the PyTorch loop at w2 in two precisions, one pass, and their lines."""
    every = peers.settings.BY_DEVICE["cuda"]["w2"]
    some = [s for s in every if s.simulator in ("ours", "loop")]
    some = [s for s in some if s.precision != "tf32" and "compile" not in s.options]
    seconds = {
        "ours": {"float32": 2.0, "bf16": 1.0},
        "loop": {"float32": 3.0, "bf16": 4.0},
    }
    gpu = {"hardware": {"platform": "gpu", "device": "H", "cpu": "C", "cores": 2}}
    lines = [
        line_of(
            peers.sitting.Run("w2", s, 1, (5, 2)), seconds[s.simulator][s.precision]
        )
        | gpu
        for s in some
    ]
    return {"w2": some}, lines


def test_a_ratio_is_that_of_two_lines_of_one_precision(peers):
    settings, lines = runs_on_cuda(peers)
    peaks = {"float32": 1e-2, "bf16": 1.0}
    text = peers.table.table(settings, lines, peaks)
    assert (
        "| PyTorch loop | precision bf16 | 4 | 3.6 to 6 | 1 x 5 | 4.00 (4.00 to" in text
    )
    assert (
        "| PyTorch loop | precision float32 | 3 | 2.7 to 4.5 | 1 x 5 | 1.50 (1.50"
        in text
    )
    assert "H, C, 2 cores. Commit abc." in text
    share = peers.work.WORKLOADS["w2"].flops / 2.0 / 1e10
    assert f"| 1 | 200 | {100 * share:.1f} % |" in text


def test_the_picture_shows_everybody_at_its_best(peers, tmp_path):
    settings, runs = runs_of(peers)
    slow = peers.settings.Setting("loop", "torch", "--threads 1")
    pfl = peers.settings.Setting("pfl", "pfl")  # of which no line was ever undisturbed
    settings["w2"] += [slow, pfl]
    seconds = [1.0, 3.0, 2.0, 4.0]
    lines = [line_of(run, s) for run, s in zip(runs, seconds, strict=True)]
    lines += [line_of(peers.sitting.Run("w2", slow, 1, (5, 2)), 50.0)]
    lines += [line_of(peers.sitting.Run("w2", pfl, 1, (5, 2)), 9.0, other_cores=1.0)]
    shown = peers.picture.best(
        peers.table.rows(settings["w2"], peers.table.quiet(lines))
    )
    assert [(row.setting.label, row.ratios) for row in shown] == [
        ("defaults", [1.0, 1.0]),
        ("defaults", [3.0, 2.0]),
    ]
    path = tmp_path / "peers.jsonl"
    assert peers.picture.draw(settings, lines, path)
    drawn = path.with_suffix(".svg").read_text()
    # matplotlib draws letters as shapes, and names each text in a comment
    for said in (
        "W2: mlp, 50 of 500 clients",
        "2.50",
        "Some CPU, 2 cores. Commit abc.",
    ):
        assert said in drawn, said
    assert path.with_suffix(".png").stat().st_size > 1000
    assert not peers.picture.draw(settings, lines[:1], tmp_path / "alone.jsonl")


def test_disturbed_lines_are_left_out_of_the_table(peers):
    settings, runs = runs_of(peers)
    seconds = [(1.0, 0.5), (3.0, 0.0), (2.0, 0.0), (4.0, 0.06)]
    lines = [line_of(run, *s) for run, s in zip(runs, seconds, strict=True)]
    text = peers.table.table(settings, lines)
    # ours of pass 1 was disturbed, so pass 1 has no ratio
    assert "| fedjax_adapt | defaults | 2 | 1.8 to 3 | 1 x 5 |" in text
    assert "| 2 x 5 | 2.00 (2.00 to 2.00) |" in text
    lines = [line | {"disturbed": True} for line in lines if "Py" in line["setting"]]
    text = peers.table.table(settings, lines)
    assert "Without an undisturbed line: fedjax_adapt: defaults; PyTorch loop" in text


@pytest.fixture
def ledger(peers, tmp_path):
    return peers.readings.Ledger(tmp_path / "lines.jsonl")


def test_a_line_that_is_there_is_not_made_again(peers, ledger):
    _, runs = runs_of(peers)
    ledger.add(line_of(runs[0], 1.0))
    made = []

    def measure(run):
        made.append(run)
        return line_of(run, 2.0)

    assert peers.sitting.sit(runs, ledger, measure) == []
    assert made == runs[1:]
    assert [line["pass"] for line in ledger.lines] == [1, 1, 2, 2]
    assert peers.sitting.sit(runs, ledger, None) == []
    shorter = [run._replace(size=(1, 1)) for run in runs]  # is another command
    assert all(peers.sitting.is_wanted(run, ledger) for run in shorter)


def test_a_disturbed_line_is_made_again_twice_and_kept(peers, ledger):
    _, (run, *_) = runs_of(peers)
    others = iter([0.5, 0.07, 0.06, 9.0])
    measure = lambda run: line_of(run, 1.0, next(others))
    peers.sitting.sit([run], ledger, measure)
    first, *rest = ledger.path.read_text().splitlines(keepends=True)
    assert [line["disturbed"] for line in ledger.lines] == [True, True, False]
    others = iter([0.5] * 9)
    ledger.path.write_text(first + rest[0][:20])  # killed in the middle of the second
    ledger = peers.readings.Ledger(ledger.path)
    peers.sitting.sit([run], ledger, measure)
    assert [line["disturbed"] for line in ledger.lines] == [True] * 3
    assert not peers.sitting.is_wanted(run, ledger)


def test_a_peer_that_fails_is_a_sentence_and_the_others_go_on(peers, ledger):
    _, runs = runs_of(peers)
    asked = []

    def measure(run):
        asked.append(run)
        if run.setting.simulator == "loop":
            raise RuntimeError("ended with status 1: no memory")
        return line_of(run, 1.0)

    said = peers.sitting.sit(runs, ledger, measure)
    assert said == ["PyTorch loop: defaults at w2: ended with status 1: no memory"]
    assert asked == runs[:3]  # the loop is not asked again


def test_no_line_is_begun_when_the_time_is_over(peers, ledger):
    _, runs = runs_of(peers)
    left = iter([True, True, False, False, False])
    measure = lambda run: line_of(run, 1.0, other_cores=0.5)
    options = {"limit": 0.6, "in_time": lambda: next(left)}
    assert peers.sitting.sit(runs, ledger, measure, **options) == []
    assert [line["disturbed"] for line in ledger.lines] == [False, False]


def test_a_script_is_called_in_its_environment(peers, monkeypatch, tmp_path):
    call, loop = peers.sitting.call, peers.settings.Setting("loop", "torch")
    with pytest.raises(RuntimeError, match="torch/bin/python is not there; add --make"):
        call(loop, [], tmp_path)
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)

    def say(text):
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)

    monkeypatch.setenv("XLA_FLAGS", "--of_a_caller")
    monkeypatch.setenv("PYTHONPATH", "/of/a/caller")
    say("""echo "a warning"; echo "{\\"said\\": \\"$*$XLA_FLAGS$PYTHONPATH\\"}" """)
    said = call(loop, ["--workload", "w2"], tmp_path)["said"]
    assert said == f"{FOLDER}/peers/torch_loop.py --workload w2"
    say("""echo "{\\"said\\": \\"$MALLOC_TRIM_THRESHOLD_\\"}" """)
    assert call(loop, [], tmp_path) == {"said": "8589934592"}
    assert call(loop._replace(tuned=False), [], tmp_path) == {"said": ""}
    say("echo first >&2; echo 'out of memory' >&2; exit 3")
    with pytest.raises(RuntimeError, match="^ended with status 3: out of memory$"):
        call(loop, [], tmp_path)


def test_an_environment_without_a_lock_is_a_sentence(peers, tmp_path):
    with pytest.raises(RuntimeError, match="there is no locks/fedjax-cuda.txt: leave"):
        peers.sitting.make_environment(tmp_path, "fedjax-cuda")
    here = peers.sitting.python_of(None, "torch-cuda")
    assert here == Path(sys.executable)


def test_an_environment_is_made_once_and_then_completed(peers, monkeypatch, tmp_path):
    commands, python = [], tmp_path / "torch" / "bin" / "python"

    def run(command, **pipes):
        commands.append(command[1:4])
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        return SimpleNamespace(returncode=len(commands) == 4, stderr="", stdout="a\nb")

    monkeypatch.setattr(peers.sitting.subprocess, "run", run)
    made, completed = ["-m", "venv", str(tmp_path / "torch")], ["-m", "pip", "install"]
    for _ in range(2):
        peers.sitting.make_environment(tmp_path, "torch")
    assert commands == [made, completed, completed]
    with pytest.raises(
        RuntimeError, match=r"bin/python -m pip .*torch.txt failed: b\.$"
    ):
        peers.sitting.make_environment(tmp_path, "torch")


def test_a_command_can_be_typed_again(peers):
    setting = peers.settings.Setting(
        "fedjax", "fedjax-jax0.4", "--pool reshape", False, "--flag=false"
    )
    run = peers.sitting.Run("w1", setting, 1, (5, 2))
    assert run.key["command"] == (
        "XLA_FLAGS=--flag=false python benchmarks/peers/fedjax_jit.py "
        "--workload w1 --rounds 5 --warmup 2 --pool reshape"
    )
    assert setting.name == "FedJAX: jax 0.4, pool reshape, untuned allocator"


def test_every_setting_has_a_script_and_a_lock_and_a_name_of_its_own(peers):
    for settings in peers.settings.SETTINGS.values():
        assert settings[0] == peers.settings.OURS
        assert len({setting.name for setting in settings}) == len(settings)
    every = [s for some in peers.settings.SETTINGS.values() for s in some]
    for settings in peers.settings.BY_DEVICE["cuda"].values():
        assert [s.precision for s in settings[:3]] == ["float32", "tf32", "bf16"]
        assert len({setting.name for setting in settings}) == len(settings) == 17
        assert {s.environment for s in settings} == {None, "torch-cuda", "fedjax-cuda"}
    assert {s.simulator for s in every} == set(peers.settings.SIMULATORS)
    for _, script in peers.settings.SIMULATORS.values():
        assert (FOLDER / script).exists(), script
    locks = {path.stem for path in peers.sitting.LOCKS.iterdir()}
    assert locks == {s.environment for s in every if s.environment} | {"torch-cuda"}


def test_locks_name_exact_versions_and_nothing_else(peers):
    needed = {
        "torch": "torch", "torch-cuda": "torch", "fedjax-jax0.4": "fedjax",
        "fedjax-jax0.10": "fedjax", "pfl": "pfl", "flower": "flwr",
    }  # fmt: skip
    for path in peers.sitting.LOCKS.iterdir():
        pins = path.read_text().splitlines()
        for pin in pins:
            assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9]+(\.\w+)*", pin), pin
        assert len({pin.partition("==")[0].lower() for pin in pins}) == len(pins)
        assert any(pin.startswith(f"{needed[path.stem]}==") for pin in pins)


def test_other_work_is_told_from_rounding(peers):
    before = peers.work.parameters(peers.work.WORKLOADS["w2"])
    rng = np.random.default_rng(0)
    steps = {n: 1e-3 * rng.normal(size=v.shape) for n, v in before.items()}

    def after(decay=1e-3, scale=1.0, noise=0.0):
        return peers.work.fingerprint(
            before,
            {
                name: value * (1 - decay)
                + scale * steps[name]
                + noise * 1e-3 * rng.normal(size=value.shape)
                for name, value in before.items()
            },
        )

    def agree(other):
        off = peers.run.differences(after(), other)
        return max(off) < peers.run.TOLERANCE["w2"]

    assert agree(after(noise=1e-5))
    assert not agree(after(decay=0.0))
    assert not agree(after(scale=0.9))
    assert not agree({"hidden.0.kernel": after()["hidden.0.kernel"]})


def fingerprints(monkeypatch, peers, of):
    call = lambda setting, words, folder: {"fingerprint": of(setting)}
    monkeypatch.setattr(peers.sitting, "call", call)


def test_a_check_names_who_disagrees(peers, monkeypatch, capsys):
    ours = {"out.kernel": [1.0, 0.1, -1e-3], "out.bias": [1.0, 0.1, 5.0]}
    other = {"out.kernel": [1.0, 0.1, -9e-4], "out.bias": [1.0, 0.1, 5.0]}

    def of(setting):
        if setting.simulator == "pfl":
            raise RuntimeError("is not there")
        return other if setting.simulator == "flower" else ours

    fingerprints(monkeypatch, peers, of)
    every = peers.settings.SETTINGS["w2"]
    said = peers.run.check({"w2": every}, Path())
    assert said == [
        "pfl: workers 2 at w2: is not there",
        "pfl: workers 1 threads 1 at w2: is not there",
        "Flower: client-cpus 1 at w2 does other work: norms to 0.0e+00, "
        "decay to 1.0e-01, allowed is 0.001.",
    ]
    assert "PyTorch loop: defaults at w2 agrees: norms to 0" in capsys.readouterr().out


def run_main(peers, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, words)])
    peers.run.main()


@pytest.mark.slow
def test_a_sitting_from_the_command_line(peers, monkeypatch, capsys, tmp_path):
    python = tmp_path / "torch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    called = []

    def call(setting, words, folder):
        called.append(setting.name)
        run = peers.sitting.Run("w2", setting, 1, (3, 2))
        return line_of(run, 1.0 if setting.simulator == "ours" else 2.0)

    monkeypatch.setattr(peers.sitting, "call", call)
    monkeypatch.setattr(peers.run, "commit", lambda: "abc")
    file = tmp_path / "deep" / "lines.jsonl"
    words = ["--venvs", tmp_path, "--workloads", "w2", "--only", "loop"]
    words += ["--rounds", "3", "--results", file]
    run_main(peers, monkeypatch, *words)
    assert called == ["fedjax_adapt: defaults", "PyTorch loop: defaults"] * 2
    text = capsys.readouterr().out
    assert "2.00 (2.00 to 2.00)" in text
    assert file.with_suffix(".md").read_text().strip() == text.strip()
    assert file.with_suffix(".png").exists()
    run_main(peers, monkeypatch, *words)
    assert len(called) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--venvs", "nowhere"], "--venvs nowhere holds no environment of a peer: add"),
        (["--venvs", ".", "--passes", "0"], "--passes 0: write 1 or more."),
        (["--workloads", "w2"], "--venvs is missing: write a folder for the peers'"),
        (["--workloads", "w1-100"], "--workloads w1-100 is for a GPU; write --device"),
        (
            ["--device", "cuda", "--peaks", "1", "0", "1"],
            "--peaks 0: write numbers above",
        ),
        (["--venvs", ".", "--only", "tff"], "invalid choice: 'tff'"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_sentence(
    peers, monkeypatch, capsys, words, said
):
    with pytest.raises(SystemExit) as end:
        run_main(peers, monkeypatch, *words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def small(peers, monkeypatch):
    """W2 with few examples, on the devices that there are."""
    few = peers.work.WORKLOADS["w2"]._replace(clients=4, examples=4, cohort=2, batch=2)
    monkeypatch.setitem(peers.rounds.WORKLOADS, "w2", few)
    monkeypatch.setattr(peers.rounds.fa, "cores_as_devices", lambda devices: None)


@pytest.mark.slow
def test_devices_share_a_round_and_change_no_fingerprint(peers, small):
    words = ["--workload", "w2", "--check", "--lanes", "1", "--devices"]
    alone, both = (
        peers.rounds.options().parse_args([*words, number]) for number in "12"
    )
    params = jax.tree.leaves(peers.rounds.build(both).state.params)
    assert {len(leaf.sharding.device_set) for leaf in params} == {2}
    one, two = (peers.rounds.measure(a)["fingerprint"] for a in (alone, both))
    for name, (norm, *_) in one.items():
        assert norm > 0
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3)


@pytest.mark.slow
def test_rounds_prints_what_it_printed(peers, small, monkeypatch, capsys):
    words = ["rounds.py", "--workload", "w2", "--rounds", "1", "--warmup", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--lanes", "1", "--devices", "1"])
    peers.rounds.main()
    line = peers.sitting.json.loads(capsys.readouterr().out)
    assert set(line) == {
        "workload", "algorithm", "precision", "lanes", "devices", "seconds_per_round",
        "min", "max", "n", "steps_per_second", "compile_seconds", "peak_memory_mb",
        "other_cores", "predicted_memory_mb", "clients", "client_memory",
        "tuned_allocator", "parameters", "versions", "commit", "hardware",
        "rounds_a_call", "convolutions",
    }  # fmt: skip
    assert line["rounds_a_call"] == 1 and line["convolutions"] is None
    assert line["n"] == 1 and line["min"] <= line["seconds_per_round"] <= line["max"]
    assert jax.device_count() >= line["devices"] == 1
