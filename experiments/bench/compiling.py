"""Cost of compiling: memory as a multiple of the model's file, and time.

Each model is a chain of products whose weights are external data, of 40 and 100 MB and of the size that is
asked for. It is compiled in a process of its own, whose most memory counts (``VmHWM``: pages of files that
it maps are among it).
``python -m mainspring.experiments.bench.compiling``, which ``make bench-compile`` runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import typer
from onnx import TensorProto, helper

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.experiments.bench.report import OUTPUT, Figure, publish

MOST_TIMES = 3.0
WIDTH = 1024
_LAYER_BYTES = 4 * WIDTH * WIDTH
_SMALL_BYTES = 1 << 20
_OTHER_BYTES = (40_000_000, 100_000_000)


class Took(NamedTuple):
    """Cost of one compilation."""

    file_bytes: int
    peak_bytes: int
    seconds: float
    processor_s: float


def model_file(folder: Path, size: int) -> Path:
    """Write a model of about this size in bytes; return its path."""
    layers, width = (max(1, size // _LAYER_BYTES), WIDTH) if size >= _LAYER_BYTES else (1, 16)
    random, weights, nodes = np.random.default_rng(0), [], []
    with (folder / "weights").open("wb") as file:
        for layer in range(layers):
            tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights"), ("offset", str(file.tell()))):
                tensor.external_data.add(key=key, value=value)
            values = random.standard_normal((width, width), np.float32) / np.float32(width**0.5)
            length = file.write(values.data)
            tensor.external_data.add(key="length", value=str(length))
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"v{layer}", f"w{layer}"], [f"v{layer + 1}"]))
    ends = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, ["n", width]) for at in (0, layers)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def measure(size: int) -> Took:
    """Compile a model of about this size in bytes in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        path = model_file(Path(folder), size)
        command = [sys.executable, "-m", "mainspring.experiments.bench.compiling", "--path", str(path)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        peak_bytes, seconds, processor_s = msgspec.json.decode(done.stdout)
        return Took(path.with_name("weights").stat().st_size, peak_bytes, seconds, processor_s)


def compile_here(path: Path) -> None:
    """Compile a file, and print what that took."""
    begin, began_s = time.monotonic(), time.process_time()
    compile_file(path, "model", Store(path.parent / "store"))
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    took = int(peak) << 10, time.monotonic() - begin, time.process_time() - began_s
    sys.stdout.buffer.write(msgspec.json.encode(took))


def figures(small: Took, found: Sequence[Took]) -> list[Figure]:
    """Return the figures of models, the largest last, beside a tiny one's, which any process takes."""
    large, tiny_bytes = found[-1], small.peak_bytes
    beyond = {each.file_bytes: (each.peak_bytes - tiny_bytes) / each.file_bytes for each in found}
    return [
        *[Figure(f"memory / file of {size / 1e6:.0f} MB", x, "x", MOST_TIMES) for size, x in beyond.items()],
        Figure(
            "most memory", large.peak_bytes / 1e6, "MB", note=f"a tiny model: {small.peak_bytes / 1e6:.0f}"
        ),
        Figure("time", large.seconds, "s", note=f"a tiny model: {small.seconds:.1f}"),
        Figure("processor time", large.processor_s, "s", note=f"a tiny model: {small.processor_s:.1f}"),
    ]


def main(
    megabytes: Annotated[int, typer.Option(min=10, help="Size of the model's file.")] = 600,
    output: Annotated[Path, typer.Option(help="Folder for the figures.")] = OUTPUT,
    path: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, and publish the figures; exit with 1 if the target is missed."""
    if path is not None:
        compile_here(path)
        return
    sizes = (*_OTHER_BYTES, megabytes * 1_000_000)
    found = figures(measure(_SMALL_BYTES), [measure(size) for size in sizes])
    publish("compile", "What compiling takes", found, output)
    if any(figure.met is False for figure in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
