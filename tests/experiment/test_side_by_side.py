"""Lanes of a run that says "auto": tried once, kept, and gone on with."""

from pathlib import Path

import pytest

from fedjax_adapt.experiment import read_run, run, side_by_side
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.config import from_settings, read_settings


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """What was tried, in a home of its own; the answer is always 3."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(side_by_side, "LONG", 4)
    asked = []
    monkeypatch.setattr(
        side_by_side, "fastest_lanes", lambda *given: asked.append(given) or 3
    )
    return asked


def lanes_of(config):
    return side_by_side.lanes_for(config, build(config))


def test_a_long_run_tries_once_and_remembers(tiny, tried):
    assert lanes_of(tiny(rounds=4)) == 3
    assert lanes_of(tiny("again", rounds=9, lr=0.2, seed=5)) == 3
    assert len(tried) == 1
    assert lanes_of(tiny("batches", rounds=4, batch_size=7)) == 3
    assert lanes_of(tiny("who", rounds=4, algorithm="fedavg")) == 3
    assert lanes_of(tiny("unequal", rounds=4, partition="iid")) == 3
    assert len(tried) == 4


def test_what_is_told_or_short_or_refines_is_not_tried(tiny, tried):
    assert lanes_of(tiny(rounds=3)) >= 1
    assert lanes_of(tiny("told", rounds=4, lanes=2)) == 2
    public = tiny("public", rounds=4, algorithm="fnr", public_examples=30)
    assert lanes_of(public) >= 1
    assert not tried


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 0}', '{"KEY": "many"}'])
def test_a_damaged_memory_is_no_obstacle(tiny, tried, text):
    config = tiny(rounds=4)
    lanes_of(config)
    file = side_by_side.cache_home() / "lanes.json"
    key = file.read_text().split('"')[1]
    file.write_text(text.replace("KEY", key))
    assert lanes_of(config) == 3
    assert lanes_of(config) == 3
    assert len(tried) == 2


def test_a_memory_that_cannot_be_written_is_no_obstacle(tiny, tried, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert lanes_of(tiny(rounds=4)) == lanes_of(tiny(rounds=4)) == 3
    assert len(tried) == 2


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
    monkeypatch.setattr(side_by_side, "fastest_lanes", lambda *given: 5)
    (side_by_side.cache_home() / "lanes.json").unlink()
    run(config, resume=True)
    assert from_settings(read_settings(Path(config.folder) / "config.toml")).lanes == 3
    assert read_run(config.folder).summary["rounds"] == 5
