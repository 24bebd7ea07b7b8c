"""Reads sets that TFDS itself wrote, in its real ArrayRecord format."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tensorflow_datasets import features
from written import prepare

from fedjax_adapt.data import load, split

pytestmark = pytest.mark.usefixtures("no_network")


def images(n, shape=(4, 4, 1)):
    return [
        {"image": np.full(shape, 10 * i, np.uint8), "label": i % 3} for i in range(n)
    ]


IMAGE = features.Tensor(shape=(4, 4, 1), dtype=np.uint8)
LABEL = features.ClassLabel(num_classes=3)
PAIR = {"image": IMAGE, "label": LABEL}


def test_a_prepared_set_is_read_without_tensorflow(tmp_path):
    prepare(tmp_path, "tiny_shapes", PAIR, {"train": images(9), "test": images(5)})
    source = load("tfds:tiny_shapes", tmp_path)
    assert source.x_train.shape == (9, 4, 4, 1) and source.x_train.dtype == np.uint8
    order = np.argsort(source.x_train[:, 0, 0, 0])
    np.testing.assert_array_equal(source.x_train[order][:, 0, 0, 0], 10 * np.arange(9))
    np.testing.assert_array_equal(source.y_train[order], np.arange(9) % 3)
    assert len(source.y_test) == 5 and source.num_classes == 3
    assert source.mean == pytest.approx(40) and source.y_test.dtype == np.int32
    assert not any(name.split(".")[0] == "tensorflow" for name in sys.modules)


def test_png_images_are_decoded_without_tensorflow(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3)).astype(np.uint8)

    def png(picture):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "png")
        file.seek(0)
        return file

    encoded = {"image": features.Image(shape=(4, 5, 3)), "label": LABEL}
    splits = {
        split: [{"image": png(p), "label": i % 3} for i, p in enumerate(pictures)]
        for split in ("train", "test")
    }
    prepare(tmp_path, "pictures", encoded, splits)
    source = load("tfds:pictures", tmp_path)
    order = np.lexsort(source.x_train.reshape(6, -1).T)
    expected = np.lexsort(pictures.reshape(6, -1).T)
    np.testing.assert_array_equal(source.x_train[order], pictures[expected])
    np.testing.assert_array_equal(source.y_train[order], expected % 3)
    assert len(source.mean) == 3
    assert not any(name.split(".")[0] == "tensorflow" for name in sys.modules)


def test_the_default_folder_is_searched_after_the_given_one(tmp_path):
    prepare(tmp_path / "default", "tiny", PAIR, {"train": images(4), "test": images(2)})
    (tmp_path / "other").mkdir()
    assert len(load("tfds:tiny", tmp_path / "other").y_train) == 4
    assert len(load("tfds:tiny:1.0.0").y_train) == 4


def test_the_keys_of_the_builder_and_its_validation_split_are_used(tmp_path):
    pictures = [{"picture": e["image"], "kind": e["label"]} for e in images(6)]
    prepare(
        *(tmp_path, "named", {"picture": IMAGE, "kind": LABEL}),
        splits={"train": pictures, "validation": pictures[:2]},
        keys=("picture", "kind"),
    )
    source = load("tfds:named", tmp_path)
    assert (len(source.y_train), len(source.y_test)) == (6, 2)


@pytest.mark.parametrize("name", ["mnist", "no_such_set", "mnist/config:1.2.3"])
def test_a_set_that_is_not_prepared_says_how_to_prepare_it(tmp_path, name):
    with pytest.raises(ValueError, match="is not prepared in .*tfds-prepare") as error:
        load(f"tfds:{name}", tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_cannot_be_parsed_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="tfds:a b!! cannot be opened") as error:
        load("tfds:a b!!", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("feature_dict", "splits", "match"),
    [
        (
            {"text": IMAGE, "label": LABEL},
            ["train", "test"],
            "has the features label, text",
        ),
        (
            {"image": IMAGE, "label": IMAGE},
            ["train", "test"],
            "not an image and a class",
        ),
        (PAIR, ["train"], "has the splits train; it needs train and one of"),
    ],
)
def test_a_set_of_another_kind_is_refused(tmp_path, feature_dict, splits, match):
    example = {
        "image": images(1)[0]["image"],
        "label": 0,
        "text": images(1)[0]["image"],
    }
    if feature_dict.get("label") is IMAGE:
        example["label"] = example["image"]
    example = {key: example[key] for key in feature_dict}
    prepare(tmp_path, "other", feature_dict, {s: [example] * 2 for s in splits})
    with pytest.raises(ValueError, match=match):
        load("tfds:other", tmp_path)


def test_images_of_unequal_shapes_are_refused(tmp_path):
    ragged = {"image": features.Tensor(shape=(None, 4, 1), dtype=np.uint8)}
    examples = images(2) + images(1, (3, 4, 1))
    prepare(
        tmp_path,
        "ragged",
        ragged | {"label": LABEL},
        {"train": examples, "test": examples},
    )
    with pytest.raises(ValueError, match=r"2 shapes \(\[3, 4, 1\] and \[4, 4, 1\]\)"):
        load("tfds:ragged", tmp_path)


def test_records_only_tensorflow_can_read_are_refused(tmp_path):
    folder = prepare(tmp_path, "old", PAIR, {"train": images(3), "test": images(3)})
    info = json.loads((folder / "dataset_info.json").read_text())
    info["fileFormat"] = "tfrecord"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match="as tfrecord, .*file_format='array_record'"):
        load("tfds:old", tmp_path)


@pytest.mark.parametrize("what", ["dataset_info.json", "train.array_record", "missing"])
def test_damaged_files_are_one_sentence(tmp_path, what):
    folder = prepare(tmp_path, "broken", PAIR, {"train": images(9), "test": images(3)})
    path = next(p for p in folder.iterdir() if what in p.name or what == "missing")
    if what == "missing":
        path = next(folder.glob("*train*"))
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="tfds:broken") as error:
        load("tfds:broken", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_importing_the_data_package_pulls_in_nothing_heavy():
    heavy = ["tensorflow_datasets", "tensorflow", "sklearn", "matplotlib", "pyarrow"]
    code = (
        "import sys, fedjax_adapt.data;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


def owned(names, start=0):
    """Images and who made them; the first pixel says which image it is."""
    return [
        e | {"writer": name, "number": start + i}
        for i, (e, name) in enumerate(zip(images(len(names)), names, strict=True))
    ]


def test_a_feature_says_who_owns_a_row(tmp_path):
    described = PAIR | {
        "writer": features.Text(),
        "number": features.Scalar(np.int32),
        "weight": features.Scalar(np.float32),
    }
    weighed = lambda examples: [e | {"weight": 0.5} for e in examples]
    splits = {
        "train": weighed(owned(["zoë", "bo", "bo", "al", "zoë"])),
        "test": weighed(owned(["bo", "eve", "al"], start=3)),
    }
    prepare(tmp_path, "written", described, splits)
    source = load("tfds:written", tmp_path, client_feature="writer")
    names = np.array(["al", "bo", "zoë"])  # sorted
    made = dict(zip(range(0, 50, 10), ["zoë", "bo", "bo", "al", "zoë"], strict=True))
    found = [made[pixel] for pixel in source.x_train[:, 0, 0, 0].tolist()]
    assert names[source.clients].tolist() == found
    assert sorted(source.test_clients.tolist()) == [-1, 0, 1]
    rows = split("natural", source.y_train, None, clients=source.clients)
    assert [len(r) for r in rows] == [1, 2, 2]
    assert [len(r) for r in source.tests_of(rows)] == [1, 1, 0]
    assert load("tfds:written", tmp_path).clients is None
    numbered = load("tfds:written", tmp_path, client_feature="number")
    assert sorted(numbered.clients.tolist()) == [0, 1, 2, 3, 4]
    for name, sentence in (
        ("writers", "did you mean 'writer'"),
        ("label", "not a feature of tfds:written besides its input and label"),
        ("weight", "weight is .*, not text or an integer"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load("tfds:written", tmp_path, client_feature=name)
