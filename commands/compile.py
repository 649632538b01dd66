"""``mainspring compile``: an ONNX file becomes an artifact in a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mainspring.compiler.pipeline import Compiled

DEFAULT_STORE = Path("store")
DEFAULT_BATCH_SIZES = "1,2,4,8,16"
BatchSizesOption = Annotated[
    str, typer.Option(help="Batch sizes to verify and profile, separated by commas.")
]
DeviceOption = Annotated[str, typer.Option(help="Where it is to run: cpu or cuda.")]
ArchOption = Annotated[str, typer.Option(help="Architecture of the GPU that kernels are generated for.")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("compile")(compile_model)


def compile_model(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    name: Annotated[str, typer.Option(help="What clients call the model.")],
    batch_sizes: BatchSizesOption = DEFAULT_BATCH_SIZES,
    store: Annotated[Path, typer.Option(readable=False, help="Folder of the model store.")] = DEFAULT_STORE,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Fix an input's dynamic dimensions, as in image=1,3,224,224; the first is the batch."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What runs the model: onnxruntime, tvm, or auto for the faster one here.")
    ] = "onnxruntime",
    device: DeviceOption = "cpu",
    arch: ArchOption = "sm_90",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Compile an ONNX model, compare it with stock ONNX Runtime, profile it and store it."""
    import json

    from rich.console import Console

    from mainspring.compiler.artifact import Target
    from mainspring.compiler.pipeline import compile_file, parse_batch_sizes
    from mainspring.compiler.report import fields
    from mainspring.compiler.shapes import parse_shapes
    from mainspring.compiler.store import Store

    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with console.status(f"compiling {model}"):
        compiled = compile_file(
            model,
            name,
            Store(store),
            parse_batch_sizes(batch_sizes),
            parse_shapes(shape or []),
            Target(engine, device, arch),
        )
    if as_json:
        print(json.dumps(fields(compiled), indent=2))
    else:
        _print(console, compiled)


def _print(console: Console, compiled: Compiled) -> None:
    from mainspring.compiler import report

    console.print(report.describe_artifact(compiled))
    console.print(f"  {report.describe_profile(compiled)}")
    console.print(f"  {report.describe_verification(compiled)}")
    if compiled.engines:
        console.print(f"  {report.describe_engines(compiled)}")
    if compiled.repaired:
        console.print(f"  {report.describe_repairs(compiled)}")
