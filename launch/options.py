"""Options that several verbs of the command line have."""

from __future__ import annotations

from typing import Annotated

import typer

Token = Annotated[
    str | None,
    typer.Option(
        help="The token that the gateway needs, if it does; better given in the environment, which other "
        "users don't see.",
        envvar="MAINSPRING_TOKEN",
        show_envvar=True,
    ),
]
