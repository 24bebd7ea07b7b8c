"""The public names and their arguments are those of public_api.txt.

After a change that is meant: python tests/test_public_api.py
"""

import inspect
from pathlib import Path

import fedjax_adapt as fa
from fedjax_adapt import experiment
from fedjax_adapt.algorithms import ALGORITHMS

FILE = Path(__file__).with_name("public_api.txt")
MARKS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def line_of(name, thing):
    """A name with its arguments, where it takes some; `?`: one that has a default."""
    if not callable(thing):
        return name
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return name
    shown, keywords = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not keywords:
            shown.append("*")
        keywords = keywords or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        mark = "" if one.default is one.empty else "?"
        shown.append(MARKS.get(one.kind, "") + one.name + mark)
    return f"{name}({', '.join(shown)})"


def api():
    """A line for each public name, each algorithm and each name of runs in Python."""
    names = [line_of(name, getattr(fa, name)) for name in fa.__all__]
    methods = [line_of(f"algorithms.{n}", of) for n, of in sorted(ALGORITHMS.items())]
    of_runs = [
        line_of(f"experiment.{name}", thing)
        for name, thing in sorted(vars(experiment).items())
        if not name.startswith("_") and not inspect.ismodule(thing)
    ]
    return "\n".join([*names, *methods, *of_runs]) + "\n"


def test_the_public_names_and_their_arguments_are_as_written_down():
    assert api() == FILE.read_text()


if __name__ == "__main__":
    FILE.write_text(api())
