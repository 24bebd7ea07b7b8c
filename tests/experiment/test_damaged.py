"""A file of a run folder that is not what it was is named in one sentence."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedjax_adapt import cli
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import store


def removed(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def folder(path):
    removed(path).mkdir()


def file(path):
    removed(path).write_text("x")


def loop(path):
    removed(path).symlink_to(path.name)


def of(value):
    def damage(path):
        table = pq.read_table(path)
        index = table.column_names.index("loss")
        values = pa.array([value] * len(table))
        pq.write_table(table.set_column(index, "loss", values), path)

    return damage


PART, ROWS = "metrics/part-000000002.parquet", "clients/part-000000002.parquet"
TEXT = "is broken (its column loss is of string, no numbers)."
UNREAD = "cannot be read ({}); "
DAMAGES = [  # what, to which file, and what is said of it
    (folder, ".lock", "cannot be written (Is a directory); "),
    (loop, ".lock", "cannot be written (Too many levels of symbolic links); "),
    *[
        (folder, name, UNREAD.format("Is a directory"))
        for name in ("config.toml", "summary.json", "own.json", PART, ROWS)
    ],
    *[
        (file, name, UNREAD.format("Not a directory"))
        for name in ("metrics", "clients", "checkpoints")
    ],
    *[
        (loop, name, UNREAD.format("Too many levels of symbolic links"))
        for name in ("config.toml", "summary.json", "metrics", "checkpoints", PART)
    ],
    (of("x"), PART, TEXT),
    (of("x"), ROWS, TEXT),
]


@pytest.fixture
def half(whole, tmp_path, elsewhere):
    """The folder of a run that is half finished, below the working folder."""
    del elsewhere
    shutil.copytree(whole.folder, tmp_path / "half")
    (tmp_path / "half" / "summary.json").unlink()
    return Path("half")


@pytest.mark.parametrize("damage, name, says", DAMAGES)
def test_what_is_damaged_is_named_before_anything_is_written(
    half, damage, name, says, capsys
):
    damage(half / name)
    code = cli.main(f"run --folder {half} --resume".split())
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1, err
    assert f"{half / name} {says}" in err


def test_parts_of_different_numbers_are_no_table(half):
    of(1)(half / PART)
    with pytest.raises(
        SettingError, match=r"^half/metrics is broken \(Unable to merge"
    ):
        store.read_table(half, "metrics")


def test_a_damaged_summary_is_named_by_compare(whole, elsewhere, capsys):
    shutil.copytree(whole.folder, "whole")
    folder(Path("whole/summary.json"))
    assert cli.main(["compare", "whole"]) == 2
    said = f"whole/summary.json {UNREAD.format('Is a directory')}"
    assert capsys.readouterr().err.startswith(f"fedjax-adapt: {said}")


def test_what_may_not_be_read_is_named(half, monkeypatch, capsys):
    """As somebody else's files are; root may read them all."""
    opened = open

    def refuse(path, *arguments, **named):
        if Path(path).name == Path(PART).name:
            raise PermissionError(13, os.strerror(13), str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(store, "open", refuse, raising=False)
    code = cli.main(f"run --folder {half} --resume".split())
    assert code == 2
    said = f"{half / PART} {UNREAD.format('Permission denied')}"
    assert capsys.readouterr().err.startswith(f"fedjax-adapt: {said}")


def test_an_error_of_the_system_names_the_file_and_no_number(capsys):
    from fedjax_adapt.cli import process

    assert process.report_error(PermissionError(13, os.strerror(13), "runs/a")) == 1
    said = "fedjax-adapt: runs/a cannot be used (Permission denied).\n"
    assert capsys.readouterr().err == said
