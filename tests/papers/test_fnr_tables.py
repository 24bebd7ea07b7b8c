"""FNR-FL's items follow its Sec. 6.1 and the README of its code, under both protocols."""

from pathlib import Path

import numpy as np
import pytest

from fedjax_adapt.data import feature_noise
from fedjax_adapt.experiment.items import names, read_item
from fedjax_adapt.experiment.reproduce import cells_of, configs_of

FNR = ["fnr", "fnr-literal", "fnr-weight-0"]
BASES = ["fedavg", "fedprox", "scaffold", "moon", "fednova"]
NOT_IN_THE_CODE = ["feddyn", "fedftg", "feddf", "feddc", "fedgen"]
CONTROLS = ["fedavg-public", "public-only"]
USUAL = FNR + BASES + CONTROLS
WITH_BASES = [f"{fnr}-{base}" for fnr in ("fnr", "fnr-literal") for base in BASES]
SINGLE = ["feature", "label", "quantity"]
ITEMS = {  # rows of one protocol, methods
    "table2": (
        [f"cifar10-{m}-{s}" for m in ("resnet18", "vgg11") for s in SINGLE],
        FNR + BASES + NOT_IN_THE_CODE + CONTROLS,
    ),
    "table3": ([f"cifar10-resnet18-{s}" for s in SINGLE], USUAL),
    "table4": (
        ["cifar10-label-feature-0.1", "cifar10-label-feature-0.5"]
        + ["cifar10-label-quantity"],
        USUAL,
    ),
    "table5": ([f"cifar10-{s}" for s in SINGLE], WITH_BASES + BASES + CONTROLS),
    "table6": (
        [f"cifar10-{s}-{n}" for s in ("feature", "label") for n in ("0", "0.1", "0.5")],
        USUAL,
    ),
    "fig4": (
        [f"cifar10-resnet18-{s}" for s in SINGLE],
        [*FNR[:2], *BASES, "fedavg-public"],
    ),
    # Sec. 6.5: before and after, on a client of 471 to 528 examples of a class
    "fig5": (["cifar10-feature"], ["fedavg", "fnr", "fnr-literal"]),
}
SPLITS = {  # of the skews in a row's name: partition and its option
    "quantity": ("quantity_dirichlet", {"concentration": 0.5}),
    "label": ("dirichlet_classes", {"concentration": 0.5}),
    "feature": ("iid", {}),
    "label-feature": ("dirichlet_classes", {"concentration": 0.5}),
    "label-quantity": ("label_quantity", {"concentration": 0.5}),
}
REFINED = {"epochs": 5, "batch_size": 32}
ALGORITHMS = {  # of the usual methods
    "fnr": ("fnr", REFINED),
    "fnr-literal": ("fnr", REFINED | {"variant": "literal"}),
    "fnr-weight-0": ("fnr", REFINED | {"weight": 0}),
    "fedavg": ("fedavg", {}),
    "fedprox": ("fedprox", {"mu": 0.01}),
    "scaffold": ("scaffold", {}),
    "moon": ("moon", {"mu": 5}),
    "fednova": ("fednova", {}),
    "feddyn": ("feddyn", {}),
    "fedftg": ("fedftg", {}),
    "feddf": ("feddf", {"patience": None}),
    "feddc": ("feddc", {}),
    "fedgen": ("fedgen", {}),
    "fedavg-public": ("fedavg_pubft", REFINED),
    "public-only": ("public_only", REFINED),
}
BASE = {
    "fedavg": {},
    "fedprox": {"base": "fedprox(mu=0.01)"},
    "scaffold": {"base": "scaffold"},
    "moon": {"base": "moon(mu=5)"},
    "fednova": {"base": "fednova"},
}


def configs(name, scale="full", **chosen):
    """The first config of each cell, by row and method."""
    cells = cells_of(read_item(f"fnr-{name}"), Path("runs"), scale, **chosen)
    return {(cell.row, cell.method): cell.configs[0] for cell in cells}


def test_there_is_an_item_for_each_table_and_for_the_curves():
    found = {name for name in names() if name.startswith("fnr-")}
    assert found == {f"fnr-{name}" for name in [*ITEMS, "fig1", "fig2"]}


def test_the_figures_of_data_are_of_the_papers_skews():
    """Sec. 4.1: deviations of 0 to 0.5 by 0.1; Sec. 4.2: 10 participants, alpha 0.5."""
    (noisy,) = configs_of(read_item("fnr-fig1"), "full").values()
    assert (noisy.dataset, noisy.feature_noise) == ("cifar10", 0.5)
    x = np.full((1, 32, 32, 3), 255, np.uint8)
    level = feature_noise(noisy.num_clients, noisy.feature_noise, x).std / 255
    np.testing.assert_allclose(level, [0, 0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
    item = read_item("fnr-fig2")
    assert (item.draw, read_item("fnr-fig1").draw) == (["partition"], ["inputs"])
    rows = configs_of(item, "full")
    assert list(rows) == ["cifar10-label", "cifar10-quantity"]
    for row, config in rows.items():
        assert (config.dataset, config.num_clients) == ("cifar10", 10)
        found = (config.partition, dict(config.partition_options))
        assert found == SPLITS[row.removeprefix("cifar10-")]


@pytest.mark.parametrize("name", ITEMS)
def test_rows_of_both_protocols_and_methods(name):
    item, (rows, methods) = read_item(f"fnr-{name}"), ITEMS[name]
    assert list(item.rows) == rows + [f"{row}-published" for row in rows]
    assert list(item.methods) == methods


@pytest.mark.parametrize("name", ITEMS)
def test_training_is_that_of_the_paper(name):
    for (row, _), config in configs(name).items():
        assert (config.dataset, config.num_clients) == ("cifar10", 10)
        rounds = 1 if name == "fig5" else 10
        assert (config.participation, config.rounds, config.epochs) == (1, rounds, 10)
        assert (config.batch_size, config.lr, config.lr_decay) == (64, 0.01, 1)
        assert (config.momentum, config.weight_decay) == (0.9, 1e-5)
        assert (config.clip_norm, config.augment) == (None, "reflect_crop")
        assert config.model == ("vgg11" if "vgg11" in row else "resnet18")
        published = row.endswith("-published")
        assert config.public == ("published" if published else "holdout")
        assert (config.public_examples, config.train_examples) == (None, None)


@pytest.mark.parametrize("name", ITEMS)
def test_skews_are_those_of_the_rows(name):
    for (row, _), config in configs(name).items():
        words = row.removesuffix("-published").split("-")
        skew = "-".join(word for word in words if word in SINGLE)
        assert (config.partition, dict(config.partition_options)) == SPLITS[skew]
        level = words[-1] if name in ("table4", "table6") else "0.5"
        if name != "table6" and "feature" not in words:
            level = "0"
        assert config.feature_noise == float(level)


@pytest.mark.parametrize("name", ITEMS)
def test_methods_have_their_options(name):
    for (_, method), config in configs(name).items():
        found = (config.algorithm, dict(config.algorithm_options))
        if method in ALGORITHMS:
            assert found == ALGORITHMS[method]
        else:
            variant, _, base = method.rpartition("-")
            told = ALGORITHMS[variant][1] | BASE[base]
            assert found == ("fnr", told)


def test_the_classes_before_and_after_are_all_ten():
    item = read_item("fnr-fig5")
    assert item.figures == [f"class_accuracy.{label}" for label in range(10)]
    assert item.draw == ["class_accuracy"]


def test_published_figures_stand_beside_the_published_protocol_alone():
    counts = {}
    for name in ITEMS:
        published = read_item(f"fnr-{name}").published
        assert all(row.endswith("-published") for row in published)
        counts[name] = sum(len(figures) for figures in published.values())
    ours = {"table2": 66, "table3": 18, "table4": 18, "table5": 15, "table6": 36}
    assert counts == ours | {"fig4": 0, "fig5": 0}


def test_published_efficiency_follows_from_accuracy_and_seconds():
    for methods in read_item("fnr-table3").published.values():
        for method, of in methods.items():
            traffic = 13380 if method == "scaffold" else 8920
            accuracy = 100 * of["accuracy"]
            assert of["traffic_mib"] == traffic
            kappa, rho = accuracy / of["simulated_seconds"], accuracy / traffic
            # the paper cuts some digits off, where it does not round
            assert of["kappa"] == pytest.approx(kappa, abs=1.2e-4)
            assert of["rho"] == pytest.approx(rho, abs=1.2e-4)


def test_published_rows_that_are_fedavgs_plus_a_constant():
    more = {"feddyn": 0.7, "fedftg": 4.5, "feddf": 1, "feddc": 4, "fedgen": 0.2}
    for methods in read_item("fnr-table2").published.values():
        for method, points in more.items():
            least = methods["fedavg"]["accuracy"]
            assert methods[method]["accuracy"] == pytest.approx(least + points)


@pytest.mark.parametrize(
    ("name", "row", "accuracy"),
    [  # fnr-literal, fedavg, fedprox, scaffold, moon, fednova
        ("table2", "resnet18-feature", [99.76, 60.01, 59.56, 74.25, 55.30, 62.23]),
        ("table2", "vgg11-feature", [99.31, 74.85, 72.85, 77.33, 71.93, 74.75]),
        ("table2", "resnet18-label", [99.70, 83.93, 87.73, 90.77, 65.15, 90.43]),
        ("table2", "vgg11-label", [99.92, 83.11, 80.50, 86.57, 84.32, 85.22]),
        ("table2", "resnet18-quantity", [99.82, 91.07, 88.74, 70.17, 73.36, 72.93]),
        ("table2", "vgg11-quantity", [99.39, 91.94, 89.16, 90.64, 84.24, 76.22]),
        ("table3", "resnet18-feature", [99.76, 60.01, 59.56, 74.25, 55.30, 62.23]),
        ("table3", "resnet18-label", [99.70, 83.93, 87.73, 90.77, 65.15, 90.43]),
        ("table3", "resnet18-quantity", [99.82, 91.07, 88.74, 70.17, 73.36, 72.93]),
        ("table4", "label-feature-0.1", [97.55, 80.665, 78.365, 83.705, 63.6, 80.29]),
        ("table4", "label-feature-0.5", [91.11, 45.04, 45.87, 57.63, 37.275, 39.42]),
        (
            "table4",
            "label-quantity",
            [88.26, 30.9439, 30.4785, 31.1153, 29.93, 30.9439],
        ),
        ("table6", "feature-0", [99.95, 92.38, 90.39, 92.90, 73.71, 92.57]),
        ("table6", "feature-0.1", [99.84, 85.49, 82.19, 85.81, 56.77, 84.69]),
        ("table6", "feature-0.5", [95.05, 43.03, 45.17, 59.25, 40.30, 47.23]),
        ("table6", "label-0", [99.70, 88.50, 87.73, 90.77, 65.15, 90.43]),
        ("table6", "label-0.1", [97.55, 80.67, 78.37, 83.71, 63.60, 80.29]),
        ("table6", "label-0.5", [91.11, 45.04, 45.87, 57.63, 37.28, 39.42]),
    ],
)
def test_published_accuracies(name, row, accuracy):
    figures = read_item(f"fnr-{name}").published[f"cifar10-{row}-published"]
    assert [figures[m]["accuracy"] for m in ["fnr-literal", *BASES]] == accuracy


def test_published_accuracies_with_bases():
    assert read_item("fnr-table5").published == {
        f"cifar10-{skew}-published": {
            f"fnr-literal-{base}": {"accuracy": value}
            for base, value in zip(BASES, values, strict=True)
        }
        for skew, values in {
            "feature": [99.76, 97.84, 97.83, 96.78, 96.64],
            "label": [99.70, 98.38, 98.92, 97.74, 97.66],
            "quantity": [99.82, 99.99, 96.37, 95.32, 94.27],
        }.items()
    }


@pytest.mark.parametrize("name", ITEMS)
def test_scale_cpu_is_small_and_honest(name):
    found = configs(name, "cpu")
    assert {row for row, _ in found} == set(ITEMS[name][0]) - {
        row for row in ITEMS[name][0] if "vgg11" in row
    }
    for config in found.values():
        assert (config.model, config.epochs) == ("fedveca_cnn", 2)
        assert (config.train_examples, config.public) == (5000, "holdout")
    assert not {method for _, method in found} & set(NOT_IN_THE_CODE)


def test_fedavg_takes_the_seconds_of_table_3():
    seconds = read_item("fnr-table2").run["step_seconds"]
    batches = -(-5000 // 64)  # of a tenth of CIFAR-10
    assert 10 * 10 * batches * seconds == pytest.approx(6840, rel=5e-4)
