"""``mainspring token``: makes the tokens that clients of a gateway with a token file need."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import MODELS

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        readable=False,
        help="The gateway's token file: append the lines to it; a new one has mode 0600.",
    ),
]
app = typer.Typer(help="Make tokens for clients.", no_args_is_help=True)
# Without a callback, typer would take the only verb for the whole application.
app.callback()(lambda: None)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Whose token it is, for messages and logs.")],
    models: Annotated[list[str] | None, MODELS] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second that it may send; any number if not given.")
    ] = None,
    burst: Annotated[
        int | None, typer.Option(help="Requests at once; those of one second if not given.", min=1)
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Let it add, load, unload and remove models.")
    ] = False,
    output: Output = None,
) -> None:
    """Make a token: print it, and the lines for the file that the gateway's token_file names.

    The file holds only the token's SHA-256. Append the lines to it; a running gateway reads it again.
    """
    import msgspec

    from mainspring.transport.tokens import Token, token_sha256

    secret = f"ms_{secrets.token_urlsafe(32)}"
    try:
        token = msgspec.convert(
            {
                "name": name,
                "sha256": token_sha256(secret),
                "models": models or ["*"],
                "rate": rate,
                "burst": burst,
                "admin": admin,
            },
            Token,
        )
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from None
    print("# For the client, as Client(token=...) or MAINSPRING_TOKEN; it is shown only now:")
    print(f"# {secret}")
    _give(entry(token), output)


def _give(lines: str, output: Path | None) -> None:
    if output is None:
        print(lines)
        return
    from mainspring.cli.launcher.run_dir import open_private

    with open(output, "a", opener=open_private) as file:
        file.write(f"{lines}\n")


def entry(token: object) -> str:
    """Return a token's lines of the file."""
    import json

    import msgspec

    fields = msgspec.to_builtins(token)
    # Strings, numbers, booleans and lists of strings are the same in TOML as in JSON.
    said = {key: value for key, value in fields.items() if value is not None and value is not False}
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
    return "\n".join(["[[token]]", *lines])
