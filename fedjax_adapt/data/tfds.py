"""Sets of TensorFlow Datasets, read without TensorFlow: images, and spoken words.

Only what is prepared on this machine is read: nothing here opens the network.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .. import check
from ..errors import SettingError, one_line
from .files import data_folder
from .source import Source, check_labels, source_of

# spoken words as sequences of feature vectors, for recurrent networks
SPEECH = "speech_commands"
TENSOR = "tensorflow_datasets.core.features.tensor_feature.Tensor"
WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
RATE = 16_000  # samples a second; every recording lasts one
WINDOW, HOP = 640, 320  # samples: 40 ms every 20 ms
COEFFICIENTS, BANDS = 40, 40
FFT = 1024
LOWEST, HIGHEST = 20.0, 8000.0  # Hz


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
      SettingError: one sentence: not prepared here, in another format, or not a set of
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
                f"client_feature={client_feature} is not a feature of "
                f"tfds:{name} besides its "
                f"input and label; {check.nearest(client_feature, others)}"
            )
        keys = (*keys, client_feature)
    *train, owners = _read(builder, name, "train", keys, num_classes)
    *tested, test_owners = _read(builder, name, test, keys, num_classes)
    named = None if client_feature is None else (owners, test_owners)
    return source_of(f"tfds:{name}", train, tested, num_classes, owners=named)


def prepared(name: str, data_dir: str | Path | None) -> Any:
    """The prepared builder, made from its files: its own code need not run."""
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
    """The library, and the folders in which sets may have been prepared."""
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

    `convert` is what is kept of the first of them, which may be large.
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
    x = np.stack([example[0] for example in examples])
    y = np.array([example[1] for example in examples], np.int32)
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


def speech_commands(data_dir: str | Path | None = None) -> Source:
    """Ten key words of Speech Commands, 49 x 40 coefficients; prepared by TFDS.

    The words of the set's own benchmark (Warden, "Speech Commands", 2018,
    https://arxiv.org/abs/1804.03209), which GIFT calls KWS; other words, background noise
    and the validation split are left out. GIFT does not say which features it takes: 40
    mel-frequency cepstral coefficients make its LSTM as large as the seconds of its uploads
    say.

    Args:
      data_dir: the folder in which TFDS has prepared `speech_commands` in the ArrayRecord
        format, then TFDS's own; None: the environment variable FEDJAX_ADAPT_DATA.

    Returns:
      Inputs float32 [n, 49, 40], see `cepstra`, and labels 0 to 9 in the order of `WORDS`.

    Raises:
      SettingError: it is not prepared here, or is not the set it should be.
    """
    with _opened(data_dir) as (builder, place):
        try:
            train, test = (_recordings(builder, split) for split in ("train", "test"))
        except SettingError as error:
            raise SettingError(str(error).replace(builder.data_dir, place)) from None
    return source_of(SPEECH, train, test, len(WORDS))


@contextmanager
def _opened(data_dir: str | Path | None) -> Iterator[tuple[Any, str]]:
    """The prepared builder, and the folder it lies in.

    TFDS reads its feature of audio with TensorFlow alone, though the records hold plain
    numbers. So they are read as a tensor: by links to them, next to a list of features
    that says so.
    """
    library, folders = folders_of(SPEECH, data_dir)
    found = (list(folder.glob(f"{SPEECH}/*/features.json")) for folder in folders)
    lists = next(filter(None, found), None)  # of the folder that was given, if any
    if lists is None:
        raise not_prepared(SPEECH, folders)
    place = max(lists, key=lambda path: _version(path.parent.name)).parent
    with TemporaryDirectory() as view:
        try:
            listed = (place / "features.json").read_text(encoding="utf-8")
            features = json.dumps(_with_tensor(json.loads(listed), place))
            (Path(view) / "features.json").write_text(features, encoding="utf-8")
            for path in place.iterdir():
                if path.name != "features.json":
                    (Path(view) / path.name).symlink_to(path.resolve())
            builder = library.builder_from_directory(view)
        except SettingError:
            raise
        except Exception as error:  # damaged JSON of any kind
            raise SettingError(
                f"tfds:{SPEECH} cannot be opened in {place}: {one_line(error)}; prepare it "
                "again."
            ) from None
        yield builder, str(place)


def _with_tensor(listed: dict[str, Any], place: Path) -> dict[str, Any]:
    """A list of features whose audio is a tensor of the same numbers."""
    features = listed["featuresDict"]["features"]
    about = features["audio"].get("audio")
    if about is None:
        return listed
    if about.get("lazyDecode"):
        raise SettingError(
            f"tfds:{SPEECH} in {place} holds recordings as files, not as numbers; prepare "
            "it again without lazy_decode."
        )
    tensor = {"shape": about["shape"], "dtype": about["dtype"], "encoding": "none"}
    features["audio"] = {"pythonClassName": TENSOR, "tensor": tensor}
    return listed


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


def _recordings(builder: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a split."""
    known = getattr(builder.info.features["label"], "names", None) or []
    if not set(WORDS) <= set(known):
        raise SettingError(
            f"tfds:{SPEECH} in {builder.data_dir} has the labels {', '.join(known)}, which "
            f"are not {', '.join(WORDS)} and others; prepare it again."
        )
    number = {known.index(word): i for i, word in enumerate(WORDS)}
    found = records(builder, SPEECH, split, ("audio", "label"), cepstra)
    found = [(x, number[y]) for x, y in found if y in number]
    if not found:
        raise SettingError(
            f"tfds:{SPEECH}, split {split} has none of the words {', '.join(WORDS)}; "
            "prepare it again."
        )
    x, y = zip(*found, strict=True)
    return np.stack(x), np.array(y, np.int32)


def cepstra(audio: np.ndarray) -> np.ndarray:
    """Mel-frequency cepstral coefficients of a recording, float32 [49, 40].

    Frames under a Hann window, the power in triangular bands that are as wide on the mel
    scale (2595 log10(1 + f / 700)), its logarithm, an orthonormal cosine transform.

    Args:
      audio: samples as 16-bit integers, of any integer type; what is shorter than a
        second is followed by silence, what is longer is cut.
    """
    from scipy import fft  # slow to import, and only needed here

    samples = np.zeros(RATE)
    given = np.asarray(audio, np.float64)[:RATE] / 2**15
    samples[: len(given)] = given
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1], FFT)) ** 2
    bands = np.log(power @ _triangles() + 1e-6)
    return fft.dct(bands, norm="ortho")[:, :COEFFICIENTS].astype(np.float32)


def _triangles() -> np.ndarray:
    """Weights of the frequencies in each band, [FFT / 2 + 1, BANDS]."""
    mel = lambda hertz: 2595 * np.log10(1 + hertz / 700)
    edges = np.linspace(mel(LOWEST), mel(HIGHEST), BANDS + 2)
    edges = 700 * (10 ** (edges / 2595) - 1)
    hertz = np.fft.rfftfreq(FFT, 1 / RATE)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rises, falls = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    return np.maximum(np.minimum(rises, falls), 0)
