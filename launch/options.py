"""Options that several verbs of the command line have."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_GATEWAY = "tcp://127.0.0.1:7400"
DEFAULT_CONTROLLER = "tcp://127.0.0.1:7401"
"""Where both listen unless they are told otherwise."""
GatewayAddress = Annotated[str, typer.Option(help="The gateway's address.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Token = Annotated[
    str | None,
    typer.Option(
        help="The token that the gateway needs, if it does; better given in the environment, which other "
        "users don't see.",
        envvar="MAINSPRING_TOKEN",
        show_envvar=True,
    ),
]
