"""Whether a size's first execution after a LOAD takes longer than later ones: MiniLM with its length open.

PREPARE warms an executable at the largest sizes and the smallest; a request may be the first of any size
between, and of any batch. So after each LOAD, which lays the weights out at other addresses, each batch size
runs at each bucket's ceiling and at sizes between, some times over, and the first run is compared with the
later ones. What is read for the first time, the weights, is read by the first run after a LOAD of whatever
size; its price stands apart. ``python -m mainspring.experiments.bench.warming``, which ``make bench-warming``
runs, measures on one core.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from mainspring.compiler.artifact.arrays import BatchArrays, aligned_array
from mainspring.compiler.artifact.executable import BoundModel, open_executable
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.report import OUTPUT, Figure, publish

BATCH_SIZES = (1, 4)
AGAIN = 6
"""Runs of a size after its first."""
MOST_RATIO = 1.1
"""How long the first run of a size may take, as a part of a later one, in the median over sizes."""


class Size(NamedTuple):
    """A batch size with the length of its rows, and how long its runs took."""

    batch_size: int
    length: int
    first_ns: int
    later_ns: float
    """The median."""

    @property
    def ratio(self) -> float:
        """What the first run took, as a part of a later one."""
        return self.first_ns / self.later_ns


def lengths(manifest: Manifest) -> list[int]:
    """Return the ceilings of the buckets and a length in the middle of each, in no order of size."""
    (symbol,) = manifest.symbols
    ceilings = [symbol.least, *symbol.ceilings]
    between = [(low + high) // 2 for low, high in pairwise(ceilings)]
    found = sorted({*ceilings, *between})
    np.random.default_rng(3).shuffle(found)
    return found


def loads(store: Store, manifest: Manifest) -> Callable[[], BoundModel]:
    """Return what lays the weights out in memory of their own and binds them; the executable is warm."""
    content = np.fromfile(store.weights_path(manifest), np.uint8)
    plan = open_executable(store, manifest).plan(manifest.tensors)
    plan.warm(lambda offset: content.ctypes.data + offset, (max(BATCH_SIZES), min(BATCH_SIZES)))
    arenas = []

    def load() -> BoundModel:
        arena = aligned_array(content.shape, content.dtype)
        arena[...] = content
        arenas.append(arena)
        return plan.bind(lambda offset: arena.ctypes.data + offset)

    return load


def measure(store: Store, manifest: Manifest, times: int) -> Iterator[tuple[float, list[Size]]]:
    """Yield after each LOAD how much longer the very first run took, and each size's first and later runs."""
    load, (info, sizes) = loads(store, manifest), (store.executable_info(manifest), lengths(manifest))
    for _ in range(times):
        bound = load()
        warm = BatchArrays(info, 1, (sizes[0],))
        cold_ns = _took(warm, bound)
        again_ns = statistics.median(_took(warm, bound) for _ in range(AGAIN))
        found = []
        for batch_size in BATCH_SIZES:
            for length in sizes[1:]:
                arrays = BatchArrays(info, batch_size, (length,))
                first_ns = _took(arrays, bound)
                later_ns = statistics.median(_took(arrays, bound) for _ in range(AGAIN))
                found.append(Size(batch_size, length, first_ns, later_ns))
        yield cold_ns / again_ns, found


def _took(arrays: BatchArrays, bound: BoundModel) -> int:
    begin_ns = time.thread_time_ns()
    arrays.run(bound)
    return time.thread_time_ns() - begin_ns


def figures(found: list[tuple[float, list[Size]]]) -> list[Figure]:
    """Return the table's rows."""
    ratios = [size.ratio for _, sizes in found for size in sizes]
    each_load = [[size.ratio for size in sizes] for _, sizes in found]
    by_size = [statistics.median(each) for each in zip(*each_load, strict=True)]
    worst = max(range(len(by_size)), key=by_size.__getitem__)
    slowest = found[0][1][worst]
    return [
        Figure(
            "first run of a size / later ones, median", statistics.median(ratios), "x", MOST_RATIO,
            note=f"{len(by_size)} sizes after each of {len(found)} LOADs; processor time",
        ),
        Figure(
            "the size whose first run is slowest, median over LOADs", by_size[worst], "x",
            note=f"{slowest.batch_size} rows of {slowest.length}",
        ),
        Figure(
            "very first run after a LOAD / later ones", statistics.median([cold for cold, _ in found]), "x",
            note="the weights are read for the first time, from other addresses",
        ),
    ]  # fmt: skip


def main(
    times: Annotated[int, typer.Option(min=1, help="How many LOADs.")] = 9,
    output: Annotated[Path, typer.Option(help="Folder for the figures.")] = OUTPUT,
) -> None:
    """Measure, and publish the figures; exit with 1 if the target is missed."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        store = Store(Path(folder))
        most = {minilm.SYMBOL: minilm.LONGEST}
        manifest = compile_file(minilm.model_file(), "minilm", store, BATCH_SIZES, most=most).manifest
        found = figures(list(measure(store, manifest, times)))
    publish("warming", "The first run of a size after a LOAD (MiniLM)", found, output)
    if any(figure.met is False for figure in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
