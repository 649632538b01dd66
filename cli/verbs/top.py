"""``mainspring top``: the console in a terminal, and one picture for scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

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
from mainspring.cli.spans import Log, RunNumber
from mainspring.messages.choices import one_of

if TYPE_CHECKING:
    from mainspring.console.terminal.running import Source
    from mainspring.console.terminal.screen import ViewName

VIEWS = ("cluster", "memory", "schedule", "models")
PATIENCE_S = 10.0
"""Longest wait for a controller before one picture."""
PATIENCE_LOG_S = 3_600.0
"""Longest time that reading a log may take."""


def top(
    context: typer.Context,
    address: GatewayAddress = DEFAULT_GATEWAY,
    controller: Controller = None,
    keys: KeysFolder = None,
    token: Token = None,
    log: Log = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Of a log: seconds from its start (90, 1.5s), before its end (-30s), or local time. "
            "Default: its end."
        ),
    ] = None,
    run: RunNumber = None,
    view: Annotated[
        str | None, typer.Option(help=f"What to show first: {', '.join(VIEWS)}.", metavar="VIEW")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one snapshot and exit, as it does without a terminal.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot as JSON, of all views unless --view names one.")
    ] = False,
    watch: Annotated[
        str,
        LOOK,
    ] = "0s",
) -> None:
    """Show the cluster, workers' memory, schedules and models, refreshed twice a second."""
    if view is not None and view not in VIEWS:
        raise typer.BadParameter(
            f"there is no view {view!r}: choose of {one_of(view, VIEWS)}",
            param_hint="--view",
        )
    once = once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty())
    source = _source(context, address, controller, keys, token, log, at, run)
    shown = cast("ViewName | None", view)
    try:
        if once:
            _once(source, shown, watch, recorded=log is not None, as_json=as_json)
        else:
            _interactive(source, shown, recorded=log is not None)
    finally:
        source.close()


def _source(
    context: typer.Context,
    address: str,
    controller: str | None,
    keys: Path | None,
    token: str | None,
    log: Path | None,
    at: str | None,
    run: int | None,
) -> Source:
    from mainspring.cli.places import find_for
    from mainspring.cli.spans import chosen_instant
    from mainspring.console.terminal.running import LiveSource, RecordedSource

    if log is None:
        if at is not None or run is not None:
            raise typer.BadParameter("--at and --run choose a moment of a log: give --log DIR too")
        try:
            door = find_for(address, token, controller, keys)
            return LiveSource(door.address, keys=door.keys())
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--controller") from None
    refuse_with_log(context, "address", "controller")
    chosen, at_ns = chosen_instant(log, run, at)
    return RecordedSource(log, chosen.number, at_ns)


def _once(source: Source, shown: ViewName | None, watch: str, *, recorded: bool, as_json: bool) -> None:
    from rich.console import Console

    from mainspring.cli.launcher.signals import stopping
    from mainspring.console.terminal import running
    from mainspring.console.terminal.screen import Screen

    watch_s = duration_ns(watch, "--watch", least_ns=0) / 1e9
    with stopping() as stop:
        patience_s = PATIENCE_LOG_S if recorded else PATIENCE_S
        running.wait_for_picture(source, 0.0 if recorded else watch_s, patience_s, stop)
    if as_json:
        sys.stdout.buffer.write(running.as_json(source, shown) + b"\n")
    else:
        screen = Screen(shown or "cluster", recorded=recorded)
        running.print_once(source, screen, Console(markup=False, highlight=False))


def _interactive(source: Source, shown: ViewName | None, *, recorded: bool) -> None:
    from rich.console import Console

    from mainspring.cli.launcher.signals import stopping
    from mainspring.console.terminal.running import run_top
    from mainspring.console.terminal.screen import Screen

    console = Console(markup=False, highlight=False)
    with stopping() as stop:
        run_top(source, Screen(shown or "cluster", recorded=recorded), console, sys.stdin.fileno(), stop)
