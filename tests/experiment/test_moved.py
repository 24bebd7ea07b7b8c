"""A folder that is moved, deleted or damaged while a run goes on, or before."""

import shutil
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from fedjax_adapt.errors import RunError
from fedjax_adapt.experiment import read_run, run, sweep
from fedjax_adapt.experiment.checkpoint import saver
from fedjax_adapt.experiment.files import locked

pytestmark = pytest.mark.usefixtures("shared_programs")


def after_round(round, act):
    """Progress that acts once, after so many rounds."""
    acted = []

    def progress(now):
        if now.round >= round and not acted:
            acted.append(now.round)
            act()

    return progress


GONE = "was moved or deleted while its run went on, so nothing more is written; put it"


def moved(folder):
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder):
    moved(folder)
    folder.mkdir()
    for name in ("config.toml", ".lock"):
        shutil.copy(folder.with_name("elsewhere") / name, folder)


def deleted(folder):
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("act", [moved, replaced, deleted])
def test_a_run_whose_folder_is_taken_away_ends_and_makes_nothing_anew(tiny, act):
    config = tiny(checkpoint_every=2)
    folder = Path(config.folder)
    before = set()

    def take_away():
        while not (folder / "checkpoints" / "000000002").exists():
            time.sleep(0.01)  # it is written meanwhile
        act(folder)
        before.update(folder.rglob("*"))

    with pytest.raises(RunError, match=GONE) as error:
        run(config, progress=after_round(3, take_away))
    assert str(error.value).startswith(f"{folder}, or the .lock in it, ")
    assert folder.exists() == (act is replaced)
    assert {*folder.rglob("*")} == before
    if act is not moved:
        return
    folder.with_name("elsewhere").rename(folder)
    run(config, resume=True)
    assert read_run(folder).metrics["round"].to_pylist() == [*range(1, 8)]


def test_a_state_that_is_being_written_makes_no_deleted_folder_anew(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    state = {"params": jnp.zeros(2**22)}
    with pytest.raises(RunError, match=GONE):
        with locked(place), saver(place / "checkpoints") as writes:
            writes.save(state, 1)
            while place.exists():
                deleted(place)
    assert not place.exists() and tmp_path.exists()


def test_what_is_written_after_a_write_has_failed_is_removed_too(tmp_path):
    """As Orbax's threads do: the first error does not end the others."""
    place = tmp_path / "run"
    place.mkdir()

    class Writer:
        def wait_until_finished(self):
            raise FileNotFoundError(str(place))

        def close(self):
            (place / "checkpoints" / "late").mkdir(parents=True)

    with pytest.raises(RunError, match=GONE):
        with locked(place), saver(place / "checkpoints") as writes:
            writes._writer = Writer()
            deleted(place)
    assert not place.exists() and tmp_path.exists()


@pytest.mark.slow
def test_a_sweep_whose_folder_is_deleted_ends_and_makes_nothing_anew(tmp_path):
    place = tmp_path / "sweep"
    trial = {"algorithm": "fedavg", "model": "linear", "rounds": 3}
    asked = {
        "run": trial | {"num_clients": 4, "epochs": 1.0, "batch_size": 100},
        "grid": {"lr": [0.1, 0.2]},
    }
    progress = after_round(1, lambda: deleted(place))
    with pytest.raises(RunError, match=GONE):
        sweep(asked, place, progress=progress)
    assert not place.exists()
