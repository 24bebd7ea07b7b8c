"""Spoken words as sequences of feature vectors, for recurrent networks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..errors import SettingError, one_line
from .source import Source, moments
from .tfds import folders_of, not_prepared, records

NAME = "speech_commands"
TENSOR = "tensorflow_datasets.core.features.tensor_feature.Tensor"
WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
RATE = 16_000  # samples a second; every recording lasts one
WINDOW, HOP = 640, 320  # samples: 40 ms every 20 ms
COEFFICIENTS, BANDS = 40, 40
FFT = 1024
LOWEST, HIGHEST = 20.0, 8000.0  # Hz


def speech_commands(data_dir: str | Path | None = None) -> Source:
    """Ten key words of Speech Commands, as mel-frequency cepstral coefficients.

    The words of the set's own benchmark (Warden, "Speech Commands", 2018,
    https://arxiv.org/abs/1804.03209), which GIFT calls KWS; other words, background noise
    and the validation split are left out. GIFT does not say which features it takes: 40
    coefficients make its LSTM as large as the seconds of its uploads say.

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
            (x_train, y_train), (x_test, y_test) = (
                _read(builder, split) for split in ("train", "test")
            )
        except SettingError as error:
            raise SettingError(str(error).replace(builder.data_dir, place)) from None
    mean, std = moments(x_train)
    return Source(NAME, x_train, y_train, x_test, y_test, len(WORDS), mean, std)


@contextmanager
def _opened(data_dir: str | Path | None) -> Iterator[tuple[Any, str]]:
    """The prepared builder, and the folder it lies in.

    TFDS reads its feature of audio with TensorFlow alone, though the records hold plain
    numbers. So they are read as a tensor: by links to them, next to a list of features
    that says so.
    """
    library, folders = folders_of(NAME, data_dir)
    found = (list(folder.glob(f"{NAME}/*/features.json")) for folder in folders)
    lists = next(
        filter(None, found), None
    )  # of the folder that was given, if it has any
    if lists is None:
        raise not_prepared(NAME, folders)
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
                f"tfds:{NAME} cannot be opened in {place}: {one_line(error)}; prepare it "
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
            f"tfds:{NAME} in {place} holds recordings as files, not as numbers; prepare "
            "it again without lazy_decode."
        )
    tensor = {"shape": about["shape"], "dtype": about["dtype"], "encoding": "none"}
    features["audio"] = {"pythonClassName": TENSOR, "tensor": tensor}
    return listed


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in name.split("."))


def _read(builder: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a split."""
    known = getattr(builder.info.features["label"], "names", None) or []
    if not set(WORDS) <= set(known):
        raise SettingError(
            f"tfds:{NAME} in {builder.data_dir} has the labels {', '.join(known)}, which "
            f"are not {', '.join(WORDS)} and others; prepare it again."
        )
    number = {known.index(word): i for i, word in enumerate(WORDS)}
    found = records(builder, NAME, split, ("audio", "label"), cepstra)
    found = [(x, number[y]) for x, y in found if y in number]
    if not found:
        raise SettingError(
            f"tfds:{NAME}, split {split} has none of the words {', '.join(WORDS)}; "
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
