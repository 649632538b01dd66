"""LOAD in ``bench.worker``: beside a bare memcpy of the same bytes, and what it and EXEC cost each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mainspring.experiments.bench.report import Figure
from mainspring.experiments.bench.worker_peer import Ints, LoneWorker
from mainspring.experiments.bench.worker_streams import BareExec, BareLoad, Infers, Loads, Windows
from mainspring.messages.model import ModelSpec

OF_MEMCPY = 0.85
NO_SLOWER = 1.05

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


BACK_TO_BACK = 0.97
HIDDEN = 0.8
"""Share of the tensors' way that EXEC is to hide; nothing of it would be hidden if they took turns."""
LEFT_ALONE = "what the host left alone"
FEWEST_RUNS = 6


class BackToBack(msgspec.Struct):
    """Periods in ns, from one begin to the next; an array for each turn."""

    bare: list[Ints] = []
    bare_busy: list[Ints] = []
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
    """Cost of tensors on their way, in ns."""

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


BEGIN_ERROR_P99_US = 50
BARE_S = 0.004
LEAST_LEAD_NS = 1_000_000
"""An action that was sent later than this before its earliest instant was not free to begin there."""
TIGHT_NS = 60_000
"""Length of the windows that are hard to hit: an action begins in one or is refused."""


class WindowSamples(msgspec.Struct):
    """Begins of INFERs; the streams of each kind."""

    bare: list[Ints] = []
    """Instants and when a wait for each ended, of the EXEC thread without the worker's code."""
    quiet: list[Windows] = []
    beside_loads: list[Windows] = []
    tight: list[Windows] = []
    """Windows of `TIGHT_NS`, beside LOADs."""


def begin_errors(
    worker: LoneWorker,
    model: ModelSpec,
    loading: Sequence[ModelSpec],
    pages: Sequence[tuple[int, ...]],
    count: int,
    rounds: int,
) -> WindowSamples:
    """Measure ``count`` INFERs of a resident model of each kind, in turns."""
    samples = WindowSamples()
    random = np.random.default_rng(0)
    each = -(-count // rounds)
    for _ in range(rounds):
        bare = BareExec(model, each * BARE_S, waits=True)
        worker.drive(bare)
        samples.bare.append(bare.spans())
        for into, length_ns in (
            (samples.quiet, 20_000_000),
            (samples.beside_loads, 20_000_000),
            (samples.tight, TIGHT_NS),
        ):
            windows = Windows(model, each, random, length_ns=length_ns)
            if into is samples.quiet:
                worker.drive(windows)
            else:
                worker.drive(windows, Loads(loading, pages, windows.expected_s))
            into.append(windows)
    return samples


def window_figures(samples: WindowSamples, calls: Mapping[int, int]) -> list[Figure]:
    """Return the rows; ``calls`` has the instant at which the engine was called for each action."""
    bare_us = np.concatenate([np.diff(spans).ravel() for spans in samples.bare]) / 1e3
    note = f"{len(bare_us)} waits, same thread; longest {bare_us.max():.0f} us"
    rows = [Figure("begin error of a bare wait: p99", float(np.percentile(bare_us, 99)), "us", note=note)]
    for kind, streams in (("quiet", samples.quiet), ("beside LOADs", samples.beside_loads)):
        begun = [each for stream in streams for each in stream.begun]
        free = [each for each in begun if each.earliest_ns - each.sent_ns >= LEAST_LEAD_NS]
        errors_us = np.array([each.begin_ns - each.earliest_ns for each in free]) / 1e3
        called_us = np.array([calls[each.action_id] - each.earliest_ns for each in free]) / 1e3
        median, p90, p99 = np.percentile(errors_us, [50, 90, 99])
        note = f"{len(free)} INFERs; longest {errors_us.max():.0f} us"
        rows += [
            Figure(f"begin error, {kind}: p99", p99, "us", BEGIN_ERROR_P99_US, note=note),
            Figure(f"begin error, {kind}:   median", median, "us"),
            Figure(f"begin error, {kind}:   p90", p90, "us"),
            Figure(f"begin error, {kind}:   p99 at the engine", float(np.percentile(called_us, 99)), "us"),
        ]
    everything = [*samples.quiet, *samples.beside_loads, *samples.tight]
    outside = sum(
        not each.earliest_ns <= each.begin_ns <= each.latest_ns
        for stream in everything
        for each in stream.begun
    )
    kept = sum(len(stream.begun) for stream in samples.tight)
    refused = sum(stream.refused for stream in samples.tight)
    total = sum(len(stream.begun) for stream in everything)
    tight = f"windows of {TIGHT_NS / 1e3:.0f} us beside LOADs"
    return [
        *rows,
        Figure("begun before earliest or after latest", outside, "INFERs", 0, note=f"of {total}"),
        Figure(
            f"{tight}: kept", kept / max(1, kept + refused), "of them", note=f"{refused} refused as too late"
        ),
    ]
