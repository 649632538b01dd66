"""``mainspring applications``: what is learnt of which members, feedback, and changes, live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.options import DEFAULT_GATEWAY, AsJson, GatewayAddress, Token

Files = Annotated[list[Path], typer.Argument(help="Files NAME.toml, an application each.")]
Name = Annotated[str, typer.Argument(help="An application that is served.")]
app = typer.Typer(help="Applications: which members they trust, feedback, and changes.", no_args_is_help=True)


@app.command("list")
def list_applications(
    address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None, as_json: AsJson = False
) -> None:
    """Show the applications: what they answered, and how right they were."""
    import msgspec

    from mainspring.cli.views.applications_view import overview
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        found = client.applications()
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        overview(found)


@app.command("show")
def show(
    name: Name, address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None, as_json: AsJson = False
) -> None:
    """Show an application's members: weights, losses, how often they are asked and missing."""
    import msgspec

    from mainspring.cli.views.applications_view import detail
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        found = {each.spec.name: each for each in client.applications()}
    if name not in found:
        raise typer.BadParameter(f"there is no application {name!r}; there are: {', '.join(found) or 'none'}")
    if as_json:
        print(json.dumps(msgspec.to_builtins(found[name]), indent=2))
    else:
        detail(found[name])


@app.command("check")
def check(files: Files, address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None) -> None:
    """Check applications against the models that are served, without adding them."""
    _each(files, address, token, check=True)


@app.command("add")
def add(files: Files, address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None) -> None:
    """Serve applications; one that is served is changed, and members that stay keep what was learnt."""
    _each(files, address, token, check=False)


@app.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Applications that are served.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Serve applications no more, and forget what was learnt."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        known = [each.spec.name for each in client.applications()]
        for name in names:
            if name not in known:
                raise typer.BadParameter(
                    f"there is no application {name!r}; there are: {', '.join(known) or 'none'}"
                )
        for name in names:
            client.remove_graph(name)
            print(f"removed {name}")


@app.command("observe")
def observe(
    name: Name,
    query_id: Annotated[int, typer.Argument(help="The answer's query_id.")],
    truth: Annotated[list[str], typer.Argument(help="Class, label or value of each row.")],
    reward: Annotated[
        bool, typer.Option("--reward", help="They are rewards, from 0 to 1: how good the answer was.")
    ] = False,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Tell an application what came true of an answer; print what became of the rows."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        if reward:
            told = client.observe(name, query_id, rewards=[_reward(each) for each in truth])
        else:
            told = client.observe(name, query_id, [_value(each) for each in truth])
    print(f"joined {told.joined}, late {told.late}, duplicate {told.duplicate}, unknown {told.unknown}")


@app.command("forget")
def forget(
    name: Name,
    context: Annotated[str, typer.Argument(help="The user's or session's name.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Erase what an application has learnt of a context."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        client.forget(name, context)
    print(f"forgot {context}")


def _each(files: list[Path], address: str, token: str | None, *, check: bool) -> None:
    """Have the gateway check or add the application of each file; read all files before the first."""
    from mainspring.cli.configuration.graphs import read_file
    from mainspring.client.client import Client

    graphs = [(path, read_file(path)) for path in files]
    for path, graph in graphs:
        if graph.application is None:
            raise typer.BadParameter(
                f"{path} is not an application, which has members and an output: mainspring graphs add {path}"
            )
    with Client(address, token=token) as client:
        for _, graph in graphs:
            client.add_graph(graph, check=check)
            print(f"{graph.name} makes sense" if check else f"added {graph.name}")


def _value(text: str) -> int | float | str:
    """Return a class, label or value as it is written: a number if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _reward(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a reward, which is a number from 0 to 1") from None
