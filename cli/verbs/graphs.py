"""``mainspring graphs``: which graphs of models are served, and changes to that, live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import DEFAULT_GATEWAY, AsJson, GatewayAddress, Token

if TYPE_CHECKING:
    from mainspring.messages.graphs import GraphSpec

Files = Annotated[list[Path], typer.Argument(help="Files NAME.toml, a graph or a family each.")]
app = typer.Typer(help="Show, check, add and remove graphs and families of models.", no_args_is_help=True)


@app.command("list")
def list_graphs(
    address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None, as_json: AsJson = False
) -> None:
    """Show the served graphs: what they take and give, their steps, and what they lack to be served."""
    import msgspec

    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        found = client.graphs()
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for each in found:
        _print(each.graph, each.fault)


@app.command("check")
def check(files: Files, address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None) -> None:
    """Check graphs against the models that are served, without adding them."""
    _each(files, address, token, "makes sense", check=True)


@app.command("add")
def add(files: Files, address: GatewayAddress = DEFAULT_GATEWAY, token: Token = None) -> None:
    """Serve graphs under their names, in the place of those that are served under them."""
    _each(files, address, token, "added", check=False)


@app.command("remove")
def remove(
    names: Annotated[list[str], typer.Argument(help="Graphs that are served.")],
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
) -> None:
    """Serve graphs no more; requests that have come are answered."""
    from mainspring.client.client import Client

    with Client(address, token=token) as client:
        for name in names:
            client.remove_graph(name)
            print(f"removed {name}")


def _each(files: list[Path], address: str, token: str | None, said: str, *, check: bool) -> None:
    """Have the gateway check or add the graph of each file; read all files before the first."""
    from mainspring.cli.configuration.graphs import read_file
    from mainspring.client.client import Client

    graphs = [read_file(path) for path in files]
    with Client(address, token=token) as client:
        for graph in graphs:
            client.add_graph(graph, check=check)
            print(f"{said} {graph.name}" if not check else f"{graph.name} {said}")


def _print(graph: GraphSpec, fault: str) -> None:
    """Print a paragraph on a graph, a family or an application."""
    if (app := graph.application) is not None:
        print(f"{app.name}: {app.policy} over {app.output} of {', '.join(app.members)}")
    elif graph.members:
        scores = [f"{name} ({score:g})" for name, score in zip(graph.members, graph.score, strict=True)]
        print(f"{graph.name}: one of {', '.join(scores)}")
    else:
        print(f"{graph.name}: {', '.join(graph.inputs)} -> {', '.join(graph.outputs)}")
    for step in graph.steps:
        taken = ", ".join(f"{name} = {source}" for name, source in step.inputs.items())
        when = f" when {step.when}" if step.when else ""
        print(f"  step {step.name}: {step.model}({taken}){when}{'' if step.required else ', not required'}")
    if fault:
        print(f"  not ready: {fault}")
