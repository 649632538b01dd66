"""Time that one worker adds to its engine's, and how well it keeps to its windows.

A real worker with the ONNX Runtime engine serves models of the zoo from a temporary store; this process is
its controller and its gateway. Bare loops over the same session, and bare copies into the same arena, run in
the worker's own threads in turns with its actions (`bench.worker_bare`), so that ratios hold whatever else
the machine does. ``python -m mainspring.experiments.bench.worker``, which ``make bench-worker`` runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import onnx
import typer

from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.compiler.zoo.networks import Builder, instantiate
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import stolen_s
from mainspring.experiments.bench.worker_load import (
    WindowSamples,
    back_to_back,
    back_to_back_figures,
    begin_errors,
    beside,
    beside_figures,
    load_bandwidth,
    load_figures,
    tensor_figures,
    tensors_on_their_way,
    window_figures,
)
from mainspring.experiments.bench.worker_peer import ENGINE, LoneWorker, running
from mainspring.messages.actions import Prepare
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import WorkerConfig

BATCH_SIZES = (1,)
COPIES = 2
EXEC_PAGES = 4
"""First pages of the arena, for the model that runs."""
LOAD_PAGES = 12
FILTER = "image-filter"


class Plan(msgspec.Struct, frozen=True):
    """The models to measure, and for how long."""

    executed: tuple[str, ...] = ("resnet18", "squeezenet", "resnet20")
    """Back to back; the first one also beside LOADs."""
    loaded: tuple[str, ...] = ("resnet18", "squeezenet")
    """Two copies of each; the first ones also beside EXEC."""
    beside: str = "squeezenet"
    """Runs beside LOADs."""
    filter_pixels: int = 512
    """Width and height of the images that go through a filter, in and out, as INPUT and OUTPUT."""
    windowed: str = "resnet20"
    windows: int = 600
    """INFERs of each kind."""
    seconds: float = 60.0
    rounds: int = 12
    realtime: bool = True


def image_filter(pixels: int) -> onnx.ModelProto:
    """Return two convolutions from an image to an image: much to move for what there is to compute."""
    builder = Builder(FILTER)
    shape = (3, pixels, pixels)
    x = builder.node("Relu", [builder.conv(builder.input("data", shape), (3, 8), 3)])
    builder.output(builder.conv(x, (8, 3), 3), "output", shape)
    return instantiate(builder.finish(), np.random.default_rng(0))


def compile_models(plan: Plan, folder: Path) -> dict[str, list[ModelSpec]]:
    """Compile two copies of each model of the plan, and the filter, into ``folder``/store."""
    store = Store(folder / "store")
    models: dict[str, list[ModelSpec]] = {}
    for name in dict.fromkeys((*plan.executed, *plan.loaded, plan.beside, plan.windowed)):
        if name == FILTER:
            continue
        made = compile_zoo([name], store, COPIES, batch_sizes=BATCH_SIZES)
        models[name] = [compiled.manifest.spec() for compiled in made]
    graph = folder / f"{FILTER}.onnx"
    onnx.save(image_filter(plan.filter_pixels), graph)
    models[FILTER] = [compile_file(graph, FILTER, store, BATCH_SIZES).manifest.spec()]
    return models


class Bench:
    """A running worker, its store's models, and where in its pages they go."""

    def __init__(self, plan: Plan, worker: LoneWorker, models: dict[str, list[ModelSpec]]) -> None:
        self._plan = plan
        self._worker = worker
        self._models = models

    def execute(self, seconds: float) -> list[Figure]:
        """Measure each executed model back to back."""
        rows = []
        for name in self._plan.executed:
            model = self._models[name][0]
            with self._holding(model):
                samples = back_to_back(self._worker, model, seconds, self._plan.rounds)
            rows += back_to_back_figures(model, samples)
        return rows

    def move(self, seconds: float) -> list[Figure]:
        """Measure INPUT and OUTPUT beside EXEC."""
        model = self._models[FILTER][0]
        with self._holding(model):
            samples = tensors_on_their_way(self._worker, model, seconds, self._plan.rounds)
        return tensor_figures(model, samples)

    def load(self, seconds: float) -> list[Figure]:
        """Measure LOAD beside memcpy."""
        rows = []
        for name in self._plan.loaded:
            model = self._models[name][0]
            pages = self._pages([model])[0]
            samples = load_bandwidth(self._worker, model, pages, seconds, self._plan.rounds)
            rows += load_figures(model, samples)
        return rows

    def both(self, seconds: float) -> list[Figure]:
        """Measure LOAD and EXEC beside each other."""
        running, loading = self._models[self._plan.beside][0], self._models[self._plan.loaded[0]]
        with self._holding(running):
            bare, own = beside(
                self._worker, running, loading, self._pages(loading), seconds, self._plan.rounds
            )
        return beside_figures(running, loading[0], bare, own)

    def windows(self) -> WindowSamples:
        """Measure when INFERs begin."""
        model, loading = self._models[self._plan.windowed][0], self._models[self._plan.loaded[0]]
        with self._holding(model):
            return begin_errors(
                self._worker, model, loading, self._pages(loading), self._plan.windows, self._plan.rounds
            )

    @contextmanager
    def _holding(self, model: ModelSpec) -> Iterator[None]:
        self._worker.hold(model, tuple(range(model.pages)))
        yield
        self._worker.drop(model)

    def _pages(self, models: Sequence[ModelSpec]) -> list[tuple[int, ...]]:
        start = EXEC_PAGES
        places = []
        for model in models:
            places.append(tuple(range(start, start + model.pages)))
            start += model.pages
        return places


def measure(plan: Plan, folder: Path) -> list[Figure]:
    """Return all rows; ``folder`` is for the store and what the worker leaves behind."""
    models = compile_models(plan, folder)
    config = WorkerConfig(
        name="bench",
        engine=ENGINE,
        store=str(folder / "store"),
        pages=EXEC_PAGES + LOAD_PAGES,
        realtime=plan.realtime,
        controller_silence_ms=60_000,
    )
    with running(config, folder) as worker:
        for copies in models.values():
            for model in copies:
                worker.do(Prepare(worker.next_id(), worker.name, model))
        bench = Bench(plan, worker, models)
        part_s = plan.seconds / (len(plan.executed) + len(plan.loaded) + 4)
        rows = [*bench.execute(part_s), *bench.move(2 * part_s), *bench.load(part_s), *bench.both(2 * part_s)]
        began_s, stolen_before_s = time.monotonic(), stolen_s()
        samples = bench.windows()
        stolen = (stolen_s() - stolen_before_s) / (time.monotonic() - began_s)
        calls = worker.close()
    note = "from all cores, while windows were measured"
    return [
        *rows,
        *window_figures(samples, dict(calls.tolist())),
        Figure("time that the host withheld", 1000 * stolen, "ms/s", note=note),
    ]


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="In all, without windows and compiling.")] = 40,
    windows: Annotated[int, typer.Option(min=1, help="INFERs whose begin is measured, of each kind.")] = 600,
    realtime: Annotated[bool, typer.Option(help="Real-time priority and pinned threads.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print EXEC, INPUT, OUTPUT and LOAD beside their bare loops, and how well windows are kept."""
    plan = Plan(seconds=seconds, windows=windows, realtime=realtime)
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        figures = measure(plan, Path(folder))
    publish("worker", "One worker beside bare loops over its engine and its memory", figures, output)


if __name__ == "__main__":
    typer.run(main)
