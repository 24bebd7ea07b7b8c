"""The items of GIFT: their protocol and published figures, from the paper's text."""

from pathlib import Path

import pytest

from fedjax_adapt.experiment.items import names, read_item
from fedjax_adapt.experiment.reproduce import cells_of

# rows and methods
ITEMS = {
    "table2": (3, 2),
    "fig4": (3, 2),
    "fig5": (2, 10),
    "adacomm": (2, 4),
    "fig6": (4, 2),
    "fig7": (2, 2),
    "fig8": (1, 3),
    "fig9": (2, 4),
}
# Sec. V-A: CIFAR-10, LeNet-5 at 0.01 with weight decay 0.01, 5 Mbit/s, 1000 rounds; V-C:
# 20 clients that all take part; parts E3 and E4 of the specification: plain SGD, batches
# of 32, 0.0522 s a local step
PROTOCOL = {
    "dataset": "cifar10",
    "model": "lenet5",
    "partition": "gift_mix",
    "partition_options": {"concentration": 1},
    "num_clients": 20,
    "participation": 1,
    "sampler": "bernoulli",
    "rounds": 1000,
    "batch_size": 32,
    "lr": 0.01,
    "lr_decay": 1,
    "momentum": 0,
    "weight_decay": 0.01,
    "clip_norm": None,
    "step_seconds": 0.0522,
    "bandwidth": 5e6,
    "delay": 0,
    "evaluate_every": 10,
}
# Sec. V-B: 100 clients, the first 40 % are collected, after a random delay
EARLIEST = {"num_clients": 100, "participation": 0.4, "sampler": "earliest"}
EARLIEST |= {"delay": "exponential(0.1)"}
LSTM = {"dataset": "speech_commands", "model": "lstm", "lr": 0.05}
LSTM |= {"model_options": {"width": 64, "layers": 2}, "step_seconds": 0.109}
IID = {"num_clients": 5, "partition": "copies", "partition_options": {}}  # Sec. V-E
TWO = {"num_clients": 5, "partition": "fedveca_case", "partition_options": {"case": 2}}
ROWS = {
    "lenet5": {},
    "vgg16": {"model": "vgg16", "lr": 0.1, "weight_decay": 5e-4, "step_seconds": 1.97},
    "lstm": LSTM,
    "iid": IID,
    "two-labels": TWO,
    "iid-lstm": IID | LSTM,
    "two-labels-lstm": TWO | LSTM,
}
OF_GIFT = {"initial_steps": 100, "theta": 0.9, "gamma": 2}
ADACOMM = {"base": "fedavg(weights='uniform')"}
RELAX = OF_GIFT | {"relax": True, "relax_after": 10}
METHODS = {
    "fedavg": ("fedavg", {"weights": "uniform"}),
    "gift": ("gift", OF_GIFT),
    "gift-2": ("gift", OF_GIFT),
    "gift-3": ("gift", OF_GIFT | {"gamma": 3}),
    "gift-10": ("gift", OF_GIFT | {"gamma": 10}),
    "gift-relax-2": ("gift", RELAX | {"relax_by": 2}),
    "gift-relax-5": ("gift", RELAX | {"relax_by": 5}),
    "gift-relax-10": ("gift", RELAX | {"relax_by": 10}),
    **{
        f"adacomm-{tau}": ("adacomm", ADACOMM | {"initial_steps": tau})
        for tau in (10, 20, 50, 100)
    },
    "adacomm-loss": (
        "adacomm",
        ADACOMM | {"initial_steps": 100, "trigger": "loss_not_decreasing"},
    ),
    "adacomm-no-fix": ("adacomm", ADACOMM | {"initial_steps": 100, "fix": False}),
    "afl-trial": ("afl", ADACOMM | {"trial_steps": 10}),
}
# seconds of a step, and parameters, of which 32 bits each go up at 5 Mbit/s; lr
OF_AFL = {"lenet5": (0.0522, 62_006, 0.01), "lstm": (0.109, 61_066, 0.05)}


# Sec. III-A: two clients of 50,000 points of two classes, each with one, or of CIFAR-10,
# each with five labels; tau = 500, then 1 from epoch 20 (SVM), 100 (LeNet-5) or 1000
# (LeNet-5 in the caption)
TWO_CLIENTS = {
    "algorithm": "fedavg",
    "num_clients": 2,
    "participation": 1,
    "partition": "fedveca_case",
    "partition_options": {"case": 2},  # no two clients share a label
    "num_steps": 500,
    "batch_size": 32,
    "lr": 0.01,
    "lr_decay": 1,
    "momentum": 0,
    "clip_norm": None,
    "watch": 2,
}
POINTS = {"num_classes": 2, "num_train": 50_000, "num_test": 10_000, "size": 4}
LENET = {"dataset": "cifar10", "model": "lenet5", "weight_decay": 0.01}
SWITCHED = {
    "svm": {"dataset": "gaussian_images", "model": "svm", "weight_decay": 0},
    "lenet5-100": LENET,
    "lenet5-1000": LENET,
}
CHANGES = {"svm": 20, "lenet5-100": 100, "lenet5-1000": 1000}
EARLY = {"fig2": (3, 2), "fig3": (1, 1)}


def test_every_item_is_here():
    assert {f"gift-{name}" for name in ITEMS | EARLY} == {
        name for name in names() if name.startswith("gift-")
    }


@pytest.mark.parametrize("name", ITEMS)
def test_protocol(name):
    item = read_item(f"gift-{name}")
    cells = cells_of(item, Path("runs"))
    assert (len(item.rows), len(item.methods)) == ITEMS[name]
    assert len(cells) == len(item.rows) * len(item.methods)
    for cell in cells:
        config = cell.configs[0]
        expected = PROTOCOL | ROWS[cell.row]
        if name.startswith(("table2", "fig4")):
            expected |= EARLIEST
        if cell.method == "afl-trial":  # part D1 of the specification
            expected |= {"rounds": 10, "evaluate_every": 1}
        assert cell.takes == (
            ("constants_of", "afl-trial") if cell.method == "afl" else None
        )
        found = {key: getattr(config, key) for key in expected}
        assert found == expected, (cell.row, cell.method)
        algorithm, options = METHODS.get(cell.method) or of_afl(cell.row)
        if cell.row == "lstm" and name in ("fig7", "fig9"):  # Sec. V-D
            options = options | {"initial_steps": 10}
        assert (config.algorithm, config.algorithm_options) == (algorithm, options)
        assert config.num_steps == (100 if cell.method == "fedavg" else None)


def of_afl(row):
    """AFL plans with the clock's seconds, and with as much time as FedAvg takes."""
    step, parameters, lr = OF_AFL[row]
    upload = 32 * parameters / 5e6
    times = {"step_seconds": step, "aggregation_seconds": upload}
    times["budget"] = 1000 * (100 * step + upload)
    times = {name: pytest.approx(value, rel=1e-4) for name, value in times.items()}
    return "afl", ADACOMM | times | {"phi": 5e-5, "lr": lr}


@pytest.mark.parametrize("name", EARLY)
def test_two_clients_whose_tau_changes_once(name):
    item = read_item(f"gift-{name}")
    assert (len(item.rows), len(item.methods)) == EARLY[name]
    for cell in cells_of(item, Path("runs")):
        config, change = cell.configs[0], CHANGES[cell.row]
        expected = TWO_CLIENTS | SWITCHED[cell.row]
        later = (change, 1) if cell.method == "tau-1-later" else ()
        expected |= {"rounds": 2 * change, "later_steps": later}
        found = {key: getattr(config, key) for key in expected}
        assert found == expected, (cell.row, cell.method)
        points = POINTS if cell.row == "svm" else {}
        assert config.dataset_options == points
        assert config.algorithm_options == {"weights": "uniform"}


def test_figure_3_is_of_the_run_without_a_change():
    item = read_item("gift-fig3")
    assert (item.origin, [*item.rows], [*item.methods]) == (
        "gift-fig2",
        ["lenet5-100"],
        ["tau-500"],
    )
    assert item.draw[:2] == ["clients.gradient_0", "clients.gradient_1"]


def test_published_figures():
    found = {
        (row, method): (figures["simulated_seconds"] / 3600, figures["accuracy"])
        for row, methods in read_item("gift-table2").published.items()
        for method, figures in methods.items()
    }
    assert found == {  # Table II: hours and %
        ("lenet5", "fedavg"): (pytest.approx(1.56), 52.1),
        ("lenet5", "gift"): (pytest.approx(0.64), 56.8),
        ("vgg16", "fedavg"): (pytest.approx(81.9), 60.8),
        ("vgg16", "gift"): (pytest.approx(34.3), 67.3),
        ("lstm", "fedavg"): (pytest.approx(3.14), 66.2),
        ("lstm", "gift"): (pytest.approx(1.62), 74.8),
    }


def test_the_clock_gives_the_papers_times_of_fedavg():
    item = read_item("gift-table2")
    parameters = {
        "lenet5": 62_006,
        "vgg16": 15_245_130,
        "lstm": 61_000,
    }  # E4 of the specification
    for row in item.rows:
        cells = cells_of(item, Path("runs"), rows=[row], methods=["fedavg"])
        config = cells[0].configs[0]
        upload = 32 * parameters[row] / config.bandwidth
        hours = config.rounds * (100 * config.step_seconds + upload) / 3600
        published = item.published[row]["fedavg"]["simulated_seconds"] / 3600
        assert hours == pytest.approx(published, rel=0.002)
