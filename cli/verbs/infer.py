"""``mainspring infer``: one request, its outputs and where its time went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.options import (
    DEFAULT_GATEWAY,
    AsJson,
    GatewayAddress,
    Rows,
    Seed,
    SloOrNone,
    Token,
    duration_or_none_ns,
)
from mainspring.messages.choices import did_you_mean

if TYPE_CHECKING:
    from mainspring.client.result import InferResult
    from mainspring.messages.model import ModelSpec, TensorSpec

_SHOWN_VALUES = 4


def infer(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="A .npy file, as NAME=FILE if the model has several inputs; repeatable."
        ),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Make up inputs of the right shape.")] = False,
    seed: Seed = 0,
    rows: Rows = 1,
    slo: SloOrNone = "none",
    output: Annotated[
        list[str] | None, typer.Option("--output", help="An output to return; repeatable. Default: all.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder to write each output to, as .npy.")] = None,
    address: GatewayAddress = DEFAULT_GATEWAY,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Run a model once and show its outputs and where the time went."""
    from mainspring.client.client import Client

    if bool(inputs) == random:
        raise typer.BadParameter("give the inputs with --input FILE.npy, or --random to make some up")
    slo_ns = duration_or_none_ns(slo, "--slo")
    files = _read_files(inputs or [])
    with Client(address, token=token) as client:
        spec = _spec(client.models(), model)
        arrays = random_inputs(spec, rows, seed) if random else _named(files, spec)
        result = client.infer(model, arrays, None if slo_ns is None else slo_ns / 1e6, output)
    if output_dir is not None:
        _write_outputs(result, output_dir)
    if as_json:
        print(json.dumps(_summary(result), indent=2))
    else:
        _print_tables(result)


def random_inputs(spec: ModelSpec, rows: int, seed: int) -> dict[str, Any]:
    """Return inputs that the model takes: numbers from a seed, integers small enough to be any index."""
    import numpy as np

    from mainspring.messages.model import array_dtype

    generator = np.random.default_rng(seed)

    def make(tensor: TensorSpec) -> Any:
        shape = spec.client_shape(tensor, rows)
        dtype = array_dtype(tensor.dtype)
        if dtype.kind in "iubS":
            return generator.integers(0, 2, shape).astype(dtype)
        return generator.standard_normal(shape, dtype=np.float32).astype(dtype)

    return {tensor.name: make(tensor) for tensor in spec.inputs}


def _spec(specs: Sequence[ModelSpec], name: str) -> ModelSpec:
    """Return the spec of a served model; raise BadParameter with the nearest names."""
    found = next((spec for spec in specs if spec.name == name), None)
    if found is not None:
        return found
    hint = did_you_mean(name, [spec.name for spec in specs], f"{len(specs)} others are")
    raise typer.BadParameter(f"model {name!r} is not served{hint}", param_hint="MODEL")


def _read_files(given: Sequence[str]) -> list[tuple[str, str, Any]]:
    """Return each file's input, empty where it names none, with what was typed and the array."""
    found = []
    for text in given:
        name, equals, file = text.partition("=")
        found.append((name if equals else "", text, _read_array(file if equals else text)))
    return found


def _named(files: Sequence[tuple[str, str, Any]], spec: ModelSpec) -> dict[str, Any]:
    """Return the arrays by input name; a file without a name is the model's only input."""
    names = [tensor.name for tensor in spec.inputs]
    arrays: dict[str, Any] = {}
    for given, text, array in files:
        if not given and len(names) != 1:
            raise typer.BadParameter(
                f"model {spec.name!r} has inputs {', '.join(names)}; say which with NAME={text}",
                param_hint="--input",
            )
        name = given or names[0]
        if name not in names:
            hint = did_you_mean(name, names, f"it has {', '.join(names)}")
            raise typer.BadParameter(f"model {spec.name!r} has no input {name!r}{hint}", param_hint="--input")
        if name in arrays:
            raise typer.BadParameter(f"input {name!r} was given twice", param_hint="--input")
        arrays[name] = array
    return arrays


def _read_array(file: str) -> Any:
    import numpy as np

    try:
        return np.load(file, allow_pickle=False)
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, EOFError):
        why = "it is not an array"
    raise typer.BadParameter(
        f"{file} can't be read ({why}); give a file that numpy.save has written, or NAME=FILE",
        param_hint="--input",
    )


def _write_outputs(result: InferResult, folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for name, array in result.items():
        # Output names may hold slashes; a file's may not, and may not lead elsewhere.
        np.save(folder / (name.replace("/", "_").replace("\\", "_").lstrip(".") + ".npy"), array)


def _summary(result: InferResult) -> dict[str, Any]:
    import msgspec

    outputs = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in result.items()
    }
    return {"outputs": outputs, "timing": msgspec.to_builtins(result.timing)}


def _print_tables(result: InferResult) -> None:
    from rich.console import Console
    from rich.table import Table

    from mainspring.client.deadlines import format_duration

    outputs = Table("output", "dtype", "shape", "first values", box=None, pad_edge=False)
    for name, array in result.items():
        first = ", ".join(f"{value:.6g}" for value in array.reshape(-1)[:_SHOWN_VALUES].astype(float))
        more = ", ..." if array.size > _SHOWN_VALUES else ""
        outputs.add_row(name, array.dtype.name, " x ".join(map(str, array.shape)), first + more)
    timing = result.timing
    times = Table("timing", "", box=None, pad_edge=False)
    times.add_row("total at the gateway", format_duration(timing.total_ns))
    times.add_row("queued", format_duration(timing.queue_ns))
    times.add_row("executed", f"{format_duration(timing.execute_ns)} in a batch of {timing.batch_size}")
    times.add_row("left to the deadline", format_duration(timing.left_ns))
    times.add_row("cold start", "yes" if timing.cold_start else "no")
    times.add_row("worker", timing.worker)
    console = Console(markup=False, highlight=False)
    console.print(outputs)
    console.print()
    console.print(times)
