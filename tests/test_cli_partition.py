"""`fedjax-adapt partition`: what it prints, draws and refuses."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import fedjax_adapt

from fedjax_adapt.cli import process
from fedjax_adapt.cli.partition import parse, preview, title_of
from fedjax_adapt.data import Skew, skew
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.config import Config
from fedjax_adapt.report import clients
from fedjax_adapt.report.clients import clients_table, draw_partition

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(process, "prepare_jax", lambda: None)
    return tmp_path


@pytest.mark.slow
def test_a_partition_is_printed_and_drawn(capsys, elsewhere):
    code, out, err = fedjax_adapt(
        capsys, "partition --partition shards --num-clients 40 --seed 3"
    )
    assert (code, err) == (0, "")
    assert "40 clients with 35 to 36 examples" in out
    assert "the first 30 of 40 clients; the picture has all" in out
    assert len(re.findall(r"^│ +\d+ │", out, re.MULTILINE)) == 30
    assert out.endswith("picture  partition-digits-shards-40.png\n")
    (picture,) = elsewhere.iterdir()
    assert picture.name == "partition-digits-shards-40.png"
    assert picture.read_bytes().startswith(PNG)


def test_what_is_shown_is_what_a_run_gets(elsewhere):
    line = "--partition gift_mix --concentration 0.2 --num-clients 9 --seed 4"
    shown = preview(parse(line.split()).config)
    options = {"concentration": 0.2}
    chosen = {"partition": "gift_mix", "partition_options": options}
    run = build(Config(num_clients=9, seed=4, **chosen)).skew
    np.testing.assert_array_equal(shown.label_counts, run.label_counts)


def test_a_picture_is_replaced_only_when_asked_to(capsys, elsewhere):
    mine = elsewhere / "mine.png"
    mine.write_text("mine")
    line = "partition --num-clients 3 --output mine.png"
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, out) == (2, "") and mine.read_text() == "mine"
    assert err == (
        "fedjax-adapt: mine.png is there already; write --overwrite to replace it, or "
        "another --output FILE.\n"
    )
    assert fedjax_adapt(capsys, f"{line} --overwrite")[0] == 0
    assert mine.read_bytes().startswith(PNG)


def test_a_path_is_printed_as_it_is(capsys, elsewhere):
    code, out, _ = fedjax_adapt(capsys, "partition --num-clients 3 --output a[red].png")
    assert code == 0 and out.endswith("picture  a[red].png\n")


def test_shares_are_drawn_on_one_scale(elsewhere, monkeypatch):
    drawn = some(5, 4)
    monkeypatch.setattr(clients, "saved", lambda figure, path: figure)
    (image,) = draw_partition(drawn, "any", "p.png").axes[0].images
    shares = drawn.label_counts / drawn.sizes[:, None]
    np.testing.assert_allclose(image.get_array(), shares)
    assert (image.norm.vmin, image.norm.vmax) == (0, 1)


def test_a_picture_for_which_there_is_no_room_leaves_the_old_one(
    capsys, elsewhere, monkeypatch
):
    def full(path, data):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    (elsewhere / "mine.png").write_text("mine")
    line = "partition --num-clients 3 --output mine.png --overwrite"
    code, _, err = fedjax_adapt(capsys, line)
    assert code == 1
    assert err == (
        "fedjax-adapt: no space is left for mine.png; make room, and write the same with "
        "--resume if it is a run.\n"
    )
    (left,) = elsewhere.iterdir()
    assert left.read_text() == "mine"


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_drawn(
    capsys, elsewhere, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for line in (
        *("partition --output p.png", "compare runs --plot p.png"),
        "report runs --out p.html",
    ):
        flag = " ".join(line.split()[-2:])
        code, out, err = fedjax_adapt(capsys, line)
        assert (code, out) == (2, "")
        says = f"{flag}: the folder . cannot be written to; choose another.\n"
        assert err == f"fedjax-adapt: {says}"


def test_the_file_of_a_run_gives_its_split_and_flags_win(elsewhere):
    (elsewhere / "run.toml").write_text(
        "algorithm = 'fedprox'\nmu = 0.5\nlr = 0.01\npartition = 'shards'\n"
        "shards_per_client = 4\nnum_clients = 7\n"
    )
    config = parse(["--config", "run.toml", "--num-clients", "5"]).config
    assert (config.partition, config.num_clients) == ("shards", 5)
    assert config.partition_options["shards_per_client"] == 4
    assert title_of(config) == "digits, shards(shards_per_client=4)"
    request = parse(["--config", "run.toml", "--partition", "iid"])
    other, note = request.config, request.note
    assert note == (
        "the file's shards_per_client=4 of partition=shards is left out: a flag chooses "
        "another."
    )
    assert other.num_clients == 7 and "shards_per_client" not in other.partition_options


@pytest.mark.parametrize(
    "line, says",
    [
        (
            "--alpha 1",
            "--alpha says how a run trains, and fedjax-adapt partition trains",
        ),
        ("--algorithm fedavg", "--algorithm says how a run trains"),
        ("--resume", "--resume says how a run trains"),
        ("--no-gate-alignment", "--no-gate-alignment says how a run trains"),
        (
            "--num-cliens 3",
            "--num-cliens is not a flag of this partition; did you mean --nu",
        ),
        ("--num-clients x", "--num-clients x: write an integer or none."),
        ("--partition shard", "partition='shard' is unknown; did you mean 'shards'"),
        (
            "--partition iid --num-labels 3",
            "--num-labels is not a flag of this partition;",
        ),
        ("--partition natural", "partition=natural needs data whose rows have owners"),
        ("--num-clients 5000", "num_clients=5000 but there are only 1437"),
        ("--partition fedveca_case --case 4", "--case 4: write one of 1, 2, 3."),
        ("--output here/p.png", "--output here/p.png: there is no folder here."),
        ("--output p.txt", "--output p.txt must end in .png, .pdf, .svg."),
        ("--config none.toml", "config=none.toml cannot be read"),
        ("digits", "digits is not a flag; flags begin with --; fedjax-adapt partition"),
        ("--output=", "--output '' is empty; write a value, or leave --output out."),
        ("--config=", "--config '' is empty; write a value, or leave --config out."),
    ],
)
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_written(
    capsys, elsewhere, line, says
):
    code, out, err = fedjax_adapt(capsys, f"partition {line}")
    assert (code, out) == (2, "")
    assert err.startswith("fedjax-adapt: " + says)
    assert err.count("\n") == 1
    assert os.listdir(elsewhere) == []


def test_help_is_exit_code_0(capsys):
    code, out, _ = fedjax_adapt(capsys, "partition --help")
    assert code == 0 and "--overwrite" in out and "--lr" not in out


def some(num_clients, num_classes):
    rng = np.random.default_rng(0)
    owner = rng.integers(0, num_clients, 4000)
    rows = [np.flatnonzero(owner == i) for i in range(num_clients)]
    return skew(rows, rng.integers(0, num_classes, 4000), num_classes)


@pytest.mark.parametrize("num_clients, num_classes", [(1, 2), (500, 100)])
def test_any_shape_can_be_drawn(elsewhere, num_clients, num_classes):
    path = draw_partition(some(num_clients, num_classes), "any", elsewhere / "p.svg")
    assert path.read_text().startswith("<?xml")
    assert clients_table(some(num_clients, num_classes)).row_count == min(
        num_clients, 30
    )


def test_a_client_with_nothing_has_a_row_and_no_labels(elsewhere):
    empty = skew([np.array([0, 1]), np.array([], int)], np.array([0, 1]), 2)
    assert isinstance(empty, Skew)
    draw_partition(empty, "empty", elsewhere / "p.png")
    table = clients_table(empty)
    assert [list(c.cells)[1] for c in table.columns] == [
        "1",
        "0",
        "0",
        "0.00",
        "0.00",
        "",
    ]


# --- skews of a run ------------------------------------------------------------------


@pytest.mark.slow
def test_noise_and_corruption_reach_the_data_of_a_run():
    config = Config(
        num_clients=5,
        feature_noise=0.1,
        corrupt="random_inputs",
        corrupt_clients=(1, 3),
        corrupt_strength=0.5,
    )
    federation = build(config)
    data, source = federation.data, federation.source
    # the digits' pixels go from 0 to 16
    np.testing.assert_allclose(data.noise.std, 16 * 0.1 * np.arange(5) / 4, rtol=1e-6)
    own = np.asarray(data.x[data.index[3, : data.size[3]]])
    assert np.abs((own - source.mean) / source.std).max() == pytest.approx(
        0.5, abs=0.01
    )
    np.testing.assert_array_equal(data.test[0], source.x_test)
    assert build(Config(num_clients=5)).data.noise is None


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"feature_noise": -1.0}, "feature_noise=-1.0 must be"),
        ({"feature_noise_mask": True}, "feature_noise_mask=True needs feature_noise"),
        ({"corrupt_strength": 1.0}, "corrupt_strength=1.0 needs corrupt"),
        ({"corrupt": "label_shit"}, "corrupt='label_shit'; write one of 'label_shift'"),
    ],
)
def test_a_skew_that_cannot_be_is_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Config(**settings)
