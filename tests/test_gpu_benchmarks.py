"""benchmarks/gpu.py and what it calls: what can be known without a GPU, and no times."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_adapt.models.ways import WAYS

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = (
    "gpu",
    "same_numbers",
    "fedssg_cifar",
    "rounds",
    "lanes",
    "best_lanes",
    "scaling",
    "convolutions",
    "sweeps",
    "kernels",
)
PARSERS = {  # script -> module and function that makes its parser
    "same_numbers.py": ("same_numbers", "options"),
    "fedssg_cifar.py": ("fedssg_cifar", "options"),
    "rounds.py": ("rounds", "options"),
    "lanes.py": ("lanes", "options"),
    "best_lanes.py": ("best_lanes", "options"),
    "scaling.py": ("scaling", "parser"),
    "convolutions.py": ("convolutions", "options"),
    "sweeps.py": ("sweeps", "options"),
    "kernels.py": ("kernels", "options"),
    "peers/run.py": ("run", "options"),
}


@pytest.fixture(scope="module")
def modules():
    """The benchmarks' modules by name."""
    before = list(sys.path)
    sys.path[:0] = [str(FOLDER / "peers"), str(FOLDER)]
    try:
        yield SimpleNamespace(
            **{name: importlib.import_module(name) for name in (*NAMES, "run")}
        )
    finally:
        sys.path[:] = before


@pytest.mark.slow
def test_nothing_needs_what_a_bare_machine_lacks():
    """Neither the command line's package, nor TFDS and what it needs."""
    lacking = ("tyro", "tensorflow_datasets", "importlib_resources")
    code = (
        "import sys\n"
        f"for name in {lacking}: sys.modules[name] = None\n"
        f"sys.path[:0] = [{str(FOLDER / 'peers')!r}, {str(FOLDER)!r}]\n"
        f"import {', '.join((*NAMES, 'run'))}\n"
        "import fedjax_adapt as fa\n"
        "from fedjax_adapt.experiment.build import build\n"
        "[getattr(fa, name) for name in fa.__all__]\n"
        "settings = {'rounds': 1, 'dataset': 'digits'}\n"
        "from fedjax_adapt.experiment.config import from_settings\n"
        "build(from_settings(settings))\n"
        "print('there')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "there\n", done.stderr


def given(modules, tmp_path, *words):
    return modules.gpu.options().parse_args([*words, "--results", str(tmp_path)])


@pytest.mark.parametrize(
    "words", [[], ["--tiny"], ["--data-dir", "D", "--peaks", *"123"]]
)
def test_every_command_is_understood_by_its_script(modules, tmp_path, words):
    for name, part in modules.gpu.PARTS.items():
        commands = part.commands(given(modules, tmp_path, *words))
        assert commands or (name == "precision" and "--tiny" in words)
        for command in commands:
            if command.script in PARSERS:
                module, function = PARSERS[command.script]
                limit = [command.minutes, "1"] if command.minutes else []
                parser = getattr(getattr(modules, module), function)()
                parser.parse_args([*command.words, *limit])  # or it exits


@pytest.mark.slow
def test_a_command_that_outlasts_its_minutes_is_ended(
    modules, tmp_path, monkeypatch, capsys
):
    gpu, log = modules.gpu, tmp_path / "gpu.log"
    monkeypatch.setattr(gpu, "FOLDER", tmp_path)
    root = f"{str(tmp_path.parent)!r} in sys.path"  # of the package
    quick = f"import sys; print('said', *sys.argv[1:], {root})"
    (tmp_path / "quick.py").write_text(quick)
    # its child holds the pipe open, so both must be ended
    sleep = "import subprocess as s; s.run(['sleep', '60'])"
    (tmp_path / "long.py").write_text("print('begun', flush=True)\n" + sleep)
    end = time.monotonic() + 30
    assert gpu.call(gpu.Command("quick.py", ["--a"], "--minutes"), end, log)
    began = time.monotonic()
    assert not gpu.call(gpu.Command("long.py", []), began + 0.5, log)
    assert time.monotonic() - began < 20
    assert not gpu.call(gpu.Command("quick.py", []), time.monotonic() - 1, log)
    assert not gpu.call(gpu.Command("missing.py", []), end, log)
    once = gpu.Command("quick.py", ["--b"])
    assert gpu.once(once, end, log) and gpu.once(once, end - 1000, log)
    assert capsys.readouterr().out.endswith("done before: quick.py --b\n")
    told = log.read_text()
    assert told.count("said --b True") == 1
    for said in (
        "said --a --minutes 0.",
        "begun\nthe minutes are over",
        "no time left",
    ):
        assert said in told
    assert "benchmarks/missing.py is not there." in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sames"], "PART sames is unknown; write some of same, peers, agreement"),
        (["--minutes", "0"], "--minutes 0: write a number above 0."),
    ],
)
def test_a_mistake_is_a_sentence(modules, monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    with pytest.raises(SystemExit) as end:
        modules.gpu.main()
    assert end.value.code == 2 and said in capsys.readouterr().err


# kernels and gaps


def test_the_time_of_a_round_is_that_of_kernels_launches_and_waits(modules):
    us = lambda *spans: [modules.kernels.Span(a * 1e-6, b * 1e-6) for a, b in spans]
    # 3 us, a launch of 2, 4 us of which 1 with another kernel, a wait of 20, 1 us
    spans = us((100, 103), (105, 109), (106, 107), (129, 130))
    found = modules.kernels.figures(reversed(spans), num_rounds=2)
    assert found == {
        **{"kernels": 2.0, "kernel_ms": 0.004, "launch_ms": 0.001},
        **{"wait_ms": 0.01, "waits": 0.5},
        **{"kernel_us": 3.0, "launch_us": 2.0, "wait_us": 20.0},
    }
    with pytest.raises(SystemExit, match="is no device here"):
        modules.kernels.figures([], 1)
    named = [span._replace(name=name) for span, name in zip(spans, "abbc", strict=True)]
    assert modules.kernels.longest(named, 2)[:2] == [
        ["b", 1.0, 0.0025],
        ["a", 0.5, 0.0015],
    ]


@pytest.mark.slow
def test_a_trace_is_read(modules, tmp_path):
    """That of the processor, as there is no GPU."""
    (command,) = modules.gpu.kernels(SimpleNamespace(tiny=True))
    log = tmp_path / "log"
    assert modules.gpu.call(command, time.monotonic() + 300, log), log.read_text()
    said = json.loads(log.read_text().splitlines()[-1])
    assert said["kernels"] > 0 and said["kernel_ms"] > 0 and said["rounds"] == 1
    assert said["waited_ms"] > 0 and said["queued_ms"] > 0 and said["longest"]


@pytest.mark.slow
def test_several_rounds_a_call_are_timed_as_one_each(modules, tmp_path):
    (command,) = modules.gpu.ways(SimpleNamespace(tiny=True))
    log = tmp_path / "log"
    assert modules.gpu.call(command, time.monotonic() + 300, log), log.read_text()
    said = json.loads(log.read_text().splitlines()[-1])
    assert said["rounds_a_call"] == 2 and said["n"] == 1
    # 500 steps a round
    assert said["steps_per_second"] * said["seconds_per_round"] == pytest.approx(
        500, 0.01
    )


def test_the_ways_of_convolutions_are_those_of_the_package(modules):
    assert modules.gpu.WAYS == WAYS


@pytest.mark.slow
def test_a_time_of_a_convolution_is_that_of_its_steps(modules, monkeypatch):
    convolutions, timing, counts = modules.convolutions, modules.convolutions.timing, []
    program = lambda count, x: counts.append((int(count), x))
    monkeypatch.setattr(timing, "compiled", lambda *layer: (program, ["images"]))
    task, (layer, _) = convolutions.layers("lenet5", "float32", 2)
    given = convolutions.options().parse_args(["--devices", "1"])
    ready = convolutions.build(task, layer, "patches", True, given)
    assert counts == [(1, "images")]  # a first step, which may want too much memory
    ready.call()
    assert counts[1:] == [(ready.units, "images")] == [(timing.STEPS, "images")]


# the same numbers


def test_a_way_is_compared_with_the_plainest_of_its_kind(modules):
    same = modules.same_numbers
    right = {name: np.full(4, 1.0 + i) for i, name in enumerate(same.CASES)}
    found = {name: right[same.plainest(name)].copy() for name in same.CASES}
    found["unequal, packed on 2 lanes"] *= 1.01
    off = same.compared(found, right)
    wrong = {name for name, value in off.items() if value > same.LIMIT}
    assert wrong == {"unequal, packed on 2 lanes"}
    assert off["unequal, packed on 2 lanes"] == pytest.approx(0.01)
    assert same.plainest("host's memory") == "one after the other"


@pytest.mark.slow
def test_the_ways_agree_on_this_machine(modules):
    same = modules.same_numbers
    names = same.with_plainest(["unequal, packed on 2 lanes", "host's memory"])
    assert names[:2] == ["unequal, one after the other", "one after the other"]
    ways = {name: same.moved(name) for name in names}
    assert max(same.compared(ways, ways).values()) < same.LIMIT
    off = np.linalg.norm(ways[names[0]] - ways[names[1]])
    assert off > 1e-2 * np.linalg.norm(ways[names[1]])


# FedSSG's table


def block(modules, tmp_path, *words):
    where = [
        "--results",
        str(tmp_path / "lines.jsonl"),
        "--folder",
        str(tmp_path / "runs"),
    ]
    return modules.fedssg_cifar.options().parse_args([*where, *words])


def test_every_method_has_its_settings(modules, tmp_path):
    cifar = modules.fedssg_cifar
    arguments = block(modules, tmp_path, "--precision", "bf16", "--lanes", "8")
    assert len(cifar.ITEM.methods) == 8
    for method in cifar.ITEM.methods:
        config = cifar.config_of(method, arguments)
        assert (config.num_clients, config.rounds, config.augment) == (
            500,
            1500,
            "flip_crop",
        )
        assert config.dataset_options == {} and config.participation == 0.02
        assert (config.precision, config.lanes) == ("bf16", 8)
        alpha = {"feddyn": 0.01, "feddc": 0.05, "fedssg": 0.2}.get(method)
        assert alpha is None or config.algorithm_options["alpha"] == alpha
        own = cifar.config_of(method, block(modules, tmp_path)).folder
        assert own != config.folder and cifar.config_of(method, arguments) == config
    words = ["--convolutions", "shifts", "--checkpoint-every", "50", "--devices", "1"]
    config = cifar.config_of("fedavg", block(modules, tmp_path, *words))
    assert (config.convolutions, config.checkpoint_every) == ("shifts", 50)
    assert config.devices == 1
    published = cifar.PUBLISHED[cifar.ROW]["fedssg"]
    assert [published[n] for n in cifar.FIGURES if n in published] == [80.17, 0.17, 544]


def test_a_block_goes_on_where_its_minutes_ended(
    modules, tmp_path, monkeypatch, capsys
):
    cifar, asked, late = modules.fedssg_cifar, [], []
    figures = {
        "last_mean": 0.4,
        "models": {
            "all": {"last_mean": 0.5, "last_std": 0.01, "rounds_to": {"0.75": 9}}
        },
    }

    def run(config, resume, progress):
        asked.append((config.algorithm, resume))
        folder = Path(config.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").touch()
        if late:
            monkeypatch.setattr(cifar.time, "monotonic", lambda: 1e12)
        progress(None)
        (folder / "summary.json").write_text(json.dumps(figures))

    monkeypatch.setattr(cifar, "run", run)
    some = ["--only", "fedavg", "fedprox", "--minutes", "1"]
    late.append(True)
    assert not cifar.measure(block(modules, tmp_path, *some))
    assert asked == [("fedavg", False)]
    monkeypatch.undo()
    monkeypatch.setattr(cifar, "run", run)
    late.clear()
    assert cifar.measure(block(modules, tmp_path, *some))
    assert asked[1:] == [("fedavg", True), ("fedprox", False)]
    assert cifar.measure(block(modules, tmp_path, *some)) and len(asked) == 3
    shown = [
        "fedprox: models.all.last_mean 50.00 (74.25)",
        "models.all.last_std 1.00 (0.06)",
        "last_mean 40.00",
        "models.all.rounds_to.0.75 9 (>1500)",
    ]
    assert "; ".join(shown) in capsys.readouterr().out
    lines = (tmp_path / "lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["fedavg", "fedprox"]


def test_a_finished_method_is_found_again(modules, tmp_path, monkeypatch):
    """A summary names its method in its own way, which took the line's place."""
    cifar, runs = modules.fedssg_cifar, []

    def finished(config, end):
        runs.append(config.algorithm)
        return {"method": "fedssg(alpha=0.2)", "accuracy": 0.5}

    monkeypatch.setattr(cifar, "finished", finished)
    monkeypatch.setattr(cifar, "measured", lambda *given: [])
    given = cifar.options().parse_args(
        ["--tiny", "--only", "fedssg", "--folder", str(tmp_path / "runs")]
        + ["--results", str(tmp_path / "lines.jsonl")]
    )
    assert cifar.measure(given) and cifar.measure(given)
    assert runs == ["fedssg"]
