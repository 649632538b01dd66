"""Causes of longer EXECs that a profile of one size, run again and again, does not show.

Batch sizes in turn, a pause before it, a PREPARE beside it, its input on the way while LOADs take the bus;
and the gap between two of them (`gaps`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import sleep

import numpy as np

from mainspring.cli.profiling.lone_device import LoneDevice, as_exec_thread, device_for, random_rows
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.choosing.durations import Ints, quantile
from mainspring.experiments.gpu_check.gaps import of_gaps, of_gaps_in_a_worker
from mainspring.experiments.gpu_check.settings import LARGE, Settings, beside
from mainspring.experiments.gpu_check.steady import again_and_again, loading_beside
from mainspring.experiments.gpu_check.verdicts import Verdict, at_most, not_run, told
from mainspring.messages.actions import Infer
from mainspring.messages.model import ModelSpec
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import Awakened, OpensAlone, OwnMemory
from mainspring.worker.engines.cuda.driver import open_driver
from mainspring.worker.engines.cuda.monitor import StateReader
from mainspring.worker.engines.cuda.nvml import NvmlMissing, try_reader, try_states
from mainspring.worker.engines.cuda.state import GpuState, describe, problems
from mainspring.worker.realtime import Rights

IN_TURN = 0.05
BESIDE = 0.10
AFTER_PAUSE = 3
"""Times that each pause is made."""
BEAT_MS = 100
OPENED = 5
"""Times that an executable is opened."""


def check_executing(settings: Settings) -> Iterator[Verdict]:
    """Run the main model in each of these ways, in a thread like a worker's EXEC."""
    source = Store(settings.store(settings.engine))
    spec, second = (source.manifest(name).spec() for name in (settings.main, settings.second))
    others = [source.manifest(LARGE)] if LARGE in source.names() else []
    store = store_of(settings, source)
    config = settings.config(store=store.root)
    runs = settings.exec_runs
    rights = Rights(settings.realtime)
    sized = [spec, second, *(other.spec() for other in others)]
    with device_for(sized, config, copies=2) as device, rights.claimed_process():
        for other in others:
            # A worker opens what its store holds when it starts: this one comes later.
            store.put_manifest(other)
        for each in (spec, second):
            device.prepare(each)
        device.load(spec)
        ways = [
            partial(of_sizes, device, spec, runs),
            partial(of_gaps, device, spec, runs),
            partial(of_gaps_in_a_worker, device, spec, runs, rights),
            partial(of_inputs, device, spec, second, runs, rights),
            *[partial(of_preparing, device, spec, other.spec(), runs) for other in others],
            *[partial(of_opening, device, spec, other.spec()) for other in others],
            # The longest ones are the last.
            partial(of_pauses, device, spec, settings.pauses_ms),
            partial(of_beats, device, spec, settings.pauses_ms),
        ]
        for way in ways:
            yield from as_exec_thread(rights, way)


def store_of(settings: Settings, source: Store) -> Store:
    """Return a store that holds the main model and the one like it, and shares their files."""
    store = beside(source, Path(settings.folder) / "store-exec", ["executables", "weights"])
    for name in store.names():
        store.remove(name)
    for name in (settings.main, settings.second):
        store.put_manifest(source.manifest(name))
    return store


def spans_ns(run: Callable[[], object], runs: int) -> Ints:
    """Return the host's durations of ``runs`` runs, from the call to its return."""
    found = np.zeros(runs, np.int64)
    for index in range(runs):
        begin_ns = time.monotonic_ns()
        run()
        found[index] = time.monotonic_ns() - begin_ns
    return found


def of_sizes(device: LoneDevice, spec: ModelSpec, runs: int) -> list[Verdict]:
    """Run the batch sizes in turn, and each by itself: the median of each size in turn against by itself."""
    sizes = spec.batch_sizes
    calls = {}
    for size in sizes:
        device.fill(spec, size, random_rows(spec, size))
        calls[size] = device.infer(spec, size)
        calls[size]()
    alone = {size: float(np.median(spans_ns(calls[size], runs))) for size in sizes}
    mixed: dict[int, list[int]] = {size: [] for size in sizes}
    for _ in range(runs):
        for size in sizes:
            mixed[size].append(int(spans_ns(calls[size], 1)[0]))
    shares = {size: float(np.median(mixed[size])) / alone[size] - 1 for size in sizes}
    worst = max(sizes, key=lambda size: shares[size])
    return [
        at_most(
            f"EXEC {spec.name} after another batch size: longer",
            100 * shares[worst],
            100 * IN_TURN,
            "%",
            f"batch {worst}, of {', '.join(map(str, sizes))} in turn {runs:,} times",
        ),
        told("  alone", ", ".join(f"{alone[size] / 1e6:.4f}" for size in sizes), "ms, by batch size"),
    ]


def of_inputs(
    device: LoneDevice, spec: ModelSpec, loaded: ModelSpec, runs: int, rights: Rights
) -> list[Verdict]:
    """Send an input and run its batch, alone and while another model is loaded again and again."""
    engine = device.engine
    what = "INPUT and EXEC, batch 1, LOADs beside"
    if not isinstance(engine, OwnMemory):
        return [not_run(what, "the device has no memory of its own to send inputs to")]
    transfers = engine.transfers
    layout = slot_layout(spec, 1)
    place = Reservation(Slot(0, layout.size), layout)
    action = Infer(1, "lone", spec.name, 1, (0,), (1,), (False,), 0, 0, 0, 0)

    def through() -> None:
        for tensor, start in zip(spec.inputs, layout.inputs, strict=True):
            transfers.send(place, start, tensor.row_bytes)
        engine.execute(action, place)

    alone = spans_ns(through, runs)
    with loading_beside(device, loaded, (spec.pages,), rights) as loads:
        disturbed = spans_ns(through, runs)
    return [
        told(
            what,
            f"{(np.median(disturbed) - np.median(alone)) / 1e3:.1f} us longer",
            f"median {np.median(disturbed) / 1e6:.4f}, "
            f"99th percentile {quantile(disturbed, 99) / 1e6:.4f} ms, {len(loads)} LOADs",
        )
    ]


def of_preparing(device: LoneDevice, spec: ModelSpec, other: ModelSpec, runs: int) -> list[Verdict]:
    """Run a model while another one of another executable is prepared and released again and again.

    As a worker prepares it: without opening the executable where EXEC does that.
    """
    run, engine = device.infer(spec, 1), device.engine
    alone = spans_ns(run, runs)
    prepare = engine.fetch if isinstance(engine, OpensAlone) else engine.prepare

    def once() -> int:
        begin_ns = time.monotonic_ns()
        prepare(other)
        took_ns = time.monotonic_ns() - begin_ns
        engine.release(other.name)
        return took_ns

    with again_and_again("prepare", once) as prepared:
        disturbed = spans_ns(run, runs)
    tails = quantile(disturbed, 99) / quantile(alone, 99) - 1
    longest = f"longest {disturbed.max() / 1e6:.3f} instead of {alone.max() / 1e6:.3f} ms"
    return [
        at_most(
            "EXEC, PREPAREs beside: 99th percentile longer",
            100 * tails,
            100 * BESIDE,
            "%",
            f"{longest}; {len(prepared)} PREPAREs of {np.median(prepared) / 1e6:.2f} ms",
        )
    ]


def of_opening(device: LoneDevice, spec: ModelSpec, other: ModelSpec) -> list[Verdict]:
    """Open another executable between two batches, as an OPEN does; and how long the next batch takes."""
    run, engine = device.infer(spec, 1), device.engine
    if not isinstance(engine, OpensAlone):
        return [not_run("OPEN", "the engine opens executables in PREPARE's thread")]
    usual_ns = float(np.median(spans_ns(run, 20)))
    opened, next_ns = [], []
    for _ in range(OPENED):
        if engine.fetch(other):
            return [not_run("OPEN", f"the executable of {other.name} is open for another model")]
        opened.append(int(spans_ns(lambda: engine.prepare(other), 1)[0]))
        next_ns.append(int(spans_ns(run, 1)[0]))
        engine.release(other.name)
    times = ", ".join(f"{ns / 1e6:.2f}" for ns in opened)
    after = f"the next EXEC takes {np.median(next_ns) / usual_ns:.2f} times the usual"
    return [told(f"OPEN of {other.name}", times, f"ms, in EXEC's thread; {after}")]


def of_pauses(
    device: LoneDevice, spec: ModelSpec, pauses_ms: Sequence[int], beat: Callable[[], None] | None = None
) -> list[Verdict]:
    """Run a batch after pauses: clocks fall, caches are lost. ``beat`` is called every `BEAT_MS` of them."""
    run = device.infer(spec, 1)
    busy_ns = float(np.median(spans_ns(run, 20)))
    found = []
    for pause_ms in pauses_ms:
        first = []
        for _ in range(AFTER_PAUSE):
            pause(pause_ms, beat)
            first.append(int(spans_ns(run, 1)[0]))
        found.append(f"{np.median(first) / busy_ns:.2f}")
    meanwhile = f", a heartbeat every {BEAT_MS} ms meanwhile" if beat else ""
    return [
        told(
            f"first EXEC after {', '.join(map(str, pauses_ms))} ms of quiet{meanwhile}",
            ", ".join(found),
            f"times {busy_ns / 1e6:.4f} ms, that of one behind the other",
        )
    ]


def pause(milliseconds: int, beat: Callable[[], None] | None) -> None:
    """Do nothing for this long, but call ``beat`` every `BEAT_MS`."""
    left_ms = milliseconds
    while beat is not None and left_ms > BEAT_MS:
        sleep(BEAT_MS / 1e3)
        beat()
        left_ms -= BEAT_MS
    sleep(left_ms / 1e3)


def of_beats(device: LoneDevice, spec: ModelSpec, pauses_ms: Sequence[int]) -> list[Verdict]:
    """Run a batch after the long pauses, in which the device gets a worker's heartbeats."""
    engine, long_ms = device.engine, [each for each in pauses_ms if each > BEAT_MS]
    if not isinstance(engine, Awakened) or not long_ms:
        return []
    took_ns = spans_ns(engine.heartbeat, AFTER_PAUSE)
    return [
        *of_pauses(device, spec, long_ms, engine.heartbeat),
        told("  a heartbeat", f"{np.median(took_ns) / 1e3:.1f} us", f"heartbeat_ms = {BEAT_MS}"),
    ]


READINGS = 30
"""Times that the GPU's state is read."""


def tell_device(settings: Settings) -> list[Verdict]:
    """Return a line about the GPU and one about each thing that could be better."""
    number = settings.config().cuda_device
    if number is None:
        return [told("device", "this machine's processor")]
    # Before this process uses the GPU itself, which would be told of as a process that disturbs.
    states = try_states()
    driver = open_driver(number)
    try:
        found = lines(driver.name(), driver.bus_id(), states)
        return [*found, *of_readings(try_reader(driver.bus_id()))]
    finally:
        driver.close()


def of_readings(reader: StateReader | None) -> list[Verdict]:
    """Time what a worker does once a second while it serves: it reads the state. None: NVML can't be used."""
    what = "  reading the state"
    if reader is None:
        return [not_run(what, "NVML can't be used here")]
    try:
        took_us = spans_ns(reader.read, READINGS) / 1e3
    except NvmlMissing as error:
        return [not_run(what, str(error))]
    finally:
        reader.close()
    of_first = f"the first {took_us[0]:.0f}, the others up to {took_us[1:].max():.0f}"
    return [told(what, f"{np.median(took_us):.0f} us", f"{of_first}; a worker reads once a second")]


def lines(name: str, bus_id: str, states: Sequence[GpuState] | str) -> list[Verdict]:
    """Return what there is to tell of the GPU at this place of the bus."""
    if isinstance(states, str):
        return [told("device", name), not_run("  its state", states)]
    state = next((state for state in states if state.bus_id == bus_id), None)
    if state is None:
        return [told("device", name), not_run("  its state", f"NVML knows no GPU at {bus_id}")]
    found = [told("device", describe(state))]
    return found + [told("  could be better", each.found, each.costs) for each in problems(state)]
