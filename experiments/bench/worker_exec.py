"""EXEC in ``bench.worker``: back to back beside the bare loop, and with tensors on their way meanwhile."""

from __future__ import annotations

import msgspec
import numpy as np

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.bench.worker_peer import Ints, LoneWorker
from mainspring.experiments.bench.worker_streams import BareExec, Infers
from mainspring.messages.model import ModelSpec

BACK_TO_BACK = 0.97
HIDDEN = 0.8
"""Share of the tensors' way that EXEC is to hide; nothing of it would be hidden if they took turns."""
LEFT_ALONE = "what the host left alone"
FEWEST_RUNS = 6
"""In a turn, whatever its length."""


class BackToBack(msgspec.Struct):
    """Periods in ns, from one begin to the next; an array for each turn."""

    bare: list[Ints] = []
    bare_busy: list[Ints] = []
    """Of the bare loop while another thread keeps the other cores' part of the machine at work."""
    worker: list[Ints] = []
    device: list[Ints] = []
    """Durations of the worker's runs on the device alone."""
    own: list[Ints] = []
    """Periods less the run that began with them: what the worker's code takes."""
    between: list[Ints] = []
    """Times from one action's end to the next one's begin."""


def back_to_back(worker: LoneWorker, model: ModelSpec, seconds: float, rounds: int) -> BackToBack:
    """Measure a resident model for about ``seconds`` in all, in turns."""
    samples = BackToBack()
    each_s = turn_s(worker, model, seconds / rounds / 3)
    for _ in range(rounds):
        for busy, into in ((False, samples.bare), (True, samples.bare_busy)):
            bare = BareExec(model, each_s)
            worker.drive(bare, busy=busy)
            into.append(np.diff(bare.spans()[:, 0]))
        infers = Infers(model, each_s)
        worker.drive(infers)
        spans = infers.spans()
        samples.worker.append(np.diff(spans[:, 0]))
        device_ns = infers.device_ns()
        samples.device.append(device_ns)
        samples.own.append(np.diff(spans[:, 0]) - device_ns[:-1])
        samples.between.append(spans[1:, 0] - spans[:-1, 1])
    return samples


def turn_s(worker: LoneWorker, model: ModelSpec, wanted_s: float) -> float:
    """Return the length of a turn: as wanted, or longer if too few runs would fit into it."""
    once = BareExec(model, 0)
    worker.drive(once)
    once_s = float(np.diff(once.spans()[0])[0]) / 1e9
    return max(wanted_s, FEWEST_RUNS * once_s)


class Tensors(msgspec.Struct):
    """What tensors on their way cost, in ns."""

    alone: list[int] = []
    """One INFER at a time, from sending it until its result is here, without its run on the device."""
    alone_withdrawn: list[int] = []
    """The same without tensors: neither inputs nor outputs travel."""
    periods: list[Ints] = []
    """Back to back, from one begin to the next; an array for each turn."""
    periods_withdrawn: list[Ints] = []


def tensors_on_their_way(worker: LoneWorker, model: ModelSpec, seconds: float, rounds: int) -> Tensors:
    """Measure a resident model for about ``seconds`` in all, in turns."""
    samples = Tensors()
    each_s = turn_s(worker, model, seconds / rounds / 4)
    for _ in range(rounds):
        for withdrawn, alone, periods in (
            (False, samples.alone, samples.periods),
            (True, samples.alone_withdrawn, samples.periods_withdrawn),
        ):
            one = Infers(model, each_s, withdrawn=withdrawn, depth=1)
            worker.drive(one)
            alone.extend((np.array(one.took_ns) - one.device_ns()).tolist())
            many = Infers(model, each_s, withdrawn=withdrawn)
            worker.drive(many)
            periods.append(np.diff(many.spans()[:, 0]))
    return samples


def ratio_of_medians(numerators: list[Ints], denominators: list[Ints]) -> float:
    """Return the ratio of two kinds' medians within a round; of all rounds, the middle one.

    The machine's speed drifts: what was measured a tenth of a second apart can be compared, the rest not. A
    round in which the machine stood still for so long that a kind has no sample does not count.
    """
    pairs = [pair for pair in zip(numerators, denominators, strict=True) if len(pair[0]) and len(pair[1])]
    return float(np.median(np.array([np.median(above) / np.median(below) for above, below in pairs])))


def undisturbed_ratio(numerators: list[Ints], denominators: list[Ints]) -> float:
    """Return the ratio of two kinds' 10th percentiles over all rounds: of what the host left alone."""
    above, below = (np.percentile(np.concatenate(each), 10) for each in (numerators, denominators))
    return float(above / below)


def median_us(samples: list[Ints]) -> float:
    """Return the median of all turns' samples, in microseconds."""
    return float(np.median(np.concatenate(samples))) / 1e3


def title(model: ModelSpec) -> str:
    """Return the name of a model's architecture."""
    return model.name.removesuffix("-1")


def back_to_back_figures(model: ModelSpec, samples: BackToBack) -> list[Figure]:
    """Return the rows of one model."""
    name = f"EXEC {title(model)}"
    share = ratio_of_medians(samples.bare, samples.worker)
    quiet = undisturbed_ratio(samples.bare, samples.worker)
    busy = ratio_of_medians(samples.bare, samples.bare_busy)
    device = ratio_of_medians(samples.bare, samples.device)
    own, between = median_us(samples.own), median_us(samples.between)
    return [
        Figure(f"{name}: back to back / bare loop", share, "x", BACK_TO_BACK, True, "ratio of medians"),
        Figure(f"{name}:   of 10th percentiles", quiet, "x", note=LEFT_ALONE),
        Figure(f"{name}:   bare loop, median", median_us(samples.bare) / 1e3, "ms"),
        Figure(f"{name}:   bare loop, other core busy", busy, "x", note="of alone: the machine's part"),
        Figure(f"{name}:   the engine's runs / bare loop", device, "x", note="without the worker's code"),
        Figure(f"{name}:   the worker's code, of each", own, "us", note="period less run on the engine"),
        Figure(f"{name}:   of it from end to next begin", between, "us"),
    ]


def tensor_figures(model: ModelSpec, samples: Tensors) -> list[Figure]:
    """Return the rows of one model."""
    way_us = (float(np.median(samples.alone)) - float(np.median(samples.alone_withdrawn))) / 1e3
    with_us, without_us = median_us(samples.periods), median_us(samples.periods_withdrawn)
    slower = undisturbed_ratio(samples.periods, samples.periods_withdrawn)
    hidden = 1 - (slower - 1) * without_us / way_us
    size = f"{model.input_row_bytes / 1e6:.1f} MB in, {model.output_row_bytes / 1e6:.1f} MB out"
    serial = f"of 10th percentiles; {(without_us + way_us) / without_us:.3g} x if they took turns"
    return [
        Figure("INPUT/OUTPUT: hidden behind EXEC", hidden, "of it", HIDDEN, True, size),
        Figure("INPUT/OUTPUT:   their way alone", way_us / 1e3, "ms", note="one at a time, less one without"),
        Figure("INPUT/OUTPUT:   EXEC's period with them", with_us / 1e3, "ms"),
        Figure("INPUT/OUTPUT:   with them / without", slower, "x", note=serial),
    ]
