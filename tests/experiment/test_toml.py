import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_adapt.experiment import toml

scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
numbers = st.floats(allow_nan=False)


@given(st.dictionaries(st.text(), scalars | numbers | st.lists(numbers)))
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
