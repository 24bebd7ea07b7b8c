"""Every data set by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import check
from . import files, generated, leaf
from .npz import npz
from .source import Source
from .tfds import tfds


class SourceSpec(NamedTuple):
    """A data set to ask for: `load(data_dir, **options)`, and one line about it."""

    load: Callable[..., Source]
    summary: str
    from_files: bool = True


SOURCES: dict[str, SourceSpec] = {
    "digits": SourceSpec(
        generated.digits, "1,797 handwritten digits, 8 x 8, from scikit-learn", False
    ),
    "synthetic": SourceSpec(
        generated.synthetic, "FedProx's Synthetic(alpha, beta), 30 clients", False
    ),
    "gaussian_images": SourceSpec(
        generated.gaussian_images, "noise around one picture per class", False
    ),
    "mnist": SourceSpec(files.mnist, "70,000 digits, 28 x 28; idx files"),
    "emnist_letters": SourceSpec(
        files.emnist_letters, "56,000 letters A to J (or all 26), 28 x 28; idx files"
    ),
    "fashion_mnist": SourceSpec(
        files.fashion_mnist, "70,000 garments, 28 x 28; idx files"
    ),
    "cifar10": SourceSpec(
        files.cifar10, "60,000 photographs in 10 classes, 32 x 32 x 3; binary version"
    ),
    "cifar100": SourceSpec(
        files.cifar100, "60,000 photographs in 100 classes, 32 x 32 x 3; binary version"
    ),
    "leaf_femnist": SourceSpec(
        leaf.leaf_femnist,
        "LEAF's characters by writers, 62 classes, 28 x 28; JSON files; partition natural",
    ),
    "leaf_shakespeare": SourceSpec(
        leaf.leaf_shakespeare,
        "LEAF's next characters by speaking roles, of 80; JSON files; partition natural",
    ),
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
      ValueError: one sentence: an unknown name or option (with the nearest), or what is
        wrong with which file.
    """
    text = str(name)
    if text.startswith("tfds:"):
        check.options(f"dataset={text}", tfds, options)
        return tfds(text.removeprefix("tfds:"), data_dir, **options)
    if text.endswith(".npz"):
        check.options(f"dataset={text}", npz, options)
        return npz(text, data_dir, **options)
    check.one_of("dataset", text, [*SOURCES, "tfds:NAME", "FILE.npz"])
    spec = SOURCES[text]
    check.options(f"dataset={text}", spec.load, options)
    return spec.load(data_dir, **options)
