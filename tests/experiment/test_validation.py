"""evaluate_on=validation: what is measured is no test accuracy, and is not called so."""

import csv
import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from helpers import fedjax_adapt
from rich.console import Console

import fedjax_adapt as fa
from fedjax_adapt.data import load
from fedjax_adapt.experiment import read_run, run, sweep
from fedjax_adapt.experiment.build import accuracy_name, build
from fedjax_adapt.experiment.config import Config, from_settings
from fedjax_adapt.experiment.store import VALIDATED
from fedjax_adapt.report.compare import sheets
from fedjax_adapt.report.page import report_page
from fedjax_adapt.report.plots import comparison_curves, learning_curve
from fedjax_adapt.report.progress import live
from fedjax_adapt.report.tables import comparison_tables, summary_table

NAME = "validation accuracy"
SMALL = {"algorithm": "fedavg", "num_clients": 5, "model": "linear", "devices": 1}
JUDGED = {**SMALL, "evaluate_on": "validation"}


def built(**settings):
    return build(from_settings(JUDGED | settings))


def in_bytes(x):
    return sorted(example.tobytes() for example in x)


def test_a_tenth_of_every_label_leaves_the_training_set():
    source, found = load("digits"), built().source
    assert len(found.y_test) == len(source.y_train) // 10 == 143
    together = np.concatenate([found.x_train, found.x_test])
    assert in_bytes(together) == in_bytes(source.x_train)
    share = found.test_counts() / np.bincount(source.y_train)
    assert np.abs(share - 0.1).max() < 0.01
    assert (found.mean, found.std) == (source.mean, source.std)


def test_clients_hold_none_of_what_is_measured_on():
    found = built()
    np.testing.assert_array_equal(found.data.test[1], found.source.y_test)
    held = [np.asarray(found.data.x)[rows] for rows in found.data.rows()]
    assert sum(map(len, held)) == 1437 - 143
    together = np.concatenate([*held, found.source.x_test])
    assert in_bytes(together) == in_bytes(load("digits").x_train)


def test_the_examples_are_the_same_whatever_the_seeds_and_a_public_set():
    expected = built().source.x_test
    for other in (
        {"seed": 3, "partition_seed": 4, "num_clients": 7},
        {"algorithm": "fnr", "public_examples": 50},
    ):
        np.testing.assert_array_equal(built(**other).source.x_test, expected)


def test_they_are_the_same_however_many_are_trained_on():
    expected, found = built().source, built(train_examples=1000).source
    np.testing.assert_array_equal(found.x_test, expected.x_test)
    np.testing.assert_array_equal(found.x_train, expected.x_train[:1000])
    with pytest.raises(
        ValueError, match="=1295 is more than the 1294 training examples"
    ):
        built(train_examples=1295)


@pytest.mark.parametrize("more", [{"algorithm": "fnr"}, {"labels": "parity"}], ids=str)
def test_a_public_set_and_other_labels_do_not_change_its_name(more):
    assert accuracy_name(built(**more)) == VALIDATED


@pytest.mark.slow
def test_runs_measured_on_other_examples_are_not_matched(tmp_path):
    folder = str(tmp_path / "tested")
    run(from_settings({**SMALL, "rounds": 1, "folder": folder}))
    with pytest.raises(ValueError, match="evaluate_on=test"):
        built(rounds=1, match=folder)


def test_five_thousand_at_most_and_one_of_each_label_at_least():
    x, y = np.zeros((60_000, 1), np.float32), np.arange(60_000, dtype=np.int32) % 10
    source = load("digits")._replace(x_train=x, y_train=y)
    found = source.validating()
    assert len(found.y_test) == 5000 and set(found.test_counts()) == {500}
    assert found.validates and not source.validates
    says = "9 of 99 training examples of digits, which has 10 labels; give at least 100"
    with pytest.raises(ValueError, match=says):
        source.first(99).validating()
    assert len(source.first(100).validating().y_test) == 10


def test_clients_by_nature_have_their_own_validation_examples():
    x = np.arange(40, dtype=np.float32)[:, None]
    owners = np.arange(40, dtype=np.int32) % 4
    source = load("digits")._replace(
        x_train=x,
        y_train=owners % 2,
        num_classes=2,
        clients=owners,
        test_clients=owners,
    )
    found = source.validating()
    np.testing.assert_array_equal(found.test_clients, found.x_test[:, 0] % 4)
    np.testing.assert_array_equal(found.clients, found.x_train[:, 0] % 4)
    assert source._replace(test_clients=None).validating().test_clients is None


@pytest.mark.parametrize("public", ["split_test", "published"])
def test_a_public_set_of_the_test_set_is_refused(public, capsys):
    says = f"public={public} takes the test set, but evaluate_on=validation leaves it"
    with pytest.raises(ValueError, match=says):
        built(public=public)
    line = f"partition --evaluate-on validation --public {public}"
    code, _, error = fedjax_adapt(capsys, line)
    assert code == 2 and says in error


def test_given_data_have_their_own_test_set(tmp_path):
    data = fa.FederatedDataset.from_clients(
        [(np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, np.int32))] * 2,
        test=(np.zeros((4, 8, 8, 1), np.uint8), np.zeros(4, np.int32)),
        num_classes=2,
    )
    with pytest.raises(ValueError, match="evaluate_on=validation"):
        run(Config(folder=str(tmp_path), evaluate_on="validation"), data=data)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over learning rates and seeds, of the validation examples."""
    folder = tmp_path_factory.mktemp("validation") / "sweep"
    grid = {"lr": [0.01, 0.1], "seed": [0, 1]}
    settings = {**JUDGED, "rounds": 2, "participation": 1.0, "targets": [0.05]}
    return sweep({"run": {**settings, "partition_seed": 0}, "grid": grid}, folder)


@pytest.mark.slow
def test_it_is_called_validation_accuracy_wherever_it_is_shown(tiny):
    config = tiny(rounds=2, evaluate_on="validation", evaluate_also=("sel",))
    console = Console(file=io.StringIO(), width=200)
    with live(console) as show:
        result = run(config, progress=show)
    console.print(summary_table(config.folder))
    said = console.file.getvalue()
    record = read_run(config.folder)
    assert result.accuracy_name == NAME and result.data["test"] == 143
    assert f"round 2/2  {NAME} {100 * result.accuracy:5.2f} %" in said
    assert "test accuracy" not in said and "test loss" not in said
    assert f"│ {NAME}, best" in said and "│ validation loss" in said
    # nothing that looks for an accuracy finds it
    names = set(record.metrics.column_names) | set(record.summary)
    others = {name for name in names if "accuracy" in name and VALIDATED not in name}
    assert others == {"accuracy_name", "client_accuracy", "personal_accuracy"}
    assert f"{VALIDATED}_sel" in names and f"class_{VALIDATED}" in names
    below = record.summary[VALIDATED]
    assert below["accuracy"] == record.metrics[VALIDATED][-1].as_py() == result.accuracy
    with mpl.rc_context({"svg.fonttype": "none"}):
        picture = learning_curve(config.folder, f"{config.folder}.svg")
    text = picture.read_text(encoding="utf-8")
    assert f"{NAME} (%)" in text and "validation loss, global model" in text
    assert "test" not in text


@pytest.mark.slow
def test_a_sweep_ranks_by_it(swept):
    (sheet,) = sheets([swept.folder], settings_in_columns=True)
    assert sheet.ranked and sheet.title == f"digits, {NAME} on 143 examples"
    names = swept.results.column_names
    assert VALIDATED in names and f"{VALIDATED}.best_accuracy" in names
    assert "accuracy" not in names and set(
        swept.results["accuracy_name"].to_pylist()
    ) == {NAME}
    assert sheet.head == ["rank", "method", "lr", NAME, "n", "to base", "best"]
    assert sheet.cells[0][:3] == ["1", "fedavg", "0.1"] and sheet.cells[0][4] == "2"
    best, rows = sheet.numbers[0], swept.results.to_pandas().query("lr == 0.1")
    assert best[VALIDATED] == pytest.approx(rows[VALIDATED].mean())
    most = rows[f"{VALIDATED}.best_accuracy"].mean()
    assert best[f"best_{VALIDATED}"] == pytest.approx(most)


@pytest.mark.slow
def test_runs_on_the_test_set_are_ranked_apart(swept, tiny):
    config = tiny(rounds=2)
    run(config)
    console = Console(file=io.StringIO(), width=200)
    for table in comparison_tables(sheets([swept.folder, config.folder])):
        console.print(table)
    first, second = console.file.getvalue().split(f"{NAME} on 143 examples")
    assert "test accuracy on 360 examples" in first and "test accuracy" not in second
    assert NAME in second and "to base" in second
    picture = Path(config.folder + ".svg")
    with pytest.raises(ValueError, match="has test accuracy but .*; draw one picture"):
        comparison_curves([swept.folder, config.folder], picture)
    with mpl.rc_context({"svg.fonttype": "none"}):
        comparison_curves([swept.folder], picture)
    assert f"{NAME} (%)" in picture.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_picture_that_is_refused_leaves_nothing_printed(swept, tiny, capsys):
    config = tiny(rounds=2)
    run(config)
    line = f"compare {swept.folder} {config.folder} --plot {config.folder}.png"
    code, out, error = fedjax_adapt(capsys, line)
    assert (code, out) == (2, "") and "draw one picture of each kind" in error


@pytest.mark.slow
def test_a_dry_run_says_what_is_measured_on(capsys):
    line = "run --evaluate-on validation --algorithm fedavg --model linear --dry-run"
    code, out, _ = fedjax_adapt(capsys, line)
    assert code == 0
    assert "note: measured on 143 validation examples, which no client holds." in out


@pytest.mark.slow
def test_a_callback_hears_of_validation_accuracy(tiny):
    heard = []
    run(tiny(rounds=1, evaluate_on="validation"), callback=heard.append)
    assert VALIDATED in heard[-1] and "accuracy" not in heard[-1]


@pytest.mark.slow
def test_the_page_and_the_command_know_it(swept, capsys):
    page = report_page([swept.folder])
    assert f"{NAME} on 143 examples" in page and f"{NAME} on each class" in page
    assert "validation loss" in page and "test loss" not in page
    assert "test accuracy" not in page
    code, out, _ = fedjax_adapt(capsys, f"compare {swept.folder} --format csv")
    (line, *_) = csv.DictReader(out.splitlines())
    assert code == 0 and line["table"] == f"digits, {NAME} on 143 examples"
    assert float(line[VALIDATED]) > 0 and float(line[f"best_{VALIDATED}"]) > 0
    assert "accuracy" not in line and "best_accuracy" not in line
