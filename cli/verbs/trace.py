"""``mainspring trace``: what the executors did, as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    LOOK,
    Controller,
    GatewayAddress,
    KeysFolder,
    Token,
    duration_ns,
    refuse_with_log,
)
from mainspring.cli.spans import From, Last, Log, RunNumber, To

if TYPE_CHECKING:
    from mainspring.console.perfetto import TraceFile

_OF_LOGS = {"from_": "--from", "to": "--to", "last": "--last", "run": "--run"}


def trace(
    context: typer.Context,
    perfetto: Annotated[
        Path,
        typer.Option(
            metavar="OUT",
            dir_okay=False,
            help="File to write, such as run.json or run.json.gz (compressed).",
        ),
    ] = Path("trace.json.gz"),
    log: Log = None,
    address: GatewayAddress = DEFAULT_GATEWAY,
    controller: Controller = None,
    keys: KeysFolder = None,
    token: Token = None,
    duration: Annotated[str, LOOK] = "10s",
    from_: From = None,
    to: To = None,
    last: Last = None,
    run: RunNumber = None,
) -> None:
    """Write a trace: executors as tracks, windows, and arrows from requests to actions."""
    from mainspring.cli.observing import trace_live, trace_log
    from mainspring.cli.places import find_for
    from mainspring.cli.spans import chosen_run

    if not perfetto.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {perfetto.parent}; make it first")
    if log is None:
        idle = [option for name, option in _OF_LOGS.items() if context.params[name] is not None]
        if idle:
            raise typer.BadParameter(
                f"{', '.join(idle)} choose a part of a log: give --log DIR too, or --duration for how long "
                "to watch a live cluster, of which the past can't be asked for"
            )
        length_ns = duration_ns(duration, "--duration")
        file = trace_live(find_for(address, token, controller, keys), perfetto, length_ns)
    else:
        refuse_with_log(context, "address", "controller", "duration")
        file = trace_log(*chosen_run(log, run, from_, to, last), perfetto)
    _report(file)


def _report(file: TraceFile) -> None:
    from mainspring.cli.views.log_tables import size

    print(
        f"{file.path}: {file.events:,} events, {size(file.size_bytes)}; open it at https://ui.perfetto.dev "
        "or in chrome://tracing"
    )
