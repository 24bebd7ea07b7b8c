"""Shards of a sweep: together they are the whole, and no trial is run twice."""

import json
import re
import shutil
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import fedjax_adapt
from tiny_runs import TINY

from fedjax_adapt.cli import main
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import files, records, store, sweep
from fedjax_adapt.experiment.config import identity
from fedjax_adapt.experiment.files import locked
from fedjax_adapt.experiment.sweeps import shards
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.experiment.sweeps.results import to_toml
from fedjax_adapt.experiment.sweeps.shards import merge, part_of, shard_of
from fedjax_adapt.report.compare import groups, sheets

pytestmark = pytest.mark.usefixtures("shared_programs")

RUN = {**TINY, "rounds": 2, "checkpoint_every": 2, "devices": 1, "lr": 0.05}
# the second grid takes its lr from [run], the first does not
GRIDS = [{"lr": [0.03, 0.1]}, {"seed": [5, 6], "momentum": [0.5]}]
APART = ("seconds", "group", "config_hash")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweeps") / "sweep.toml"
    path.write_text(to_toml(read_sweep({"run": RUN, "grid": GRIDS})))
    return path


@pytest.fixture(scope="module")
def whole(file):
    """The sweep without shards; only to be read."""
    return sweep(file, file.parent / "whole")


@pytest.fixture(scope="module")
def sharded(file):
    """A folder with all shards, finished; to be copied."""
    folder = file.parent / "sharded"
    told = ["sweep", str(file), "--folder", str(folder), "--shard"]
    assert [main([*told, f"{i}/3"]) for i in (1, 2, 3)] == [0, 0, 0]
    return folder


@pytest.fixture
def copied(sharded, tmp_path):
    return shutil.copytree(sharded, tmp_path / "sharded")


def check_is_whole(found, whole):
    ours, theirs = found.results.to_pylist(), whole.results.to_pylist()
    assert [row["trial"] for row in ours] == [0, 1, 2, 3]
    for row, other in zip(ours, theirs, strict=True):
        assert {*row} == {*other}
        for name in {*row} - {*APART}:
            if isinstance(row[name], float | list):
                np.testing.assert_allclose(row[name], other[name], rtol=1e-4, atol=1e-5)
            else:
                assert row[name] == other[name], name
    assert found.sweep == whole.sweep
    curves, others = found.metrics.to_pydict(), whole.metrics.to_pydict()
    for name in ("trial", "round", "lr", "seed", "accuracy", "loss"):
        np.testing.assert_allclose(
            np.array(curves[name], float), np.array(others[name], float), rtol=1e-4
        )


@pytest.mark.slow
def test_merged_shards_are_the_whole_sweep(copied, whole, capsys):
    assert len(groups([copied])[0].runs) == 4  # before they are merged, too
    assert main(["sweep", "merge", "--help"]) == 0
    assert "usage: fedjax-adapt sweep merge FOLDER" in capsys.readouterr().out
    assert main(["sweep", "merge", str(copied)]) == 0
    assert f"results  {copied / store.RESULTS}" in capsys.readouterr().out
    check_is_whole(records.read_swept(copied), whole)
    assert not list(copied.glob("shard-*"))
    for number in range(4):  # each with its state
        trial = copied / records.trial_folder(number)
        config = records.read_run(trial).config
        assert config["lr"] == [0.03, 0.1, 0.05, 0.05][number]
        assert list((trial / store.CHECKPOINTS).iterdir())
    assert len(groups([copied])[0].runs) == 4
    assert main(["sweep", "merge", str(copied)]) == 2
    assert "holds no shards to merge; it is whole." in capsys.readouterr().err


def test_a_finished_shard_that_is_resumed_says_so_and_stays(copied, file, capsys):
    written = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    line = f"sweep {file} --folder {copied} --shard 2/3"
    shard = copied / "shard-2-of-3"
    said = f"{shard} holds this shard, finished; nothing is left to run.\n"
    assert fedjax_adapt(capsys, f"{line} --resume") == (0, said, "")
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, out) == (
        2,
        "",
    ) and f"folder={shard} holds this sweep, finished" in err
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == written

    merge(copied)  # while a task of the array waits to be started again
    said = f"{copied} holds this sweep, finished; nothing is left to run.\n"
    assert fedjax_adapt(capsys, f"{line} --resume") == (0, said, "")


@pytest.mark.slow
def test_trials_of_shards_that_are_not_there_are_named(copied, file, capsys):
    assert not any("not here" in note for note in sheets([copied])[0].notes)
    line = f"sweep --folder {copied} --resume"
    holds = f"fedjax-adapt: folder={copied} holds a sweep in 3 shards, and "
    code, out, err = fedjax_adapt(capsys, line)
    merging = f"all are finished; write fedjax-adapt sweep merge {copied}.\n"
    assert (code, out, err) == (2, "", holds + merging)
    assert "missing" not in fedjax_adapt(capsys, f"compare {copied}")[1]

    (copied / "shard-3-of-3" / store.SUMMARY).unlink()
    lacks = "shard 3 of 3 is missing or not finished"
    for words in (line, f"sweep {file} --folder {copied}"):
        code, out, err = fedjax_adapt(capsys, words)
        assert (code, out, err) == (2, "", f"{holds}{lacks}; write --shard 3/3.\n")
    for place in (copied, copied.parent):
        (sheet,) = sheets([place])
        assert sheet.notes[-1] == f"{copied}: {lacks}, and its trials are not here"
        assert sum(len(row["folders"]) for row in sheet.numbers) == 2
    assert sheets([copied / "shard-1-of-3"])[0].notes[-1].endswith("seed 0")

    shutil.rmtree(copied / "shard-1-of-3")
    note = sheets([copied])[0].notes[-1]
    assert "shards 1, 3 of 3 are missing or not finished, and" in note
    (copied / "shard-2-of-3" / store.SUMMARY).unlink()
    code, out, err = fedjax_adapt(capsys, f"compare {copied}")
    assert (code, out) == (2, "") and "shards of a sweep, none of which is fin" in err

    code, out, err = fedjax_adapt(capsys, f"{line} --shard 2/3 --json")  # needs no file
    said = json.loads(out)
    assert (code, said["folder"]) == (0, str(copied / "shard-2-of-3"))
    assert [row["trial"] for row in said["results"]] == [1] and "results  " in err
    assert len(sheets([copied])[0].numbers) == 1


@pytest.mark.slow
@pytest.mark.parametrize("at", ["write_table", "finish"])
def test_a_merge_that_was_killed_goes_on(copied, whole, monkeypatch, at):
    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store, at, kill)
        merge(copied)
    check_is_whole(merge(copied), whole)


def test_shards_of_two_sweeps_that_begin_at_once_do_not_mix(tmp_path, monkeypatch):
    grids = [{"seed": [5, 6]}, {"seed": [7, 8]}]
    sweeps = [read_sweep({"run": RUN, "grid": grid}) for grid in grids]
    both, real, write = threading.Barrier(2), shards.create, files.write_listed

    def begin(asked):
        try:
            return shards.begin_shard(tmp_path / "folder", asked, 1, 2)
        except SettingError as error:
            return error

    def made(folder):
        real(folder)
        both.wait(timeout=60)  # neither has found the file of the other

    def slowly(path, text):
        time.sleep(0.2)
        write(path, text)

    monkeypatch.setattr(shards, "create", made)
    monkeypatch.setattr(files, "write_listed", slowly)
    with ThreadPoolExecutor(2) as pool:
        came = [*pool.map(begin, sweeps)]
    refused = [one for one in came if isinstance(one, SettingError)]
    assert len(refused) == 1 and "holds shards of another sweep" in str(refused[0])
    assert came.count(tmp_path / "folder" / "shard-1-of-2") == 1


@pytest.mark.slow
def test_a_merge_whose_shards_were_going_ends(copied, whole, monkeypatch):
    removed = []

    def stop(path):
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        real(path)

    real = shutil.rmtree
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", stop)
        merge(copied)
    check_is_whole(merge(copied), whole)
    assert not list(copied.glob("shard-*"))


def test_a_shard_that_is_in_use_is_not_merged(tmp_path):
    for number in (1, 2):
        (tmp_path / f"shard-{number}-of-2").mkdir()
    with (
        locked(tmp_path / "shard-2-of-2"),
        pytest.raises(SettingError, match="shard-2-of-2 is in use by another process"),
    ):
        merge(tmp_path)


def test_shards_of_two_sweeps_are_not_merged(tmp_path):
    for name in ("shard-1-of-2", "shard-2-of-2", "shard-1-of-3"):
        (tmp_path / name).mkdir()
    with pytest.raises(SettingError, match="holds shards of 2 and of 3; move those"):
        merge(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_only_called_almost_like_a_shard_is_none(copied, file, whole, capsys):
    notes = copied / "shard-1-of-x"
    notes.mkdir()
    part = shards.shard_folder(copied, read_sweep(file), 1, 3)
    assert part == copied / "shard-1-of-3"
    assert main(["sweep", "merge", str(copied)]) == 0
    check_is_whole(records.read_swept(copied), whole)
    assert [path for path in copied.glob("shard-*")] == [notes]
    assert main(["sweep", "merge", str(copied)]) == 2
    assert "holds no shards to merge; it is whole" in capsys.readouterr().err


@pytest.mark.parametrize("count", range(1, 6))
def test_every_trial_is_in_one_shard(count):
    grids = [{"lr": [0.1, 0.2], "seed": [0, 1]}, {"algorithm": ["fedprox"]}]
    asked = read_sweep({"run": {"rounds": 3}, "grid": grids})
    parts = [part_of(asked, i + 1, count) for i in range(count)]
    assert [trial for part in parts for trial in part.trials] == asked.trials
    sizes = [len(part.trials) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:  # the file of a shard says the same
        found = read_sweep(tomllib.loads(to_toml(part)))
        assert [t.number for t in found.trials] == [t.number for t in part.trials]
        same = [identity(trial.config) for trial in part.trials]
        assert [identity(trial.config) for trial in found.trials] == same


def test_more_shards_than_trials_are_refused():
    asked = read_sweep({"run": {}, "grid": {"lr": [0.1, 0.2]}})
    with pytest.raises(
        SettingError, match="shard=1/3 has no trial of 2; write 2 shards"
    ):
        part_of(asked, 1, 3)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/2", "1/b", "-1/2", "1/2/3", ""])
def test_what_is_no_shard_is_told(text):
    with pytest.raises(SettingError, match="is not a shard; write which of how many"):
        shard_of(text)


@pytest.mark.slow
def test_a_shard_is_resumed_and_others_are_refused(copied, file, capsys, tmp_path):
    told = ["sweep", str(file), "--folder", str(copied)]
    for words, said in [
        (
            [*told, "--shard", "1/2"],
            "holds shards of a sweep in 3, not 2; write as many",
        ),
        ([*told, "--shard", "1/3"], "holds"),  # finished: not overwritten
        (told, "holds a sweep in 3 shards, and all are finished; write fedjax-adapt"),
        ([*told, "--shard", "4/3"], "shard='4/3' is not a shard"),
        (["sweep", "merge"], "sweep merge got nothing; give the one folder"),
        (
            ["sweep", "merge", str(tmp_path)],
            "holds no shards to merge; write the folder",
        ),
    ]:
        assert main(words) == 2
        assert said in capsys.readouterr().err, words
    text = file.read_text()
    assert "0.03" in text
    other = tmp_path / "other.toml"
    other.write_text(text.replace("0.03", "0.04"))
    assert main(["sweep", str(other), *told[2:], "--shard", "2/3"]) == 2
    assert (
        "holds shards of another sweep (its trial 0 has lr" in capsys.readouterr().err
    )
    begun = copied / "shard-3-of-3"
    before = records.read_swept(begun).results.to_pylist()
    (begun / store.SUMMARY).unlink()
    assert main(["sweep", "merge", str(copied)]) == 2
    assert (
        f"{begun} is not finished; run or resume it first." in capsys.readouterr().err
    )
    assert (
        main(["sweep", "--folder", str(begun), "--resume"]) == 0
    )  # as a sweep of its own
    assert records.read_swept(begun).results.to_pylist() == before
    (begun / store.SUMMARY).unlink()
    assert main([*told, "--shard", "3/3", "--resume"]) == 0
    assert json.loads((begun / store.SUMMARY).read_text())["trials"] == 2


@pytest.mark.slow
def test_the_recipe_of_the_guide_runs_on_this_machine(
    file, whole, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(file, tmp_path / "sweep.toml")
    page = Path(__file__).parents[2] / "docs" / "guides" / "machines.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(compile(code, page.name, "exec"), names)
    assert names["codes"] == [0, 0]
    check_is_whole(records.read_swept("runs/lr"), whole)


def gone(shard):
    shutil.rmtree(shard / "trials" / "0001")


def no_summary(shard):
    (shard / "trials" / "0001" / "summary.json").unlink()


def one_more(shard):
    shutil.copytree(shard / "trials" / "0001", shard / "trials" / "0009")


def of_another(shard):
    shutil.rmtree(shard / "trials" / "0001")
    other = shard.parent / "shard-1-of-3" / "trials" / "0000"
    shutil.copytree(other, shard / "trials" / "0001")


def no_groups(shard):
    shutil.rmtree(shard / "groups")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (gone, "trials/0001/files.sha256 is missing"),
        (no_summary, "trials/0001/summary.json is missing"),
        (one_more, "trials/0009 is not in .*, so it is not a trial of this sweep"),
        (of_another, "trials/0001/files.sha256 is not as it was written"),
        (no_groups, "files.sha256 is missing"),
    ],
)
def test_a_shard_that_is_not_as_it_was_left_is_not_merged(copied, damage, says):
    damage(copied / "shard-2-of-3")
    with pytest.raises(SettingError, match=says):
        merge(copied)
    assert not (copied / "summary.json").exists()


def test_the_file_of_a_whole_sweep_that_is_damaged_is_named(copied):
    text = (copied / "whole.toml").read_text()
    (copied / "whole.toml").write_text(text.replace("0.1", "0.2"))
    with pytest.raises(SettingError, match="whole.toml is not as it was written"):
        merge(copied)


def test_merged_shards_list_their_trials_and_groups(copied):
    merge(copied)
    known = files.listed(copied)
    trials = {f"trials/{number:04d}/files.sha256" for number in range(4)}
    assert trials < set(known) and "whole.toml" not in known
    assert sum(name.startswith("groups/") for name in known) == 3
    files.check_all(copied)


def test_what_lies_where_a_trial_is_to_go_is_not_taken_for_it(copied):
    """Nor is the trial lost with its shard."""
    (copied / "trials" / "0001").mkdir(parents=True)
    with pytest.raises(
        SettingError, match="trials/0001 is there already, where .*2-of-3"
    ):
        merge(copied)
    assert (copied / "shard-2-of-3" / "trials" / "0001" / "summary.json").exists()
    assert (copied / "shard-1-of-3" / "trials" / "0000").exists()  # nothing is moved
    (copied / "trials" / "0001").rmdir()
    assert merge(copied).results["trial"].to_pylist() == [0, 1, 2, 3]


def test_a_shard_in_the_place_of_another_is_not_merged(copied):
    shutil.rmtree(copied / "shard-2-of-3")
    shutil.copytree(copied / "shard-1-of-3", copied / "shard-2-of-3")
    says = "shard-2-of-3 has trials 0, not 1; put the shard there that has them"
    with pytest.raises(SettingError, match=says):
        merge(copied)
    assert (copied / "shard-1-of-3" / "trials" / "0000").exists()


def test_a_merge_that_was_killed_between_two_moves_goes_on(copied, whole):
    (copied / "trials").mkdir()
    source = copied / "shard-1-of-3" / "trials" / "0000"
    source.rename(copied / "trials" / "0000")
    check_is_whole(merge(copied), whole)


def test_a_merge_of_old_shards_that_was_killed_lists_all_trials(copied):
    """Those that were moved before too, of which the lists of old shards know nothing."""
    for shard in copied.glob("shard-*"):
        known = files.listed(shard)
        below = [shard / n for n in known if n.startswith(("trials/", "groups/"))]
        files.strike(shard, below)
    (copied / "trials").mkdir()
    moved = copied / "shard-1-of-3" / "trials" / "0000"
    moved.rename(copied / "trials" / "0000")
    merge(copied)
    assert len(groups([copied])[0].runs) == 4
