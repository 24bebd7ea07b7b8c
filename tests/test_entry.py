"""How a benchmark ends."""

import pytest
from helpers import benchmark

import fedjax_adapt as fa


@pytest.fixture(scope="module")
def begin():
    return benchmark("entry").begin


def test_a_mistake_is_one_sentence_and_exit_code_2(begin, capsys):
    with pytest.raises(SystemExit) as ended:
        begin(lambda: fa.Plan(lr=-1.0))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "fedjax-adapt: lr=-1.0 must be a finite number above 0.\n"


def test_a_bug_is_no_sentence(begin):
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 // 0)
