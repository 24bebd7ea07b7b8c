"""LEAF's FEMNIST and Shakespeare, in the JSON files that its scripts write.

LEAF (Caldas et al., 2018, https://arxiv.org/abs/1812.01097) leaves files in train/ and
test/, each with `users`, `num_samples` and `user_data`: {user: {"x": [...], "y": [...]}}.
Users are owners, numbered in the sorted order of their names, for the partition
"natural". Where LEAF splits by sample, its default, the users of both parts are the same,
and each has a test of its own; where it splits by user, none has. The folders train/ and
test/ are looked for in the data folder, and there, for femnist, in femnist/data/, femnist/,
data/femnist/data/ and data/, which is where LEAF has them. An error names file and user.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SettingError, one_line
from .files import DATA_VARIABLE, folder_with, read_bytes
from .source import Source, check_labels, source_of

PIXELS = 28 * 28
SYMBOLS = 80  # in a line of Shakespeare

# what a character of Shakespeare is, by its place: LEAF's models/utils/language_utils.py
LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)

Examples = tuple[np.ndarray, np.ndarray]
# raises SettingError with the middle of a sentence
Convert = Callable[[list, list], Examples]


def leaf_femnist(data_dir: str | Path | None = None) -> Source:
    """LEAF's characters of 62 classes, 28 x 28 x 1, by 3,550 writers; JSON files.

    Inputs are float32 in [0, 1] as LEAF writes them, 1 is paper. Labels are 0 to 9, then
    upper-case and lower-case letters.
    """
    return _load("leaf_femnist", "femnist", data_dir, _pictures, 62, None)


def leaf_shakespeare(data_dir: str | Path | None = None) -> Source:
    """LEAF's Shakespeare: the character after 80, by 1,129 speaking roles; JSON files.

    Inputs are the places of characters in LEAF's alphabet of 80, uint8 [n, 80], and so is
    the label; mean 0 and deviation 1 leave them as they are.
    """
    given = ("leaf_shakespeare", "shakespeare", data_dir, _lines, len(LETTERS))
    return _load(*given, (0.0, 1.0))


def _load(
    dataset: str,
    name: str,
    data_dir: str | Path | None,
    convert: Convert,
    classes: int,
    constants: tuple[float, float] | None,
) -> Source:
    folder = _folder(dataset, name, data_dir)
    parts = []
    for part in ("train", "test"):
        found = list(_users(folder / part, convert, classes))
        if not found:
            raise SettingError(
                f"dataset={dataset}: no user has an example in {folder / part}; write it "
                "again with LEAF's preprocess.sh."
            )
        users = [user for user, (_, y) in found for _ in range(len(y))]
        arrays = zip(*(examples for _, examples in found), strict=True)
        parts.append((users, tuple(map(np.concatenate, arrays))))
    (users, train), (test_users, test) = parts
    return source_of(dataset, train, test, classes, constants, (users, test_users))


def _folder(dataset: str, name: str, data_dir: str | Path | None) -> Path:
    """The folder that holds train/ and test/ with files of JSON in both."""
    wanted = "train/*.json and test/*.json, as LEAF's preprocess.sh writes them"
    root = folder_with(dataset, wanted, data_dir)
    inner = (f"{name}/data", name, f"data/{name}/data", "data", ".")
    for folder in (root / place for place in inner):
        if all(any((folder / part).glob("*.json")) for part in ("train", "test")):
            return folder
    places = ", ".join(str(root / place) for place in inner)
    raise SettingError(
        f"dataset={dataset}: no {wanted}, found in {places}; put them there, or write "
        f"--data-dir FOLDER (or set {DATA_VARIABLE})."
    )


def _users(
    folder: Path, convert: Convert, classes: int
) -> Iterator[tuple[str, Examples]]:
    """Users and their examples, file by file, so that one file's text is in memory."""
    seen: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        content = _content(path)
        for user in content["users"]:
            try:
                if user in seen:
                    raise SettingError("is there twice")
                seen.add(user)
                data = content["user_data"].pop(user)
                if len(data["x"]) != len(data["y"]):
                    raise SettingError(
                        f"has {len(data['x'])} examples in x but {len(data['y'])} in y"
                    )
                if not data["y"]:
                    continue
                x, y = convert(data["x"], data["y"])
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                known = isinstance(error, ValueError)
                said = error if known else "has no x and y in user_data"
                raise SettingError(
                    f"{path}: user {user} {said}; write the file again with LEAF's "
                    "preprocess.sh."
                ) from None
            check_labels(f"{path}, user {user}", y, classes)
            yield user, (x, y)


def _content(path: Path) -> dict[str, Any]:
    """What a file holds, whole."""
    text = read_bytes(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise SettingError(
            f"{path} is no JSON, or it is truncated ({one_line(error)}); write it again "
            "with LEAF's preprocess.sh."
        ) from None
    if not isinstance(content, dict):
        content = {}
    for key, kind in {"users": list, "user_data": dict}.items():
        if not isinstance(content.get(key), kind):
            raise SettingError(
                f"{path} has no {key} as LEAF's files have: users is a list of names and "
                "user_data has the x and y of each."
            )
    return content


def _pictures(x: list, y: list) -> Examples:
    """float32 [n, 28, 28, 1] in [0, 1], and int32 [n]."""
    try:
        pixels = np.asarray(x, np.float32)
    except (TypeError, ValueError):
        raise SettingError(
            "has inputs that are no lists of equally many numbers"
        ) from None
    if pixels.shape != (len(x), PIXELS):
        raise SettingError(
            f"has inputs of shape {list(pixels.shape)}, not {[len(x), PIXELS]}"
        )
    bad = ~((pixels >= 0) & (pixels <= 1))  # NaN is neither
    if bad.any():
        raise SettingError(f"has a pixel of {pixels[bad][0]}, not from 0 to 1")
    whole = lambda label: isinstance(label, int) and abs(label) < 2**31
    wrong = [label for label in y if not whole(label)]
    if wrong:
        raise SettingError(f"has the label {wrong[0]!r}, no class")
    return pixels.reshape(-1, 28, 28, 1), np.asarray(y, np.int32)


def _lines(x: list, y: list) -> Examples:
    """uint8 [n, 80] and int32 [n]: places in the alphabet."""
    for texts, length in ((x, SYMBOLS), (y, 1)):
        for text in texts:
            if not isinstance(text, str) or len(text) != length:
                came = f"{len(text)} characters" if isinstance(text, str) else "no text"
                kind = "an input" if texts is x else "a label"
                raise SettingError(f"has {kind} of {came}, not of {length}")
    return _places(x).reshape(-1, SYMBOLS), _places(y).astype(np.int32)


def _places(texts: list[str]) -> np.ndarray:
    """Where each character of all texts is in the alphabet, uint8."""
    unknown = len(LETTERS)
    table = np.full(128, unknown, np.uint8)
    table[[ord(letter) for letter in LETTERS]] = np.arange(unknown)
    text = "".join(texts)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    places = np.where(codes < 128, table[np.minimum(codes, 127)], unknown)
    if (places == unknown).any():
        letter = text[int((places == unknown).argmax())]
        raise SettingError(
            f"has the character {letter!r}, which is none of LEAF's {unknown}"
        )
    return places.astype(np.uint8)
