"""`fedjax-adapt reproduce`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from rich.console import Console
from rich.table import Column, Table

from .. import __version__, check
from ..errors import SettingError
from ..experiment.build import load_source, seen_by_clients
from ..experiment.config import common_options, identity, partition_seed
from ..experiment.files import write_text
from ..experiment.items import Item, Scale, names, read_item
from ..experiment.options import Option
from ..experiment.preview import cost
from ..experiment.reproduce import (
    Cell,
    Made,
    cells_of,
    configs_of,
    made_below,
    make_runs,
    runs_of,
)
from ..experiment.store import read_summary
from ..experiment.summary import commit, evidence
from ..report.panels import picture
from ..report.reproduce import (
    HEAD,
    Runs,
    as_csv,
    in_words,
    markdown,
    measured,
    tables,
)
from . import process
from .flags import OUTPUT, optional, read_command, switch
from .partition import preview

RANKED: tuple[Scale, ...] = ("full", "cpu")  # what list shows, the first that has runs
RECORD, PICTURE = "record.json", "picture.png"
INSTALLED = f"installed, fedjax-adapt {__version__}"  # in place of a commit
DESCRIPTION = """\
fedjax-adapt reproduce ITEM [OPTIONS] makes the runs of a published table or figure, and
puts the paper's figures next to what came out; `fedjax-adapt reproduce list` shows items.

A run that is there is not made again, and one that was interrupted goes on. The files
table.md and table.csv, the picture and a record of commit and machine go to
FOLDER/ITEM/SCALE."""
FLAGS = {
    "rows": Option(
        tuple[str, ...], (), "rows of the item; none given: those of the scale"
    ),
    "methods": Option(
        tuple[str, ...], (), "methods of the item; none given: those of the scale"
    ),
    "seeds": optional(
        int,
        "seeds 0, 1, ... of each row and method; none: as many as the scale has, or 1",
    ),
    "scale": Option(
        Scale,
        "full",
        "full is the paper's protocol; cpu what two cores can do in hours; smoke two "
        "rounds of some methods of the first row on the digits, to try it out",
    ),
    "folder": Option(str, "runs/reproduce", "where all reproductions go"),
    "data_dir": common_options()["data_dir"],
    "devices": Option(int | Literal["auto"], "auto", "how many devices share the work"),
    "dry_run": switch("say what would be run, but train and write nothing"),
    "quiet": OUTPUT["quiet"],
}


def reproduce(arguments: Sequence[str]) -> int:
    """`fedjax-adapt reproduce ITEM`: makes its runs, prints published and measured."""
    with process.importing():
        found, given = read_command(
            arguments, "reproduce", {"reproduce": FLAGS}, DESCRIPTION, "item"
        )
        folder = check.expanded("--folder ", given["folder"])
        if found[0] == "list":
            others = [name for name in FLAGS if name != "folder"]
            _check_left_out(others, given, "reproduce list takes --folder alone")
            return list_items(folder)
        item = read_item(found[0])
        if not item.methods:
            why = f"{item.name} draws data and trains nothing"
            _check_left_out(("rows", "methods", "seeds", "devices"), given, why)
        names = ("scale", "rows", "methods", "seeds", "data_dir")
        cells = cells_of(item, folder, **{name: given[name] for name in names})
        process.take_devices(given["devices"])
        process.import_rest()
    try:
        if not item.methods:
            return _draw(item, folder, given)
        return _reproduce(item, cells, folder, given)
    except KeyboardInterrupt:
        return process.stopped("interrupted; write the same command again to go on.")


def list_items(folder: Path) -> int:
    """`fedjax-adapt reproduce list`: every item, and what of it has been run here."""
    console = Console()
    table = Table(title=f"tables and figures; runs in {folder}")
    made: dict[Scale, Made] = {scale: made_below(folder, scale) for scale in RANKED}
    lines = []
    for name in names():
        item = read_item(name)
        cells = cells_of(item, folder, seeds=1)
        about = cost(cells) if cells else None
        costs = ["", ""] if about is None else [*map(_number, about)]
        shown = [item.name, str(len(cells)), _state(item, folder, made), *costs]
        lines.append([*shown, f"{item.place}: {item.title}"])
    heads = ("item", "runs", "here", "core-h", "GPU-min", "in the paper")
    taken = 3 * len(heads) + 1  # borders
    for number, head in enumerate(heads):
        right = head in ("runs", "core-h", "GPU-min")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
        if head != heads[-1]:
            taken += max(len(line[number]) for line in (heads, *lines))
    for *line, title in lines:
        table.add_row(
            *line, shorten(title, max(console.width - taken, 12), placeholder="…")
        )
    console.print(table)
    console.print(
        "Runs and costs are of one seed at full scale; runs of scale smoke do not count. "
        "Costs are rough estimates; those of a GPU are of an H100, and follow from rounds "
        "of two models.",
        highlight=False,
    )
    return 0


def _number(value: float) -> str:
    """A rough figure in few digits."""
    if value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _state(item: Item, folder: Path, made: Mapping[Scale, Made]) -> str:
    """What of an item has been run: at full scale, else on a CPU."""
    for scale in RANKED:
        kind = "" if scale == "full" else f" ({scale})"
        if not item.methods and (folder / item.name / scale / RECORD).exists():
            return f"drawn{kind}"
        if not made[scale]:
            continue
        try:
            cells = cells_of(item, folder, scale)
        except SettingError:  # the scale has none of its rows
            continue
        count = sum(len(cell.configs) for cell in cells)
        paths = [x for cell in cells for x in runs_of(cell, made[scale]).values()]
        ended = sum(path is not None for path in paths)
        if ended:
            return ("done" if ended == count else f"{ended} of {count}") + kind
    return "never run"


def _check_left_out(names: Iterable[str], given: Mapping[str, Any], why: str) -> None:
    """Raises SettingError where one of these flags is given, which `why` excludes."""
    for name in names:
        if given[name] != FLAGS[name].default:
            raise SettingError(f"{why}; leave --{name.replace('_', '-')} out.")


def _draw(item: Item, folder: Path, given: dict[str, Any]) -> int:
    """Draws data, of an item that has no runs."""
    console, scale = Console(quiet=given["quiet"]), given["scale"]
    place = folder / item.name / scale
    configs = configs_of(item, scale, given["data_dir"])
    if given["dry_run"]:
        for row, config in configs.items():
            load_source(config)  # or it is said what is wrong with it
            process.say(console, f"{row}: a picture, no run")
        return 0
    if (place / PICTURE).exists() and not (place / RECORD).exists():
        raise SettingError(
            f"{place / PICTURE} is there, which {item.name} has not drawn; give another "
            "--folder.",
            setting="folder",
        )
    made = {"inputs": seen_by_clients, "partition": lambda c: preview(c).label_counts}
    data = {
        kind: {row: made[kind](config) for row, config in configs.items()}
        for kind in item.draw
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"folder={folder} cannot be written ({error.strerror}); give another "
            "--folder.",
            setting="folder",
        ) from None
    drawn = picture(place / PICTURE, _title(item, scale), {}, [], data=data)
    notes = [*_about_scale(scale), *(f"Chosen here: {said}" for said in item.chosen)]
    record = _record(item, scale, {}, [evidence(commit())]) | {
        "rows": list(configs),
        "datasets": [config.dataset for config in configs.values()],
        "partition_seeds": [partition_seed(config) for config in configs.values()],
        "notes": notes,
    }
    write_text(place / RECORD, json.dumps(record, indent=2) + "\n")
    for note in notes:
        process.say(console, f"- {note}")
    for path in (place / RECORD, drawn):
        process.say(console, f"written  {path}")
    return 0


def _title(item: Item, scale: Scale, seeds: str | None = None) -> str:
    """What stands above a picture; `seeds` is their number, None: it has no runs."""
    about = "smoke, of the digits" if scale == "smoke" else scale
    about += "" if seeds is None else f", n = {seeds}"
    return f"{item.place}: {item.title} (scale {about})"


def _about_scale(scale: Scale) -> list[str]:
    """What is to be said of the figures and pictures of scale smoke."""
    if scale != "smoke":
        return []
    return [
        "Scale smoke is two rounds of some methods of the first row on scikit-learn's "
        "digits, whatever titles say: its figures compare with nothing."
    ]


def _reproduce(
    item: Item, cells: Sequence[Cell], folder: Path, given: dict[str, Any]
) -> int:
    console, place = Console(quiet=given["quiet"]), folder / item.name / given["scale"]
    published = {} if given["scale"] == "smoke" else item.published
    figures = lambda runs: measured(item.figures, published, runs, item.base_of)
    made = made_below(folder, given["scale"])
    found_of = partial(runs_of, made=made)
    process.say(console, _plan(cells, found_of))
    if given["dry_run"]:
        lacking = (c for c in cells if len(found_of(c)) < len(c.configs))
        of_data = lambda c: (c.dataset, *sorted(c.dataset_options.items()))
        for config in {of_data(c.config): c.config for c in lacking}.values():
            load_source(config)  # or it is said what is wrong with it
        for cell in cells:
            runs, there = len(cell.configs), len(found_of(cell))
            said = f"{runs} run{'s' * (runs > 1)}, of which {there} there"
            process.say(console, f"{cell.row}, {cell.method}: {said}; {cell.folder}")
        return 0

    def done(cell: Cell) -> None:
        found = figures({(cell.row, cell.method): found_of(cell)})
        shown = [f"{x.figure} {in_words(x)}" for x in found]
        said = f"{cell.row}, {cell.method}: {'; '.join(shown) or 'done'}"
        process.say(console, said)

    with process.reporting(console) as report:
        make_runs(cells, given["devices"], report, done, made)
    asked = {(cell.row, cell.method): found_of(cell) for cell in cells}
    for row, lines in tables(figures(asked)).items():
        heads = (Column(name, no_wrap=name == "method") for name in HEAD)
        table = Table(*heads, title=f"{item.place}, {row}")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    # the files have what earlier calls made, too
    wanted = {name: list(getattr(item, name)) for name in ("rows", "methods")}
    whole = cells_of(item, folder, given["scale"], **wanted)
    runs = {(cell.row, cell.method): found_of(cell, any_seed=True) for cell in whole}
    runs = {at: of for at, of in runs.items() if of}
    paths = [path for of in runs.values() for path in of.values() if path is not None]
    summaries = [said for path in paths if (said := read_summary(path)) is not None]
    if others := sum(map(len, runs.values())) - sum(map(len, asked.values())):
        what = "1 more run" if others == 1 else f"{others} more runs"
        process.say(console, f"the files below have {what}, of earlier calls")
    record, found = _record(item, given["scale"], runs, summaries), figures(runs)
    notes = _notes(item, whole, record)
    for note in notes:
        process.say(console, f"- {note}")
    place.mkdir(parents=True, exist_ok=True)
    # of seeds, which not all methods have
    counts = {len(of) for of in runs.values()} or {0}
    n = " to ".join(map(str, sorted({min(counts), max(counts)})))
    title = _title(item, given["scale"], n)
    drawn = picture(
        place / PICTURE,
        title,
        runs,
        found,
        draw=item.draw,
        against=item.against,
        base_of=item.base_of,
    )
    write_text(place / "table.md", markdown(title, found, notes))
    write_text(place / "table.csv", as_csv(found))
    write_text(place / RECORD, json.dumps(record, indent=2) + "\n")
    process.say(console, f"runs     {cells[0].folder.parents[1]}/ROW/METHOD")
    for other in _others(cells, asked):
        process.say(console, f"         and of {other}, which has the same runs")
    files = [place / name for name in ("table.md", "table.csv", RECORD)]
    for path in files if drawn is None else [*files, drawn]:
        process.say(console, f"written  {path}")
    return _report_diverged(cells, asked)


def _others(cells: Sequence[Cell], runs: Runs) -> list[str]:
    """The items whose runs are among those of these cells."""
    place = cells[0].folder.parents[1]
    paths = [path for of in runs.values() for path in of.values() if path is not None]
    away = [path for path in paths if place not in path.parents]
    return sorted({path.relative_to(place.parents[1]).parts[0] for path in away})


def _plan(cells: Sequence[Cell], runs_of: Callable[[Cell], Mapping[int, Any]]) -> str:
    """How many runs there are to be, how many are there, and what the others cost."""
    count = sum(len(cell.configs) for cell in cells)
    lack = {c.folder: len(c.configs) - len(runs_of(c)) for c in cells}
    about = cost(cells, lambda cell: lack[cell.folder])
    there = count - sum(lack.values())
    runs, verb = "run" if count == 1 else "runs", "is" if there == 1 else "are"
    text = f"{count} {runs}, of which {there} {verb} there"
    if any(lack.values()) and about is not None:
        hours = about.core_hours
        rough = "less than 0.01" if hours < 0.01 else f"about {_number(hours)}"
        text += f"; {rough} core-hours for the others"
    return text + "."


def _report_diverged(cells: Sequence[Cell], runs: Runs) -> int:
    """Says which runs have no figures; returns the exit code."""
    over = [", ".join(at) for at, of in runs.items() if None in of.values()]
    if not over:
        return 0
    text = f"runs of {'; '.join(over)} diverged, and have no figures"
    less = [c for c in cells if len(runs[c.row, c.method]) < len(c.configs)]
    if less:
        lost = "; ".join(f"{cell.row}, {cell.method}" for cell in less)
        text += f"; those of {lost} had no run to take settings from"
    return process.fail(f"{text}.", 1)


def _notes(item: Item, cells: Sequence[Cell], record: dict[str, Any]) -> list[str]:
    """What stands below the tables: scale, seeds, what was chosen, and the evidence."""
    scale = record["scale"]
    notes = [
        f"Scale {scale}; n is the number of seeds. Deviations are of the seeds. A "
        "difference has its 95 % interval by Student's t and is none inside it; that of "
        "one seed has no interval, so it may be chance."
    ]
    every = lambda of: list(dict.fromkeys(map(of, cells)))
    rows, methods = every(lambda cell: cell.row), every(lambda cell: cell.method)
    full = cells_of(item, cells[0].folder, "full", rows, methods, 1)
    whole = {(cell.row, cell.method): identity(cell.config) for cell in full}
    notes += _about_scale(scale)
    if scale != "smoke" and any(
        identity(cell.config) != whole[cell.row, cell.method] for cell in cells
    ):
        notes.append(
            f"The settings of scale {scale} are not all the paper's, so its figures need "
            "not agree with the published ones."
        )
    if not item.published:
        notes.append("The paper has no numbers of it but its picture.")
    if item.draw and len(record["seeds"]) > 1:
        notes.append("Bands in the picture reach from the least seed to the most.")
    for row in dict.fromkeys(c.row for c in cells if c.config.public == "published"):
        notes.append(
            f"{row}: the public set is the test set, so methods that train on it have "
            "training accuracy there, which is no test accuracy."
        )
    evidence = [f"{key}: {', '.join(record[key])}" for key in ("commits", "hardware")]
    return [*notes, *(f"Chosen here: {said}" for said in item.chosen), *evidence]


def _record(
    item: Item, scale: Scale, runs: Runs, summaries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The evidence of an item's runs; `summaries` say on what they were made."""
    every = lambda values: sorted({str(value) for value in values})
    machine = lambda said: f"{said['hardware']['cpu']}, {said['hardware']['device']}"
    return {
        "item": item.name,
        "place": item.place,
        "scale": scale,
        "rows": list(dict.fromkeys(row for row, _ in runs)),
        "methods": list(dict.fromkeys(method for _, method in runs)),
        "seeds": sorted({seed for of in runs.values() for seed in of}),
        "commits": every(said["commit"] or INSTALLED for said in summaries),
        "hardware": every(machine(said) for said in summaries),
        "versions": [
            json.loads(text)
            for text in every(json.dumps(said["versions"]) for said in summaries)
        ],
    }
