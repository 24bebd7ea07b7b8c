"""benchmarks/compiling.py."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from helpers import benchmark

from fedjax_adapt.cli.run import parse

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def compiling(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return benchmark("compiling")


@pytest.mark.slow
def test_it_compiles_with_nothing_kept_and_with_what_that_left(compiling, monkeypatch):
    seen = []

    def ran(words, stdout, env):
        settings = parse(words[4:]).settings
        cache = env["XDG_CACHE_HOME"]
        settings = {"lr": 0.1, "seed": 0} | settings
        seen.append((cache, settings["algorithm"], settings["lr"], settings["seed"]))
        folder = Path(settings["folder"])
        folder.mkdir(parents=True)
        seconds = dict(zip(compiling.CASES, (9.04, 1.0, 2.0), strict=True))[folder.name]
        told = {"commit": "c", "versions": {}, "hardware": {}}
        summary = {"compile_seconds": seconds} | told
        (folder / "summary.json").write_text(json.dumps(summary))
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(compiling.subprocess, "run", ran)
    arguments = argparse.Namespace(data_dir=Path("data"), model="cnn")
    lines = compiling.readings("fedssg", arguments)
    lines += compiling.readings("fedssg", arguments)
    assert [line["programs"] for line in lines] == [*compiling.CASES] * 2
    runs = [("fedssg", 0.1, 0), ("fedssg", 0.1, 0), ("fedssg", 0.05, 1)]
    assert [one[1:] for one in seen] == runs * 2
    caches = [one[0] for one in seen]
    assert len(set(caches[:3])) == len(set(caches[3:])) == 1 and caches[0] != caches[3]
    rows = compiling.table(lines).splitlines()
    assert rows[2].startswith("| fedssg | empty | 9.0 (9.0 to 9.0) | ")
    assert rows[3].startswith("| fedssg | kept | 1.0 (1.0 to 1.0) | ")
    assert rows[4].startswith(
        "| fedssg | kept, another lr and seed | 2.0 (2.0 to 2.0) | "
    )


def test_new_lines_follow_the_whole_ones_of_the_file(compiling, monkeypatch, tmp_path):
    line = {"algorithm": "fedssg", "programs": "empty", "whole_seconds": 1.0}
    made = lambda algorithm, arguments: [line | {"compile_seconds": 2.0}] * 2
    monkeypatch.setattr(compiling, "readings", made)
    file = tmp_path / "lines.jsonl"
    whole = json.dumps(line | {"compile_seconds": 9.0}) + "\n"
    file.write_text(whole + '{"algorithm": "fed')  # a kill in the middle of a line
    words = ["--data-dir", "data", "--algorithms", "fedssg", "--passes", "1"]
    monkeypatch.setattr(sys, "argv", ["compiling.py", *words, "--results", str(file)])
    compiling.main()
    seconds = [json.loads(x)["compile_seconds"] for x in file.read_text().splitlines()]
    assert seconds == [9.0, 2.0, 2.0]
