import math
import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import fedjax_adapt
from hypothesis import example, given
from hypothesis import strategies as st

from fedjax_adapt.experiment import toml

scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
numbers = st.floats(allow_nan=False)


ASCII = "".join(map(chr, range(0x80)))


@given(st.dictionaries(st.text(), scalars | numbers | st.lists(numbers)))
@example({text: text for text in (ASCII, "\x80\u2028\ud800")})
def test_what_is_written_reads_back_equal(values):
    assert tomllib.loads(toml.dumps(values)) == values


def test_none_is_left_out_and_infinity_is_kept():
    text = toml.dumps({"a": None, "b": math.inf})
    assert tomllib.loads(text) == {"b": math.inf}


def test_tables_come_last_and_read_back_equal():
    values = {
        "t": {"name": "x", "u": {"y": 1}},
        "a": 1,
        "g": [{"b": 1}, {"c": {"d": 2}}],
    }
    text = toml.dumps(values)
    assert tomllib.loads(text) == values and text.startswith("a = 1\n\n[t]\n")


def test_the_line_of_a_key_is_found_however_it_is_written(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('# b = 0\n\na = 1\n"b"=2\n  cc = 3\nc = 4\n[table]\n[[many]]\n')
    lines = [toml.line_of(path, key) for key in ("a", "b", "cc", "c", "table", "many")]
    assert lines == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"a = 1\nb = \n", r"bad.toml is not valid TOML: .*line 2"),
        (b"a = 1\na = 2\n", r"bad.toml is not valid TOML: .*line 2"),
        (
            b"a = 1\n[a]\nb = 2\n",
            r"Cannot overwrite .*; write each name once, .* name =",
        ),
        (b"a = " + 5000 * b"9", r"bad.toml is not valid TOML: .*5000 digits"),
        (b"a = " + 5000 * b"[", r"bad.toml is not valid TOML: .*recursion"),
        (b"a = '\xff'\n", r"bad.toml is not valid TOML: it is not UTF-8 text"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, says):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        toml.read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config=.*none.toml cannot be read"):
        toml.read(tmp_path / "none.toml")


@pytest.mark.parametrize("line", ["run --config {}", "sweep {}", "tune {}"])
def test_a_device_is_no_file_of_settings(line, capsys, elsewhere):
    """It would never end."""
    code, _, err = fedjax_adapt(capsys, line.format("/dev/zero"))
    assert code == 2 and "/dev/zero cannot be read (a device); give the path of" in err


def test_what_a_terminal_would_obey_is_escaped(capsys, elsewhere):
    text = '[space]\n"lr\\n\\u001b[31m\\u2028" = [0.1, 0.2]\n'
    (elsewhere / "space.toml").write_text(text)
    code, _, err = fedjax_adapt(capsys, "tune space.toml")
    assert code == 2 and "lr\\n\\x1b[31m\\u2028" in err, err
    assert err.count("\n") == 1 and "\x1b" not in err and "\u2028" not in err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("run --config pipe", "\nrounds = 0\n"),
        ("sweep pipe", "[run]\nrounds = 0\n[grid]\nlr = [0.1, 0.2]\n"),
    ],
)
def test_a_pipe_of_settings_is_read_once(elsewhere, capsys, line, text):
    os.mkfifo("pipe")
    with ThreadPoolExecutor() as pool:
        pool.submit(Path("pipe").write_text, text)
        code, _, err = fedjax_adapt(capsys, line)
    assert code == 2 and "pipe, line 2: rounds=0" in err
