"""`fedjax-adapt contributions`."""

from pathlib import Path

from . import process


def contributions(arguments: list[str]) -> int:
    """`fedjax-adapt contributions`: ranks the clients of a run, and draws it."""
    with process.importing():
        process.prepare_jax()
        from rich.console import Console

        from ..experiment.reference import parse
        from ..report.clients import contributions_table, draw_contributions

        try:
            request = parse(arguments)
        except SystemExit:  # --help has been printed
            return 0
    columns, lines = {}, []
    if request.options:
        columns, lines = _references(request.folder, request.options)
    console = Console()
    console.print(contributions_table(request.folder, columns))
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    picture = draw_contributions(request.folder)
    console.print(f"picture  {picture}", highlight=False, soft_wrap=True)
    return 0


def _references(folder: str, options: dict) -> tuple[dict, list[str]]:
    """What `value_cohort` finds: columns of the table, and how it agrees with r_k."""
    from ..experiment.loaded import config_of
    from ..experiment.valuation import value_cohort
    from ..report.clients import agreement
    from ..report.clients import contributions as ranking

    means = {one.client: one.mean for one in ranking(folder)}  # or the run is refused
    devices = config_of(Path(folder), devices=options["devices"]).devices
    process.take_devices(devices)
    found = value_cohort(folder, **options)
    of_clients = lambda column: dict(
        zip(found.clients.tolist(), column.tolist(), strict=True)
    )
    values = of_clients(found.values)
    title = options["reference"].replace("_", " ")
    columns, lines = {title: values}, [f"{title}: of the cohort of round {found.round}"]
    if found.gsnr is not None:
        gsnr = of_clients(found.gsnr)
        columns = {f"r_k in {found.round}": gsnr} | columns
        lines.append(
            f"Spearman's rho with r_k of that round: {agreement(values, gsnr)}"
        )
    lines.append(f"Spearman's rho with the mean r_k: {agreement(values, means)}")
    return columns, lines
