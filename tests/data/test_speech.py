"""Speech Commands from a small set that TFDS itself wrote, in the real format."""

import json
import sys

import jax
import numpy as np
import pytest
from scipy.fft import dct
from tensorflow_datasets import features
from written import prepare

import fedjax_adapt as fa
from fedjax_adapt.data import load
from fedjax_adapt.data.tfds import WORDS, cepstra
from fedjax_adapt.errors import SettingError

pytestmark = pytest.mark.usefixtures("no_network")

NAMES = [*WORDS, "_silence_", "_unknown_"]  # TFDS's own order


def tone(hertz, samples=16_000, loudness=8000):
    return (loudness * np.sin(2 * np.pi * hertz * np.arange(samples) / 16_000)).astype(
        np.int16
    )


def recordings(labels):
    return [
        {"audio": tone(200 + 100 * i, 16_000 - 100 * i), "label": label}
        for i, label in enumerate(labels)
    ]


def write(folder, train, test, names=NAMES, **audio):
    """A set as TFDS prepares it: its audio is written with TensorFlow, as numbers."""
    told = {
        "audio": features.Tensor(shape=(None,), dtype=np.int16),
        "label": features.ClassLabel(names=names),
    }
    splits = {"train": recordings(train), "test": recordings(test)}
    place = prepare(folder, "speech_commands", told, splits, ("audio", "label"))
    listed = json.loads((place / "features.json").read_text())
    about = listed["featuresDict"]["features"]["audio"]
    about.clear()
    about["pythonClassName"] = "tensorflow_datasets.core.features.audio_feature.Audio"
    about["audio"] = {
        "dtype": "int16",
        "encoding": "NONE",
        "fileFormat": "wav",
        "sampleRate": "16000",
        "shape": {"dimensions": ["-1"]},
        **audio,
    }
    (place / "features.json").write_text(json.dumps(listed, indent=4))
    return place


def test_ten_words_become_sequences(tmp_path):
    write(tmp_path, ["yes", "_unknown_", "down", "go"], ["_silence_", "up"])
    source = load("speech_commands", tmp_path)
    assert source.x_train.shape == (3, 49, 40) and source.x_train.dtype == np.float32
    assert sorted(source.y_train.tolist()) == [0, 1, 9]
    assert source.y_test.tolist() == [8] and source.num_classes == 10
    yes = source.x_train[source.y_train.tolist().index(9)]
    np.testing.assert_allclose(yes, cepstra(tone(200)), rtol=1e-5, atol=1e-5)
    assert not any(name.split(".")[0] == "tensorflow" for name in sys.modules)
    assert float(source.mean) == pytest.approx(source.x_train.mean(), rel=1e-4)


def test_a_set_of_other_words_is_refused(tmp_path):
    write(tmp_path, ["cat"], ["cat"], names=["cat", "dog"])
    with pytest.raises(
        SettingError, match=f"in {tmp_path}.* has the labels cat, dog, wh"
    ):
        load("speech_commands", tmp_path)


def test_the_newest_version_is_read(tmp_path):
    for version, words in {"0.0.9": ["yes"], "0.0.10": ["yes", "no"]}.items():
        place = write(tmp_path, words, ["up"])
        place.rename(place.with_name(version))
    assert len(load("speech_commands", tmp_path).y_train) == 2


def test_a_split_without_the_words_is_refused(tmp_path):
    write(tmp_path, ["yes"], ["_silence_"])
    with pytest.raises(SettingError, match="split test has none of the words"):
        load("speech_commands", tmp_path)


def test_recordings_as_files_are_refused(tmp_path):
    write(tmp_path, ["yes"], ["up"], lazyDecode=True)
    with pytest.raises(SettingError, match="as files, not as numbers; prepare"):
        load("speech_commands", tmp_path)


@pytest.mark.parametrize(
    "damage", ["", "[]", "{}", '{"featuresDict": {"features": 3}}']
)
def test_a_damaged_list_of_features_is_one_sentence(tmp_path, damage):
    place = write(tmp_path, ["yes"], ["up"])
    (place / "features.json").write_text(damage)
    with pytest.raises(SettingError, match="cannot be opened in") as error:
        load("speech_commands", tmp_path)
    assert "\n" not in str(error.value)


def test_a_damaged_file_of_records_is_one_sentence(tmp_path):
    place = write(tmp_path, ["yes"] * 20, ["up"])
    (records,) = place.glob("*train*record*")
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SettingError, match="prepare it again") as error:
        load("speech_commands", tmp_path)
    assert str(place) in str(error.value) and "\n" not in str(error.value)


def test_a_set_that_is_not_prepared_says_how(tmp_path):
    with pytest.raises(SettingError, match="speech_commands is not prepared in"):
        load("speech_commands", tmp_path)


def test_cepstra_are_those_of_a_plain_program():
    audio = np.random.default_rng(0).integers(-3000, 3000, 15_000)
    signal = np.concatenate([audio / 32768, np.zeros(1000)])
    mel = lambda f: 2595 * np.log10(1 + f / 700)
    hertz = lambda m: 700 * (10 ** (m / 2595) - 1)
    edges = hertz(np.linspace(mel(20), mel(8000), 42))
    expected = []
    for start in range(0, 16_000 - 640 + 1, 320):
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(640) / 640)
        frame = np.concatenate([signal[start : start + 640] * window, np.zeros(384)])
        k = np.arange(513)
        power = np.abs(np.fft.fft(frame)[:513]) ** 2
        bands = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            f = k * 16_000 / 1024
            up = np.where((f >= low) & (f <= middle), (f - low) / (middle - low), 0)
            down = np.where((f > middle) & (f <= high), (high - f) / (high - middle), 0)
            bands.append(np.log(((up + down) * power).sum() + 1e-6))
        expected.append(dct(bands, norm="ortho"))
    assert len(expected) == 49
    np.testing.assert_allclose(cepstra(audio), expected, rtol=1e-4, atol=1e-4)


def test_a_tone_is_loudest_in_its_band():
    flat = cepstra(tone(1000))[10]
    bands = dct(flat, type=3, norm="ortho")  # back again
    mel = 2595 * np.log10(1 + np.array([20, 1000, 8000]) / 700)
    share = (mel[1] - mel[0]) / (mel[2] - mel[0])
    assert abs(bands.argmax() - (41 * share - 1)) < 1


def test_silence_is_finite_and_long_recordings_are_cut():
    assert np.isfinite(cepstra(np.zeros(0, np.int16))).all()
    np.testing.assert_array_equal(cepstra(tone(300, 20_000)), cepstra(tone(300)))


def test_gifts_network_on_them_has_the_size_that_its_seconds_say():
    task = fa.classification(fa.models.lstm((49, 40), 10), (49, 40))
    params = jax.eval_shape(task.init, jax.random.key(0))
    # two layers of four gates with two rows of biases, as PyTorch has, and the labels
    by_hand = 4 * 64 * (40 + 64 + 2) + 4 * 64 * (64 + 64 + 2) + 10 * (64 + 1)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == by_hand == 61_066
    # 32 bits a parameter at 5 Mbit/s take .39 s (one way)
    assert 32 * by_hand / 5e6 == pytest.approx(0.39, abs=0.005)
