"""``mainspring console``: the operator console, of a live cluster or of a recorded run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.configuration.single import ConfigFile, configured, keys_of, log_of, replaced, with_typed
from mainspring.cli.launcher.foreground import LogFormat, LogLevel, begin, ready
from mainspring.cli.options import (
    EVENT_LOG,
    HOSTS,
    LISTEN,
    Controller,
    Insecure,
    KeysFolder,
    tls_option,
    token_file_option,
)
from mainspring.client.address import ADDRESS_VARIABLE

Tls = Annotated[Path | None, tls_option("browsers", "an https:// address")]
TokenFile = Annotated[
    Path | None,
    token_file_option("with which operators may change what is served. Without one, nothing can be changed."),
]


def console(
    context: typer.Context,
    config: ConfigFile = None,
    address: Annotated[str, LISTEN] = "http://127.0.0.1:8003",
    controller: Controller = None,
    keys: KeysFolder = None,
    insecure: Insecure = False,
    log: Annotated[Path | None, EVENT_LOG] = None,
    tls: Tls = None,
    token_file: TokenFile = None,
    host: Annotated[list[str] | None, HOSTS] = None,
    log_level: LogLevel = "WARNING",
    log_format: LogFormat = "text",
) -> None:
    """Show a cluster's memory, schedule and requests in the browser until Ctrl-C or SIGTERM."""
    from mainspring.cli.exposure import check_exposed, of_console
    from mainspring.cli.places import CONTROLLER, find, gateway, place
    from mainspring.console.server import run

    whole = configured(config)
    controller = controller or whole.controller.address or None
    if controller is None and log is None and os.environ.get(ADDRESS_VARIABLE, "").strip():
        controller = place(CONTROLLER, gateway(), None) or None
    door = find(controller, keys_of(whole, keys, "console"))
    flags: dict[str, tuple[str, object]] = {
        "address": ("address", address),
        "host": ("hosts", tuple(host or ())),
        "tls": ("tls", str(tls)),
        "token_file": ("token_file", str(token_file)),
    }
    own = replaced(
        with_typed(context, whole.console, flags),
        controller_address=door.address,
        keys=door.folder,
        log_dir="" if log is None else str(log),
    )
    check_exposed([of_console(own)], insecure or whole.cluster.insecure)
    run(own, begin("console", *log_of(context, whole, log_level, log_format), whole.transport), ready)
