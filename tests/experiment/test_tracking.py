"""What a tracker is given of a run and of a sweep, and what its failure does not break."""

import struct
from pathlib import Path

import pytest
from test_run import Stop, stop_after
from test_sweep import RUN

from fedjax_adapt.experiment import load_run, read_run, run, sweep, tracking

pytestmark = pytest.mark.usefixtures("shared_programs")

UNTRACKED = {"round", "class_accuracy"}


class Fake:
    """A tracker that remembers."""

    begun: list["Fake"] = []
    fails_at = None

    def __init__(self, folder, name, config, done):
        self.folder, self.name, self.config, self.done = folder, name, config, done
        self.rounds, self.rows, self.finished = [], [], None
        type(self).begun.append(self)

    def log(self, round, figures):
        if round == self.fails_at:
            raise ConnectionError("no route to host")
        self.rounds.append(round)
        self.rows.append(dict(figures))

    def close(self, finished):
        self.finished = finished


@pytest.fixture
def fakes(monkeypatch):
    """The fake trackers that were begun in place of wandb."""
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Fake)
    monkeypatch.setitem(tracking.PACKAGES, "wandb", "json")
    monkeypatch.setattr(Fake, "begun", [])
    monkeypatch.setattr(Fake, "fails_at", None)
    return Fake.begun


def scalars(folder):
    rows = read_run(folder).metrics.to_pylist()
    return [{k: v for k, v in row.items() if k not in UNTRACKED} for row in rows]


@pytest.mark.slow
def test_it_has_every_figure_of_the_table(tiny, whole, fakes):
    config = tiny(track="wandb", checkpoint_every=2)
    run(config)
    (fake,) = fakes
    assert fake.rounds == read_run(config.folder).metrics["round"].to_pylist()
    assert fake.rows == scalars(config.folder)
    assert fake.finished is True and fake.done == 0 and fake.config.track == "wandb"
    assert fake.name == "run" and fake.folder.parent.name == "run"
    # a tracker changes no number, and another folder has the same run without it
    accuracy = lambda folder: [row["accuracy"] for row in scalars(folder)]
    assert accuracy(config.folder) == accuracy(whole.folder)


def tmp(tiny):
    return Path(tiny().folder)


def test_a_run_without_one_has_no_folder_of_it(whole):
    assert not (Path(whole.folder) / tracking.FOLDER).exists()


@pytest.mark.slow
def test_resuming_goes_on_after_the_checkpoint(tiny, fakes):
    config = tiny(track="wandb", checkpoint_every=2)
    with pytest.raises(Stop):
        run(config, progress=stop_after(4))
    run(config, resume=True)
    first, second = fakes
    assert first.finished is False and second.finished is True
    assert first.folder == second.folder
    assert second.done == first.rounds[-1]
    assert first.rounds + second.rounds == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_one_that_fails_is_said_and_left_out(tiny, whole, fakes, monkeypatch, caplog):
    monkeypatch.setattr(Fake, "fails_at", 3)
    config = tiny(track="wandb", checkpoint_every=2)
    summary = run(config)
    assert summary.rounds == 7 and len(scalars(config.folder)) == 7
    (fake,) = fakes
    assert fake.rounds == [1, 2] and fake.finished is None
    (record,) = [r for r in caplog.records if r.name == "fedjax_adapt"]
    assert record.getMessage() == (
        "the tracker failed and gets no more figures, the run goes on "
        "(ConnectionError: no route to host)."
    )


def test_one_that_cannot_begin_is_a_mistake(tiny, fakes, monkeypatch):
    def broken(*_):
        raise RuntimeError("no key")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", broken)
    with pytest.raises(ValueError, match=r"track=wandb cannot begin .*no key.*leave"):
        run(tiny(track="wandb"))


def test_a_missing_package_is_said_before_anything_is_written(tiny, monkeypatch):
    monkeypatch.setitem(tracking.PACKAGES, "mlflow", "no_such_package")
    says = r"track=mlflow needs .*; write pip install 'fedjax-adapt\[mlflow\]'"
    with pytest.raises(ValueError, match=says):
        run(tiny(track="mlflow"))
    assert not tmp(tiny).exists()
    with pytest.raises(ValueError, match=says):
        sweep({"run": {"track": "mlflow"}, "grid": {"seed": [0]}}, tmp(tiny))
    assert not tmp(tiny).exists()


@pytest.mark.slow
def test_a_run_of_a_tracker_is_read_without_its_package(tiny, fakes, monkeypatch):
    config = tiny(track="wandb", rounds=2)
    run(config)
    monkeypatch.setitem(tracking.PACKAGES, "wandb", "no_such_package")
    assert load_run(config.folder).state.round == 2


@pytest.mark.slow
def test_each_trial_of_a_sweep_has_its_own(tiny, tmp_path, fakes):
    grid = {"run": {**RUN, "track": "wandb"}, "grid": [{"lr": [0.03, 0.1, 0.3]}]}
    folder = tmp_path / "sweep"
    sweep(grid, folder, side_by_side=2)
    assert [fake.name for fake in fakes] == [f"sweep/000{n}" for n in range(3)]
    assert [fake.config.lr for fake in fakes] == [0.03, 0.1, 0.3]
    for number, fake in enumerate(fakes):
        assert fake.folder == folder / tracking.FOLDER / f"000{number}"
        assert fake.finished is True and fake.done == 0
        assert fake.rows == scalars(folder / "trials" / f"000{number}")


def events(folder):
    """The scalars of TensorBoard's files: (tag, step, value); ("purge", step, 0) from where
    it forgets what came before."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]
            if event.session_log.status == event.session_log.START:
                found.append(("purge", event.step, 0))
            values = event.summary.value
            found += [(v.tag, event.step, v.simple_value) for v in values]
    return found


@pytest.mark.slow
def test_tensorboard_shows_the_curves(tiny):
    pytest.importorskip("tensorboardX")
    config = tiny(track="tensorboard", checkpoint_every=2)
    with pytest.raises(Stop):
        run(config, progress=stop_after(4))
    run(config, resume=True)
    shown = events(tmp(tiny) / tracking.FOLDER)
    for name in ("accuracy", "loss", "local_steps", "bytes_up"):
        curve = [value for tag, _, value in shown if tag == name]
        rows = scalars(config.folder)
        assert curve == pytest.approx([row[name] for row in rows])
        assert [at for tag, at, _ in shown if tag == name] == [1, 2, 3, 4, 5, 6, 7]
    assert any(tag.startswith("settings") for tag, _, _ in shown)
    assert [at for tag, at, _ in shown if tag == "purge"] == [1, 3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow about its own packages
def test_mlflow_has_the_settings_and_the_curves(tiny, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    where = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    monkeypatch.chdir(tmp_path)
    config = tiny(track="mlflow", checkpoint_every=2)
    with pytest.raises(Stop):
        run(config, progress=stop_after(4))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("fedjax-adapt").experiment_id
    (interrupted,) = client.search_runs([experiment])
    assert interrupted.info.status == "KILLED"
    run(config, resume=True)
    (found,) = client.search_runs([experiment])
    assert found.info.run_id == interrupted.info.run_id
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert found.data.params["algorithm"] == config.algorithm
    assert found.data.params["lr"] == str(config.lr)
    history = client.get_metric_history(found.info.run_id, "accuracy")
    history = {point.step: point.value for point in history}
    rows = scalars(config.folder)
    assert history == {n + 1: row["accuracy"] for n, row in enumerate(rows)}


@pytest.mark.slow
def test_wandb_goes_on_with_its_run(tiny, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = tiny(track="wandb", checkpoint_every=2)
    with pytest.raises(Stop):
        run(config, progress=stop_after(4))
    run(config, resume=True)
    place = tmp(tiny) / tracking.FOLDER
    known = (place / "wandb.id").read_text()
    files = sorted(place.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and {path.name for path in files} == {f"run-{known}.wandb"}
    assert history_of(files) == [1, 2, 3, 4, 5, 6, 7]


def history_of(files):
    """The rounds in the files that wandb would upload.

    A file is LevelDB's log after a header of 7 bytes: blocks of 32 KiB of chunks, each with
    its checksum, length and kind (1: a record, 2 to 4: its first, middle and last part).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in files:
        data, at, record = path.read_bytes(), 7, b""
        while at < len(data):
            if 32768 - at % 32768 < 7:  # the rest of a block has no room for a chunk
                at += 32768 - at % 32768
                continue
            _, length, kind = struct.unpack("<IHB", data[at : at + 7])
            record += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                items = Record.FromString(record).history.item
                found += [
                    int(float(item.value_json))
                    for item in items
                    if "round" in (item.key, *item.nested_key)
                ]
                record = b""
    return found
