"""A file of a run folder that is not what it was is named in one sentence."""

import dataclasses
import itertools
import os
import random
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import same, unlist
from tiny_runs import TINY

from fedjax_adapt import cli, init_state
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import (
    Config,
    build,
    checkpoint,
    files,
    read_run,
    run,
    store,
)
from fedjax_adapt.experiment.folder import check_folder
from fedjax_adapt.experiment.loop import newest_state
from fedjax_adapt.experiment.program import abstract_state, run_keys

pytestmark = pytest.mark.usefixtures("shared_programs")


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


def nothing(path):
    removed(path).symlink_to("nowhere")


def pipe(path):
    os.mkfifo(removed(path))


def device(path):
    """One that never ends."""
    removed(path).symlink_to("/dev/zero")


def of(value):
    def damage(path):
        table = pq.read_table(path)
        index = table.column_names.index("loss")
        values = pa.array([value] * len(table))
        pq.write_table(table.set_column(index, "loss", values), path)

    return damage


def of_before(damage):
    """In a folder of a version that listed no checksums."""

    def unlisted(path):
        damage(path)
        unlist(path.parents[1])

    return unlisted


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
    *[
        (nothing, name, UNREAD.format("a link to nothing"))
        for name in ("config.toml", "own.json", PART, "files.sha256")
        + ("metrics", "clients", "checkpoints")
    ],
    *[
        (damage, name, UNREAD.format("no regular file"))
        for damage in (pipe, device)
        for name in ("config.toml", "summary.json", "own.json", PART, "files.sha256")
    ],
    (of_before(of("x")), PART, TEXT),
    (of_before(of("x")), ROWS, TEXT),
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
    of_before(of(1))(half / PART)
    with pytest.raises(
        SettingError, match=r"^half/metrics is broken \(Unable to merge"
    ):
        store.read_table(half, "metrics")


@pytest.mark.parametrize("damage", [loop, nothing, pipe, device, folder])
@pytest.mark.parametrize("line", ["compare run", "report run", "replay run"])
def test_settings_that_are_no_file_are_named(whole, elsewhere, damage, line, capsys):
    shutil.copytree(whole.folder, "run")
    damage(Path("run/config.toml"))
    assert cli.main(line.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedjax-adapt: run/config.toml cannot be read ("), err
    assert err.count("\n") == 1 and err.endswith("; put it back as it was.\n")


@pytest.mark.parametrize("name", [PART.replace("2.", "7."), "metrics", "partition"])
def test_what_is_gone_of_a_finished_run_is_said_when_it_is_resumed(
    whole, elsewhere, name, capsys
):
    shutil.copytree(whole.folder, "run")
    assert cli.main("run --folder run --resume".split()) == 0
    removed(Path("run", name))
    assert cli.main("run --folder run --resume".split()) == 2
    out, err = capsys.readouterr()
    assert out.count("nothing is left to run") == 1 and f"run/{name}" in err, err


def test_a_damaged_summary_is_named_by_compare(whole, elsewhere, capsys):
    shutil.copytree(whole.folder, "whole")
    folder(Path("whole/summary.json"))
    assert cli.main(["compare", "whole"]) == 2
    said = f"whole/summary.json {UNREAD.format('Is a directory')}"
    assert capsys.readouterr().err.startswith(f"fedjax-adapt: {said}")


def test_what_may_not_be_read_is_named(half, monkeypatch, capsys):
    """As somebody else's files are; root may read them all."""
    opened = files.opened

    def refuse(path):
        if path.name == Path(PART).name:
            raise PermissionError(13, os.strerror(13), str(path))
        return opened(path)

    monkeypatch.setattr(files, "opened", refuse)
    code = cli.main(f"run --folder {half} --resume".split())
    assert code == 2
    said = f"{half / PART} {UNREAD.format('Permission denied')}"
    assert capsys.readouterr().err.startswith(f"fedjax-adapt: {said}")


def test_an_error_of_the_system_names_the_file_and_no_number(capsys):
    from fedjax_adapt.cli import process

    assert process.report_error(PermissionError(13, os.strerror(13), "runs/a")) == 1
    said = "fedjax-adapt: runs/a cannot be used (Permission denied).\n"
    assert capsys.readouterr().err == said


# A campaign: whatever is damaged is told, or the numbers are the same.


def flipped(path, other, draw):
    held = bytearray(path.read_bytes() or b"x")
    held[draw.randrange(len(held))] ^= 1 << draw.randrange(8)
    path.write_bytes(held)


def cut(path, other, draw):
    held = path.read_bytes()
    path.write_bytes(held[: draw.randrange(len(held) or 1)])


def emptied(path, other, draw):
    path.write_bytes(b"")


def deleted(path, other, draw):
    path.unlink()


def grown(path, other, draw):
    path.write_bytes(path.read_bytes() + draw.randbytes(16))


def exchanged(path, other, draw):
    others = [p for p in path.parent.iterdir() if p.is_file() and p != path]
    if not others:
        return flipped(path, other, draw)
    with_it = draw.choice(sorted(others))
    mine, its = path.read_bytes(), with_it.read_bytes()
    path.write_bytes(its)
    with_it.write_bytes(mine)


def of_another_run(path, other, draw):
    if not other.exists():
        return flipped(path, other, draw)
    path.write_bytes(other.read_bytes())


CAMPAIGN = (flipped, cut, emptied, deleted, grown, exchanged, of_another_run)


def damage_one(folder, other, draw):
    """Damages a file of a folder, and returns how."""
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"]
    of = lambda path: path.relative_to(folder).parts[0]  # as often a table as a state
    first = draw.choice(sorted({of(path) for path in paths}))
    path = draw.choice([path for path in paths if of(path) == first])
    damage = draw.choice(CAMPAIGN)
    before = path.read_bytes()
    damage(path, other / path.relative_to(folder), draw)
    same_bytes = path.exists() and path.read_bytes() == before
    return f"{path.relative_to(folder)} {damage.__name__}" * (not same_bytes)


def read_back(folder, config, abstract):
    """What a resume goes on from, and what it says: state, round, tables, words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state, done, said = newest_state(folder, abstract)
        record = read_run(folder)
    said = [said] * bool(said) + [str(warning.message) for warning in caught]
    tables = record.metrics.to_pydict(), record.clients.to_pydict()
    return state, done, tables, said


def in_place_of(config, folder):
    return dataclasses.replace(config, folder=str(folder))


def campaign(stopped, place, seeds):
    """Damages a folder anew for each seed; returns how often nothing is said of it."""
    mine, other = stopped
    federation = build(mine)
    key, _ = run_keys(mine.seed)
    abstract = abstract_state(lambda: init_state(*federation[:4], key), federation)
    whole = place / "whole"
    shutil.copytree(mine.folder, whole)
    state, done, tables, said = read_back(whole, mine, abstract)
    assert done == 4 and not said
    counts = dict.fromkeys(("refused", "said", "same"), 0)
    for seed in seeds:
        folder = place / f"damaged{seed}"
        shutil.copytree(mine.folder, folder)
        how = damage_one(folder, Path(other.folder), random.Random(seed))
        try:
            check_folder(folder, in_place_of(mine, folder), resume=True)
            found, at, read, words = read_back(folder, mine, abstract)
        except SettingError as error:
            assert str(folder) in str(error) and "\n" not in str(error), how
            counts["refused"] += 1
        else:
            counts["said" if words else "same"] += 1
            # what it goes on from is of the run, and no row of other rounds is left
            assert words or (at == done and read == tables), how
            assert at == done or words, how
            rows = [row for row, r in enumerate(tables[0]["round"]) if r <= at]
            assert read[0] == {n: v[: len(rows)] for n, v in tables[0].items()}, how
            if at == done:
                assert same(found, state), how
        shutil.rmtree(folder)
    return counts


@pytest.mark.slow
def test_no_damage_is_silent(stopped, tmp_path):
    counts = campaign(stopped, tmp_path, range(60))
    assert counts["refused"] > 20 and counts["said"] > 10, counts


@pytest.mark.slow
@pytest.mark.campaign
def test_no_damage_of_500_is_silent(stopped, tmp_path):
    counts = campaign(stopped, tmp_path, range(1000, 1500))
    assert counts["refused"] > 200 and counts["said"] > 50, counts


def resumed(config, folder):
    said = []
    run(in_place_of(config, folder), resume=True, progress=lambda at: said.append(at))
    return [at.warning for at in said if at.warning]


@pytest.mark.slow
def test_damaged_rows_cost_the_rounds_since_the_state_before_them(
    stopped, whole, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    assert checkpoint.rounds(folder / "checkpoints") == [2, 4]
    part = folder / "clients" / "part-000000004.parquet"
    flipped(part, None, random.Random(0))
    assert resumed(stopped[0], folder) == [
        f"{part} is not as it was written ({folder / files.SUMS} has its checksum), and "
        "the state after it is called 000000004.unreadable now; this goes on from round 2."
    ]
    left = sorted(path.name for path in part.parent.iterdir())
    assert "part-000000004.parquet.unreadable" in left
    for name in ("metrics", "clients"):
        mine, its = (read_table(at, name) for at in (folder, whole.folder))
        assert mine == its


def test_damaged_rows_from_before_every_state_are_refused(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    part = folder / "metrics" / "part-000000002.parquet"
    part.unlink()
    before = sorted(folder.rglob("*"))
    with pytest.raises(SettingError) as error:
        resumed(stopped[0], folder)
    assert str(error.value) == (
        f"{part} is missing ({folder / files.SUMS} has its checksum), and no state from "
        "before it is left; put it back as it was, or start again in another folder."
    )
    assert sorted(folder.rglob("*")) == before


def read_table(folder, name):
    table = store.read_table(Path(folder), name)
    return table.drop_columns([n for n in ("seconds",) if n in table.column_names])


def test_a_damaged_list_is_named(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    sums = folder / files.SUMS
    lines = sums.read_text().splitlines(keepends=True)
    sums.write_text("".join(lines[1:]))
    says = f"^{sums} is damaged; put it back as it was, or delete every files.sha256 of"
    with pytest.raises(SettingError, match=says):
        read_run(folder)


def test_the_state_of_another_run_is_set_aside(stopped, whole, tmp_path):
    """Its folder has its own list, which is whole."""
    mine, other = stopped
    folder = tmp_path / "run"
    shutil.copytree(mine.folder, folder)
    saved = folder / "checkpoints"
    shutil.rmtree(saved / "000000004")
    shutil.move(saved / "000000002", tmp_path / "2")
    for left in saved.iterdir():
        left.unlink()
    saved.rmdir()
    shutil.copytree(Path(other.folder) / "checkpoints", saved)
    with pytest.raises(
        SettingError, match="no checkpoint in .* can be read .rounds 2, 4"
    ):
        resumed(mine, folder)


def test_a_lost_list_of_the_run_is_named(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    (folder / files.SUMS).unlink()
    says = (
        f"^{folder / files.SUMS} is missing; put it back, or delete .*checkpoints/files"
    )
    with pytest.raises(SettingError, match=says):
        resumed(stopped[0], folder)


def test_a_summary_of_another_run_is_refused(stopped, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    shutil.copy(Path(whole.folder) / "summary.json", folder)
    says = (
        f"^{folder / 'summary.json'} is not in .*files.sha256, so it is of another run"
    )
    with pytest.raises(SettingError, match=says):
        read_run(folder)


def test_what_is_set_aside_twice_is_kept_twice(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    saved = folder / "checkpoints"
    (saved / "000000004.unreadable").mkdir()
    (saved / "000000004.unreadable" / "first").touch()
    checkpoint.set_aside(saved, 2)
    names = {path.name for path in saved.iterdir()} - {files.SUMS}
    assert names == {
        *("000000002", "000000004.unreadable", "000000004.unreadable-2"),
    }
    assert (saved / "000000004.unreadable" / "first").exists()


@pytest.mark.slow
def test_a_folder_of_before_is_saved_before_it_has_rows(stopped, tmp_path):
    """A state between two evaluations; the list of the run comes first all the same."""
    settings = {**TINY, "evaluate_every": 5, "rounds": 10}
    config = Config(folder=str(tmp_path / "run"), **settings)

    def stop(now):
        if now.round >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, progress=stop)
    unlist(config.folder)
    with pytest.raises(KeyboardInterrupt):
        run(config, resume=True, progress=stop)
    assert "config.toml" in files.listed(Path(config.folder))
    run(config, resume=True)
    lists = [files.listed(Path(config.folder) / at) for at in (".", "checkpoints")]
    assert lists[0].of == lists[1].of


def test_a_state_of_before_is_listed_with_the_first_new_one(stopped, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(Path(stopped[0].folder) / "checkpoints", folder)
    unlist(folder)
    checkpoint.save(folder, {"w": np.ones(3)}, 9)
    assert checkpoint.rounds(folder) == [4, 9]
    assert checkpoint.whole_rounds(folder) == [4, 9]


def test_a_file_that_is_replaced_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_listed(path, "1")
    before = files.listed(tmp_path)
    files.write_listed(path, "2")
    assert files.damaged(tmp_path, path, before) == ""
    path.write_text("3")
    assert files.damaged(tmp_path, path, before).startswith(f"{path} is not as it was")


def test_a_part_that_is_replaced_is_struck_out_before_and_listed_after(tmp_path):
    path = tmp_path / "a.parquet"
    with files.listing(tmp_path, path) as temporary:
        temporary.write_text("1")
        assert files.listed(tmp_path) is None
    assert set(files.listed(tmp_path)) == {path.name}
    with files.listing(tmp_path, path) as temporary:
        temporary.write_text("2")
        assert set(files.listed(tmp_path)) == set()
    assert files.damaged(tmp_path, path) == ""


def test_the_lists_are_those_of_sha256sum(stopped):
    for place in (Path(stopped[0].folder), Path(stopped[0].folder) / "checkpoints"):
        checked = subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", files.SUMS],
            cwd=place,
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0 and not checked.stderr, checked


def test_every_file_that_is_read_again_is_listed(stopped):
    folder = Path(stopped[0].folder)
    known = [folder / name for name in files.listed(folder)]
    saved = folder / "checkpoints"
    known += [saved / name for name in files.listed(saved)]
    found = {path for path in folder.rglob("*") if path.is_file()}
    besides = {path.name for path in found.difference(known)}
    assert besides == {".lock", files.SUMS, *checkpoint.DATED}


@pytest.mark.slow
def test_a_folder_of_before_is_gone_on_with_and_listed(stopped, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped[0].folder, folder)
    unlist(folder)
    saved = folder / "checkpoints"
    assert resumed(stopped[0], folder) == [
        f"{saved} has no {files.SUMS}, as earlier versions left theirs; damage to the "
        "files that are there is not noticed."
    ]
    for name in ("metrics", "clients"):
        assert read_table(folder, name) == read_table(whole.folder, name)
    assert {"config.toml", "summary.json"} <= set(files.listed(folder))
    assert {name.partition("/")[0] for name in files.listed(saved)} == {
        *("000000006", "000000007")
    }


@pytest.mark.slow
@pytest.mark.campaign
def test_a_kill_between_a_file_and_its_list_costs_no_more_than_the_file(
    stopped, whole, tmp_path, monkeypatch
):
    """At every write of a list in turn: the file is there, and its line is not."""
    write = files._write
    for at in itertools.count():
        folder, calls = tmp_path / f"killed{at}", itertools.count()
        shutil.copytree(stopped[0].folder, folder)

        def killed(*given, calls=calls, at=at):
            if next(calls) >= at:  # and no later one either
                raise KeyboardInterrupt
            write(*given)

        monkeypatch.setattr(files, "_write", killed)
        try:
            resumed(stopped[0], folder)
            break
        except KeyboardInterrupt:
            pass
        finally:
            monkeypatch.setattr(files, "_write", write)
        if not (folder / store.SUMMARY).exists():  # else it is finished
            resumed(stopped[0], folder)
        for name in ("metrics", "clients"):
            assert read_table(folder, name) == read_table(whole.folder, name), at
    assert at > 5
