"""The documentation site: `sphinx-build -W docs docs/_build`, without network.

Pages of methods, exports, settings and notebooks are written into docs/generated from what
they describe at every build, and belong to no commit.
"""

import inspect
import re
import shutil
from pathlib import Path

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.experiment import store
from fedjax_adapt.experiment.schema import common_options, settings

HERE = Path(__file__).parent
GENERATED = HERE / "generated"

project = "fedjax_adapt"
release = fa.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "sphinx_book_theme"
html_title = "fedjax_adapt"
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # the tests execute notebooks
myst_heading_anchors = 3
default_role = "code"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # they are in the signature already
napoleon_use_rtype = False
napoleon_attr_annotations = False


def _method(name, constructor):
    """A page: the docstring of the module, whose indented equations Markdown shows as
    they are, and that of the constructor."""
    text = inspect.getdoc(inspect.getmodule(constructor))
    for heading in ("References:", "Departs from the paper:"):
        text = text.replace(f"\n{heading}", f"\n**{heading}**", 1)
    return (
        f"# {name}\n\n{text}\n\n## Arguments\n\n"
        f"```{{eval-rst}}\n.. autofunction:: fedjax_adapt.algorithms.{name}\n```\n"
    )


def _exports():
    """The page of `fa.__all__`."""
    lines = ["# Public names", "", "`import fedjax_adapt as fa` gives these.", ""]
    for name in fa.__all__:
        thing = getattr(fa, name)
        if inspect.ismodule(thing):
            lines += [f"## {name}", "", inspect.getdoc(thing), ""]
            continue
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        lines += [f"## {name}", "", "```{eval-rst}", f".. {kind}:: fedjax_adapt.{name}"]
        lines += ["```", ""]
    return "\n".join(lines)


def _settings():
    """The page of a run's settings, a table for each heading of `--help`."""
    options, groups = common_options(), {}
    for name, setting in settings().items():
        groups.setdefault(setting.group, []).append((name, setting.help))
    lines = ["# Settings", "", "Of a run, on the command line and in its file."]
    for group, rows in groups.items():
        lines += [
            "",
            f"## {group.capitalize()}",
            "",
            "| setting | default | what it is |",
        ]
        lines += ["|---|---|---|"]
        for name, said in rows:
            default = getattr(options.get(name), "default", "")
            lines.append(
                f"| `{name}` | `{default}` | {said.replace('|', chr(92) + '|')} |"
            )
    return "\n".join(lines)


def _docstring(app, what, name, obj, options, lines):
    """Keeps what looks like reStructuredText in a docstring as it is written."""
    for i, line in enumerate(lines):
        words = re.split(r"(`[^`]*`)", line)
        words[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", word) for word in words[::2]]
        lines[i] = "".join(words)


def _links(app, docname, source):
    """Files outside docs are downloads here, without headings; folders are text."""
    page = Path(app.env.doc2path(docname)).parent

    def link(found):
        words, path = found[1], (page / found[2]).resolve()
        if path.is_relative_to(HERE):
            return found[0]
        return words if path.is_dir() else f"[{words}](path:{found[2]})"

    pattern = r"(?<!!)\[([^]\[]*)\]\((\.\./[^)#]+)(?:#[^)]*)?\)"
    source[0] = re.sub(pattern, link, source[0])


def setup(app):
    """Writes the generated pages before Sphinx looks for pages."""
    shutil.rmtree(GENERATED, ignore_errors=True)
    (GENERATED / "notebooks").mkdir(parents=True)
    for notebook in (HERE.parent / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, GENERATED / "notebooks")
    (GENERATED / "methods").mkdir()
    for name, constructor in ALGORITHMS.items():
        (GENERATED / "methods" / f"{name}.md").write_text(_method(name, constructor))
    files = inspect.getdoc(store)
    (GENERATED / "files.md").write_text(f"# Files of a run\n\n{files}\n")
    (GENERATED / "names.md").write_text(_exports())
    (GENERATED / "settings.md").write_text(_settings())
    app.connect(
        "autodoc-process-docstring", _docstring, priority=100
    )  # before napoleon
    app.connect("source-read", _links)
