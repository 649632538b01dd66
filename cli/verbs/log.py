"""``mainspring log``: what is in an event log, a part of it as a log of its own, and as Parquet tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import AsJson, print_json
from mainspring.cli.spans import From, Last, RunNumber, To

Log = Annotated[Path, typer.Argument(metavar="DIR", readable=False, help="Folder of an event log.")]
app = typer.Typer(no_args_is_help=True, help="Inspect event logs: stats, slice, parquet.")


@app.command("stats")
def stats(
    log: Log,
    from_: From = None,
    to: To = None,
    last: Last = None,
    run: RunNumber = None,
    models: Annotated[
        int, typer.Option(min=0, help="How many models to show, the one with the longest p99 first.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show a log's runs: length, requests, outcomes, latency (by model, too), actions, records by kind, size.

    With --from, --to or --last: the requests that arrived, and the actions that were sent, in that time.
    """
    from mainspring.cli.spans import chosen_run
    from mainspring.telemetry.log_stats import log_stats

    whole = from_ is None and to is None and last is None and run is None
    found = log_stats(log, None if whole else chosen_run(log, run, from_, to, last))
    if as_json:
        print_json(found)
        return
    from rich.console import Console

    from mainspring.cli.views.log_tables import print_stats

    print_stats(Console(markup=False, highlight=False), str(log), found, models)


@app.command("slice")
def slice_log(
    log: Log,
    output: Annotated[Path, typer.Argument(metavar="OUT", readable=False, help="New folder for the part.")],
    from_: From = None,
    to: To = None,
    last: Last = None,
    run: RunNumber = None,
    as_json: AsJson = False,
) -> None:
    """Write a part of a run as a log of its own, with the cluster as it was at the cut."""
    from mainspring.cli.spans import chosen_run
    from mainspring.cli.views.log_tables import size
    from mainspring.telemetry.slices import slice_run

    chosen, from_ns, to_ns = chosen_run(log, run, from_, to, last)
    found = slice_run(chosen, output, from_ns, to_ns)
    if as_json:
        print_json(found)
        return
    print(
        f"{output}: {found.records:,} records of {(found.to_ns - found.from_ns) / 1e9:,.3f} s, from "
        f"{chosen.wall(found.from_ns)}, and {found.picture:,} that rebuild what was before; "
        f"{size(found.size_bytes)}"
    )


@app.command("parquet")
def parquet(
    log: Log,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", readable=False, help="Folder for requests.parquet and actions.parquet."
        ),
    ],
    from_: From = None,
    to: To = None,
    last: Last = None,
    run: RunNumber = None,
    as_json: AsJson = False,
) -> None:
    """Convert a run, or a part of it, to Parquet: a table of its requests and one of its actions."""
    from mainspring.cli.spans import chosen_run
    from mainspring.cli.views.log_tables import size
    from mainspring.telemetry.parquet import to_parquet

    chosen, from_ns, to_ns = chosen_run(log, run, from_, to, last)
    found = to_parquet(chosen, output, from_ns, to_ns)
    if as_json:
        print_json(found)
        return
    print(
        f"{'  '.join(found.paths)}: {found.requests:,} requests, {found.actions:,} actions; "
        f"{size(found.size_bytes)}"
    )
