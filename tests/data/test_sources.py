import numpy as np
import pytest

from fedjax_adapt.data import load, split
from fedjax_adapt.data.sources import MADE_HERE


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)


def assert_same(a, b):
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("name", [*MADE_HERE])
def test_a_generated_source_is_whole(name):
    source = load(name)
    assert source.name == name
    for x, y in ((source.x_train, source.y_train), (source.x_test, source.y_test)):
        assert len(x) == len(y) > 0 and y.dtype == np.int32
        assert x.dtype in (np.uint8, np.float32) and np.isfinite(x).all()
        assert 0 <= y.min() and y.max() < source.num_classes
    assert source.x_train.shape[1:] == source.x_test.shape[1:]
    assert set(source.y_train) == set(range(source.num_classes))
    assert_same(source, load(name))
    if source.x_train.dtype == np.uint8:
        assert source.mean == pytest.approx(source.x_train.mean())
        assert source.std == pytest.approx(source.x_train.std())


@pytest.mark.parametrize("name", [n for n in MADE_HERE if n != "digits"])
def test_another_seed_is_another_set(name):
    sums = {load(name, seed=seed).x_test[:40].sum(dtype=float) for seed in (0, 1)}
    assert len(sums) == 2


def test_digits_are_split_once_with_labels_in_proportion():
    source = load("digits")
    assert source.x_train.shape == (1437, 8, 8, 1)
    assert source.x_test.shape == (360, 8, 8, 1)
    assert source.x_train.max() == 16 and source.x_train.dtype == np.uint8
    assert set(np.bincount(source.y_test)) <= {35, 36, 37}
    from sklearn.datasets import load_digits

    both = np.concatenate([source.x_train, source.x_test]).reshape(1797, 64)
    raw = load_digits().data
    order, expected = np.lexsort(both.T), np.lexsort(raw.T)
    np.testing.assert_array_equal(both[order], raw[expected])


def test_synthetic_labels_are_linear_in_a_clients_own_way():
    """A linear model fits one client; the same model does not fit another."""
    source = load("synthetic", num_clients=6, alpha=1.0, beta=1.0, seed=1)
    owners = np.argsort(-np.bincount(source.clients))[:2]
    held = [source.clients == owner for owner in owners]
    with_bias = np.c_[source.x_train, np.ones(len(source.x_train))]
    targets = np.eye(10)[source.y_train]
    fit = np.linalg.lstsq(with_bias[held[0]], targets[held[0]], rcond=None)[0]
    correct = (with_bias @ fit).argmax(axis=1) == source.y_train
    assert correct[held[0]].mean() > 0.8
    assert correct[held[1]].mean() < 0.6


def test_synthetic_inputs_have_the_published_spectrum_and_sizes():
    source = load("synthetic", num_clients=40, seed=3)
    sizes = np.bincount(source.clients)
    assert len(sizes) == 40 and sizes.min() >= 45  # nine tenths of at least 50
    assert source.x_train.dtype == np.float32 and source.x_train.shape[1] == 60
    held = source.clients == sizes.argmax()
    variance = source.x_train[held].var(axis=0)
    expected = np.arange(1, 61) ** -1.2
    assert np.abs(np.log(variance / expected)).max() < 0.25
    test_size = sum(-(-n // 9) for n in sizes)  # a tenth of the whole, rounded up
    assert abs(len(source.y_test) - test_size) <= 40


def test_synthetic_clients_are_a_natural_partition():
    source = load("synthetic", num_clients=7)
    rows = split("natural", source.y_train, 7, clients=source.clients)
    assert [len(r) for r in rows] == np.bincount(source.clients).tolist()
    assert all((source.clients[r] == i).all() for i, r in enumerate(rows))


@pytest.mark.slow
def test_synthetic_data_that_no_machine_holds_are_not_begun():
    with pytest.raises(
        ValueError, match="num_clients=10000000 .* GiB to make and the ma"
    ):
        load("synthetic", num_clients=10_000_000)


def test_synthetic_without_spread_has_clients_alike():
    def spread(beta):
        source = load("synthetic", num_clients=60, beta=beta, seed=5)
        means = [source.x_train[source.clients == i].mean() for i in range(60)]
        return np.var(means)

    # The mean over 60 features of v_k ~ N(B_k, 1) varies by beta^2 + 1 / 60.
    assert spread(0.0) == pytest.approx(1 / 60, rel=0.6)
    assert spread(3.0) == pytest.approx(9.0, rel=0.6)


def test_gaussian_images_are_as_separable_as_asked_for():
    def error(separation):
        chosen = {"num_classes": 2, "size": 16, "separation": separation}
        source = load("gaussian_images", num_train=3000, num_test=3000, **chosen)
        x = source.x_train.reshape(3000, -1).astype(float)
        means = [x[source.y_train == k].mean(axis=0) for k in range(2)]
        w = means[1] - means[0]
        score = source.x_test.reshape(3000, -1) @ w - w @ (means[0] + means[1]) / 2
        return np.mean((score > 0) != source.y_test)

    assert error(0.0) == pytest.approx(0.5, abs=0.05)
    assert 0.02 < error(3.0) < 0.3  # Phi(-1.5) = .067 if the pictures are typical
    assert error(8.0) < 0.01


def test_gaussian_images_take_sizes_that_are_no_multiple_of_four():
    source = load("gaussian_images", size=10, channels=3, num_train=20, num_test=10)
    assert source.x_train.shape == (20, 10, 10, 3)
    assert len(source.mean) == len(source.std) == 3
    assert np.bincount(source.y_train).tolist() == [2] * 10


@pytest.mark.parametrize(
    ("name", "chosen", "match"),
    [
        ("digit", {}, "dataset='digit' is unknown; did you mean 'digits'"),
        ("emnist-letters", {}, "did you mean 'emnist_letters'"),
        ("", {}, "dataset='' is unknown"),
        (
            "digits",
            {"classes": 3},
            "dataset=digits takes no option 'classes'; it takes none.$",
        ),
        ("synthetic", {"alpa": 3}, "did you mean 'alpha'"),
        ("synthetic", {"alpha": -1}, "alpha=-1"),
        ("synthetic", {"num_clients": 0}, "num_clients=0"),
        ("gaussian_images", {"num_train": 5}, "num_train=5 must be an integer >= 10"),
        ("gaussian_images", {"separation": "far"}, "separation='far' is not a number"),
    ],
)
def test_a_mistake_is_one_sentence(name, chosen, match):
    with pytest.raises(ValueError, match=match) as error:
        load(name, **chosen)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_a_source_prints_as_one_line():
    digits = load("digits")
    text = "1437 training and 360 test examples uint8[8, 8, 1], 10 classes)"
    assert repr(digits) == f"Source('digits', {text}"
    assert "1294 training and 143 validation examples" in repr(digits.validating())
