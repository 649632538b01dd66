"""``mainspring keys``: certificates by which a cluster's processes know each other over TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import HOSTS

Folder = Annotated[
    Path,
    typer.Option(
        "--keys",
        readable=False,
        help="Folder of the authority and of what it issues: keep it on one host.",
    ),
]
DEFAULT_FOLDER = Path("keys")
app = typer.Typer(help="Make certificates for processes on several hosts.", no_args_is_help=True)


@app.command("init")
def init(
    cluster: Annotated[
        str, typer.Option(help="The cluster's name: processes of another one are refused.")
    ] = "mainspring",
    keys: Folder = DEFAULT_FOLDER,
) -> None:
    """Make a certificate authority for a cluster."""
    from mainspring.cli.authority import AUTHORITY, Authority

    Authority.create(keys, cluster)
    print(
        f"{keys / AUTHORITY} is the authority of the cluster {cluster}; who has its key can be anybody there"
    )


@app.command("issue")
def issue(
    role: Annotated[
        str,
        typer.Argument(help="controller, worker, gateway, repository, observer, operator or client."),
    ],
    name: Annotated[
        str, typer.Argument(help="The process's name, which no other may take; * for any of this role.")
    ],
    host: Annotated[list[str] | None, HOSTS] = None,
    days: Annotated[int, typer.Option(min=1, help="How long it is valid.")] = 365,
    keys: Folder = DEFAULT_FOLDER,
) -> None:
    """Make a certificate, in a folder to give the process as --keys; again to renew it.

    A running process reads the new one within a second.
    """
    from mainspring.cli.authority import Authority
    from mainspring.messages.choices import one_of
    from mainspring.messages.roles import Role

    known = [str(each) for each in Role]
    if role not in known:
        raise typer.BadParameter(f"there is no role {role!r}; it is one of {one_of(role, known)}")
    print(Authority(keys).issue(role, name, host or (), days))


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Whose certificates.")],
    keep_newest: Annotated[
        bool, typer.Option("--keep-newest", help="Keep the newest valid, for use after a renewal.")
    ] = False,
    keys: Folder = DEFAULT_FOLDER,
) -> None:
    """Revoke a process's certificates; running processes refuse them once they have the new crl.pem.

    It is written to the folders here; copy it to those on other hosts.
    """
    from mainspring.cli.authority import AUTHORITY, LIST, Authority

    for each in Authority(keys).revoke(name, keep_newest=keep_newest):
        print(f"revoked {each.named}, {each.serial:x}")
    print(f"copy {keys / AUTHORITY / LIST} to the processes' folders on other hosts")


@app.command("curve")
def curve(
    output: Annotated[Path, typer.Argument(help="File of the secret key.")],
    gateway: Annotated[
        Path | None,
        typer.Option(readable=False, help="File of the gateway's key, for a client of that gateway."),
    ] = None,
) -> None:
    """Make a key by which ZeroMQ's clients encrypt: write the secret one, print the public one.

    Without --gateway it is a gateway's, for [gateway] curve_key. With it, it is a client's, for
    Client(curve_key=FILE) or MAINSPRING_CURVE_KEY, and is added to those that the gateway knows.
    """
    import os

    import zmq

    from mainspring.messages.tables import ConfigError
    from mainspring.transport.curve import CLIENTS, list_client, read_gateway_key

    public, secret = zmq.curve_keypair()
    try:
        lines = [secret, *([] if gateway is None else [zmq.curve_public(read_gateway_key(gateway))])]
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        if gateway is None:
            Path(f"{output}{CLIENTS}").touch()
        else:
            list_client(gateway, public, output.name)
    except OSError as error:
        named = error.strerror or str(error)
        raise ConfigError(f"{output} can't be written: {named}" if error.filename else named) from None
    print(public.decode())


@app.command("list")
def show(keys: Folder = DEFAULT_FOLDER) -> None:
    """List what was issued, until when it is valid, and what is revoked."""
    from mainspring.cli.authority import Authority

    for each in Authority(keys).issued():
        state = "revoked" if each.revoked else f"until {each.expires:%Y-%m-%d}"
        print(f"{each.named}  {state}  {each.serial:x}")
