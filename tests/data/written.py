"""Writes tiny data sets in the real formats, for the readers to read."""

import gzip
import struct

import numpy as np


def idx(array) -> bytes:
    """An idx file of bytes."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, prefix="", labels=None, suffix=".gz", test="t10k"):
    """The four files of an MNIST-like set; returns {file name without suffix: array}.

    `labels` are those of the training set; the test set has the first four of them.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 10 if labels is None else np.asarray(labels)
    arrays = {}
    for part, y in (("train", labels), (test, labels[:4])):
        x = rng.integers(0, 256, (len(y), 5, 4))
        arrays[f"{prefix}{part}-images-idx3-ubyte"] = x
        arrays[f"{prefix}{part}-labels-idx1-ubyte"] = y
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        data = idx(array)
        data = gzip.compress(data, 1) if suffix else data
        (folder / (name + suffix)).write_bytes(data)
    return arrays


def cifar(x, *labels) -> bytes:
    """A file of CIFAR's binary version: labels, then the planes of x [n, 32, 32, 3]."""
    records = [
        bytes(int(y[i]) for y in labels) + x[i].transpose(2, 0, 1).tobytes()
        for i in range(len(x))
    ]
    return b"".join(records)


def write_cifar10(folder, examples=3):
    """The six files of CIFAR-10; returns (x, y) per file."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        x = rng.integers(0, 256, (examples, 32, 32, 3)).astype(np.uint8)
        y = rng.integers(0, 10, examples)
        (folder / f"{name}.bin").write_bytes(cifar(x, y))
        parts.append((x, y))
    return parts


def write_npz(path, **changes):
    """An .npz file; a change replaces an array, None leaves it out."""
    rng = np.random.default_rng(2)
    arrays = {
        "x_train": rng.normal(3, 2, (8, 6)),
        "y_train": np.arange(8) % 3,
        "x_test": rng.normal(3, 2, (4, 6)),
        "y_test": np.arange(4) % 3,
    } | changes
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez(path, **arrays)
    return arrays


def prepare(folder, name, feature_dict, splits, keys=None):
    """Prepares a TFDS builder called `name` whose `splits` are lists of examples."""
    from tensorflow_datasets import core, features

    class Tiny(core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = core.Version("1.0.0")

        def _info(self):
            return core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(feature_dict),
                supervised_keys=keys,
                disable_shuffling=True,
            )

        def _split_generators(self, manager):
            return {split: self._generate_examples(e) for split, e in splits.items()}

        def _generate_examples(self, examples):
            yield from enumerate(examples)

    Tiny.name = name
    builder = Tiny(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return folder / name / "1.0.0"
