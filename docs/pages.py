"""The pages of the site that are made from docstrings, settings and notebooks."""

import csv
import html
import inspect
import re
import shutil
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import equations
import nbformat
from matplotlib.figure import Figure
from nbclient import NotebookClient

import fedjax_adapt as fa
from fedjax_adapt import experiment
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.experiment import store
from fedjax_adapt.experiment.schema import common_options, settings

RST = "```{{eval-rst}}\n.. {}:: fedjax_adapt.{}\n```\n"


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
COSTS = {
    "bytes_down": "the bytes to clients",
    "bytes_up": "the bytes from them",
    "local_steps": "the local steps",
}
# what the curve and the local steps do not show
NOTES = {
    "gift": "C fell until the last round, and so tau stayed what it was.",
    "ditto": "Each client also trains a model of its own, whose steps are not counted.",
    "fedper": "Tested is the server's model, whose head no client uses.",
    "fedrep": "Tested is the server's model, whose head no client uses.",
    "pfedme": "Tested is the server's model. Inner steps are not counted.",
}


AT_ONCE = 2  # notebooks, which compile much by one thread
LONGEST = 600  # seconds that a cell may take
GALLERY = """\
# Notebooks

They were executed when this site was built.

```{raw} html
<div class="sphx-glr-thumbnails">
%s
</div>
```
```{toctree}
:hidden:
:glob:
[0-9]*
```
"""
THUMBNAIL = """\
<div class="sphx-glr-thumbcontainer" tooltip="%s">
<img alt="" src="data:image/png;base64,%s">
<p><a class="reference internal" href="%s.html" aria-label="%s"></a></p>
<div class="sphx-glr-thumbnail-title">%s</div>
</div>"""


def write(folder: Path, notebooks: Path, execute: bool) -> None:
    """Writes all of them into a folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "methods").mkdir(parents=True)
    (folder / "notebooks").mkdir()
    sources = sorted(notebooks.glob("*.ipynb"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [*pool.map(_executed if execute else _read, sources)]
    thumbnails = []
    for source, notebook in zip(sources, made, strict=True):
        nbformat.write(notebook, folder / "notebooks" / source.name)
        thumbnails.append(_thumbnail(source.stem, notebook))
    page = GALLERY % "\n".join(thumbnails)
    (folder / "notebooks" / "index.md").write_text(page)
    for name, constructor in ALGORITHMS.items():
        page = _method(name, constructor) + _curve(name, folder / "methods")
        (folder / "methods" / f"{name}.md").write_text(page)
    files = f"# Files of a run\n\n{inspect.getdoc(store)}\n"
    (folder / "files.md").write_text(files)
    (folder / "names.md").write_text(_exports())
    (folder / "runs.md").write_text(_runs())
    (folder / "settings.md").write_text(_settings())


_read = partial(nbformat.read, as_version=nbformat.NO_CONVERT)


def _executed(path):
    """A notebook with its outputs, as it has them or by executing it."""
    notebook = _read(path)
    if any(cell.get("outputs") for cell in notebook.cells):
        return notebook
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=LONGEST, resources=where)
    client.execute(stderr=subprocess.DEVNULL)  # the kernel's own words, no cell's
    return notebook


def _thumbnail(name, notebook):
    """Its title, its second sentence and its last picture; none where it has not run."""
    first = notebook.cells[0].source
    title, _, text = first.partition("\n")
    about = " ".join(text.split()).partition(". ")[0]
    pictures = [
        output.data["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    title, about = (html.escape(said.strip("# .")) for said in (title, about))
    return THUMBNAIL % (about, "".join(pictures[-1:]).strip(), name, title, title)


def _method(name, constructor):
    """A page: the docstring of the module with its equations, and the constructor's."""
    text = inspect.getdoc(inspect.getmodule(constructor))
    for heading in ("References:", "Departs from the paper:"):
        text = text.replace(f"\n{heading}", f"\n**{heading}**", 1)
    text = re.sub(r"(https?://[^\s,)`;]*[^\s,)`;.])", r"<\1>", text)
    text, *rest = re.split(r"(?m)(?<=\n\n)((?:^    .*\n?)+)", text)
    text = equations.in_text(text)
    for block, after in zip(rest[::2], rest[1::2], strict=True):
        text += f"```{{raw}} html\n{equations.typeset(block)}\n```\n"
        text += equations.in_text(after)
    call = RST.format("autofunction", f"algorithms.{name}")
    return f"# {name}\n\n{text}\n\n## Arguments\n\n{call}"


def _curve(name, folder):
    """The end of a page: the curve beside FedAvg's, and what the method sends.

    "" for a method that methods.toml had not when the sweep was made.
    """
    origin, *lines = newest_curves().read_text().splitlines()
    rows = [*csv.DictReader(lines)]
    of = lambda method: [row for row in rows if row["algorithm"] == method]
    if not of(name):
        return ""
    column = lambda method, name: [float(row[name]) for row in of(method)]
    percent = lambda method, name: [100 * share for share in column(method, name)]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for method, color in {name: "C0", "fedavg": "0.4"}.items():
        rounds, mean = column(method, "round"), percent(method, "accuracy")
        around = zip(mean, percent(method, "deviation"), strict=True)
        low, high = zip(*[(m - s, m + s) for m, s in around], strict=True)
        axes.fill_between(rounds, low, high, color=color, alpha=0.2, lw=0)
        style = "--" if method == "fedavg" else "-"  # seen where both are the same
        axes.plot(rounds, mean, style, color=color, label=method)
    axes.set(xlabel="round", ylabel="test accuracy, %", ylim=(0, 100))
    axes.legend(loc="lower right")
    figure.savefig(folder / f"{name}.svg")
    last, base = of(name)[-1], of("fedavg")[-1]
    ends = lambda row: (
        f"{100 * float(row['accuracy']):.2f} ± {100 * float(row['deviation']):.2f} %"
    )
    said = f"After round {last['round']}: {ends(last)}"
    if name != "fedavg":
        share = {k: float(last[k]) / float(base[k]) for k in COSTS}
        costs = ", ".join(f"{share[k]:.2f} times {what}" for k, what in COSTS.items())
        said += f" (FedAvg: {ends(base)}). It took {costs} of FedAvg"
    if int(last["public_steps"]):
        said += f", and {last['public_steps']} steps on a public set"
    said += f". {NOTES[name]}" if name in NOTES else "."
    run = tomllib.loads((BENCHMARKS / "methods.toml").read_text())["run"]
    return (
        f"\n\n## On a small task\n\n![Test accuracy of {name} by round]({name}.svg)\n\n"
        f"The {run['dataset']} on {run['num_clients']} clients, "
        f"{run['participation']:.0%} of them in a round, lr {run['lr']}: mean ± deviation "
        f"of {last['n']} seeds. Nothing is tuned, so this shows how the method runs, not "
        f"how good it is. {said} Settings: [methods.toml]"
        f"(../../../benchmarks/methods.toml); {origin.removeprefix('# ')}.\n"
    )


def newest_curves():
    """The file of the newest sweep of methods.toml, by the date in its name."""
    return max((BENCHMARKS / "results").glob("methods-*.csv"))


def _exports():
    """The page of `fa.__all__`."""
    page = "# Public names\n\n`import fedjax_adapt as fa` gives these.\n"
    for name in fa.__all__:
        page += f"\n## {name}\n\n{_named(name, getattr(fa, name))}"
    return page


def _runs():
    """The page of what runs, sweeps and searches are made with in Python."""
    page = (
        "# Runs in Python\n\n`from fedjax_adapt.experiment import ...` gives these.\n"
    )
    for name, thing in vars(experiment).items():
        if not name.startswith("_") and not inspect.ismodule(thing):
            page += f"\n## {name}\n\n{_named(f'experiment.{name}', thing)}"
    return page


def _named(name, thing):
    """The docstring of a module, a class or a function, by its name in `fa`."""
    if inspect.ismodule(thing):
        return f"{inspect.getdoc(thing)}\n"
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    return RST.format(kind, name)


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
