"""``mainspring compile``: a model's file becomes an artifact in a store."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from mainspring.cli.options import (
    BATCH_SIZES,
    DEFAULT_STORE,
    DEVICES,
    AsJson,
    LibraryOption,
    ModelStore,
    seconds,
    typed,
)

if TYPE_CHECKING:
    from rich.console import Console

    from mainspring.compiler.pipeline import Compiled
    from mainspring.compiler.sizes.sample_forms import Described
    from mainspring.repository.recipe import Recipe

DEFAULT_BATCH_SIZES = "1,2,4,8,16"
TEXT_BYTES = 1024
"""Default size of a text, as in `messages.model`, which takes time to import."""
EngineOption = Annotated[
    str,
    typer.Option(
        help="What runs it: onnxruntime, tvm, or auto for the faster one: on this CPU or, with --device "
        "cuda, on this machine's first GPU."
    ),
]
DeviceOption = Annotated[str, DEVICES]
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
        "round their factors to 10 bits after the point; with fp16, matrices and filters are stored as such."
    ),
]

TuneOption = Annotated[
    str | None,
    typer.Option(
        help="Time for timing kernels on this machine's first GPU, for each model; what was timed is kept "
        "in the store. Default: 60s with --engine auto --device cuda, else 0.",
    ),
]

ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Fix an input's dynamic dimensions, as in image=1,3,224,224; the first is the batch, and -1 "
        "leaves one open."
    ),
]
MaxOption = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        help="The largest size of an open dimension, as in seq=512; otherwise the largest is found at "
        "which a run takes no longer than requests wait.",
    ),
]
WholeOption = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="Serve the model with just the shapes of the file (or of --shape), one request at a time. "
        "This is the default where no axis for rows can be found, unless --batch-sizes asks for rows.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Read formats that can run any code as they are read (pickles, programs of PyTorch), or types "
        "that skops does not know: only for files of somebody you trust with this machine.",
    ),
]
PadOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What an input with an open dimension may be padded with, as in attention_mask=0, so that "
        "requests of different sizes share executions; unnamed ones are padded with 0. Compared on samples. "
        "With the engine tvm kernels are for some sizes, and every request is padded to the next.",
    ),
]
TextOption = Annotated[
    int,
    typer.Option(
        "--text-bytes",
        min=1,
        help="How many bytes each text of the inputs and outputs may have. Each takes that much in requests "
        "and answers, however short it is.",
    ),
]

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        help="A tensor that a sequence of requests carries, as in h=h_out: its input and its output.",
    ),
]
BesideOption = Annotated[
    bool,
    typer.Option(
        "--beside",
        help="Keep what the store has of this model for other hosts (another instruction set, engine or GPU "
        "architecture): it is served as one model, and each worker runs its own. Without it, this replaces "
        "all.",
    ),
]
DescriptionOption = Annotated[
    Path | None,
    typer.Option(help="A TOML file with the tables [state.INPUT] and [sequence], beyond --state."),
]
SampleOption = Annotated[
    Path | None,
    typer.Option(
        help="Rows that the model takes, to compare it with: an .npz file (numpy.savez) with an array for "
        "each input. Without it samples are made up."
    ),
]
UnverifiedOption = Annotated[
    bool,
    typer.Option(
        "--unverified",
        help="Serve the model on your word even if it runs on no sample, so that nothing can be compared.",
    ),
]

PythonOption = Annotated[
    str | None,
    typer.Option(
        help="The Python that runs a folder with model.py: a path that all hosts have. Without it, an "
        "environment is made of its requirements.txt, or the worker's own Python runs it."
    ),
]
FOR_PYTHON = ("model", "name", "store", "python", "as_json")
"""Parameters that fit a folder with model.py, whose model.toml says the rest."""


def tune_s(given: str | None) -> float | None:
    """Return the seconds of `TuneOption`; raise BadParameter."""
    return None if given is None else seconds(given, "--tune-seconds")


def compile(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="The ONNX file; or a model's folder in Triton's layout, a fitted estimator of scikit-learn "
            "(.joblib, .skops), a program of PyTorch (.pt2), a folder with model.py and model.toml."
        ),
    ],
    name: Annotated[str, typer.Option(help="What clients call the model.")],
    batch_sizes: Annotated[str | None, BATCH_SIZES] = None,
    store: ModelStore = DEFAULT_STORE,
    shape: ShapeOption = None,
    most: MaxOption = None,
    pad: PadOption = None,
    text_bytes: TextOption = TEXT_BYTES,
    engine: EngineOption = "onnxruntime",
    device: DeviceOption = "cpu",
    arch: ArchOption = None,
    precision: PrecisionOption = "fp32",
    tune_seconds: TuneOption = None,
    whole: WholeOption = False,
    trust: TrustOption = False,
    state: StateOption = None,
    description: DescriptionOption = None,
    sample: SampleOption = None,
    unverified: UnverifiedOption = False,
    op_library: LibraryOption = None,
    beside: BesideOption = False,
    python: PythonOption = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model, compare it with stock ONNX Runtime, profile it and store it."""
    from mainspring.compiler.artifact.python_folder import is_python
    from mainspring.compiler.sizes.sample_forms import described, on_word, with_samples

    if is_python(model):
        return _compile_python(context, model, name, store, python, as_json=as_json)
    if python is not None:
        raise typer.BadParameter(f"--python is for a folder with model.py and model.toml; {model} is none")
    asked, as_whole = batch_sizes is not None, whole or (None if batch_sizes is None else False)
    recipe = _recipe(batch_sizes, shape or [], as_whole, most or [], pad or [], text_bytes)
    instead = _without_gpu(model, name, store, batch_sizes, shape or [], arch)
    said = on_word(with_samples(described(description, state or []), sample), unverified=unverified)
    loaded, tuned_s = tuple(op_library or ()), tune_s(tune_seconds)
    options = Options(engine, device, arch, precision, tuned_s, instead, said, beside, loaded)
    return _report(
        model, as_json, lambda: _compiled(model, name, store, recipe, options, asked=asked, trust=trust)
    )


def _compile_python(
    context: typer.Context, model: Path, name: str, store: Path, python: str | None, *, as_json: bool
) -> None:
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.python_models.compiling import compile_folder

    for option in context.params:
        if option not in FOR_PYTHON and typed(context, option):
            raise typer.BadParameter(
                f"--{option.replace('_', '-')} does not fit a folder with model.py: its model.toml says how "
                "it is served (docs/python-models.md)"
            )
    _report(model, as_json, lambda: (compile_folder(model, name, Store(store), python or ""), []))


def _report(model: Path, as_json: bool, compiled: Callable[[], tuple[Compiled, list[str]]]) -> None:
    """Compile, and print what came of it."""
    import json

    from rich.console import Console

    from mainspring.compiler.report import fields

    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=as_json)
    with console.status(f"compiling {model}"):
        done, notes = compiled()
    if as_json:
        return print(json.dumps(fields(done) | {"notes": notes}, indent=2))
    return _print(console, done, notes)


def _recipe(
    batch_sizes: str | None,
    shapes: Sequence[str],
    whole: bool | None,
    limits: Sequence[str],
    pads: Sequence[str],
    text_bytes: int,
) -> Recipe:
    """Return what the options say of how the model is compiled; raise `CompileError`."""
    from mainspring.compiler.pipeline import parse_batch_sizes
    from mainspring.compiler.reading.given_shapes import parse_limits, parse_shapes
    from mainspring.compiler.sizes.padding import parse_pads
    from mainspring.repository.recipe import Recipe

    sizes = None if batch_sizes is None else parse_batch_sizes(batch_sizes)
    dims = parse_shapes(shapes)
    return Recipe(sizes, dims, whole, parse_limits(limits), parse_pads(pads), text_bytes)


class Options(NamedTuple):
    """The options that a model is compiled with, as they were given."""

    engine: str
    device: str
    arch: str | None
    precision: str
    tune_seconds: float | None
    instead: str
    """Advice on how to go on where no GPU can be timed."""
    sequences: Described
    """Description of the model's sequences of requests, if they come in such."""
    beside: bool
    """True if artifacts for other hosts stay."""
    op_libraries: tuple[str, ...] = ()
    """Libraries of operators that may be loaded."""


def _compiled(
    path: Path,
    name: str,
    root: Path,
    recipe: Recipe,
    options: Options,
    *,
    asked: bool,
    trust: bool,
) -> tuple[Compiled, list[str]]:
    """Compile what is at ``path``; return sentences for the user too.

    ``asked``: whether batch sizes were asked for. What a folder's configuration says gives way to options.
    """
    from msgspec.structs import replace

    from mainspring.cli.profiling.gpu_judge import judge_for
    from mainspring.compiler.artifact.errors import CompileError
    from mainspring.compiler.artifact.op_libraries import allow
    from mainspring.compiler.artifact.store import Store
    from mainspring.compiler.conversion.opening import as_onnx
    from mainspring.compiler.pipeline import compile_file
    from mainspring.repository.one_folder import read_folder

    allow(options.op_libraries)
    store, told, sequences = Store(root), options, options.sequences
    judged = judge_for(
        told.engine, told.device, told.arch, store, told.instead, told.precision, told.tune_seconds
    )
    target, judge = replace(judged[0], beside=told.beside), judged[1]
    folder = read_folder(path) if path.is_dir() else None
    if folder is not None:
        path, recipe = folder.file, _over(folder.recipe, recipe, asked=asked)
        sequences = sequences.over(folder.described)
    with as_onnx(path, trust=trust) as converted:
        compiled = compile_file(
            *(converted.path, name, store, recipe.batch_sizes, recipe.shapes, target, judge, recipe.whole),
            most={**converted.most, **recipe.most},
            origin=converted.origin,
            pad=recipe.pad,
            text_bytes=recipe.text_bytes,
            described=sequences,
        )
    if folder is not None:
        try:
            folder.check(compiled.manifest.spec())
        except CompileError:
            store.remove(name)
            raise
    return compiled, [*converted.notes, *(folder.notes if folder is not None else ())]


def _over(configured: Recipe, given: Recipe, *, asked: bool) -> Recipe:
    """Return the configured recipe with what the command line gives in the place of its own."""
    from msgspec.structs import replace

    return replace(
        configured,
        batch_sizes=given.batch_sizes if asked else configured.batch_sizes,
        shapes={**configured.shapes, **given.shapes},
        whole=configured.whole if given.whole is None else given.whole,
        most={**configured.most, **given.most},
        pad={**configured.pad, **given.pad},
        text_bytes=configured.text_bytes if given.text_bytes == TEXT_BYTES else given.text_bytes,
    )


def _print(console: Console, compiled: Compiled, notes: Sequence[str]) -> None:
    from mainspring.compiler import report

    console.print(report.describe_artifact(compiled))
    console.print(f"  {report.describe_profile(compiled)}")
    if packing := report.describe_packing(compiled):
        console.print(f"  {packing}")
    console.print(f"  {report.describe_verification(compiled)}")
    if compiled.manifest.at_ceilings:
        console.print(f"  {report.describe_buckets(compiled)}")
    if rows := report.describe_rows(compiled):
        console.print(f"  {rows}")
    if compiled.manifest.unshared or compiled.whole_because:
        console.print(f"  {report.describe_sharing(compiled)}")
    if compiled.smaller:
        console.print(f"  {report.describe_smaller(compiled)}")
    if compiled.manifest.sequencing is not None:
        console.print(f"  {report.describe_sequencing(compiled.manifest.sequencing)}")
    if compiled.engines:
        console.print(f"  {report.describe_engines(compiled)}")
    if compiled.repaired:
        console.print(f"  {report.describe_repairs(compiled)}")
    if compiled.located:
        console.print(f"  {report.describe_locales(compiled)}")
    for note in notes:
        console.print(f"  {note}")


def _without_gpu(
    model: Path, name: str, store: Path, batch_sizes: str | None, shapes: Sequence[str], arch: str | None
) -> str:
    """Return how to keep the faster engine where the compiling machine has no GPU."""
    options = ["--device", "cuda", "--store", str(store)]
    options += ["--batch-sizes", batch_sizes] if batch_sizes is not None else []
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
