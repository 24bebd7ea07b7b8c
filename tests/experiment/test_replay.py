"""A round made again has the bits it had, and what has not is named."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import relist

from fedjax_adapt import cli
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import replay
from fedjax_adapt.experiment.replay import replay_round


@pytest.mark.slow
@pytest.mark.parametrize("round, start", [(None, 6), (3, 0)])
def test_a_round_made_again_has_the_same_bits(whole, round, start):
    before = sorted(Path(whole.folder).rglob("*"))
    found = replay_round(whole.folder, round)
    assert (found.round, found.start) == (round or 7, start)
    assert found.same and found.changed == {}
    assert {"metrics.accuracy", "clients.loss", "clients.num_steps"} <= set(
        found.differences
    )
    assert "metrics.seconds" not in found.differences
    assert sorted(Path(whole.folder).rglob("*")) == before


@pytest.fixture
def other(whole, tmp_path):
    """A run whose clients' losses in round 7 are not what they were, by 0.25."""
    folder = tmp_path / "other"
    shutil.copytree(whole.folder, folder)
    part = max((folder / "clients").iterdir())
    rows = pq.read_table(part)
    at = rows.column_names.index("loss")
    loss = np.where(rows["round"].to_numpy() == 7, 0.25, 0) + rows["loss"].to_numpy()
    pq.write_table(rows.set_column(at, "loss", pa.array(loss.astype(np.float32))), part)
    relist(folder)
    return folder


@pytest.mark.slow
def test_what_differs_is_named_and_by_how_much(other, capsys):
    code = cli.main(["replay", str(other)])
    out, err = capsys.readouterr()
    assert code == 1, err
    assert "made again from the state after round 6" in out
    assert "clients.loss: differs by up to 0.25\n1 of " in out


@pytest.mark.slow
def test_the_same_bits_are_exit_code_0(whole, capsys):
    assert cli.main(["replay", whole.folder, "--round", "7"]) == 0
    assert "columns have the same bits" in capsys.readouterr().out


@pytest.mark.slow
def test_more_devices_sum_in_another_order(whole):
    """The bound of docs/reliability.md."""
    found = replay_round(whole.folder, devices=2)
    for name, value in found.differences.items():
        assert value < 1e-5, name


@pytest.mark.slow
def test_one_core_has_the_bits_of_all(tmp_path):
    program = [sys.executable, "-m", "fedjax_adapt"]
    settings = "--rounds 3 --devices 2 --model linear --num-clients 6 --batch-size 100"
    settings = [*settings.split(), "--folder", "run"]
    subprocess.run([*program, "run", *settings], cwd=tmp_path, check=True)
    core = str(min(os.sched_getaffinity(0)))
    again = ["taskset", "-c", core, *program, "replay", "run"]
    found = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found
    assert "columns have the same bits" in found.stdout


@pytest.mark.parametrize(
    "round, says",
    [
        (
            8,
            "round=8 is not in .*whole, whose rows end with round 7; write one that is",
        ),
        (0, "round=0 must be an integer >= 1, or None for the last"),
    ],
)
def test_a_round_that_is_not_there_is_one_sentence(whole, round, says):
    with pytest.raises(SettingError, match=says):
        replay_round(whole.folder, round)


@pytest.mark.parametrize(
    "words, says",
    [
        ("replay", "replay got 0 folders before its flags; give one, as in"),
        ("replay a b", "replay got 2 folders before its flags; give one, as in"),
        ("replay nothing", "nothing holds no run: it has no config.toml"),
    ],
)
def test_a_mistake_is_one_sentence(elsewhere, capsys, words, says):
    assert cli.main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedjax-adapt: {says}") and err.count("\n") == 1


@pytest.mark.slow
def test_what_lies_with_a_run_is_no_part_of_a_round(whole, tmp_path):
    """Neither a link to nothing nor a pipe, for which nobody waits."""
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    (folder / "metrics" / "part-000000099.parquet").symlink_to("nowhere")
    os.mkfifo(folder / "checkpoints" / "pipe")
    (folder / "notes").symlink_to("nowhere")
    assert replay_round(folder, 7).same


def test_a_sentence_names_the_run_and_not_its_copy(whole, monkeypatch):
    def refuse(config, *_, **__):
        raise SettingError(f"folder={config.folder} was begun with another algorithm.")

    monkeypatch.setattr(replay, "run", refuse)
    with pytest.raises(SettingError) as error:
        replay_round(whole.folder, 7)
    assert (
        str(error.value) == f"folder={whole.folder} was begun with another algorithm."
    )
