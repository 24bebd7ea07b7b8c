"""The pages of the site that are made from docstrings, settings and notebooks."""

import inspect
import re
import shutil
from pathlib import Path

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.experiment import store
from fedjax_adapt.experiment.schema import common_options, settings

RST = "```{{eval-rst}}\n.. {}:: fedjax_adapt.{}\n```\n"


def write(folder: Path, notebooks: Path) -> None:
    """Writes all of them into a folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "methods").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    for notebook in notebooks.glob("*.ipynb"):
        shutil.copy(notebook, folder / "notebooks")
    for name, constructor in ALGORITHMS.items():
        (folder / "methods" / f"{name}.md").write_text(_method(name, constructor))
    files = f"# Files of a run\n\n{inspect.getdoc(store)}\n"
    (folder / "files.md").write_text(files)
    (folder / "names.md").write_text(_exports())
    (folder / "settings.md").write_text(_settings())


def _method(name, constructor):
    """A page: the docstring of the module, whose indented equations Markdown shows as
    they are, and that of the constructor."""
    text = inspect.getdoc(inspect.getmodule(constructor))
    for heading in ("References:", "Departs from the paper:"):
        text = text.replace(f"\n{heading}", f"\n**{heading}**", 1)
    text = re.sub(r"(https?://[^\s,)`]*[^\s,)`.])", r"<\1>", text)
    call = RST.format("autofunction", f"algorithms.{name}")
    return f"# {name}\n\n{text}\n\n## Arguments\n\n{call}"


def _exports():
    """The page of `fa.__all__`."""
    page = "# Public names\n\n`import fedjax_adapt as fa` gives these.\n"
    for name in fa.__all__:
        thing = getattr(fa, name)
        if inspect.ismodule(thing):
            page += f"\n## {name}\n\n{inspect.getdoc(thing)}\n"
            continue
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        page += f"\n## {name}\n\n{RST.format(kind, name)}"
    return page


def _settings():
    """The page of a run's settings, a table for each heading of `--help`."""
    options, page, group = common_options(), "# Settings\n\nOf a run.\n", None
    for name, setting in sorted(settings().items(), key=lambda item: item[1].group):
        if setting.group != group:
            group = setting.group
            page += f"\n## {group.capitalize()}\n\n| name | default | what it is |\n"
            page += "|---|---|---|\n"
        said = setting.help.replace("|", r"\|")
        page += f"| `{name}` | `{options[name].default}` | {said} |\n"
    return page
