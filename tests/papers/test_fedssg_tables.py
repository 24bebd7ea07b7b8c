"""FedSSG's items have its protocol: section 4.1, appendix A.1.3, and the authors' code."""

from pathlib import Path

import pytest

from fedjax_adapt.experiment.items import names, read_item
from fedjax_adapt.experiment.reproduce import cells_of, configs_of

SPLITS = {
    "iid": ("iid", None),
    "did1": ("dirichlet", 0.3),
    "did2": ("dirichlet", 0.6),
}
CLIENTS = {"15": (100, 0.15), "10": (100, 0.1), "2": (500, 0.02)}
ROUNDS = {  # with 100 and with 500 clients
    "mnist": {100: 300},
    "emnist": {100: 300, 500: 600},
    "cifar10": {100: 1000, 500: 1500},
    "cifar100": {100: 1000, 500: 1500},
}
DATA = {
    "mnist": ("mnist", "mlp", {"widths": (200, 200)}, "none"),
    "emnist": ("emnist_letters", "mlp", {"widths": (100, 100)}, "none"),
    "cifar10": ("cifar10", "cnn", {}, "flip_crop"),
    "cifar100": ("cifar100", "cnn", {}, "flip_crop"),
}
ALPHA = {  # of FedSSG with iid, did1, did2
    ("mnist", 100): (0.03, 0.05, 0.04),
    ("emnist", 100): (0.05, 0.06, 0.06),
    ("emnist", 500): (0.7, 0.6, 0.6),
    ("cifar10", 100): (0.05, 0.05, 0.05),
    ("cifar10", 500): (0.2, 0.2, 0.2),
    ("cifar100", 100): (0.02, 0.02, 0.02),
    ("cifar100", 500): (0.2, 0.2, 0.2),
}
ALPHA_DC = {
    ("mnist", 100): 0.1,
    ("emnist", 100): 0.1,
    ("emnist", 500): 0.2,
    ("cifar10", 100): 0.01,
    ("cifar10", 500): 0.05,
    ("cifar100", 100): 0.01,
    ("cifar100", 500): 0.05,
}
OPTIONS = {  # where they are the same for all data
    "fedavg": {},
    "fedprox": {"variant": "ssg_code"},
    "scaffold": {"control_lr": "base", "control_steps": "mean"},
    "feddyn": {"alpha": 0.01},
    "fedvra": {"variant": "ssg_code"},
}
LETTERS = (0.01, 0.02, 0.05, 0.06, 0.1)
FEW = (0.01, 0.02, 0.03, 0.05, 0.1)
MANY = (0.01, 0.02, 0.05, 0.1, 0.2)
SWEEPS = {  # figure: data, participation and alphas
    17: ("mnist-15", (0.01, 0.02, 0.03, 0.04, 0.05, 0.06)),
    18: ("mnist-10", (0.01, 0.02, 0.03, 0.04, 0.05, 0.06)),
    19: ("emnist-15", LETTERS),
    20: ("emnist-10", LETTERS),
    21: ("emnist-2", (0.1, 0.2, 0.5, 0.6, 0.7)),
    22: ("cifar10-15", FEW),
    23: ("cifar10-10", FEW),
    24: ("cifar10-2", MANY),
    25: ("cifar100-15", FEW),
    26: ("cifar100-10", FEW),
    27: ("cifar100-2", MANY),
}
CURVES = {number - 11: of for number, (of, _) in SWEEPS.items()}  # Figs. 6 to 16


def of(name):
    return cells_of(read_item(f"fedssg-{name}"), Path("unused"))


def check_protocol(cell):
    """All but the algorithm."""
    config = cell.configs[0]
    data, share, split = cell.row.split("-")[:3]
    clients, participation = CLIENTS[share]
    dataset, model, model_options, augment = DATA[data]
    assert (config.num_clients, config.participation) == (clients, participation)
    assert config.rounds == ROUNDS[data][clients]
    assert (config.batch_size, config.lr, config.lr_decay) == (50, 0.1, 0.998)
    assert (config.weight_decay, config.clip_norm, config.momentum) == (1e-3, 10, 0)
    assert (config.dataset, config.model) == (dataset, model)
    assert (config.model_options, config.augment) == (model_options, augment)
    kind, concentration = SPLITS[split]
    assert config.partition == kind
    assert config.partition_options.get("concentration") == concentration
    assert config.partition_options.get("stratified", False) == (
        (data, split) == ("cifar100", "iid")
    )
    assert (config.partition_seed, config.sampler) == (20, "bernoulli")
    assert config.evaluate_every == 1
    assert "all" in config.evaluate_also


@pytest.mark.parametrize("name", [n for n in names() if n.startswith("fedssg-")])
def test_every_run_has_the_protocol_of_the_paper(name):
    cells = of(name.removeprefix("fedssg-"))
    for cell in cells:
        check_protocol(cell)
        _, _, epochs = cell.row.partition("-e")
        assert cell.configs[0].epochs == float(epochs or 5)


@pytest.mark.parametrize("name", ["table1", "table2", "table4"])
def test_methods_have_the_options_of_appendix_a13(name):
    cells = of(name)
    assert len({cell.method for cell in cells}) == 8
    for cell in cells:
        config = cell.configs[0]
        data, _, split = cell.row.split("-")[:3]
        at = data, config.num_clients
        alpha = ALPHA[at][list(SPLITS).index(split)]
        disco = {"legacy_reshape": True} if data == "cifar100" else {}
        wanted = OPTIONS | {
            "feddc": {"alpha": ALPHA_DC[at]},
            "feddisco": {"base": "feddyn"} | disco,
            "fedssg": {"alpha": alpha},
        }
        assert config.algorithm == cell.method
        assert config.algorithm_options == wanted[cell.method]


ALL = [f"{data}-{share}" for data in ("cifar10", "cifar100") for share in CLIENTS]
SMALL = ["mnist-15", "mnist-10", "emnist-15", "emnist-10", "emnist-2"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("table1", ALL),
        ("table3", [f"cifar{k}-{share}" for k in (10, 100) for share in ("10", "2")]),
        *((name, SMALL) for name in ("table4", "table5")),
        *((f"fig{number}", [setting]) for number, setting in CURVES.items()),
    ],
)
def test_rows_are_three_splits_of_each_setting(name, settings):
    cells = of(name)
    assert {cell.row for cell in cells} == {
        f"{a}-{b}" for a in settings for b in SPLITS
    }
    assert len(cells) == 8 * 3 * len(settings)


def test_figures_of_the_main_text_leave_iid_out():
    rows = {cell.row for cell in of("fig1")}
    assert rows == {f"cifar{k}-2-{s}" for k in (10, 100) for s in ("did1", "did2")}
    rows = {cell.row for cell in of("fig4")}
    assert rows == {f"{setting}-{s}" for setting in ALL for s in ("did1", "did2")}


def test_the_curve_with_inflection_points_is_of_500_clients():
    """A.3: in all but the experiment of 500 clients and 2 % on CIFAR-10 FedSSG is fast."""
    cells = of("fig5")
    assert {cell.row for cell in cells} == {f"cifar10-2-{split}" for split in SPLITS}
    assert {cell.configs[0].algorithm for cell in cells} == {"fedssg"}


OTHERS = {  # what they draw, and of which methods
    2: (["changes.clients.loss", "changes.loss"], ["fedavg", "fedssg"]),
    3: (["partition"], []),
    28: (["class_accuracy@0.05", "class_accuracy"], [*OPTIONS, "feddc", "feddisco"]),
}


@pytest.mark.parametrize("number", OTHERS)
def test_figures_of_consistency_labels_and_phases(number):
    item, (draw, methods) = read_item(f"fedssg-fig{number}"), OTHERS[number]
    assert item.draw == draw
    wanted = {*methods, "fedssg"} if methods else set()
    assert {*item.methods} == wanted
    if number == 3:  # Dirichlet 0.3, 0.6, and what the paper calls iid
        for row, config in configs_of(item, "full").items():
            kind, concentration = SPLITS[row]
            assert config.partition == kind
            assert config.partition_options.get("concentration") == concentration
            found = (config.dataset, config.num_clients, config.partition_seed)
            assert found == ("mnist", 100, 20)
        assert list(item.rows) == list(SPLITS)
    else:
        assert list(item.rows) == ["mnist-15-did1", "emnist-15-did1"]
    if number == 2:  # which says how far from the origin the dots are
        assert item.figures == item.draw


@pytest.mark.parametrize("number", SWEEPS)
def test_a_sweep_has_the_alphas_that_were_searched(number):
    setting, alphas = SWEEPS[number]
    assert read_item(f"fedssg-fig{number}").draw == ["accuracy_all", "loss_all"]
    found = {}
    for cell in of(f"fig{number}"):
        assert cell.configs[0].algorithm == "fedssg"
        assert cell.method == f"fedssg-{cell.configs[0].algorithm_options['alpha']}"
        found.setdefault(cell.row, []).append(cell.configs[0].algorithm_options)
    wanted = [{"alpha": alpha} for alpha in alphas]
    assert found == {f"{setting}-{split}": wanted for split in SPLITS}


def test_the_ablations_add_one_part_each():
    """Table 6: the empirical loss, then the penalty, the correction or the gate with it."""
    parts = {"gate": "none", "align": "none", "correction": "none"}
    without = lambda part: {k: v for k, v in parts.items() if k != part}
    wanted = {
        "fedssg-le": parts,
        "fedssg-lp": without("align") | {"alpha": 0.2},
        "fedssg-lg": without("correction"),
        "fedssg-xi": without("gate"),
        "fedssg": {"alpha": 0.2},
        "fedavg": {},
        "feddyn": {"alpha": 0.01},
    }
    cells = of("table6")
    assert len(cells) == 14
    for cell in cells:
        assert cell.configs[0].algorithm_options == wanted[cell.method]


@pytest.mark.parametrize("name", [n for n in names() if n.startswith("fedssg-")])
def test_published_figures_are_of_the_mean_of_all_clients(name):
    """Specification, section 4: by default those of the FedDyn family are.

    Losses of single clients (Fig. 2), labels (Fig. 3) and accuracies by label (Fig. 28)
    have no such model.
    """
    item = read_item(name)
    published = {
        f for row in item.published.values() for of in row.values() for f in of
    }
    assert all(figure.startswith("models.all.") for figure in published)
    assert published <= {*item.figures}  # whatever is published is measured
    if name in {f"fedssg-fig{number}" for number in OTHERS}:
        return
    # the first one is drawn, and most figures have no published numbers
    assert item.figures[0].startswith("models.all.")
    assert {column for column in item.draw if "_all" not in column} == set()


@pytest.mark.parametrize(
    ("name", "row", "method", "figures"),
    [  # mean and deviation, or rounds and speed-up
        ("table1", "cifar10-10-iid", "fedavg", (81.82, 0.11)),
        ("table1", "cifar10-2-did1", "fedssg", (80.17, 0.17)),
        ("table1", "cifar100-2-did2", "fedvra", (39.32, 0.10)),
        ("table2", "cifar100-2-did1-e10", "feddc", (40.44, 0.31)),
        ("table3", "cifar10-10-did1", "fedavg", (">1000", 1.00)),
        ("table3", "cifar10-10-iid", "feddyn", (160, 1.71)),
        ("table3", "cifar100-10-iid", "fedssg", (120, 8.33)),
        ("table3", "cifar100-2-did1", "scaffold", (592, 1.36)),
        ("table4", "mnist-10-did1", "feddc", (98.37, 0.04)),
        ("table4", "emnist-2-iid", "fedssg", (94.78, 0.13)),
        ("table5", "mnist-15-did1", "fedssg", (24, 3.17)),
        ("table5", "emnist-2-did2", "feddc", (176, 2.49)),
        ("table6", "cifar100-2-did1-e5", "fedssg", (44.15, 0.32)),
    ],
)
def test_published_figures_are_those_of_the_paper(name, row, method, figures):
    published = read_item(f"fedssg-{name}").published[row][method]
    assert tuple(published.values()) == figures


TARGETS = {
    ("mnist", 100): "0.97",
    ("emnist", 100): "0.93",
    ("emnist", 500): "0.93",
    ("cifar10", 100): "0.8",
    ("cifar10", 500): "0.75",
    ("cifar100", 100): "0.42",
    ("cifar100", 500): "0.3",
}


@pytest.mark.parametrize("name", ["table3", "table5"])
def test_a_row_has_published_rounds_to_its_target(name):
    published = read_item(f"fedssg-{name}").published
    for cell in of(name):
        config = cell.configs[0]
        target = TARGETS[cell.row.split("-")[0], config.num_clients]
        assert float(target) in config.targets
        wanted = [f"models.all.{of}.{target}" for of in ("rounds_to", "speed_up")]
        assert list(published[cell.row][cell.method]) == wanted


@pytest.mark.parametrize(
    ("name", "rows"),
    [("table1", 12), ("table2", 3), ("table3", 12), ("table4", 15), ("table5", 15)],
)
def test_all_cells_that_the_paper_prints_are_there(name, rows):
    """12 rows of CIFAR; Tables 1 and 3 print those of MNIST and EMNIST-L at 15 %, too."""
    published = read_item(f"fedssg-{name}").published
    assert [len(methods) for methods in published.values()] == [8] * rows


def test_what_a_cpu_runs_is_the_protocol_on_mnist_and_less_of_it_on_cifar():
    cells = cells_of(read_item("fedssg-table4"), Path("unused"), "cpu")
    assert {cell.row for cell in cells} == {f"mnist-15-{split}" for split in SPLITS}
    for cell in cells:
        check_protocol(cell)
        assert list(cell.configs) == [0, 1, 2]
    cells = cells_of(read_item("fedssg-table1"), Path("unused"), "cpu")
    assert [(c.row, c.configs[0].rounds) for c in cells] == [
        ("cifar10-2-did1", 500)
    ] * 4


def added(values):
    """The sum of a table's column; of ">600" it takes 600."""
    return round(sum(float(str(value).lstrip(">")) for value in values), 2)


@pytest.mark.parametrize(
    "name, first, second",
    [
        ("table1", 5882.36, 12.67),
        ("table2", 859.22, 3.12),
        ("table3", 55987, 245.08),
        ("table4", 11517.39, 6.09),
        ("table5", 10746, 204.08),
        ("table6", 220.38, 0.92),
    ],
)
def test_published_cells_add_up_to_those_of_the_paper(name, first, second):
    published = read_item(f"fedssg-{name}").published.values()
    cells = [figures.values() for of in published for figures in of.values()]
    means, others = zip(*cells, strict=True)  # deviations or speed-ups
    assert (added(means), added(others)) == (first, second)
