"""``mainspring compile``: an ONNX file becomes an artifact in a store."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.options import DEFAULT_STORE, AsJson, ModelStore

if TYPE_CHECKING:
    from rich.console import Console

    from mainspring.compiler.pipeline import Compiled

DEFAULT_BATCH_SIZES = "1,2,4,8,16"
BatchSizesOption = Annotated[
    str, typer.Option(help="Batch sizes to verify and profile, separated by commas.")
]
EngineOption = Annotated[
    str,
    typer.Option(
        help="What runs it: onnxruntime, tvm, or auto for the faster one: on this CPU or, with --device "
        "cuda, on this machine's first GPU."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Where it is to run: cpu or cuda.")]
ArchOption = Annotated[
    str | None,
    typer.Option(
        help="Architecture of the GPU that kernels are generated for. Default: sm_90; with --engine auto "
        "that of the GPU here."
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="With --engine tvm --device cuda: fp32, or tf32 or fp16 for products on tensor cores, which "
        "round their factors to 10 bits after the point; weights and activations stay FP32 in memory."
    ),
]

TuneOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds for timing kernels on this machine's first GPU, for each model; what was timed is kept "
        "in the store. Default: 60 with --engine auto --device cuda, else 0.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(help="Fix an input's dynamic dimensions, as in image=1,3,224,224; the first is the batch."),
]
MaxOption = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        help="The largest size of an open dimension, as in seq=512; otherwise the largest is found at "
        "which a run takes no longer than requests wait. Engine onnxruntime on the CPU alone.",
    ),
]


def compile(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    name: Annotated[str, typer.Option(help="What clients call the model.")],
    batch_sizes: BatchSizesOption = DEFAULT_BATCH_SIZES,
    store: ModelStore = DEFAULT_STORE,
    shape: ShapeOption = None,
    most: MaxOption = None,
    engine: EngineOption = "onnxruntime",
    device: DeviceOption = "cpu",
    arch: ArchOption = None,
    precision: PrecisionOption = "fp32",
    tune_seconds: TuneOption = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Serve the model with just the shapes of the file (or of --shape), one request at a time. "
            "That is done unasked where no axis for rows can be found, unless --batch-sizes asks for rows.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile an ONNX model, compare it with stock ONNX Runtime, profile it and store it."""
    import json

    from rich.console import Console

    from mainspring.cli.profiling.gpu_judge import judge_for
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.pipeline import compile_file, parse_batch_sizes
    from mainspring.compiler.report import fields
    from mainspring.compiler.shapes import parse_limits, parse_shapes

    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=as_json)
    opened, sizes, shapes = Store(store), parse_batch_sizes(batch_sizes), parse_shapes(shape or [])
    instead = _without_gpu(model, name, store, batch_sizes, shape or [], arch)
    with console.status(f"compiling {model}"):
        target, judge = judge_for(engine, device, arch, opened, instead, precision, tune_seconds)
        as_it_is = whole or (None if batch_sizes == DEFAULT_BATCH_SIZES else False)
        compiled = compile_file(
            model, name, opened, sizes, shapes, target, judge, as_it_is, most=parse_limits(most or [])
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
    if compiled.manifest.unshared or compiled.whole_because:
        console.print(f"  {report.describe_sharing(compiled)}")
    if compiled.engines:
        console.print(f"  {report.describe_engines(compiled)}")
    if compiled.repaired:
        console.print(f"  {report.describe_repairs(compiled)}")


def _without_gpu(
    model: Path, name: str, store: Path, batch_sizes: str, shapes: Sequence[str], arch: str | None
) -> str:
    """Return how to keep the faster engine where the compiling machine has no GPU."""
    options = ["--device", "cuda", "--store", str(store)]
    options += ["--batch-sizes", batch_sizes] if batch_sizes != DEFAULT_BATCH_SIZES else []
    options += [word for shape in shapes for word in ("--shape", shape)]
    options += ["--arch", arch] if arch else []
    first, second = (
        shlex.join(
            ["mainspring", "compile", str(model), "--name", f"{name}-{each}", "--engine", each, *options]
        )
        for each in ("onnxruntime", "tvm")
    )
    there = ["--device", "cuda:0", "--store", str(store), "--save", "--fastest", name]
    chosen = shlex.join(["mainspring", "profile", f"{name}-onnxruntime", f"{name}-tvm", *there])
    return (
        f"`{first}` and `{second}` compile for each engine, and with that store on the machine that has the "
        f"GPU `{chosen}` keeps the faster as {name}"
    )
