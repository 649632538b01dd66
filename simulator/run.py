"""`simulate`: a spec played to its end, with the report that a live run would leave."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, ModelAdded, OperatorAsked
from mainspring.simulator.bound.possible import deadlines, is_wanted, possible
from mainspring.simulator.cluster import Cluster, build_cluster
from mainspring.simulator.controller import Record
from mainspring.simulator.graph_groups import with_families
from mainspring.simulator.graphs import as_models
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.workloads import build_source
from mainspring.telemetry.report import Summary
from mainspring.telemetry.summary import Analyser, Analysis
from mainspring.traces.arrival import Kind
from mainspring.traces.records import MAX_REQUESTS, Records, RecordsFull
from mainspring.traces.report import Note, Progress, summarise
from mainspring.traces.source import Source

SLICE_NS = 50_000_000
"""Virtual time between looks at the clock."""
PROGRESS_EVERY_S = 0.5
COLLECT_EVERY = (100_000, 50, 100)
"""Thresholds of the garbage collector: a simulation makes no cycles, and in flight is much that lives on."""
FINISHED = "finished"
"""Ending of a run whose requests all came and were answered."""
STRAGGLERS_NS = 62_000_000_000
"""Time after the last request within which every one has its answer: the gateway gives it at last."""


NO_BOUND = (
    "what was possible is not known with closed-loop clients under deadlines: which requests come depends "
    "on the answers. Give them best_effort = true, or compare goodput itself"
)


class NoBound(ValueError):
    """Nothing can be said of what was possible; the text says why."""


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a simulation."""

    spec: SimulationSpec
    summary: Summary
    """Summary of what clients saw, without the warm-up."""
    analysis: Analysis | None
    """Analysis of the controller's event stream, without the warm-up; None if it was not asked for."""
    records: Records
    """Records of every request after the warm-up."""
    fingerprint: str
    """Digest of all answers with their instants: equal for equal runs."""
    wall_s: float
    """Real time that it took."""


def simulate(
    spec: SimulationSpec,
    *,
    progress: Callable[[Progress], None] | None = None,
    analyse: bool = True,
    validate_every: int = 0,
    record: Record | None = None,
    cluster: Cluster | None = None,
    source: Source | None = None,
    max_requests: int = MAX_REQUESTS,
) -> SimulatedRun:
    """Play a spec to its end and return what came of it.

    ``progress`` is told twice a second of real time. ``record`` gets the event stream. ``cluster`` and
    ``source`` stand for what `build_cluster` and `build_source` would make of the spec. Raises as these do,
    and ValueError for a policy that there is not.
    """
    began_s, cluster = time.perf_counter(), cluster or build_cluster(spec)
    warm_up_ns = round(spec.warm_up_s * 1e9)
    end_ns = warm_up_ns + round(spec.duration_s * 1e9)
    graphs = with_families(spec.graphs, spec.families)
    analyser, records = Analyser(warm_up_ns, end_ns) if analyse else None, Records(max_requests)
    simulation = Simulation(
        spec.scheduler,
        cluster.first,
        cluster.workers,
        seed=spec.seed,
        faults=spec.fault_options(),
        processes=spec.processes,
        cost=spec.cost,
        preloaded=cluster.preloaded,
        source=source or build_source(spec, [*cluster.models, *as_models(graphs, cluster.models)]),
        records=records,
        records_from_ns=warm_up_ns,
        record=_both(record, None if analyser is None else analyser.take),
        validate_every=validate_every,
        graphs=graphs,
    )
    _set_up(simulation, cluster, analyser)
    ended = play(simulation, records, end_ns, progress)
    wall_s = time.perf_counter() - began_s
    summary = summarise(
        records,
        start_ns=warm_up_ns,
        duration_ns=end_ns - warm_up_ns if ended == FINISHED else 0,
        notes=_notes(spec, simulation, ended, wall_s),
    )
    analysis = None if analyser is None else analyser.finish()
    return SimulatedRun(spec, summary, analysis, records, fingerprint(records), wall_s)


def _set_up(simulation: Simulation, cluster: Cluster, analyser: Analyser | None) -> None:
    if analyser is not None:
        analyser.share(simulation.scheduler.cluster)
    for wish in cluster.assigned:
        simulation.feed(0, OperatorAsked("the spec", wish))
    for model in cluster.models:
        if model.name in cluster.later_ns:
            simulation.feed(cluster.later_ns[model.name], ModelAdded(model))


def bounded(
    run: SimulatedRun,
    cluster: Cluster,
    *,
    asked: bool | None = None,
    progress: Callable[[float], None] | None = None,
) -> SimulatedRun:
    """Return a run whose summary says what was possible for its requests.

    With ``asked`` None only if that is quick, and there is a bound. ``progress`` is told which part of the
    work is done. Raises `NoBound` if there is none and it was asked for.
    """
    if closed_under_deadlines(run.spec):
        if asked:
            raise NoBound(NO_BOUND)
        return run
    if not is_wanted(deadlines(run.records), asked):
        return run
    held = None
    if not run.spec.warm_up_s:
        held = {model.name for each in cluster.preloaded.values() for model in each.resident}
    found = possible(run.records, cluster.models, cluster.workers, held=held, progress=progress)
    return replace(run, summary=msgspec.structs.replace(run.summary, possible=found))


def closed_under_deadlines(spec: SimulationSpec) -> bool:
    """Return whether some closed-loop client's requests have deadlines."""
    return any(each.kind == Kind.CLOSED.value and not each.best_effort for each in spec.workload)


def _notes(spec: SimulationSpec, simulation: Simulation, ended: str, wall_s: float) -> dict[str, Note]:
    tenants: dict[str, Note] = {
        f"tenant_{name}": f"{in_time:,} of {offered:,} requests in time"
        for name, (offered, in_time) in simulation.ledger.tenants.items()
    }
    return tenants | {
        "simulated": True,
        "policy": spec.scheduler.policy,
        "seed": spec.seed,
        "ended": ended,
        "scheduler_cost": spec.cost.mode,
        "controller_busy_s": round(simulation.controller.busy_ns / 1e9, 6),
        "controller_turns": simulation.controller.turns,
        "wall_s": round(wall_s, 3),
    }


def fingerprint(records: Records) -> str:
    """Return a digest of all requests and their answers."""
    sent, replied = records.columns()
    return hashlib.sha256(sent.tobytes() + replied.tobytes()).hexdigest()[:16]


def play(
    simulation: Simulation, records: Records, end_ns: int, progress: Callable[[Progress], None] | None
) -> str:
    """Run until every request has its answer; return why it ended."""
    shown_s = time.perf_counter()
    ended = FINISHED
    thresholds = gc.get_threshold()
    gc.set_threshold(*COLLECT_EVERY)
    try:
        while simulation.now_ns < end_ns or not simulation.finished():
            if simulation.now_ns > end_ns + STRAGGLERS_NS:
                ended = "requests without an answer"
                break
            simulation.run(simulation.now_ns + SLICE_NS)
            if progress is not None and time.perf_counter() - shown_s >= PROGRESS_EVERY_S:
                shown_s = time.perf_counter()
                progress(_progress(simulation, records))
    except RecordsFull:
        ended = "record limit"
    finally:
        gc.set_threshold(*thresholds)
    if progress is not None:
        progress(_progress(simulation, records))
    return ended


def _progress(simulation: Simulation, records: Records) -> Progress:
    ledger = simulation.ledger
    return Progress(
        elapsed_s=simulation.now_ns / 1e9,
        offered=len(records),
        goodput=ledger.goodput,
        rejected=ledger.rejected,
        late=ledger.late,
        unsent=0,
        in_flight=len(simulation.gateway.flights),
        p50_ms=ledger.latency.percentile_ms(50),
        p99_ms=ledger.latency.percentile_ms(99),
        lag_p99_us=0.0,
    )


def _both(first: Record | None, second: Record | None) -> Record | None:
    if first is None or second is None:
        return first or second
    one, other = first, second

    def record(now_ns: int, message: Event | Command) -> None:
        one(now_ns, message)
        other(now_ns, message)

    return record
