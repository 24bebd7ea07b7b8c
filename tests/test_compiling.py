"""benchmarks/compiling.py."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from fedjax_adapt.experiment.flags import parse

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    path = BENCHMARKS / "compiling.py"
    spec = importlib.util.spec_from_file_location("compiling", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("stopwatch", None)


def test_it_compiles_a_run_with_nothing_kept_and_once_more(compiling, monkeypatch):
    seen = []

    def ran(words, check, stdout, env):
        settings = parse(words[4:]).settings
        cache = env["XDG_CACHE_HOME"]
        seen.append((settings["algorithm"], settings["rounds"], cache))
        folder = Path(settings["folder"])
        folder.mkdir(parents=True)
        seconds = {"empty": 9.04, "kept": 1.0}[folder.name]
        told = {"commit": "c", "versions": {}, "hardware": {}}
        summary = {"compile_seconds": seconds} | told
        (folder / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(compiling.subprocess, "run", ran)
    arguments = argparse.Namespace(data_dir=Path("data"), model="cnn")
    lines = compiling.readings("fedssg", arguments)
    lines += compiling.readings("fedssg", arguments)
    assert [line["programs"] for line in lines] == ["empty", "kept"] * 2
    assert {one[:2] for one in seen} == {("fedssg", 1)}
    caches = [one[2] for one in seen]
    assert caches[0] == caches[1] != caches[2] == caches[3]
    rows = compiling.table(lines).splitlines()
    assert rows[2].startswith("| fedssg | empty | 9.0 (9.0 to 9.0) | ")
    assert rows[3].startswith("| fedssg | kept | 1.0 (1.0 to 1.0) | ")
