"""How a benchmark ends."""

import importlib.util
from pathlib import Path

import pytest

import fedjax_adapt as fa

PATH = Path(__file__).parents[1] / "benchmarks" / "entry.py"


@pytest.fixture(scope="module")
def begin():
    spec = importlib.util.spec_from_file_location("entry", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.begin


def test_a_mistake_is_one_sentence_and_exit_code_2(begin, capsys):
    with pytest.raises(SystemExit) as ended:
        begin(lambda: fa.Plan(lr=-1.0))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "fedjax-adapt: lr=-1.0 must be a finite number above 0.\n"


def test_a_bug_is_no_sentence(begin):
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 // 0)
