"""Image-classification sets of TensorFlow Datasets, read without TensorFlow.

Only what is prepared on this machine is read: nothing here opens the network.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import check
from ..errors import SettingError, one_line
from .files import data_folder
from .rows import check_labels, owners_of
from .source import Source, moments


def tfds(
    name: str, data_dir: str | Path | None = None, *, client_feature: str | None = None
) -> Source:
    """Reads a prepared TFDS builder through its random-access data source.

    Args:
      name: as TFDS writes it, without "tfds:": "mnist", "mnist:3.0.1",
        "emnist/letters". It must be prepared in the ArrayRecord format.
      data_dir: the folder it was prepared in, then TFDS's own default folder; None: the
        environment variable FEDJAX_ADAPT_DATA.
      client_feature: the feature that says who owns a row, text or an integer, for the
        partition natural; none: no client does

    Returns:
      The splits "train" and "test" ("validation" where there is no "test"), with the
      input and the label that the builder names in `supervised_keys`, else "image" and
      "label"; mean and deviation are those of the training inputs.

    Raises:
      ValueError: one sentence: not prepared here, in another format, or not a set of
        equal images with one label each.
    """
    builder = prepared(name, data_dir)
    info: Any = builder.info  # its features are typed as if they could not be a mapping
    features = {key: info.features[key] for key in info.features}
    keys = info.supervised_keys or ("image", "label")
    if len(keys) != 2 or not all(key in features for key in keys):
        keys = ("image", "label")
    x_key, y_key = keys
    num_classes = getattr(features.get(y_key), "num_classes", None)
    if x_key not in features or not num_classes:
        raise SettingError(
            f"tfds:{name} has the features {', '.join(sorted(features))}, not an image "
            "and a class label; write the name of an image-classification set."
        )
    test = "test" if "test" in info.splits else "validation"
    if "train" not in info.splits or test not in info.splits:
        raise SettingError(
            f"tfds:{name} has the splits {', '.join(info.splits) or 'none'}; it needs "
            "train and one of test and validation."
        )
    if client_feature is not None:
        if client_feature not in features or client_feature in keys:
            others = sorted(key for key in features if key not in keys)
            raise SettingError(
                f"client_feature={client_feature} is no feature of tfds:{name} besides its "
                f"input and label; {check.nearest(client_feature, others)}"
            )
        keys = (*keys, client_feature)
    x_train, y_train, owners = _read(builder, name, "train", keys, num_classes)
    x_test, y_test, test_owners = _read(builder, name, test, keys, num_classes)
    mean, std = moments(x_train)
    source = Source(
        f"tfds:{name}", x_train, y_train, x_test, y_test, num_classes, mean, std
    )
    if client_feature is None:
        return source
    clients, test_clients = owners_of(owners, test_owners)
    return source._replace(clients=clients, test_clients=test_clients)


def prepared(name: str, data_dir: str | Path | None) -> Any:
    """The prepared builder, made from its files: its own code need not run.

    Raises:
      SettingError: it is not prepared here, or cannot be opened.
    """
    library, folders = folders_of(name, data_dir)
    from tensorflow_datasets.core.read_only_builder import builder_from_files

    for folder in folders:
        try:
            return builder_from_files(name, data_dir=str(folder))
        except library.core.registered.DatasetNotFoundError:
            continue
        except Exception as error:  # a name it cannot parse, damaged JSON of any kind
            raise SettingError(
                f"tfds:{name} cannot be opened in {folder}: {one_line(error)}; write "
                "tfds:NAME, tfds:NAME/CONFIG or tfds:NAME:VERSION."
            ) from None
    raise not_prepared(name, folders)


def folders_of(name: str, data_dir: str | Path | None) -> tuple[Any, list[Path]]:
    """The library, and the folders in which sets may have been prepared.

    Raises:
      SettingError: it cannot be imported, or there is no such folder.
    """
    try:
        import tensorflow_datasets  # slow to import, and only needed here
    except ImportError as error:
        raise SettingError(
            f"tfds:{name} needs tensorflow-datasets, which cannot be imported "
            f"({one_line(error)}); write pip install tensorflow-datasets."
        ) from None
    given = data_folder(data_dir)
    default = Path(tensorflow_datasets.core.constants.DATA_DIR)
    return tensorflow_datasets, [x for x in (given, default) if x is not None]


def not_prepared(name: str, folders: Sequence[Path]) -> SettingError:
    """What to say of a set that is in none of the folders."""
    return SettingError(
        f"tfds:{name} is not prepared in {' or '.join(map(str, folders))}; where there "
        "is a network, install the extra tfds-prepare (pip install "
        "'fedjax-adapt[tfds-prepare]'), run tensorflow_datasets.builder("
        f"{name!r}, data_dir=FOLDER, file_format='array_record')"
        ".download_and_prepare() once, and write --data-dir FOLDER."
    )


def records(
    builder: Any,
    name: str,
    split: str,
    keys: Sequence[str],
    convert: Callable[[Any], Any] = lambda value: value,
) -> list[tuple]:
    """The values of some features of every example of a split.

    Args:
      builder: that was prepared, see `prepared`.
      name: of the set, without "tfds:".
      split: of the builder.
      keys: the features.
      convert: what is kept of the first of them, which may be large.

    Raises:
      SettingError: the files are of another format, or damaged.
    """
    where = f"tfds:{name}, split {split}"

    def of(example: Any) -> tuple:
        first, *rest = (example[key] for key in keys)
        return (None if first is None else convert(first), *rest)

    try:
        examples = [of(example) for example in builder.as_data_source(split)]
    except NotImplementedError:
        raise SettingError(
            f"tfds:{name} is prepared in {builder.data_dir} as "
            f"{builder.info.file_format.value}, which only TensorFlow reads; prepare "
            "it again with file_format='array_record'."
        ) from None
    except Exception as error:  # the record reader and the decoders raise many kinds
        raise SettingError(
            f"{where} cannot be read from {builder.data_dir}: {one_line(error)}; "
            "prepare it again."
        ) from None
    # The record reader gives an empty record, not an error, where a file is cut short.
    empty = [i for i, pair in enumerate(examples) if any(v is None for v in pair)]
    if empty:
        raise SettingError(
            f"{where} has no {' or no '.join(keys)} in record {empty[0]} of "
            f"{len(examples)}: a file in {builder.data_dir} is truncated or damaged; "
            "prepare it again."
        )
    return examples


def _read(
    builder, name: str, split: str, keys: Sequence[str], num_classes: int
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Inputs, labels and, if a third key is given, the owner of each row."""
    where = f"tfds:{name}, split {split}"
    examples = records(builder, name, split, keys)
    shapes = {np.shape(example[0]) for example in examples}
    if len(shapes) != 1:
        some = " and ".join(str(list(s)) for s in sorted(shapes)[:2]) or "none at all"
        raise SettingError(
            f"{where} has images of {len(shapes)} shapes ({some}); it must have one."
        )
    x, y = (
        np.stack([e[0] for e in examples]),
        np.array([e[1] for e in examples], np.int32),
    )
    check_labels(where, y, num_classes)
    owners = [_owner(where, keys[2], e[2]) for e in examples] if len(keys) > 2 else []
    return (x if x.dtype == np.uint8 else x.astype(np.float32)), y, owners


def _owner(where: str, key: str, value: Any) -> int | str:
    """Who owns a row, as its feature says."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if np.ndim(value) == 0 and isinstance(np.asarray(value).item(), int | str):
        return np.asarray(value).item()
    raise SettingError(
        f"{where}: {key} is {check.kind_of(value)}, not text or an integer; give the "
        "feature that names the owner of a row as client_feature."
    )
