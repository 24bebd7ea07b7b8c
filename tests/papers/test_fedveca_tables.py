"""FedVeca's items follow the protocol of its Sec. V."""

from pathlib import Path

import pytest

from fedjax_adapt.experiment.items import names, read_item
from fedjax_adapt.experiment.reproduce import cells_of

PAPER = ["fedveca", "fedavg", "fednova", "fedprox", "scaffold", "central"]
CONTROLS = ["central-6", "fedveca-local", "fedveca-global"]
CONTROLS += ["fedveca-all-data", "fedveca-all-data-local"]
CLIENTS = ["fedveca-5", "fedveca-30", "fedveca-50", "fednova-50", "fedavg-50"]
SVM = "mnist-svm-case3"
ITEMS = {  # rows, methods
    "table1": ([SVM, "mnist-cnn-case3", "cifar10-cnn-case3"], PAPER + CONTROLS),
    "fig7": (["mnist-svm-case1", "mnist-svm-case2"], PAPER),
    "fig9": ([SVM], ["alpha-0.5", "alpha-0.95", "alpha-0.995"]),
    "fig10": ([SVM], CLIENTS),
}
LOSS = ["loss", "accuracy"]
OF_CLIENTS = ["clients.beta", "clients.delta", "clients.A"]
DRAWN = {  # of whose runs, what
    "fig5": ("table1", LOSS),
    "fig6": ("table1", ["premise"]),
    "fig7": ("fig7", LOSS),
    "fig8": ("table1", ["clients.num_steps", "tau_bar", "L", *OF_CLIENTS]),
    "fig9": ("fig9", LOSS),
    "fig10": ("fig10", LOSS),
}


def configs(name):
    """The first config of each cell, by row and method."""
    cells = cells_of(read_item(f"fedveca-{name}"), Path("runs"))
    return {(cell.row, cell.method): cell.configs[0] for cell in cells}


@pytest.mark.parametrize("name", ITEMS)
def test_rows_and_methods(name):
    item = read_item(f"fedveca-{name}")
    assert (list(item.rows), list(item.methods)) == ITEMS[name]


def test_what_figures_draw():
    drawn = {name for name in names() if name.startswith("fedveca-fig")}
    assert drawn == {f"fedveca-{name}" for name in DRAWN}
    for name, (of, columns) in DRAWN.items():
        item = read_item(f"fedveca-{name}")
        assert (item.origin, item.draw) == (f"fedveca-{of}", columns)


def test_the_figure_of_one_run_has_what_the_text_says_of_five_clients():
    """Sec. V-B4: beta, delta and A of nodes 4 and 5 are apart from those of the others."""
    wanted = [f"clients.{of}.{k}" for of in ("beta", "delta", "A") for k in range(5)]
    assert read_item("fedveca-fig8").figures == wanted


@pytest.mark.parametrize("name", ITEMS)
def test_training_is_that_of_the_paper(name):
    cells = cells_of(read_item(f"fedveca-{name}"), Path("runs"))
    assert {len(cell.configs) for cell in cells} == {10}
    for (row, method), config in configs(name).items():
        assert (config.rounds, config.lr, config.lr_decay) == (100, 0.01, 1)
        assert (config.batch_size, config.shuffle) == (32, "replacement")
        assert (config.momentum, config.weight_decay, config.clip_norm) == (0, 0, None)
        data, model, case = row.split("-")
        every = 1 if model == "svm" else 10
        assert (config.participation, config.evaluate_every) == (1, every)
        assert config.dataset == data
        assert config.model == ("svm" if model == "svm" else "fedveca_cnn")
        assert config.labels == ("parity" if model == "svm" else "own")
        if method.startswith("central"):
            assert (config.num_clients, config.partition) == (1, "iid")
            continue
        clients = int(method.split("-")[1]) if name == "fig10" else 5
        assert (config.num_clients, config.partition) == (clients, "fedveca_case")
        assert config.partition_options == {"case": int(case[-1])}


@pytest.mark.parametrize("name", ITEMS)
def test_fedveca_has_its_alpha_and_others_have_its_steps(name):
    item = read_item(f"fedveca-{name}")
    for (_, method), config in configs(name).items():
        options = dict(config.algorithm_options)
        if config.algorithm == "fedveca":
            alpha = float(method.removeprefix("alpha-")) if name == "fig9" else 0.95
            assert options.pop("alpha") == alpha
            assert (options.pop("max_steps"), options.pop("initial_steps")) == (50, 2)
            assert "steps_of" not in item.methods[method]
            told = {"accept": method.rsplit("-", 1)[-1]} if method in CONTROLS else {}
            if "all-data" in method:
                told = {"full_gradient": True} | (told if "local" in method else {})
            assert options == told
        elif method == "central-6":
            assert (config.algorithm, config.num_steps, options) == ("fedavg", 6, {})
            assert "steps_of" not in item.methods[method]
        else:
            first = "fedveca-50" if name == "fig10" else "fedveca"
            assert item.methods[method]["steps_of"] == first
            assert options == {}
            named = "fedavg" if method == "central" else method.split("-")[0]
            assert config.algorithm == named


def test_published_figures_of_table_1():
    published = read_item("fedveca-table1").published
    losses = {row: [of[m]["loss"] for m in PAPER] for row, of in published.items()}
    shares = {row: [of[m]["accuracy"] for m in PAPER] for row, of in published.items()}
    assert list(losses.values()) == [
        [0.2222, 0.2313, 0.2344, 0.2314, 0.2207, 0.2206],
        [0.2425, 0.3232, 0.3305, 0.3276, 0.2080, 0.2267],
        [1.6032, 1.7050, 1.7163, 1.7077, 1.6328, 1.6088],
    ]
    assert list(shares.values()) == [
        [86.63, 85.75, 85.32, 85.76, 86.92, 86.87],
        [93.04, 90.67, 90.37, 90.47, 93.86, 93.43],
        [42.41, 38.62, 38.10, 38.17, 41.23, 42.38],
    ]


def test_scale_cpu_has_mnist_and_three_seeds():
    cells = cells_of(read_item("fedveca-table1"), Path("runs"), "cpu")
    assert {cell.row for cell in cells} == {SVM, "mnist-cnn-case3"}
    assert {cell.method for cell in cells} == {*PAPER, "fedveca-local"}
    assert {len(cell.configs) for cell in cells} == {3}
