"""Lanes of a run that says "auto": tried once, kept, and gone on with."""

import math
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from fedjax_adapt.algorithms import fedavgm, fedprox
from fedjax_adapt.cli.process import reporting
from fedjax_adapt.engine import processes
from fedjax_adapt.engine.round import checked
from fedjax_adapt.experiment import estimates, objects, read_run, run, tuning
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.run import Progress

module = import_module("fedjax_adapt.experiment.run")
LONG_SECONDS = tuning.LONG_SECONDS  # before a fixture changes it


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """What was tried, in a home of its own; the answer is always 3."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "LONG", 4)
    monkeypatch.setattr(tuning, "LONG_SECONDS", 0)
    asked = []
    monkeypatch.setattr(
        tuning, "fastest_lanes", lambda *given: asked.append(given) or 3
    )
    return asked


def lanes_of(config):
    return tuning.lanes_for(config, build(config))


def test_a_long_run_tries_once_and_remembers(tiny, tried):
    assert lanes_of(tiny(rounds=4)) == 3
    assert lanes_of(tiny("again", rounds=9, lr=0.2, seed=5)) == 3
    assert len(tried) == 1
    assert lanes_of(tiny("batches", rounds=4, batch_size=7)) == 3
    assert lanes_of(tiny("who", rounds=4, algorithm="fedavg")) == 3
    assert lanes_of(tiny("unequal", rounds=4, partition="iid")) == 3
    assert len(tried) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"train_examples": 500},
        {"evaluate_also": ("sel",)},
        {"shuffle": "none"},
        {"clip_norm": None},
        {"sampler": "uniform"},
        {"client_memory": "host"},
        {"devices": 1},
    ],
    ids=str,
)
def test_work_that_may_take_another_time_is_tried_anew(tiny, tried, change):
    before = {"devices": 2} if "devices" in change else {"devices": 1}
    lanes_of(tiny(rounds=4, **before))
    lanes_of(tiny(rounds=4, **before | change))
    assert len(tried) == 2


def test_another_algorithm_of_ones_own_is_tried_anew(tiny, tried):
    for algorithm in (fedprox(0.1), fedavgm(), fedavgm()):
        with objects.given(algorithm, None, None):
            lanes_of(tiny(rounds=4, algorithm="object"))
    assert len(tried) == 2


def test_what_other_code_found_is_tried_anew(tiny, tried, monkeypatch):
    code = tuning.hash_of_code
    assert code() == code() != ""
    lanes_of(tiny(rounds=4))
    monkeypatch.setattr(tuning, "TIMED", ("engine",))
    code.cache_clear()  # now of less
    lanes_of(tiny(rounds=4))
    code.cache_clear()
    assert len(tried) == 2


def test_what_is_tried_is_shown_as_it_comes(tiny, tried, monkeypatch, capsys):
    def fastest(*given):
        for found in ((5, 0.25), (10, math.inf), (2, 0.0123)):
            given[-1](*found)
        return 2

    monkeypatch.setattr(tuning, "fastest_lanes", fastest)
    seen = []
    show = lambda **said: seen.append(said)
    config = tiny(rounds=4)
    tuning.lanes_for(config, build(config), show)
    note = (
        "lanes=2, the fastest of those tried on a short round (5 250 ms, 10 no room, "
    )
    assert seen == [
        {"doing": "trying lanes"},
        {"doing": "trying lanes: 5 250 ms"},
        {"doing": "trying lanes: 5 250 ms, 10 no room"},
        {"doing": "trying lanes: 5 250 ms, 10 no room, 2 12.3 ms"},
        {"doing": "compiling", "note": note + "2 12.3 ms)"},
    ]
    tuning.lanes_for(config, build(config), show)
    assert len(seen) == 5  # it knows
    with reporting(Console(width=200), "first") as report:
        for said in seen:
            report(Progress(0, 4, **said))
    said = capsys.readouterr().out
    assert said == f"trying lanes\n{note}2 12.3 ms)\ncompiling\n"


def test_what_is_told_or_short_or_refines_is_not_tried(tiny, tried):
    assert lanes_of(tiny(rounds=3)) >= 1
    assert lanes_of(tiny("told", rounds=4, lanes=2)) == 2
    public = tiny("public", rounds=4, algorithm="fnr", public_examples=30)
    assert lanes_of(public) >= 1
    assert not tried


@pytest.mark.parametrize("seconds, tries", [(29.9, 0), (30.0, 1), (None, 1)])
def test_what_is_expected_to_end_soon_is_not_tried(
    tiny, tried, monkeypatch, seconds, tries
):
    monkeypatch.setattr(tuning, "LONG_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(tuning, "seconds_of", lambda *given: seconds)
    assert lanes_of(tiny(rounds=4)) >= 1
    assert len(tried) == tries


def test_the_seconds_that_are_expected_grow_with_the_rounds(tiny):
    def expected(rounds):
        config = tiny(str(rounds), rounds=rounds)
        federation = build(config)
        begin = federation, checked(*federation[:4])
        found = estimates.rounds_of(config, *begin)
        return estimates.seconds_of(config, federation, found, 6)

    assert expected(400) == pytest.approx(4 * expected(100))
    assert 0 < expected(100) < LONG_SECONDS < expected(10**7)


def exhausted(most):
    """Compiles programs of so many lanes or fewer."""
    real = module.compile_program

    def compile_program(config, federation, tell):
        assert federation.plan.lanes == config.lanes
        if config.lanes > most:
            raise RuntimeError("RESOURCE_EXHAUSTED: no room for temporaries")
        return real(config, federation, tell=tell)

    return compile_program


@pytest.mark.slow
def test_where_the_compiler_has_no_room_a_run_takes_fewer_lanes(tiny, monkeypatch):
    monkeypatch.setattr(module, "lanes_for", lambda *given: 4)
    monkeypatch.setattr(module, "compile_program", exhausted(1))
    notes = []
    tell = lambda now: notes.append(now.note) if now.note else None
    config = tiny("auto", rounds=2, lanes="auto")
    run(config, progress=tell)
    said = "lanes={}, since a program of {} does not fit into the memory of the device"
    assert notes == [said.format(2, 4), said.format(1, 2)]
    assert read_run(config.folder).config["lanes"] == 1  # that it goes on with


@pytest.mark.slow
def test_what_another_process_has_no_room_for_a_run_does_not_take(tiny, monkeypatch):
    """Processes of other programs would wait for each other for ever."""
    monkeypatch.setattr(module, "lanes_for", lambda *given: 4)
    of_all, others = processes.of_all, iter([False, True])
    with_another = lambda value: (
        [value, next(others)] if isinstance(value, bool) else of_all(value)
    )
    monkeypatch.setattr(processes, "of_all", with_another)
    config = tiny("together", rounds=2, lanes="auto")
    run(config)
    assert read_run(config.folder).config["lanes"] == 2


@pytest.mark.parametrize("lanes, most", [(2, 1), ("auto", 0)])
def test_lanes_that_were_asked_for_are_not_made_fewer(tiny, monkeypatch, lanes, most):
    monkeypatch.setattr(module, "compile_program", exhausted(most))
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        run(tiny("mine", rounds=2, lanes=lanes))


def test_lanes_without_room_are_told(tiny, monkeypatch):
    fewer = lambda *given: given[-1]("lanes=2, since 3 would not fit") or 2
    monkeypatch.setattr(tuning, "num_lanes_of", fewer)
    seen, config = [], tiny(rounds=3)
    show = lambda **said: seen.append(said)
    assert tuning.lanes_for(config, build(config), show) == 2
    assert seen == [{"doing": "compiling", "note": "lanes=2, since 3 would not fit"}]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 0}', '{"KEY": "many"}'])
def test_a_damaged_memory_is_no_obstacle(tiny, tried, text):
    config = tiny(rounds=4)
    lanes_of(config)
    file = tuning.cache_folder() / "lanes.json"
    key = file.read_text().split('"')[1]
    file.write_text(text.replace("KEY", key))
    assert lanes_of(config) == 3
    assert lanes_of(config) == 3
    assert len(tried) == 2


def test_a_memory_that_cannot_be_written_is_no_obstacle(tiny, tried, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert lanes_of(tiny(rounds=4)) == lanes_of(tiny(rounds=4)) == 3
    assert len(tried) == 2


@pytest.mark.slow
def test_a_run_goes_on_with_the_lanes_it_began_with(tiny, tried, monkeypatch):
    class Stop(Exception):
        pass

    def stop(now):
        if now.round >= 3:
            raise Stop

    config = tiny(rounds=5, num_clients=8, participation=1, devices=1)
    with pytest.raises(Stop):
        run(config, progress=stop)
    written = read_settings(Path(config.folder) / "config.toml")
    assert written["lanes"] == 3
    monkeypatch.setattr(tuning, "fastest_lanes", lambda *given: 5)
    (tuning.cache_folder() / "lanes.json").unlink()
    run(config, resume=True)
    assert from_settings(read_settings(Path(config.folder) / "config.toml")).lanes == 3
    assert read_run(config.folder).summary["rounds"] == 5
