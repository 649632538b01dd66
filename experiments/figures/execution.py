"""Runs the cases of an experiment: simulations on every core, live ones one after the other.

The simulated devices are those of the independent simulation that our policies are checked against: 0.1 ms
each way on the network, durations that jitter by 0.03 %, and one action in a million that takes up to 20 ms
longer. Live, a cluster of emulated workers on this machine serves the case through real sockets.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.experiments.figures.case import Case, Observed, Outcomes
from mainspring.experiments.figures.profiles import read_models
from mainspring.messages.actions import Command
from mainspring.messages.events import Event, RequestArrived, Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.cluster import preload
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.telemetry.summary import Analyser, analyse_log
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import Records
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import summarise


class Tape:
    """The events of a run, in their order."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event | Command]] = []

    def take(self, now_ns: int, entry: Event | Command) -> None:
        """Keep an event; commands follow from them."""
        if isinstance(entry, Event):
            self._events.append((now_ns, entry))

    def cost_us(self, config: SchedulerConfig) -> float | None:
        """Return the CPU that a new scheduler takes for each request, in microseconds; None without requests.

        What joining workers and new models take before the first request is not counted.
        """
        requests = [at for at, (_, event) in enumerate(self._events) if isinstance(event, RequestArrived)]
        if not requests:
            return None
        scheduler = Scheduler(config)
        self._play(scheduler, 0, requests[0])
        gc.collect()
        gc.disable()
        try:
            began_ns = time.thread_time_ns()
            self._play(scheduler, requests[0], len(self._events))
            took_ns = time.thread_time_ns() - began_ns
        finally:
            gc.enable()
        return took_ns / 1e3 / len(requests)

    def _play(self, scheduler: Scheduler, start: int, end: int) -> None:
        for now_ns, event in self._events[start:end]:
            if isinstance(event, Wakeup):
                scheduler.schedule(now_ns)
            else:
                scheduler.handle(now_ns, event)  # type: ignore[arg-type]


DEVICES = Faults(delay_ns=100_000, duration_jitter=0.0003, slow_probability=1e-6, slow_ns=20_000_000)
DISPATCH_DELAY_MS, RESPONSE_MARGIN_MS = 0.2, 0.15
SLICE_NS = 50_000_000
STRAGGLERS_NS = 62_000_000_000


def simulate_case(case: Case) -> Observed:
    """Run a case in virtual time; raise RuntimeError if requests stay without an answer."""
    models = read_models(case.table, case.copies)
    workers = [(f"worker-{number}", EMULATED, case.pages) for number in range(case.devices)]
    config = SchedulerConfig(
        policy=case.policy,
        dispatch_delay_ms=DISPATCH_DELAY_MS,
        response_margin_ms=RESPONSE_MARGIN_MS,
    )
    records = Records()
    analyser = Analyser(round(case.warm_up_s * 1e9), case.length_ns) if case.log else None
    tape = Tape() if case.costed else None
    recorder = tape or analyser
    simulation = Simulation(
        config,
        models,
        workers,
        seed=case.seed,
        faults=DEVICES,
        preloaded=preload(models, workers, "fill" if case.preloaded else "none"),
        source=case.workload.source(np.random.default_rng(case.seed)),
        records=records,
        record=None if recorder is None else recorder.take,
    )
    if analyser is not None:
        analyser.share(simulation.scheduler.cluster)
    began_s = time.perf_counter()
    while simulation.now_ns < case.length_ns or not simulation.finished():
        if simulation.now_ns > case.length_ns + STRAGGLERS_NS:
            raise RuntimeError(f"{case.label}, {case.policy}: {records.in_flight} requests have no answer")
        simulation.run(simulation.now_ns + SLICE_NS)
    wall_s = time.perf_counter() - began_s
    return Observed(
        summary=summarise(records, start_ns=0),
        outcomes=Outcomes(records),
        analysis=None if analyser is None else analyser.finish(),
        wall_s=wall_s,
        scheduler_us=None if tape is None else tape.cost_us(config),
    )


SPIN_US = 0
"""Devices that spin before each instant would leave two cores for nothing else."""
IO_BYTES = 32 << 20
STRAGGLER_WAIT_S = 3.0


def serve(case: Case) -> Observed:
    """Start a cluster for the case, play its workload, and stop the cluster."""
    from tests.emulated_cluster import cluster_of

    tables: dict[str, dict[str, Any]] = {
        "cluster": {"workers": case.devices, "copies": case.copies, "event_log": case.log},
        "worker": {"pages": case.pages, "spin_us": SPIN_US, "io_bytes": IO_BYTES},
        "scheduler": {"policy": case.policy},
    }
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        folder = Path(name)
        profiles = folder / "profiles.csv"
        profiles.write_text(case.table, encoding="utf-8")
        with cluster_of(folder / "run", profiles, tables) as cluster:
            replayer = Replayer(
                ReplayConfig(address=cluster.address, seed=case.seed, straggler_wait_s=STRAGGLER_WAIT_S)
            )
            try:
                began_s = time.monotonic()
                summary, records = replayer.play(case.workload)
                wall_s = time.monotonic() - began_s
            finally:
                replayer.close()
        warm_ns = summary.start_ns + round(case.warm_up_s * SECOND_NS)
        analysis = analyse_log(folder / "run" / "events", start_ns=warm_ns) if case.log else None
    return Observed(summary, Outcomes(records), analysis, wall_s, None)


Row = TypeVar("Row")
Measure = Callable[[Case, Observed], Row]


def execute(
    cases: Sequence[Case], measure: Measure[Row], *, live: bool, at_once: int, told: Callable[[Case], None]
) -> list[Row]:
    """Run every case and return what ``measure`` made of each, in the cases' order.

    ``told`` hears of each case that is through. ``measure`` must be a function of a module, because it runs
    where the case does: so that what a process sends back is small.
    """
    rows: dict[int, Row] = {}
    for number, row in _rows(cases, measure, live=live, at_once=min(at_once, len(cases))):
        rows[number] = row
        told(cases[number])
    return [rows[number] for number in range(len(cases))]


def observe(case: Case, *, live: bool) -> Observed:
    """Run one case."""
    return serve(case) if live else simulate_case(case)


def _rows(
    cases: Sequence[Case], measure: Measure[Row], *, live: bool, at_once: int
) -> Iterator[tuple[int, Row]]:
    if at_once <= 1:
        for number, case in enumerate(cases):
            yield number, _measured(case, measure, live)
        return
    with ProcessPoolExecutor(at_once) as pool:
        futures = {pool.submit(_measured, case, measure, live): number for number, case in enumerate(cases)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _measured(case: Case, measure: Measure[Row], live: bool) -> Row:
    return measure(case, observe(case, live=live))
