"""``mainspring tune``: has each step of a planned graph as many workers as its traffic takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import DEFAULT_GATEWAY, Controller, GatewayAddress, KeysFolder, Token


def tune(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Folder of a plan, such as out/plan; see docs/planning.md.")
    ],
    address: GatewayAddress = DEFAULT_GATEWAY,
    controller: Controller = None,
    keys: KeysFolder = None,
    token: Token = None,
) -> None:
    """Follow the arrivals of a planned graph, or model, and scale the workers of its steps, until Ctrl-C.

    Without news from the controller nothing changes, and what was asked for stays at the end.
    """
    from mainspring.cli.launcher.signals import stopping
    from mainspring.cli.places import find_for
    from mainspring.cli.tuning import Tuning, follow, read_plan
    from mainspring.client.client import Client
    from mainspring.console.live import LiveStream

    found = read_plan(plan)
    try:
        door = find_for(address, token, controller, keys)
        stream = LiveStream(door.address, "tune", keys=door.keys())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--controller") from None
    try:
        with Client(address, token=token) as client, stopping() as stop:
            follow(stream, Tuning(found, client, typer.echo), stop, typer.echo)
    finally:
        stream.close()
