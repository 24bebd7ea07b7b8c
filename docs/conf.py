"""The documentation site: `sphinx-build -W docs docs/_build`, without network.

Notebooks are executed, which takes minutes, unless `-D notebooks=DIR` has them with their
results; with `-t quick` they are shown without any.

Pages of methods, exports, settings and notebooks are written into docs/generated from what
they describe at every build, and belong to no commit.
"""

import inspect
import re
import sys
from pathlib import Path

import fedjax_adapt as fa

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import pages  # noqa: E402

project = "fedjax_adapt"
release = fa.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.load_style",  # of the notebooks' thumbnails
]
html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["equations.css"]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # `pages` executes them, two at once
myst_heading_anchors = 3
default_role = "code"  # docstrings write `name` for code
autodoc_typehints = "none"  # they are in the signature already
napoleon_use_rtype = False
napoleon_attr_annotations = False


def _docstring(app, what, name, obj, options, lines):
    """Keeps a docstring as it is written: no emphasis, and indented equations as code."""
    text, before, code = [], "", False
    for line in lines:
        indented = line.startswith("    ")
        if line and not indented:
            code = False
        elif indented and text[-1] == "" and not before.startswith(" "):
            text, code = [*text, "::", ""], True
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        text.append(line if code else "".join(parts))
        before = line or before
    lines[:] = text


def _signature(app, what, name, obj, options, signature, returns):
    """Defaults that are functions, or hold some, are not what a reader looks for."""
    if signature and "<" in signature:
        shown = inspect.signature(obj)
        arguments = [
            argument.replace(default=..., annotation=argument.empty)
            if "<function" in repr(argument.default)
            else argument.replace(annotation=argument.empty)
            for argument in shown.parameters.values()
        ]
        shown = shown.replace(parameters=arguments, return_annotation=shown.empty)
        return str(shown).replace("Ellipsis", "..."), returns


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
    app.add_config_value("notebooks", str(HERE.parent / "notebooks"), "env", str)
    execute = not app.tags.has("quick")
    pages.write(HERE / "generated", Path(app.config.notebooks), execute)
    before_napoleon = 100
    app.connect("autodoc-process-docstring", _docstring, priority=before_napoleon)
    app.connect("autodoc-process-signature", _signature)
    app.connect("source-read", _links)
