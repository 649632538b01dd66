"""``mainspring zoo``: real architectures with seeded weights, compiled into a store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.commands.compile import (
    DEFAULT_BATCH_SIZES,
    DEFAULT_STORE,
    ArchOption,
    BatchSizesOption,
    DeviceOption,
)

if TYPE_CHECKING:
    from mainspring.compiler.artifact import Target


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("zoo")(zoo)


def zoo(
    architectures: Annotated[list[str] | None, typer.Argument(help="Architectures; see --list.")] = None,
    copies: Annotated[int, typer.Option(help="Copies of each, with weights of their own.")] = 1,
    store: Annotated[Path, typer.Option(readable=False, help="Folder of the model store.")] = DEFAULT_STORE,
    seed: Annotated[int, typer.Option(help="Seed of the first copy's weights.")] = 0,
    batch_sizes: BatchSizesOption = DEFAULT_BATCH_SIZES,
    engine: Annotated[
        str, typer.Option(help="What runs the models: onnxruntime, tvm, or auto for the faster one here.")
    ] = "onnxruntime",
    device: DeviceOption = "cpu",
    arch: ArchOption = "sm_90",
    list_: Annotated[bool, typer.Option("--list", help="Print what the zoo has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Make models of real architectures with random weights, and compile them."""
    from mainspring.compiler.artifact import Target
    from mainspring.compiler.zoo.catalogue import names

    if list_:
        print(json.dumps(names()) if as_json else "\n".join(names()))
    elif architectures:
        target = Target(engine, device, arch)
        _compile(architectures, store, copies, seed, batch_sizes, target, as_json=as_json)
    else:
        raise typer.BadParameter(f"name one or more of {', '.join(names())}")


def _compile(
    architectures: list[str],
    store: Path,
    copies: int,
    seed: int,
    batch_sizes: str,
    target: Target,
    *,
    as_json: bool,
) -> None:
    from rich.console import Console

    from mainspring.compiler.pipeline import Compiled, parse_batch_sizes
    from mainspring.compiler.report import describe_artifact, describe_profile, fields, summarise
    from mainspring.compiler.store import Store
    from mainspring.compiler.zoo.copies import compile_zoo

    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    begin = time.monotonic()
    done: list[Compiled] = []
    executables: set[str] = set()
    sizes = parse_batch_sizes(batch_sizes)
    with console.status("compiling") as status:
        for compiled in compile_zoo(architectures, Store(store), copies, seed, sizes, target):
            done.append(compiled)
            console.print(describe_artifact(compiled))
            if compiled.manifest.executable not in executables:
                executables.add(compiled.manifest.executable)
                console.print(f"  {describe_profile(compiled)}")
            status.update(f"compiled {len(done)} of {copies * len(architectures)}")
    console.print(summarise(done, time.monotonic() - begin))
    if as_json:
        print(json.dumps([fields(compiled) for compiled in done], indent=2))
