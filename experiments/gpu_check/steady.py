"""Is INFER as predictable with LOADs beside it as it has to be? Its 99.99th percentile against its median."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, as_exec_thread, device_for, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints, quantile
from mainspring.experiments.gpu_check.settings import Settings
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, told
from mainspring.messages.model import ModelSpec
from mainspring.worker.realtime import Rights

ABOVE = 0.01
ENDING_S = 10.0
WARM_UP = 200
PROBES = 20
MARGIN = 0.8


def check_steadiness(settings: Settings) -> list[Verdict]:
    """Run a model again and again while another one is loaded again and again.

    Each LOAD is to other pages than the one before, as in serving.
    """
    began_s = time.monotonic()
    store = Store(settings.store(settings.engine))
    there = [name for name in settings.steady if name in store.names()]
    candidates = [store.manifest(name).spec() for name in there or [settings.main]]
    loaded = store.manifest(settings.second).spec()
    rights = Rights(settings.realtime)
    with device_for([*candidates, loaded], settings.config(), copies=3) as device:
        running = choose(device, candidates, settings)
        device.prepare(loaded)
        places = (running.pages, running.pages + loaded.pages)
        with rights.claimed_process(), loading_beside(device, loaded, places, rights) as loads:
            spans, parts = as_exec_thread(
                rights,
                lambda: run_again_and_again(
                    device, running, settings.infers, min(settings.infers_s, time_left_s(settings, began_s))
                ),
            )
    return verdicts(running, spans, parts, settings.infers, len(loads), rights.notes)


def time_left_s(settings: Settings, began_s: float) -> float:
    """Return how long a check that began then, by `time.monotonic`, may go on and still end in time."""
    return max(0.0, settings.limit_s - ENDING_S - (time.monotonic() - began_s))


def choose(device: LoneDevice, candidates: Sequence[ModelSpec], settings: Settings) -> ModelSpec:
    """Return the first model that can be run as often as wanted in the time, or the last; it is resident."""
    for spec in candidates:
        device.prepare(spec)
        device.load(spec)
        device.fill(spec, 1, random_rows(spec, 1))
        run = device.infer(spec, 1)
        begin_s = time.monotonic()
        for _ in range(PROBES):
            run()
        if (time.monotonic() - begin_s) / PROBES * settings.infers < settings.infers_s * MARGIN:
            break
        if spec is not candidates[-1]:
            device.release(spec)
    return spec


def run_again_and_again(device: LoneDevice, spec: ModelSpec, runs: int, seconds: float) -> tuple[Ints, Ints]:
    """Return the durations in ns of ``runs`` runs of a resident model, of fewer if the time does not do.

    First the host's, from the call to its return, which is what the scheduler predicts; then the device's.
    """
    run = device.infer(spec, 1)
    for _ in range(min(WARM_UP, runs)):
        run()
    spans, device_parts = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    begin_ns = time.monotonic_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    for index in range(runs):
        device_parts[index] = run()
        ended_ns = time.monotonic_ns()
        spans[index] = ended_ns - begin_ns
        if ended_ns > end_ns:
            return spans[: index + 1], device_parts[: index + 1]
        begin_ns = time.monotonic_ns()
    return spans, device_parts


@contextmanager
def again_and_again(
    name: str, once: Callable[[], int], claim: Callable[[], None] = lambda: None
) -> Iterator[list[int]]:
    """Call a function again and again in a thread, which calls ``claim`` first.

    The list that is yielded grows by what each call returns; the first has ended then. Raises afterwards what
    a call raised.
    """
    stop, begun = threading.Event(), threading.Event()
    returned: list[int] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            claim()
            while not stop.is_set():
                returned.append(once())
                begun.set()
        except BaseException as error:
            errors.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield returned
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def loading_beside(
    device: LoneDevice, spec: ModelSpec, places: Sequence[int], rights: Rights
) -> AbstractContextManager[list[int]]:
    """Load a prepared model again and again in a thread like a worker's LOAD, to first pages in turn.

    Yields the list of each LOAD's duration in ns, as `again_and_again` does.
    """
    turns = itertools.cycle(places)
    return again_and_again("load", lambda: device.load(spec, next(turns)), rights.claim_load)


def verdicts(
    spec: ModelSpec, spans: Ints, device_parts: Ints, wanted: int, loads: int, notes: list[str]
) -> list[Verdict]:
    """Judge how far the tail is above the median."""
    median = quantile(spans, 50)
    tail = quantile(spans, 99.99)
    note = f"{len(spans):,} runs of {spec.name} beside {loads:,} LOADs"
    if len(spans) < wanted:
        note += f" (time was up before {wanted:,})"
    return [
        at_most(
            "INFER: 99.99th percentile above the median, LOADs beside",
            100 * (tail / median - 1),
            100 * ABOVE,
            "%",
            "; ".join([note, *notes]),
        ),
        told("  median, 99.99th, longest", summary_ms(spans), "ms, from the call to its return"),
        told("  the device's part of it", summary_ms(device_parts), "ms"),
    ]


def summary_ms(durations: Ints) -> str:
    """Return the median, the 99.99th percentile and the longest of durations in ns, as text in ms."""
    values = quantile(durations, 50), quantile(durations, 99.99), durations.max()
    return ", ".join(f"{ns / 1e6:.4f}" for ns in values)
