"""Errors are types: which exceptions the package raises, and what the command line says."""

import ast
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedprox
from fedjax_adapt.cli import main, process
from fedjax_adapt.errors import RunError, SettingError

PACKAGE = Path(fa.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ValueError", "RuntimeError", "AssertionError"])
def test_the_package_raises_its_own_types(error):
    raised = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", "") == error
    ]
    # which names the client and the step of what it hands on
    assert [place for place in raised if "engine/debug.py" not in place] == []


def test_a_setting_error_names_its_setting():
    with pytest.raises(SettingError, match="^mu=-1 must be a finite number") as error:
        fedprox(mu=-1)
    assert error.value.setting == "mu" and isinstance(error.value, ValueError)
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value) and again.setting == "mu"


@pytest.mark.parametrize(
    "call",
    [
        lambda: fa.Plan(cohort_size=2.0),
        lambda: fa.Plan(batch_size=np.float64(5)),
        lambda: fa.Plan(max_steps=jnp.float32(3)),
        lambda: fa.uniform(2.0),
        lambda: fa.constant_steps(3.0),
        lambda: fa.metrics.top(2.0),
        lambda: fa.data.split("iid", np.arange(9) % 3, num_clients=3.0),
        lambda: fa.data.split("iid", np.arange(9) % 3, num_clients=3, seed=1.0),
    ],
)
def test_a_float_is_no_integer_though_it_is_whole(call):
    with pytest.raises(SettingError, match=r"^\w+=\d\.0 must be an integer >= "):
        call()


def test_a_base_in_the_place_of_a_number_is_one_sentence():
    for make in (fedprox, fa.algorithms.fedexp, fa.algorithms.fedavgm):
        with pytest.raises(SettingError, match="is an Algorithm, not a number; write"):
            make(fa.Algorithm())


@pytest.mark.parametrize(
    "error, code",
    [
        (SettingError("lr=None is none; write a number."), 2),
        (RunError("training diverged."), 1),
        (ValueError("math domain error"), None),
        (RuntimeError("somewhere inside XLA"), None),
    ],
)
def test_what_the_command_line_says_follows_from_the_type(error, code, capsys):
    assert process.report_error(error) == code
    said = capsys.readouterr().err
    shown = str(error).replace("None", "none")
    assert said == ("" if code is None else f"fedjax-adapt: {shown}\n")


def test_the_command_line_says_what_is_noted_of_an_error(capsys):
    error = RunError("training diverged.")
    error.add_note("Besides, the rounds so far could not be saved: no space.")
    assert process.report_error(error) == 1
    assert capsys.readouterr().err == (
        "fedjax-adapt: training diverged. Besides, the rounds so far could not be saved: "
        "no space.\n"
    )


def test_any_other_exception_is_shown_whole_and_asks_for_a_report(monkeypatch):
    def broken(arguments):
        raise ValueError("math domain error")

    monkeypatch.setattr("fedjax_adapt.cli.list_choices", broken)
    with pytest.raises(ValueError, match="math domain error") as error:
        main(["list"])
    assert "please report it" in "".join(error.value.__notes__)
