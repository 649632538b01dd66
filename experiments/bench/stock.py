"""An execution beside stock ONNX Runtime's: what it costs that weights are inputs of the graph.

A stock session packs weights when it opens a model, which weights that come later can't be. So each model is
run as a worker runs it and, in turns, as a stock session of the same file does, one thread each, both with
inputs and outputs bound to fixed memory. Medians of the two are compared at each batch size.
``python -m mainspring.experiments.bench.stock``, which ``make bench-stock`` runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.arrays import BatchArrays
from mainspring.compiler.artifact.manifest import CPU
from mainspring.compiler.pipeline import BATCH_SIZES
from mainspring.compiler.program.compiled import OnnxRuntimeArtifact
from mainspring.compiler.program.split import bound_stock, in_turns
from mainspring.compiler.reading.model_file import read_model
from mainspring.compiler.reading.stock import open_session
from mainspring.compiler.reference import Prepared
from mainspring.compiler.zoo import catalogue
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.foreign import Unavailable
from mainspring.experiments.bench.report import OUTPUT, Figure, publish

LAYER = "layer"
"""One layer of 2,048 x 8,192, whose weights are more than a cache holds."""
MINILM = "minilm"
LAYER_SHAPE = (2048, 8192)
MEDIAN, WORST = 1.02, 1.10
"""Most that the ratio may be: the median of a batch size over all models, and any."""
_FEWEST = 5
_SEED = 1


class Ratio(msgspec.Struct, frozen=True):
    """One model at one batch size."""

    model: str
    batch_size: int
    stock_ms: float
    served_ms: float
    runs: int

    @property
    def ratio(self) -> float:
        """Ratio of the served model's median to that of a stock session."""
        return self.served_ms / self.stock_ms


def layer(rows: int, columns: int) -> onnx.ModelProto:
    """Return a model of one fully connected layer with a bias."""
    drawn = np.random.default_rng(_SEED)
    weights = (drawn.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
    bias = drawn.standard_normal(columns).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", columns])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def prepared_of(name: str) -> tuple[Prepared, tuple[int, ...]]:
    """Return a model by name, and the size of each of its symbols. Raises `CompileError`, `Unavailable`."""
    rows = max(BATCH_SIZES)
    if name == MINILM:
        model, _ = read_model(minilm.model_file())
        length = minilm.median_length(minilm.sentences())
        prepared = Prepared(model, rows, most={minilm.SYMBOL: minilm.LONGEST})
        return prepared, (length,) * len(prepared.symbols)
    model = layer(*LAYER_SHAPE) if name == LAYER else catalogue.build(name)
    return Prepared(model, rows), ()


def compare(name: str, batch_sizes: Sequence[int], seconds: float) -> Iterator[Ratio]:
    """Yield a model's ratio at each batch size, of which each takes about so many seconds."""
    prepared, sizes = prepared_of(name)
    artifact = OnnxRuntimeArtifact(prepared, CPU)
    served = artifact.bind()
    stock = open_session(prepared.content)
    for batch_size in batch_sizes:
        arrays = BatchArrays(artifact.info, batch_size, sizes)
        rows = prepared.rows_at(sizes, batch_size) if sizes else prepared.rows
        arrays.fill([array[:batch_size] for array in rows])
        runs: list[Callable[[], None]] = [
            bound_stock(stock, artifact.info, arrays, sizes),
            partial(arrays.run, served),
        ]
        took = in_turns(runs, seconds, _FEWEST)
        stock_ms, served_ms = (statistics.median(each) / 1e6 for each in took)
        yield Ratio(name, batch_size, stock_ms, served_ms, len(took[0]))


def figures(found: Sequence[Ratio]) -> list[Figure]:
    """Return a row for each model and size, and for each size the median over the models."""
    rows = [
        Figure(
            f"{each.model}, batch of {each.batch_size}",
            each.ratio,
            "x",
            WORST,
            note=f"{each.served_ms:.3f} ms against {each.stock_ms:.3f} ms, {each.runs} runs of each",
        )
        for each in found
    ]
    for batch_size in dict.fromkeys(each.batch_size for each in found):
        ratios = [each.ratio for each in found if each.batch_size == batch_size]
        note = f"of {len(ratios)} models, {min(ratios):.2f} to {max(ratios):.2f}"
        rows.append(
            Figure(f"median, batch of {batch_size}", statistics.median(ratios), "x", MEDIAN, note=note)
        )
    return rows


def main(
    models: Annotated[
        str, typer.Option(help=f"Separated by commas: of the zoo, {MINILM}, {LAYER}; empty: all.")
    ] = "",
    batch_sizes: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(map(str, BATCH_SIZES)),
    seconds: Annotated[float, typer.Option(help="For each model and batch size.")] = 2.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print each model's execution as a multiple of a stock session's."""
    known = [*catalogue.names(), MINILM, LAYER]
    chosen = models.split(",") if models else known
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of: {', '.join(known)}")
    sizes = [int(each) for each in batch_sizes.split(",")]
    found: list[Ratio] = []
    for name in chosen:
        try:
            for each in compare(name, sizes, seconds):
                found.append(each)
                typer.echo(f"{name}, batch of {each.batch_size}: {each.ratio:.3f}")
        except Unavailable as why:
            typer.echo(f"{name} is left out: {why}")
    publish("stock", "EXEC beside a stock session, one core", figures(found), output, ratios=found)


if __name__ == "__main__":
    typer.run(main)
