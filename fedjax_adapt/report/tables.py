"""Tables for the terminal, from run folders."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..experiment.store import read_run

if TYPE_CHECKING:
    from rich.table import Table


def summary_table(folder: str | Path) -> "Table":
    """The result of a finished run, and on what it was measured.

    Raises:
      ValueError: the folder holds no run, or one that is not finished.
    """
    from rich.table import Table

    record = read_run(folder)
    summary = record.summary
    if summary is None:
        raise ValueError(f"{folder} holds a run that is not finished; resume it first.")
    data, hardware = summary["data"], summary["hardware"]
    on_cpu = hardware["platform"] == "cpu"
    device = hardware["cpu"] if on_cpu else hardware["device"]
    percent = lambda share: f"{100 * share:.2f} %"
    table = Table(
        title=f"{record.config['algorithm']} on {data['name']}",
        show_header=False,
        title_style="bold",
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    rows = {
        "test accuracy": f"[bold]{percent(summary['accuracy'])}[/bold] after "
        f"{summary['rounds']} rounds",
        f"last {summary['last_count']} evaluations": f"{percent(summary['last_mean'])} "
        f"± {percent(summary['last_std'])}",
        "best": f"{percent(summary['best_accuracy'])} in round {summary['best_round']}",
        "rounds to": _targets(summary["rounds_to"]),
        "test loss": f"{summary['loss']:.4f}",
        "clients": f"{data['clients']} with {data['smallest_client']} to "
        f"{data['largest_client']} of {data['train']} examples, "
        f"mean label entropy {data['label_entropy']:.2f} nats",
        "time": f"{summary['seconds']:.1f} s "
        f"({summary['rounds_per_second']:.3g} rounds/s), "
        f"and {summary['compile_seconds']:.1f} s to compile",
        "on": f"{device}, {hardware['cores']} cores, "
        f"jax {summary['versions']['jax']}, seed {summary['seeds']['seed']}",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _targets(rounds_to: dict[str, int | None]) -> str:
    reached = [
        f"{100 * float(target):g} %: {'not reached' if first is None else first}"
        for target, first in rounds_to.items()
    ]
    return ", ".join(reached) or "no targets"
