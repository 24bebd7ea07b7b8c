import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import relist

import fedjax_adapt as fa
from fedjax_adapt.experiment import files, records, store


@pytest.fixture
def folder(tmp_path):
    files.write_text(tmp_path / store.CONFIG, "rounds = 4\n")
    store.append(tmp_path, "metrics", {"round": [1, 2], "loss": [0.5, 0.25]}, 2)
    store.append(tmp_path, "metrics", {"round": [3], "loss": [0.125]}, 3)
    store.append(tmp_path, "clients", {"round": [1, 1, 2], "client": [4, 0, 1]}, 2)
    return tmp_path


def test_parts_read_as_one_table(folder):
    record = records.read_run(folder)
    assert record.metrics.to_pydict() == {
        "round": [1, 2, 3],
        "loss": [0.5, 0.25, 0.125],
    }
    assert record.clients["client"].to_pylist() == [4, 0, 1]
    assert record.config == {"rounds": 4}
    assert record.summary is None


def test_arrow_reads_files_without_python(folder, monkeypatch):
    """Or a thread of Arrow's may free what it read while Python ends, which aborts it."""
    read, read_from = pq.read_table, []

    def noted(source):
        read_from.append(type(source))
        return read(source)

    monkeypatch.setattr(pq, "read_table", noted)
    records.read_run(folder)
    assert read_from and {*read_from} == {pa.OSFile}


def test_the_folder_of_parts_is_a_table_to_pyarrow_itself(folder):
    assert pq.read_table(folder / "metrics")["round"].to_pylist() == [1, 2, 3]


def test_truncating_drops_what_lies_after_the_checkpoint_and_only_that(folder):
    store.truncate(folder, 2)
    record = records.read_run(folder)
    assert record.metrics["round"].to_pylist() == [1, 2]
    assert record.clients["round"].to_pylist() == [1, 1, 2]
    store.truncate(folder, 0)
    assert records.read_run(folder).metrics.num_rows == 0


def test_parts_sort_by_number_and_not_by_text(folder):
    store.append(folder, "metrics", {"round": [10], "loss": [0.1]}, 10)
    store.append(folder, "metrics", {"round": [100], "loss": [0.1]}, 100)
    assert records.read_run(folder).metrics["round"].to_pylist() == [1, 2, 3, 10, 100]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "reason", [(28, "No space left on device"), ("encoder error",)]
)
def test_a_write_that_fails_names_the_file(tmp_path, reason):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError) as error:
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(*reason)
    assert str(path) in str(error.value) and reason[-1] in str(error.value)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_killed_write_leaves_behind_is_not_read(folder):
    (folder / "metrics" / ".part-000000009.parquet.tmp").write_bytes(b"PAR1")
    assert records.read_run(folder).metrics.num_rows == 3


def test_vectors_per_client_are_lists(tmp_path):
    rows = {"client": [0, 1], "gate": list(np.ones((2, 3), np.float32))}
    store.append(tmp_path, "clients", rows, 1)
    assert store.read_table(tmp_path, "clients")["gate"].to_pylist() == [[1, 1, 1]] * 2


def test_finishing_writes_the_summary_and_drops_the_lock(folder):
    with files.locked(folder):
        store.finish(folder, {"accuracy": 0.5})
    assert records.read_run(folder).summary == {"accuracy": 0.5}
    assert json.loads((folder / store.SUMMARY).read_text()) == {"accuracy": 0.5}
    assert not (folder / files.LOCK).exists()


def test_a_second_holder_is_refused_until_the_first_has_gone(tmp_path):
    with files.locked(tmp_path):
        with pytest.raises(ValueError, match=r"folder=.* is in use by another process"):
            with files.locked(tmp_path):
                pass
    with files.locked(tmp_path):
        pass


def test_a_folder_without_a_run_is_one_sentence(tmp_path):
    says = "holds no run: it has no config.toml; write the folder that fedjax-adapt run"
    with pytest.raises(ValueError, match=says):
        records.read_run(tmp_path)


@pytest.mark.parametrize("read", [records.read_run, records.read_swept, fa.load_run])
def test_what_is_no_path_is_one_sentence(read):
    says = f'{read.__name__} got 3 for folder; write {read.__name__}("runs/mine").'
    with pytest.raises(ValueError) as error:
        read(3)
    assert str(error.value) == says


def test_broken_files_are_named(folder):
    (folder / "metrics" / "part-000000003.parquet").write_bytes(b"nonsense")
    relist(folder)
    with pytest.raises(ValueError, match=r"part-000000003.parquet is broken"):
        records.read_run(folder)
    (folder / "metrics" / "part-000000003.parquet").unlink()
    (folder / store.SUMMARY).write_text("{")
    relist(folder)
    with pytest.raises(ValueError, match=r"summary.json is broken"):
        records.read_run(folder)


def test_what_feddf_showed_in_earlier_versions_is_not_what_a_run_was_measured_on():
    assert store.accuracy_in(["accuracy", "validation_accuracy"]) == "accuracy"
    assert store.accuracy_in(["validation_accuracy", "loss"]) == store.VALIDATED
    published = [store.TRAINED, store.VALIDATED]
    assert store.accuracy_in(published) == store.TRAINED
