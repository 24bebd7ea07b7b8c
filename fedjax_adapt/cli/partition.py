"""`fedjax-adapt partition`."""

from . import process
from .messages import note


def partition(arguments: list[str]) -> int:
    """`fedjax-adapt partition`: prints and draws who would hold what."""
    with process.importing():
        process.prepare_jax()
        from rich.console import Console

        from ..experiment.preview import parse, preview, title_of
        from ..report.clients import MOST_ROWS, clients_table, draw_partition

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
    note(request.note)
    skew = preview(request.config)
    console = Console()
    console.print(clients_table(skew))
    if len(skew.sizes) > MOST_ROWS:
        print(
            f"the first {MOST_ROWS} of {len(skew.sizes)} clients; the picture has all"
        )
    print(skew.summary())
    picture = draw_partition(skew, title_of(request.config), request.picture)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0
