"""Queries ``worker``, one worker in full beside its kind, and ``memory``, the owners of its pages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from statistics import median

from mainspring.console.pages import Gpu, Norm, WorkerPage, WorkerSeries
from mainspring.console.payloads import Eviction, Extent, Memory, WorkerPicture
from mainspring.console.queries.asking import Unknown, happenings
from mainspring.console.queries.cluster import worker_picture
from mainspring.console.view.actions import LANE_SECONDS
from mainspring.console.view.series import SECOND_NS
from mainspring.console.view.view import View
from mainspring.console.view.workers import NO_ERROR, WORST_SECONDS, History, Run, runs
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.model import PAGE_BYTES


def memory(view: View, worker: str, *, evictions: int = 100) -> Memory:
    """Return a worker's pages and at most ``evictions``; raise `Unknown` for an unknown worker."""
    there = view.cluster.workers.get(worker)
    gone = view.gone().get(worker)
    if there is not None:
        size, free, owned = there.pages.size, there.pages.free, runs(there)
    elif gone is not None:
        size, free, owned = gone.pages, gone.pages_free, [*gone.runs]
    else:
        names = ", ".join(sorted(view.cluster.workers)) or "none"
        raise Unknown(f"there is no worker {worker!r}; there are: {names}")
    used = {run.model: run.last_used_ns for run in owned if run.model}
    indices = {model: index for index, model in enumerate(used)}
    history = view.history(worker)
    return Memory(
        worker=worker,
        pages=size,
        pages_free=free,
        page_bytes=PAGE_BYTES,
        models=[*used],
        extents=[Extent(run.first, run.count, indices.get(run.model, -1), _state(run)) for run in owned],
        last_used_ns=[used_ns or None for used_ns in used.values()],
        evictions=[
            Eviction(each.at_ns, each.model, each.pages, each.for_model)
            for each in islice(reversed(history.evictions), max(0, evictions))
        ],
    )


def _state(run: Run) -> str:
    return "free" if not run.model else "loading" if run.loading else "resident"


THROTTLED = "mainspring_gpu_throttled"


def worker(view: View, name: str) -> WorkerPage:
    """Return one worker, there or gone; raise `Unknown` for another name."""
    everyone = {each.name: each for each in view.workers()}
    known = everyone.get(name)
    if known is None:
        raise Unknown(
            f"there is no worker {name[:200]!r}; there are: {', '.join(sorted(everyone)) or 'none'}"
        )
    pictures = {each.name: worker_picture(view, each) for each in everyone.values()}
    own = pictures.pop(name)
    first = max(view.first_ns, view.now_ns - WORST_SECONDS * SECOND_NS) // SECOND_NS
    infers, loads = _worst(view.history(name), first, view.now_ns // SECOND_NS)
    return WorkerPage(
        picture=own,
        norm=_norm([each for each in pictures.values() if each.device_kind == own.device_kind]),
        first_ns=first * SECOND_NS,
        infer_worst_ms=infers,
        load_worst_ms=loads,
        series=_series(view, name),
        resident=sorted(known.resident),
        happenings=happenings(view, (name,)),
        gpu=None
        if name not in view.devices or name not in view.cluster.workers
        else _gpu(view.devices[name]),
    )


def _gpu(health: DeviceHealth) -> Gpu:
    told = {each.name.removeprefix("mainspring_gpu_"): each.value for each in health.readings}
    hertz = told.get("sm_clock_hertz")
    return Gpu(
        notes=[*health.notes],
        throttled=[each.reason for each in health.readings if each.name == THROTTLED and each.value],
        clock_mhz=None if hertz is None else hertz / 1e6,
        temperature_c=told.get("temperature_celsius"),
        power_w=told.get("power_watts"),
        memory_used_bytes=told.get("memory_used_bytes"),
        uncorrected_errors=told.get("uncorrected_errors"),
        remapped_rows=told.get("remapped_rows"),
        xid_errors=told.get("xid_errors"),
        without_graph=told.get("executables_without_graph"),
    )


def _series(view: View, name: str) -> WorkerSeries:
    """Return a worker's whole seconds, as far back as they are known."""
    history, end = view.history(name), view.now_ns // SECOND_NS
    first = max(view.first_ns // SECOND_NS, end - LANE_SECONDS + 1)
    seconds = range(first, end)
    return WorkerSeries(
        first_ns=first * SECOND_NS,
        exec_busy=[history.exec.busy_ns[each] / SECOND_NS for each in seconds],
        load_busy=[history.load.busy_ns[each] / SECOND_NS for each in seconds],
        batches=[history.batches[each] for each in seconds],
        rows=[history.rows[each] for each in seconds],
    )


def _worst(history: History, first: int, now: int) -> tuple[list[float | None], list[float | None]]:
    """Return the worst error of INFER and of LOAD in each second from ``first`` to ``now``."""
    infers: list[float | None] = [None] * (now - first + 1)
    loads = [*infers]
    for second, infer_ns, load_ns in history.worst:
        if first <= second <= now:
            infers[second - first] = None if infer_ns == NO_ERROR else infer_ns / 1e6
            loads[second - first] = None if load_ns == NO_ERROR else load_ns / 1e6
    return infers, loads


def _norm(peers: list[WorkerPicture]) -> Norm:
    return Norm(
        len(peers),
        _median(each.infer_error_p99_us for each in peers),
        _median(each.load_error_p99_us for each in peers),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
