"""Options that several verbs of the command line have."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_GATEWAY = "tcp://127.0.0.1:7400"
DEFAULT_CONTROLLER = "tcp://127.0.0.1:7401"
"""Where both listen unless they are told otherwise."""


def _given_or_known(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return the gateway's address: the one given, or else the one that the working folder names."""
    source = context.get_parameter_source(str(parameter.name))
    if source is not None and source.name == "DEFAULT":
        from mainspring.launch.places import gateway

        return gateway()
    return value


GatewayAddress = Annotated[
    str,
    typer.Option(
        help="The cluster: its gateway's address. By default that of ./mainspring.toml, if there is one.",
        envvar="MAINSPRING_ADDRESS",
        show_envvar=True,
        callback=_given_or_known,
    ),
]
Controller = Annotated[
    str | None, typer.Option(help="The controller's address, if the gateway can't be asked for it.")
]
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


def refuse_with_log(context: typer.Context, *names: str) -> None:
    """Raise BadParameter if an option about a live cluster was typed beside ``--log``."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name} is about a live cluster; leave it out, or leave --log out")
