"""LOAD in ``bench.worker``: beside a bare memcpy of the same bytes, and what it and EXEC cost each other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.bench.worker_exec import (
    LEFT_ALONE,
    median_us,
    ratio_of_medians,
    title,
    undisturbed_ratio,
)
from mainspring.experiments.bench.worker_peer import Ints, LoneWorker
from mainspring.experiments.bench.worker_streams import BareExec, BareLoad, Infers, Loads
from mainspring.messages.model import ModelSpec

OF_MEMCPY = 0.85
NO_SLOWER = 1.05
"""How much more than two bare loops LOAD and EXEC may slow each other: about what such ratios vary by."""

Pages = Sequence[tuple[int, ...]]


class LoadSamples(msgspec.Struct):
    """Durations in ns; an array for each turn."""

    bare: list[Ints] = []
    """Memcpys of all weights."""
    worker: list[Ints] = []
    """LOADs from begin to end, with all that belongs to one."""
    device: list[Ints] = []
    """Their copies alone."""


def load_bandwidth(
    worker: LoneWorker, model: ModelSpec, pages: tuple[int, ...], seconds: float, rounds: int
) -> LoadSamples:
    """Measure a model that is not resident for about ``seconds`` in all, in turns."""
    samples = LoadSamples()
    for _ in range(rounds):
        bare = BareLoad(model, pages, seconds / rounds / 2)
        worker.drive(bare)
        samples.bare.append(np.diff(bare.spans()).ravel())
        loads = Loads([model], [pages], seconds / rounds / 2)
        worker.drive(loads)
        samples.worker.append(np.diff(loads.spans()).ravel())
        samples.device.append(np.array([result.device_ns for result in loads.results], np.int64))
    return samples


class Beside(msgspec.Struct):
    """Periods of EXEC and durations of LOAD in ns, alone and beside each other; an array for each turn."""

    exec_alone: list[Ints] = []
    exec_beside: list[Ints] = []
    load_alone: list[Ints] = []
    load_beside: list[Ints] = []


def beside(
    worker: LoneWorker,
    running: ModelSpec,
    loading: Sequence[ModelSpec],
    pages: Pages,
    seconds: float,
    rounds: int,
) -> tuple[Beside, Beside]:
    """Measure EXEC of a resident model and LOADs for about ``seconds`` in all.

    Returns the bare loops' samples and the worker's.
    """
    bare, own = Beside(), Beside()
    each_s = seconds / rounds / 6
    for _ in range(rounds):
        for samples, execs, loads in (
            (bare, BareExec, lambda: BareLoad(loading[0], pages[0], each_s)),
            (own, _without_tensors, lambda: Loads(loading, pages, each_s)),
        ):
            alone_exec = execs(running, each_s)
            worker.drive(alone_exec)
            alone_load = loads()
            worker.drive(alone_load)
            both = execs(running, each_s), loads()
            worker.drive(*both)
            samples.exec_alone.append(np.diff(alone_exec.spans()[:, 0]))
            samples.load_alone.append(np.diff(alone_load.spans()).ravel())
            execs_beside, loads_beside = during_both(both[0].spans(), both[1].spans())
            samples.exec_beside.append(np.diff(execs_beside[:, 0]))
            samples.load_beside.append(np.diff(loads_beside).ravel())
    return bare, own


def _without_tensors(model: ModelSpec, seconds: float) -> Infers:
    """Return INFERs whose tensors don't travel: what copies them shares LOAD's core."""
    return Infers(model, seconds, withdrawn=True)


def during_both(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the spans that lie wholly in the time in which both kinds ran; in ascending order, as given."""
    first, last = max(one[0, 0], other[0, 0]), min(one[-1, 1], other[-1, 1])
    kept = [spans[(spans[:, 0] >= first) & (spans[:, 1] <= last)] for spans in (one, other)]
    return kept[0], kept[1]


def load_figures(model: ModelSpec, samples: LoadSamples) -> list[Figure]:
    """Return the rows of one model."""
    name = f"LOAD {title(model)}"
    share = ratio_of_medians(samples.bare, samples.worker)
    quiet = undisturbed_ratio(samples.bare, samples.worker)
    gigabytes = model.weights_bytes / 1e3
    rate = gigabytes / median_us(samples.worker)
    bare_rate = gigabytes / median_us(samples.bare)
    device = ratio_of_medians(samples.bare, samples.device)
    size = f"{model.weights_bytes / 1e6:.0f} MB in {model.pages} pages; begin to end"
    source = "page cache to arena, one thread"
    return [
        Figure(f"{name}: bandwidth / memcpy's", share, "x", OF_MEMCPY, True, size),
        Figure(f"{name}:   of 10th percentiles", quiet, "x", note=LEFT_ALONE),
        Figure(f"{name}:   bandwidth, median", rate, "GB/s"),
        Figure(f"{name}:   memcpy's, median", bare_rate, "GB/s", note=source),
        Figure(f"{name}:   the copy alone / memcpy's", device, "x", note="without binding the weights"),
    ]


def beside_figures(running: ModelSpec, loading: ModelSpec, bare: Beside, own: Beside) -> list[Figure]:
    """Return the rows of EXEC and LOAD beside each other."""
    models = f"EXEC of {title(running)}, LOAD of {title(loading)}"
    rows = []
    for kind, alone, together in (
        ("EXEC", "exec_alone", "exec_beside"),
        ("LOAD", "load_alone", "load_beside"),
    ):
        slower = ratio_of_medians(getattr(own, together), getattr(own, alone))
        bare_slower = ratio_of_medians(getattr(bare, together), getattr(bare, alone))
        ratio, note = slower / bare_slower, "memory bandwidth's part"
        rows += [
            Figure(f"both: {kind} slows / bare loops slow", ratio, "x", NO_SLOWER, note=models),
            Figure(f"both:   {kind} beside / alone", slower, "x"),
            Figure(f"both:   bare {kind} beside / alone", bare_slower, "x", note=note),
        ]
    return rows
