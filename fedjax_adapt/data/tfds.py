"""Image-classification sets of TensorFlow Datasets, read without TensorFlow.

Only what is prepared on this machine is read: nothing here opens the network.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .formats import check_labels, data_folder, one_line
from .source import Source, moments


def tfds(name: str, data_dir: str | Path | None = None) -> Source:
    """Reads a prepared TFDS builder through its random-access data source.

    Args:
      name: as TFDS writes it, without "tfds:": "mnist", "mnist:3.0.1",
        "emnist/letters". It must be prepared in the ArrayRecord format.
      data_dir: the folder it was prepared in, then TFDS's own default folder; None: the
        environment variable FEDJAX_ADAPT_DATA.

    Returns:
      The splits "train" and "test" ("validation" where there is no "test"), with the
      input and the label that the builder names in `supervised_keys`, else "image" and
      "label"; mean and deviation are those of the training inputs.

    Raises:
      ValueError: one sentence: not prepared here, in another format, or not a set of
        equal images with one label each.
    """
    builder = _builder(name, data_dir)
    info: Any = builder.info  # its features are typed as if they could not be a mapping
    features = {key: info.features[key] for key in info.features}
    keys = info.supervised_keys or ("image", "label")
    if len(keys) != 2 or not all(key in features for key in keys):
        keys = ("image", "label")
    x_key, y_key = keys
    num_classes = getattr(features.get(y_key), "num_classes", None)
    if x_key not in features or not num_classes:
        raise ValueError(
            f"tfds:{name} has the features {', '.join(sorted(features))}, not an image "
            "and a class label; write the name of an image-classification set."
        )
    test = "test" if "test" in info.splits else "validation"
    if "train" not in info.splits or test not in info.splits:
        raise ValueError(
            f"tfds:{name} has the splits {', '.join(info.splits) or 'none'}; it needs "
            "train and one of test and validation."
        )
    x_train, y_train = _read(builder, name, "train", keys, num_classes)
    x_test, y_test = _read(builder, name, test, keys, num_classes)
    mean, std = moments(x_train)
    return Source(
        f"tfds:{name}", x_train, y_train, x_test, y_test, num_classes, mean, std
    )


def _builder(name, data_dir):
    """The prepared builder, made from its files: its own code need not run."""
    try:
        import tensorflow_datasets  # slow to import, and only needed here
        from tensorflow_datasets.core.read_only_builder import builder_from_files
    except ImportError as error:
        raise ValueError(
            f"tfds:{name} needs tensorflow-datasets, which cannot be imported "
            f"({one_line(error)}); write pip install tensorflow-datasets."
        ) from None
    given = data_folder(data_dir)
    default = tensorflow_datasets.core.constants.DATA_DIR
    folders = [folder for folder in (given, default) if folder is not None]
    for folder in folders:
        try:
            return builder_from_files(name, data_dir=str(folder))
        except tensorflow_datasets.core.registered.DatasetNotFoundError:
            continue
        except Exception as error:  # a name it cannot parse, damaged JSON of any kind
            raise ValueError(
                f"tfds:{name} cannot be opened in {folder}: {one_line(error)}; write "
                "tfds:NAME, tfds:NAME/CONFIG or tfds:NAME:VERSION."
            ) from None
    raise ValueError(
        f"tfds:{name} is not prepared in {' or '.join(map(str, folders))}; where there "
        "is a network, install the extra tfds-prepare (pip install "
        "'fedjax-adapt[tfds-prepare]'), run tensorflow_datasets.builder("
        f"{name!r}, data_dir=FOLDER, file_format='array_record')"
        ".download_and_prepare() once, and write --data-dir FOLDER."
    )


def _read(
    builder, name: str, split: str, keys: Sequence[str], num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    where = f"tfds:{name}, split {split}"
    try:
        source = builder.as_data_source(split)
        examples = [(e[keys[0]], e[keys[1]]) for e in source]
    except NotImplementedError:
        raise ValueError(
            f"tfds:{name} is prepared in {builder.data_dir} as "
            f"{builder.info.file_format.value}, which only TensorFlow reads; prepare "
            "it again with file_format='array_record'."
        ) from None
    except Exception as error:  # the record reader and the decoders raise many kinds
        raise ValueError(
            f"{where} cannot be read from {builder.data_dir}: {one_line(error)}; "
            "prepare it again."
        ) from None
    # The record reader gives an empty record, not an error, where a file is cut short.
    empty = [i for i, pair in enumerate(examples) if any(v is None for v in pair)]
    if empty:
        raise ValueError(
            f"{where} has no {keys[0]} or no {keys[1]} in record {empty[0]} of "
            f"{len(examples)}: a file in {builder.data_dir} is truncated or damaged; "
            "prepare it again."
        )
    shapes = {np.shape(x) for x, _ in examples}
    if len(shapes) != 1:
        some = " and ".join(str(list(s)) for s in sorted(shapes)[:2]) or "none at all"
        raise ValueError(
            f"{where} has images of {len(shapes)} shapes ({some}); it must have one."
        )
    x = np.stack([x for x, _ in examples])
    y = np.array([y for _, y in examples], np.int32)
    check_labels(where, y, num_classes)
    return (x if x.dtype == np.uint8 else x.astype(np.float32)), y
