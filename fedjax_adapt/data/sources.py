"""Every data set by name, and those that need no files.

The digits, FedProx's Synthetic and Gaussian images are made here. Every loader takes the
folder of the data, which these ignore, and options by keyword.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import check
from ..errors import SettingError
from . import files, leaf
from .npz import npz
from .rows import generator
from .source import Source, source_of
from .tfds import speech_commands, tfds


def digits(data_dir: str | Path | None = None) -> Source:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, 0 to 16.

    The test set of Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits"
    (UCI, 1998). Split here into 1,437 and 360 examples: sorted by label, every fifth is
    for testing, so that both parts have the labels in proportion.
    """
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    raw = load_digits()
    x, y = raw.images.astype(np.uint8)[..., None], raw.target.astype(np.int32)
    test = np.zeros(len(y), bool)
    test[np.argsort(y, kind="stable")[::5]] = True
    return source_of("digits", (x[~test], y[~test]), (x[test], y[test]), 10)


def synthetic(
    data_dir: str | Path | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    num_clients: int = 30,
    num_features: int = 60,
    num_classes: int = 10,
    seed: int = 0,
) -> Source:
    r"""FedProx's Synthetic(alpha, beta): each client has its own inputs and labelling.

        x ~ N(v_k, Sigma), Sigma_jj = j^-1.2, v_k ~ N(B_k, 1), B_k ~ N(0, beta^2)
        y = argmax softmax(W_k x + b_k),  W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha^2)
        n_k = 50 + floor(lognormal(4, 2)); the last tenth of each client is for testing

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, section
    5.1, https://arxiv.org/abs/1812.06127. alpha and beta are standard deviations, as in
    the authors' generator; the paper's N(0, alpha) could be read as a variance.

    Args:
      alpha: how much the clients' labellings differ.
      beta: how much the clients' inputs differ.
      num_clients: the published set has 30.
      num_features: the published set has 60.
      num_classes: the published set has 10.
      seed: of everything.

    Returns:
      A source with float32 inputs [n, num_features] left as they are (mean 0, std 1, as
      published), and `clients` and `test_clients`, for the partition "natural".
    """
    check.nonnegative("alpha", alpha, any_size=True)
    check.nonnegative("beta", beta, any_size=True)
    check.at_least("num_clients", num_clients, 1)
    check.at_least("num_features", num_features, 1)
    check.at_least("num_classes", num_classes, 2)
    rng = generator(seed)
    sizes = 50 + rng.lognormal(4, 2, num_clients).astype(int)
    _check_memory(num_clients, int(sizes.sum()) * num_features)
    spread = np.arange(1, num_features + 1) ** -0.6  # the root of Sigma's diagonal
    train, test = [], []
    for n in sizes:
        u, B = rng.normal(0, alpha), rng.normal(0, beta)
        v = rng.normal(B, 1, num_features)
        W = rng.normal(u, 1, (num_features, num_classes))
        b = rng.normal(u, 1, num_classes)
        x = v + spread * rng.standard_normal((n, num_features))
        y = np.argmax(x @ W + b, axis=1)
        cut = int(0.9 * n)
        train.append((x[:cut], y[:cut]))
        test.append((x[cut:], y[cut:]))

    def join(parts):
        x, y = zip(*parts, strict=True)
        return np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.int32)

    ids = np.arange(num_clients, dtype=np.int32)
    owners = lambda parts: np.repeat(ids, [len(y) for _, y in parts])
    source = source_of("synthetic", join(train), join(test), num_classes, (0.0, 1.0))
    return source._replace(clients=owners(train), test_clients=owners(test))


def gaussian_images(
    data_dir: str | Path | None = None,
    *,
    num_train: int = 6000,
    num_test: int = 1000,
    num_classes: int = 10,
    size: int = 28,
    channels: int = 1,
    separation: float = 6.0,
    seed: int = 0,
) -> Source:
    """Images of Gaussian noise around one blocky picture per class, as uint8 pixels.

    As large as real pictures and as easy as asked for: with two classes the best
    possible classifier errs with probability about Phi(-separation / 2).

    Args:
      num_train: training examples, the classes in equal shares.
      num_test: test examples, likewise.
      num_classes: number of labels.
      size: height and width in pixels.
      channels: 1 for grey, 3 for colour.
      separation: root-mean-square distance between two classes' pictures, in standard
        deviations of the noise.
      seed: of everything.
    """
    check.at_least("num_classes", num_classes, 2)
    check.at_least("num_train", num_train, num_classes)
    check.at_least("num_test", num_test, num_classes)
    check.at_least("size", size, 1)
    check.at_least("channels", channels, 1)
    check.nonnegative("separation", separation, any_size=True)
    rng = generator(seed)
    block = -(-size // 4)  # pictures of 4 x 4 blocks
    pictures = rng.standard_normal((num_classes, 4, 4, channels))
    pictures = pictures.repeat(block, axis=1).repeat(block, axis=2)[:, :size, :size]
    # Two pictures of unit normals lie sqrt(2 d) apart; the noise has deviation 1 here.
    pictures *= separation / np.sqrt(2 * size * size * channels)

    def draw(n):
        y = rng.permutation(np.arange(n, dtype=np.int32) % num_classes)
        noise = rng.standard_normal((n, *pictures.shape[1:]), np.float32)
        pixels = 128 + 32 * (pictures[y].astype(np.float32) + noise)
        return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), y

    return source_of("gaussian_images", draw(num_train), draw(num_test), num_classes)


def _check_memory(num_clients: int, numbers: int) -> None:
    """Raises SettingError if the machine could never hold so many numbers, twice."""
    needed = 2 * numbers * np.dtype(float).itemsize
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # unknown
        return
    if needed > there:
        raise SettingError(
            f"num_clients={num_clients} of this data set would take "
            f"{needed / 2**30:.0f} GiB to make and the machine has {there / 2**30:.0f}; "
            "take fewer clients or features."
        )


MADE_HERE: dict[str, Callable[..., Source]] = {
    "digits": digits,
    "synthetic": synthetic,
    "gaussian_images": gaussian_images,
}
SOURCES = MADE_HERE | {
    "mnist": files.mnist,
    "emnist_letters": files.emnist_letters,
    "fashion_mnist": files.fashion_mnist,
    "cifar10": files.cifar10,
    "cifar100": files.cifar100,
    "speech_commands": speech_commands,
    "leaf_femnist": leaf.leaf_femnist,
    "leaf_shakespeare": leaf.leaf_shakespeare,
}


def load(name: str, data_dir: str | Path | None = None, **options: Any) -> Source:
    """Loads a data set.

    Args:
      name: one of `SOURCES`; or "tfds:NAME" for a prepared TFDS builder (see tfds.py);
        or the path of an .npz file, which must end in .npz (see npz.py).
      data_dir: the folder that holds the files; None: the environment variable
        FEDJAX_ADAPT_DATA. Generated sets need none.
      **options: keyword options of the loader, e.g. classes=26 for emnist_letters.

    Raises:
      SettingError: one sentence: an unknown name or option (with the nearest), or what is
        wrong with which file.
    """
    text = str(name)
    if text.startswith("tfds:"):
        read, given = tfds, (text.removeprefix("tfds:"), data_dir)
    elif text.endswith(".npz"):
        read, given = npz, (text, data_dir)
    else:
        check.one_of("dataset", text, [*SOURCES, "tfds:NAME", "FILE.npz"])
        read, given = SOURCES[text], (data_dir,)
    check.options(f"dataset={text}", read, options)
    return read(*given, **options)
