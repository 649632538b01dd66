"""``mainspring explain``: what became of one request, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    WAIT,
    AsJson,
    GatewayAddress,
    KeysFolder,
    Token,
    duration_ns,
    print_json,
    typed,
)
from mainspring.cli.spans import Log, RunNumber

if TYPE_CHECKING:
    from mainspring.console.payloads import Story


def explain(
    context: typer.Context,
    request: Annotated[
        str,
        typer.Argument(
            help="The request's id, the beginning of one, or last-rejected, last-late, last-lost or last."
        ),
    ],
    address: GatewayAddress = DEFAULT_GATEWAY,
    console: Annotated[
        str | None,
        typer.Option(help="Ask this console. Default: the cluster's, which keeps the last minutes."),
    ] = None,
    controller: Annotated[
        str | None, typer.Option(help="Watch this controller instead, until the request comes or ends.")
    ] = None,
    keys: KeysFolder = None,
    wait: Annotated[str, WAIT] = "10s",
    log: Log = None,
    run: RunNumber = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Tell a request's story: what was planned, what happened, and what each worker could have done."""
    _check(context, log, run)
    story = _story(request, address, console, controller, keys, wait, log, run, token)
    if as_json:
        print_json(story)
        return
    from rich.console import Console

    from mainspring.cli.observing import tell

    tell(story, Console(markup=False, highlight=False))


def _check(context: typer.Context, log: Path | None, run: int | None) -> None:
    """Raise BadParameter for options that do not go together."""
    places = [f"--{name}" for name in ("address", "console", "controller", "log") if typed(context, name)]
    if len(places) > 1:
        raise typer.BadParameter(f"{' and '.join(places)} are two places to look in: give one of them")
    if run is not None and log is None:
        raise typer.BadParameter("--run chooses a run of a log: give --log DIR too", param_hint="--run")
    if typed(context, "wait") and log is not None:
        raise typer.BadParameter("--wait is about a live cluster; leave it out, or leave --log out")


def _story(
    request: str,
    address: str,
    console: str | None,
    controller: str | None,
    keys: Path | None,
    wait: str,
    log: Path | None,
    run: int | None,
    token: str | None,
) -> Story:
    """Search where it was asked to, or else with the console and, without one, with the controller."""
    from mainspring.cli.observing import NoConsole, from_console, from_log, live, refuse_unlike
    from mainspring.cli.places import CONSOLE, find_for, place
    from mainspring.telemetry.runs import choose_run

    refuse_unlike(request)
    if log is not None:
        return from_log(choose_run(log, run), request)
    wait_ns = duration_ns(wait, "--wait")
    if controller is None:
        asked = console or place(CONSOLE, address, token)
        try:
            return from_console(asked, request, token)
        except NoConsole:
            if console:
                raise
    return live(find_for(address, token, controller, keys), request, wait_ns)
