"""`fedjax-adapt doctor`."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_adapt.cli import doctor, main


@pytest.fixture
def mnist(tmp_path):
    """A folder with an MNIST of 7 and 2 images, and a damaged FashionMNIST."""
    for name, count in (("train", 7), ("t10k", 2)):
        images = np.zeros((count, 28, 28), np.uint8)
        images[0] = 9
        head = lambda magic, *sizes: np.array([magic, *sizes], ">u4").tobytes()
        for folder in ("mnist", "fashion-mnist"):
            place = tmp_path / folder
            place.mkdir(exist_ok=True)
            (place / f"{name}-images-idx3-ubyte").write_bytes(
                head(2051, count, 28, 28) + images.tobytes()
            )
            (place / f"{name}-labels-idx1-ubyte").write_bytes(
                head(2049, count) + bytes(range(count))
            )
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"no labels")
    return tmp_path


@pytest.mark.slow
def test_it_prints_what_is_here(mnist, capsys):
    assert main(["doctor", "--data-dir", str(mnist)]) == 0
    said = capsys.readouterr().out
    assert f"jax {jax.__version__}" in said and f"{len(jax.devices())} x cpu" in said
    assert "mnist: 7 and 2 examples, 10 classes" in said
    assert "fashion_mnist: " in said and "t10k-labels-idx1-ubyte" in said
    assert "cifar10: dataset=cifar10: no files found" in said
    assert "two work and give the same twice" in said
    assert max(map(len, said.splitlines())) < 240 + len(str(mnist))


def test_without_a_data_folder_it_names_those_that_need_none(capsys, monkeypatch):
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)
    monkeypatch.setattr(doctor, "_rounds", lambda: "work")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "no folder; set FEDJAX_ADAPT_DATA to one" in said
    assert "digits: 1,437 and 360 examples" in said and "mnist" not in said


@pytest.mark.slow
def test_rounds_that_do_not_work_are_told(capsys, monkeypatch):
    seeds, made = itertools.count(), doctor.run
    with monkeypatch.context() as patched:
        other = lambda config: made(replace(config, seed=next(seeds)))
        patched.setattr(doctor, "run", other)
        assert main(["doctor"]) == 1
    said = "two rounds do not work (RunError: the same rounds gave other numbers)."
    assert said in capsys.readouterr().err
    wild = replace(doctor.SMALL, lr=1e30, clip_norm=None)
    monkeypatch.setattr(doctor, "SMALL", wild)
    assert main(["doctor"]) == 1
    said = "two rounds do not work (Diverged: training diverged in round 1: "
    assert said in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written (" in doctor._cache(tmp_path / "file" / "cache")
    assert "0 MiB in 0 files" in doctor._cache(tmp_path / "cache")


@pytest.mark.parametrize(
    "words, said",
    [
        (["x"], "doctor takes flags alone, so leave 'x' out."),
        (["--data-dir", "/nowhere/at/all"], "data_dir=/nowhere/at/all does not exist"),
        (["--datadir", "x"], "--datadir is not a flag of this doctor; did you mean"),
    ],
)
def test_mistakes_are_one_sentence(words, said, capsys):
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err
