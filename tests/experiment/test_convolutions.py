"""Convolutions of a run that says "auto": timed once, kept, and gone on with."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from helpers import relist

from fedjax_adapt.experiment import Config, run, tuning
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.folder import as_begun
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.models.ways import WAYS, can

BUILD = import_module("fedjax_adapt.experiment.build")


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """What was timed, in a home of its own; XLA's own convolution is always fastest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "LONG", 4)
    monkeypatch.setattr(tuning, "LONG_SECONDS", 0)
    monkeypatch.setattr(tuning, "fastest_lanes", lambda *given: 1)
    asked = []

    def milliseconds(layer, *rest, too_large):
        asked.append(layer)
        ways = [way for way in WAYS if can(way, layer)]
        return {way: 5.0 - WAYS.index(way) for way in ways}

    monkeypatch.setattr(tuning, "milliseconds", milliseconds)
    return asked


@pytest.fixture
def images(tiny):
    """The digits under the smallest network of convolutions, one client at a time."""

    few = {"model": "fedveca_cnn", "train_examples": 60, "num_clients": 2}
    few |= {"partition": "iid", "participation": 1.0, "batch_size": 10}
    alone = {"lanes": 1, "devices": 1}
    return lambda folder="run", **changes: tiny(folder, **few | alone | changes)


def settled(config, parts=None):
    parts = parts or build(config)
    return tuning.settle_convolutions(config, parts)[0].convolutions


def table():
    return tuning.cache_folder() / tuning.TABLE


@pytest.mark.slow
def test_a_long_run_times_its_layers_once_and_remembers(images, timed):
    assert settled(images(rounds=4)) == "lax,lax"
    assert len(timed) == 2
    assert settled(images("again", rounds=9, lr=0.2, seed=5)) == "lax,lax"
    assert len(timed) == 2
    assert settled(images("batches", rounds=4, batch_size=7)) == "lax,lax"
    assert len(timed) == 4
    kept = json.loads(table().read_text())
    assert len(kept) == 4
    assert all("fastest" not in key and "lanes 1, devices 1" in key for key in kept)
    assert sum("of examples" in key for key in kept) == 2  # of each model the first
    assert {"patches": 3.0, "lax": 2.0}.items() <= [*kept.values()][0].items()


@pytest.mark.slow
def test_what_other_code_took_is_timed_again(images, timed, monkeypatch):
    settled(images(rounds=4))
    monkeypatch.setattr(tuning, "hash_of_code", lambda: "newer")
    settled(images(rounds=4))
    assert len(timed) == 4


@pytest.mark.slow
def test_what_is_told_or_short_or_has_no_layers_is_not_timed(images, timed):
    assert settled(images(rounds=3)) == "rule"
    assert settled(images("rule", rounds=4, convolutions="rule")) == "rule"
    assert settled(images("told", rounds=4, convolutions="shifts")) == "shifts"
    assert settled(images("none", rounds=4, model="linear")) == "rule"
    assert not timed


@pytest.mark.slow
def test_a_damaged_table_is_no_obstacle(images, timed):
    config = images(rounds=4)
    parts = build(config)
    settled(config, parts)
    key = table().read_text().split('"')[1]
    ways = json.dumps(dict.fromkeys(WAYS, -1.0))
    damages = ["", "{", "[]", '{"KEY": 0}', '{"KEY": {"lax": 1}}', '{"KEY": NEGATIVE}']
    for text in damages:
        table().write_text(text.replace("KEY", key).replace("NEGATIVE", ways))
        before = len(timed)
        assert settled(config, parts) == "lax,lax"
        assert len(timed) > before, text
        before = len(timed)
        assert settled(config, parts) == "lax,lax"
        assert len(timed) == before, text


@pytest.mark.slow
def test_a_table_that_cannot_be_written_is_no_obstacle(images, timed, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert settled(images(rounds=4)) == settled(images(rounds=4)) == "lax,lax"
    assert len(timed) == 4


@pytest.mark.slow
def test_a_run_goes_on_with_the_ways_it_began_with(images, timed, monkeypatch):
    class Stop(Exception):
        pass

    def stop(now):
        if now.round >= 1:
            raise Stop

    config = images(rounds=4)
    with pytest.raises(Stop):
        run(config, progress=stop)
    folder = Path(config.folder)
    assert read_settings(folder / "config.toml")["convolutions"] == "lax,lax"
    table().unlink()
    told = []
    monkeypatch.setattr(BUILD, "with_ways", lambda task, found: told.append(found))
    begun = as_begun(folder, config)
    assert settled(begun) == "lax,lax"
    assert [*told[0].values()] == ["lax", "lax"]
    assert len(timed) == 2
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('convolutions = "lax,lax"', ""))
    relist(folder)
    assert as_begun(folder, config).convolutions == "rule"  # of an earlier version


@pytest.mark.parametrize(
    "given, said",
    [
        ("fast", "convolutions='fast' is unknown; write one of auto, rule, winograd"),
        (
            "patches,auto",
            "convolutions='auto' is unknown; write one of winograd, shifts",
        ),
        ("patches,,lax", "convolutions='' is unknown"),
    ],
)
def test_a_way_that_is_none_is_one_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        Config(convolutions=given)


@pytest.mark.slow
def test_a_way_for_each_layer_fits_the_model(images):
    with pytest.raises(ValueError, match="names 3 ways, but the model has 2 kinds"):
        build(images(convolutions="lax,lax,lax"))
    with pytest.raises(ValueError, match="names 1 ways, but the model has 0 kinds"):
        build(images(model="linear", convolutions="lax,"))
    build(images(convolutions="winograd, patches"))


@pytest.mark.slow
def test_a_way_that_no_layer_takes_is_said(images):
    with pytest.warns(
        UserWarning, match="^convolutions=lax does nothing: the model has"
    ):
        build(images(model="linear", convolutions="lax"))
    narrow = images(precision="bf16", convolutions="winograd")
    with pytest.warns(UserWarning, match="no convolutions that can be computed so.$"):
        build(narrow)


def test_a_grid_does_not_vary_them():
    with pytest.raises(ValueError, match="convolutions changes no number of a run"):
        read_sweep({"grid": {"convolutions": ["lax", "patches"]}})
