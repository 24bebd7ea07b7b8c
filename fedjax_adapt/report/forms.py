"""A comparison of runs for a terminal, and in forms that other programs read."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .compare import Sheet
from .tables import Name

if TYPE_CHECKING:
    from rich.table import Table

Format = Literal["table", "md", "latex", "csv", "json"]


def comparison_tables(found: Sequence[Sheet]) -> "list[Table]":
    """The `sheets` for a terminal."""
    from rich.table import Table

    tables = []
    for sheet in found:
        style = "bold" if sheet.ranked else "red"
        table = Table(title=sheet.title, title_style=style, caption_justify="left")
        names = [Name(cells[1]) for cells in sheet.cells]
        for column in sheet.head:
            if column == "method":
                table.add_column(column, min_width=max(x.longest for x in names))
                continue
            at = sheet.head.index(column)
            words = " ".join([column, *(cells[at] for cells in sheet.cells)]).split()
            # however narrow the table, no digit is left out
            width = max(map(len, words), default=0)
            table.add_column(column, justify="right", min_width=width, overflow="fold")
        for name, (place, _, *cells) in zip(names, sheet.cells, strict=True):
            table.add_row(place, name, *cells)
        table.caption = "\n".join(sheet.notes)
        tables.append(table)
    return tables


def as_text(found: Sequence[Sheet], form: Format) -> str:
    """The `sheets` in a form that other programs read.

    "md" and "latex" have the cells of the table, "csv" and "json" all numbers in full:
    accuracies as shares of 1, differences in points. What is no test accuracy has its own
    name there, as in "validation_accuracy" and "best_validation_accuracy". `settings` are
    those in which runs of a table differ, in "csv" each in a column as "settings.lr".
    """
    if form == "json":
        kept = ("title", "ranked", "numbers", "notes")
        sheets = [{k: getattr(sheet, k) for k in kept} for sheet in found]
        return json.dumps(sheets, indent=2) + "\n"
    if form == "csv":
        rows = [{"table": x.title, **_flat(line)} for x in found for line in x.numbers]
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        listed = lambda v: " ".join(map(str, v)) if isinstance(v, list) else v
        writer.writerows({k: listed(v) for k, v in row.items()} for row in rows)
        return text.getvalue()
    return "\n".join(map(_latex if form == "latex" else _markdown, found))


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a line, with a column for each of its settings."""
    settings = {f"settings.{name}": value for name, value in line["settings"].items()}
    return {k: v for k, v in line.items() if k != "settings"} | settings


def _markdown(sheet: Sheet) -> str:
    escaped = lambda cells: [cell.replace("|", r"\|") for cell in cells]
    lines = [sheet.head, ["---"] * len(sheet.head), *map(escaped, sheet.cells)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {note}" for note in sheet.notes)
    return f"### {' '.join(sheet.title.split())}\n\n{table}\n\n{notes}\n"


def _latex(sheet: Sheet) -> str:
    signs = {c: rf"\{c}" for c in "%&#_{}$"} | {
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
    }
    escape = str.maketrans(signs | {"^": r"\^{}", "~": r"\~{}"})
    rows = [
        [cell.translate(escape) for cell in row] for row in [sheet.head, *sheet.cells]
    ]
    lines = [" & ".join(row) + r" \\" for row in rows]
    columns = "rl" + "r" * (len(sheet.head) - 2)
    notes = [f"% {note}" for note in [*sheet.title.splitlines(), *sheet.notes]]
    begin = rf"\begin{{tabular}}{{{columns}}}"
    body = [begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"]
    return "\n".join([*notes, *body, r"\end{tabular}"]) + "\n"
