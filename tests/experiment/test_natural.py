"""Data whose rows have owners: how many clients there are, and their own tests."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_adapt import cli
from fedjax_adapt.cli import process
from fedjax_adapt.cli.partition import parse, preview
from fedjax_adapt.experiment import Config, build, read_run, run, sweep
from fedjax_adapt.experiment.config import (
    config_hash,
    from_settings,
    to_settings,
    to_toml,
)
from fedjax_adapt.experiment.folder import first_change, run_folder
from fedjax_adapt.experiment.reading import read_settings
from fedjax_adapt.experiment.sweeps.differences import trial_partitions

SIZES = [4, 9, 6, 2, 7, 5]  # of the clients in mine.npz


def write(path, sizes=SIZES, tests=(0, 2, 1, 1, 3, 0), **arrays):
    """An .npz file of clients with so many rows, in random order, and so many tests."""
    rng = np.random.default_rng(0)

    def part(sizes):
        owners = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        x = rng.normal(size=(len(owners), 3)).astype(np.float32)
        return owners, x, np.arange(len(owners)) % 3

    clients, x_train, y_train = part(sizes)
    owners, x_test, y_test = part(tests)
    arrays = {"clients": clients, "test_clients": owners} | arrays
    np.savez(
        path,
        **{"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test},
        **{name: array for name, array in arrays.items() if array is not None},
    )
    return path


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)
    return str(write(tmp_path / "mine.npz"))


SMALL = {
    **{"algorithm": "fedavg", "partition": "natural", "model": "linear", "rounds": 2},
    **{"devices": 1, "lanes": 2, "convolutions": "rule", "batch_size": 4},
}


def small(mine, **changes):
    return from_settings(SMALL | {"dataset": mine} | changes)


# as they were before a number of clients could be left to the data
@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({}, "b473d71a"),
        ({"num_clients": 7, "seed": 3}, "a86d8f1e"),
        ({"algorithm": "scaffold", "partition": "iid", "num_clients": 100}, "684c1f59"),
        ({"dataset": "synthetic", "partition": "natural"}, "12535680"),
        (
            {
                "dataset": "synthetic",
                "partition": "natural",
                "num_clients": 12,
                "dataset_alpha": 0.5,
            },
            "6d2f0858",
        ),
        ({"dataset": "mine.npz", "partition": "natural"}, "0428852c"),
        (
            {
                "dataset": "mine.npz",
                "partition": "natural",
                "num_clients": 12,
                "min_size": 3,
            },
            "25d6fb82",
        ),
        ({"dataset": "mine.npz", "num_classes": 4}, "fcb6a342"),
        ({"dataset": "tfds:mnist"}, "5be76595"),
        (
            {
                "dataset": "tfds:emnist/letters",
                "partition": "shards",
                "num_clients": 20,
            },
            "ec2795a1",
        ),
        (
            {
                "algorithm": "fedgsnr",
                "base": "scaffold",
                "sampler": "uniform",
                "participation": 0.1,
            },
            "1ba4c2bd",
        ),
        (
            {
                "algorithm": "fnr",
                "public": "holdout",
                "public_examples": 50,
                "model": "linear",
                "algorithm.batch_size": None,  # as it was by default
            },
            "73a5e039",
        ),
    ],
)
def test_hashes_of_earlier_runs_stay(settings, known):
    assert config_hash(from_settings(settings)) == known


def test_a_number_is_left_to_the_data_only_where_they_have_one():
    assert Config().num_clients == 30
    assert Config(num_clients=None).num_clients == 30
    assert Config(partition="natural", dataset="synthetic").num_clients == 30
    for dataset in ("x.npz", "tfds:x", "leaf_femnist", "leaf_shakespeare"):
        config = Config(partition="natural", dataset=dataset)
        assert config.num_clients is None
        assert replace(config, partition="iid").num_clients == 30
        assert replace(config, num_clients=4).num_clients == 4
        assert from_settings(to_settings(config)).num_clients is None
    with pytest.raises(ValueError, match="num_clients=0 must be an integer >= 1"):
        Config(num_clients=0)


def test_a_setting_that_came_later_counts_once_it_is_given():
    plain = {"dataset": "tfds:mnist"}
    owned = from_settings(plain | {"client_feature": "writer"})
    assert config_hash(owned) != config_hash(from_settings(plain))


def test_clients_are_those_of_the_data(mine):
    federation = build(small(mine))
    assert federation.data.size.tolist() == SIZES
    assert federation.skew.sizes.tolist() == SIZES
    with np.load(mine) as arrays:
        x, owners = arrays["x_test"], arrays["test_clients"]
    tests = federation.data.client_tests
    assert tests.x is federation.data.test[0]
    for i, rows in enumerate(tests.rows()):
        np.testing.assert_array_equal(tests.x[rows], x[owners == i])
    # an option of the partition changes the number, a share of the clients follows it
    large = build(small(mine, min_size=5, sampler="uniform", participation=0.5))
    assert large.data.size.tolist() == [9, 6, 7, 5]
    assert large.data.client_tests.size.tolist() == [2, 1, 3, 0]
    assert large.plan.participation.slots(4) == 2


def test_other_partitions_have_no_tests_of_clients(mine, tmp_path):
    data = build(small(mine, partition="iid", num_clients=3)).data
    assert data.client_tests is None and data.num_clients == 3
    bare = write(tmp_path / "bare.npz", test_clients=None)
    assert build(small(str(bare))).data.client_tests is None


def test_a_number_that_the_data_cannot_have_is_refused(mine, tmp_path):
    with pytest.raises(ValueError, match="num_clients=7 but 6 owners have at least"):
        build(small(mine, num_clients=7))
    bare = write(tmp_path / "bare.npz", clients=None, test_clients=None)
    with pytest.raises(ValueError, match="an .npz file with an array clients"):
        build(small(str(bare)))


def test_fewer_clients_are_drawn_and_keep_their_own_tests(mine):
    data = build(small(mine, num_clients=2, seed=3)).data
    with np.load(mine) as arrays:
        x, owners = arrays["x_train"], arrays["clients"]
        x_test, test_owners = arrays["x_test"], arrays["test_clients"]
    for rows, tests in zip(data.rows(), data.client_tests.rows(), strict=True):
        owner = owners[(x == np.asarray(data.x[rows[0]])).all(1)][0]
        np.testing.assert_array_equal(
            np.sort(data.x[rows], 0), np.sort(x[owners == owner], 0)
        )
        np.testing.assert_array_equal(
            data.client_tests.x[tests], x_test[test_owners == owner]
        )


@pytest.mark.slow
def test_a_run_writes_down_how_many_there_were(mine, tmp_path):
    config = small(mine)
    summary = run(config)
    folder = run_folder(config)
    record = read_run(folder)
    assert record.config["num_clients"] == len(SIZES) == summary.data["clients"]
    assert set(record.clients["client"].to_pylist()) <= set(range(len(SIZES)))
    written = from_settings(read_settings(folder / "config.toml"))
    assert written.num_clients == len(SIZES)
    assert config_hash(written) == summary.config_hash
    # the number written out is the same run
    again = small(mine, num_clients=len(SIZES), folder=str(tmp_path / "again"))
    assert run(again).accuracy == summary.accuracy
    with pytest.raises(ValueError, match="holds this run, finished"):
        run(config)


@pytest.mark.slow
def test_a_run_goes_on_with_the_clients_it_began_with(mine, tmp_path):
    config = small(mine, folder=str(tmp_path / "begun"), checkpoint_every=1)
    (tmp_path / "begun").mkdir()
    # as an earlier version began it: with a number, which was 30 unless it was given
    (tmp_path / "begun/config.toml").write_text(to_toml(replace(config, num_clients=4)))
    assert run(config, resume=True).data["clients"] == 4
    more = small(mine, folder=str(tmp_path / "more"))
    (tmp_path / "more").mkdir()
    begun = to_toml(replace(more, num_clients=8))
    (tmp_path / "more/config.toml").write_text(begun)
    with pytest.raises(ValueError, match="num_clients=8 but 6 owners"):
        run(more, resume=True)
    with pytest.raises(ValueError, match="with num_clients=8, not num_clients=5"):
        run(replace(more, num_clients=5), resume=True)


@pytest.mark.slow
def test_the_command_line_needs_no_number(mine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process, "prepare_jax", lambda: None)
    line = f"partition --dataset {mine} --partition natural"
    assert cli.main(line.split()) == 0
    out = capsys.readouterr().out
    assert "6 clients with 2 to 9 examples" in out
    assert "picture  partition-mine-natural-all.png" in out
    request = parse([*line.split()[1:], "--overwrite"])
    assert preview(request.config).sizes.tolist() == SIZES
    line = f"run --dataset {mine} --partition natural --algorithm fedavg --rounds 1"
    line += " --model linear --devices 1 --folder one"
    assert cli.main(line.split()) == 0
    assert read_run(tmp_path / "one").config["num_clients"] == 6
    assert cli.main([*line.split(), "--num-clients", "9"]) == 2
    assert "folder=one holds another run (num_clients=6, here num_clients=9)" in (
        capsys.readouterr().err.replace("\n", " ")
    )


@pytest.mark.slow
def test_trials_of_a_sweep_hold_what_their_runs_hold(mine):
    configs = [small(mine, num_clients=2, partition_seed=seed) for seed in range(4)]
    first = build(configs[0])
    shared = trial_partitions(configs, first)
    for trial, config in enumerate(configs):
        mixed, own = shared.put_into(first.data, trial), build(config).data
        for ours, theirs in ((mixed, own), (mixed.client_tests, own.client_tests)):
            for rows, expected in zip(ours.rows(), theirs.rows(), strict=True):
                np.testing.assert_array_equal(rows, expected)
    sizes = {tuple(build(config).data.client_tests.size.tolist()) for config in configs}
    assert len(sizes) > 1


@pytest.mark.slow
def test_trials_of_a_sweep_have_the_clients_of_the_data(mine, tmp_path):
    settings = SMALL | {"dataset": mine, "rounds": 1, "lanes": 1}
    given = {"run": settings, "grid": {"seed": [0, 1]}}
    rows = sweep(given, folder=tmp_path / "swept").results.to_pylist()
    for seed, row in enumerate(rows):
        resolved = small(mine, rounds=1, seed=seed, num_clients=len(SIZES))
        assert row["config_hash"] == config_hash(resolved)
    with pytest.raises(ValueError, match="holds this sweep, finished"):
        sweep(given, folder=tmp_path / "swept")


def test_a_stored_run_of_fnr_has_the_batches_it_began_with(tmp_path):
    """Earlier versions wrote no batch size where it was the clients'."""
    text = to_toml(from_settings({"algorithm": "fnr", "public": "holdout"}))
    old = [line for line in text.splitlines() if not line.startswith("batch_size = 32")]
    assert len(old) == len(text.splitlines()) - 1
    (tmp_path / "config.toml").write_text("\n".join(old))
    now = from_settings({"algorithm": "fnr", "public": "holdout"})
    assert first_change(tmp_path, now) == ("algorithm.batch_size", None, 32)
    (tmp_path / "config.toml").write_text(text)
    assert first_change(tmp_path, now) is None
