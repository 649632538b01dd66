"""Simulates a case: the parts of `simulator.run`, with a workload that no spec has a name for.

The model of the devices is that of the independent simulation which our policies are checked against: 0.1 ms
each way on the network, durations that jitter by 0.03 %, and one action in a million that takes up to 20 ms
longer.
"""

from __future__ import annotations

import gc
import time

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
from mainspring.telemetry.summary import Analyser
from mainspring.traces.records import Records
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
