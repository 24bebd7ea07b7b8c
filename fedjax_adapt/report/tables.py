"""Tables of runs: for the terminal, and in forms that other programs read."""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..experiment.records import read_finished
from ..experiment.store import (
    TRAINED,
    VALIDATED,
    accuracy_in,
    figures_of,
    shown_accuracy,
    shown_loss,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table


MODELS = {
    "sel": "cohort mean",
    "all": "mean of all clients",
    "result": "least estimated loss",
}
CLIENTS = {  # the server's model on clients' own examples, and each client's own model
    "client_accuracy": "by client",
    "personal_accuracy": "by client, own models",
}
FEW = 4  # values that are all named below a table


def summary_table(folder: str | Path) -> "Table":
    """The result of a finished run, and on what it was measured.

    Raises:
      SettingError: the folder holds no run, or one that is not finished.
    """
    from rich.table import Table

    record, summary = read_finished(folder)
    table = Table(
        title=f"{record.config['algorithm']} on {summary['data']['name']}",
        show_header=False,
        title_style="bold",
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for i, (name, text) in enumerate(summary_rows(summary).items()):
        share, after, rounds = text.partition(" after ")
        table.add_row(name, text if i else f"[bold]{share}[/bold]{after}{rounds}")
    return table


def summary_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The rows of a `summary_table`, the accuracy after the last round first.

    What a run of an earlier version does not say has no row.
    """
    found, named = figures_of(summary), accuracy_in(summary)
    # before what is no test accuracy, in every row that shows one
    of = {TRAINED: "training accuracy", VALIDATED: "validation accuracy"}.get(named, "")
    row = lambda name: f"{of}, {name}" if of else name
    data, hardware = summary["data"], summary["hardware"]
    rounds = f"{summary['rounds']} round{'s' * (summary['rounds'] != 1)}"
    stopped = ", where a callback ended it" if summary.get("stopped_round") else ""
    rows: dict[str, str] = {}
    rows[shown_accuracy(named)] = (
        f"{percent(found['accuracy'])} after {rounds}{stopped}, on "
        f"{data['test']} examples"
    )
    rows[row(f"last {found['last_count']} evaluations")] = _last(found)
    best = f"{percent(found['best_accuracy'])} in round {found['best_round']}"
    rows[row("best")] = best
    rows[row("rounds to")] = _targets(found["rounds_to"])
    rows[shown_loss(named)] = f"{found['loss']:.4f}"
    for name, its in found.get("models", {}).items():
        rows[row(f"{name}: {MODELS[name]}")] = (
            f"{percent(its['accuracy'])}, last {its['last_count']}: {_last(its)}\n"
            f"rounds to {_targets(its['rounds_to'])}"
        )
    if "class_accuracy" in found:
        tested = [share for share in found["class_accuracy"] if share is not None]
        rows[row("by class")] = f"{percent(min(tested))} to {percent(max(tested))}"
    for name, what in CLIENTS.items():
        if its := summary.get(name):
            rows[what] = (
                f"{percent(its['mean'])} ± {percent(its['std'])} on its own "
                f"{client_examples_of(summary)}, "
                f"{percent(its['worst_tenth'])} for the worst tenth"
            )
    if given := summary.get("auxiliary"):
        rows["also given"] = ", ".join(given)
    rows["clients"] = (
        f"{data['clients']} with {data['smallest_client']} to {data['largest_client']} of "
        f"{data['train']} examples, mean label entropy {data['label_entropy']:.2f} nats"
    )
    gibibytes = lambda size: f"{size / 2**30:.2f} GiB"
    if state := summary.get("client_state_bytes", 0):
        small = state < 2**30 / 10
        shown = f"{state / 2**20:.2f} MiB" if small else gibibytes(state)
        rows["client state"] = f"{shown} of memory"
    held = summary.get("memory", {})
    if held.get("peak") is not None:
        expected = gibibytes(held["predicted_peak"])
        rows["memory"] = f"{gibibytes(held['peak'])} at most, {expected} were expected"
    if "bytes_up" in summary:
        rows |= _costs(summary, of)
    if reported := summary.get("reported"):  # the method's own figures
        number = lambda value: "-" if value is None else f"{value:.4g}"
        shown = [f"{name} {number(value)}" for name, value in reported.items()]
        rows["last round"] = ", ".join(shown)
    rows["time"] = (
        f"{summary['seconds']:.1f} s ({summary['rounds_per_second']:.3g} rounds/s), and "
        f"{summary['compile_seconds']:.1f} s to compile"
    )
    if (tried := summary.get("calibrate_seconds", 0.0)) >= 0.1:
        rows["time"] += f", {tried:.1f} s to try what is fastest"
    rows["on"] = (
        f"{hardware['cpu' if hardware['platform'] == 'cpu' else 'device']}, "
        f"{hardware['cores']} cores, jax {summary['versions']['jax']}, "
        f"seed {summary['seeds']['seed']}"
    )
    if hardware.get("keeps_memory"):
        rows["on"] += ", freed memory kept"
    if options := hardware.get("xla_options"):  # where not what XLA does by itself
        given = [f"{name}={value}" for name, value in options.items()]
        rows["on"] += f", XLA with {', '.join(given)}"
    return rows


def client_examples_of(summary: Mapping[str, Any]) -> str:
    """Which of the clients' own examples a run was tested on, in words."""
    tests = summary["data"].get("client_tests")  # a run of an earlier version has none
    return (
        "examples" if tests is None else f"{'test' if tests else 'training'} examples"
    )


def _last(figures: Mapping[str, Any]) -> str:
    return f"{percent(figures['last_mean'])} ± {percent(figures['last_std'])}"


def _costs(summary: dict[str, Any], of: str) -> dict[str, str]:
    """What clients did and moved."""
    down, up = (summary[f"bytes_{way}"] / 2**20 for way in ("down", "up"))
    rows = {"traffic": f"{down:,.4g} MiB to the clients, {up:,.4g} MiB from them"}
    found = figures_of(summary)
    per = {"kappa": "simulated second", "rho": "MiB of traffic"}
    known = [f"{found[k]:.4g} per {per[k]} ({k})" for k in per if found.get(k)]
    if known:
        rows[f"10,000 x {of or 'accuracy'}"] = ", ".join(known)
    rows["local steps"] = f"{summary['local_steps']:,} of all clients"
    if summary.get("public_steps"):
        rows["local steps"] += f", and {summary['public_steps']:,} on the public set"
    if summary.get("wasted_steps"):
        lost, moved = summary["wasted_steps"], summary["wasted_bytes"] / 2**20
        rows["not waited for"] = (
            f"{lost:,} more local steps and {moved:,.4g} MiB of clients that were too late"
        )
    if summary.get("left_out"):
        rows["left out"] = (
            f"{summary['left_out']:,} client updates that were not finite, the first in "
            f"round {summary['first_left_out_round']}"
        )
    if summary["simulated_seconds"]:
        rows["simulated time"] = f"{summary['simulated_seconds']:,.4g} s"
    return rows


class Name:
    """A method's name or a setting in a cell: its lines end where a word of it does.

    At a space, or else before an option or a value; rich would break there anywhere.
    """

    def __init__(self, text: str):
        """Takes what it says, which may have lines of its own."""
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def longest(self) -> int:
        """Characters of the longest word."""
        parts = (part for word in self.text.split() for part in _parts(word))
        return max(map(len, parts), default=0)

    def __rich_measure__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Measurement":
        from rich.measure import Measurement

        return Measurement(self.longest, max(map(len, self.text.split("\n"))))

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "RenderResult":
        from rich.text import Text

        width, lines = options.max_width, []
        for line in self.text.split("\n"):
            lines.append("")
            for word in re.findall(r"\S+\s*", line):
                whole = len(word.rstrip()) <= width
                for part in [word] if whole else _parts(word):
                    if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                        lines.append("")
                    lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines), overflow="fold")


def _parts(word: str) -> list[str]:
    """Where a word may be broken: `f(a_b=1)` as `f(`, `a_`, `b=` and `1)`."""
    return re.findall(r"[^(,=_/]*[(,=_/]+\s*|[^(,=_/]+", word)


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Names with at most four digits of each value; in full where two would be alike.

    A value that would become a whole number, or no shorter, is in full, too. So is a number
    that is a part of a word, as in the path of a file.
    """
    value = r"(?<![^\s=,(\[])-?\d+\.\d+(?:e[+-]?\d+)?(?![^\s,)\]])"
    short = {name: re.sub(value, _four_digits, name) for name in names}
    alike = Counter(short.values())
    return {name: of if alike[of] == 1 else name for name, of in short.items()}


def _four_digits(found: re.Match[str]) -> str:
    full, short = found[0], f"{float(found[0]):.4g}"
    is_better = len(short) < len(full) and not float(short).is_integer()
    return short if is_better else full


def some_of(values: Iterable[Any], between: str = ", ") -> str:
    """All of a few values, else the first two and the last."""
    shown = list(map(str, values))
    return between.join(shown if len(shown) <= FEW else [*shown[:2], "...", shown[-1]])


def together(folders: Sequence[str]) -> str:
    """Folders with what their paths share said once, as in runs/{a,b}."""
    if len(folders) == 1:
        return folders[0]
    alike = len({os.path.isabs(folder) for folder in folders}) == 1
    shared = os.path.commonpath(folders) if alike else ""
    names = [os.path.relpath(x, shared) if shared else x for x in folders]
    return os.path.join(shared, f"{{{some_of(names, ',')}}}")


def shown_setting(value: Any) -> str:
    """The value of a setting as flags and files have it."""
    return "none" if value is None else str(value)


def percent(share: float) -> str:
    """A share of 1, in per cent."""
    return f"{100 * share:.2f} %"


def _targets(rounds_to: dict[str, int | None]) -> str:
    reached = [
        f"{100 * float(target):g} %: {'not reached' if first is None else first}"
        for target, first in rounds_to.items()
    ]
    return ", ".join(reached) or "no targets"


Format = Literal["table", "md", "latex", "csv", "json"]


class Sheet(NamedTuple):
    """A table of lines: as it is shown, and its numbers."""

    title: str
    ranked: bool
    head: list[str]
    cells: list[list[str]]  # of each line
    numbers: list[dict[str, Any]]  # of each line, by name
    notes: list[str]  # below the table


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
