"""Pools on a running cluster of emulated devices, beside what `queues` and `simulate` say of them.

A pool is given the same queries three times. What the estimators do not know unless the spec's ``[network]``
says it is what messages take, so each is asked twice: without, and with what the window's own log shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import typer

from mainspring.client.client import Client
from mainspring.experiments.ribbon.data import SHARED, Setting
from mainspring.experiments.ribbon.emulated import emulated_cluster, emulated_table, slower, with_messages
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.commands import Command
from mainspring.messages.events import Event, RequestArrived, WorkerJoined
from mainspring.planner.estimate import CONFIDENCE, Estimate
from mainspring.planner.live import Live
from mainspring.planner.pools.space import Space
from mainspring.planner.problem import Pool, Problem, read_problem
from mainspring.planner.queues import Queues
from mainspring.planner.simulated import Simulated
from mainspring.planner.windows import Replayed
from mainspring.simulator.spec import SimulationSpec
from mainspring.simulator.spec_file import parse_spec
from mainspring.telemetry.log import read_log
from mainspring.traces.records import OUTPUTS, Records
from mainspring.traces.report import Summary

Entries = Iterable[tuple[int, Event | Command]]
VIOLATING = 0.95
"""A pool that ends about this share in time is compared, beside the cheapest that holds,"""
NEAR = 0.01
"""within so much."""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """What messages took in a window: means, in microseconds."""

    between_us: float
    """From an INFER's end to its result at the controller, from an INFER's sending to its begin, and what it
    took beyond its profile: for so long a device was idle from one query to the next that waited."""
    around_us: float
    """What else of a request's latency was neither waiting nor computing."""
    lag_us: float
    """How late the client sent, 99 times in 100 at most."""
    late_begins: float
    """The share of INFERs that began more than 5 ms after they were sent."""
    longer_us: float
    """What INFERs took beyond their profile."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, live and estimated: shares in time."""

    model: str
    slower: float
    pool: Pool
    price: float
    queries: int
    live: float
    low: float
    high: float
    queues: float
    """With what messages took."""
    simulate: float
    """Likewise."""
    apart: float
    """Live less `queues`, in points."""
    free: float
    """By `queues`, without any message."""
    lost: int
    between_us: float
    """As `Messages`."""
    around_us: float
    lag_us: float
    late_begins: float
    longer_us: float


def live(setting: Setting, seconds: float, folder: Path, shared: Path = SHARED) -> list[Compared]:
    """Play a model's queries on its pools, live and estimated."""
    spec = parse_spec(emulated_table(setting, seconds, folder, shared), setting.name, planned=True)
    problem = read_problem(spec)
    pools = compared_pools(problem)
    found: list[tuple[Estimate, Summary, Records]] = []
    with tempfile.TemporaryDirectory(prefix="mainspring-") as run_dir:
        with emulated_cluster(spec, pools[0], Path(run_dir)) as cluster, Client(cluster.address) as client:
            window = Replayed(problem, cluster.address)
            try:
                estimator = Live(problem, CONFIDENCE, client=client, window=window, say=typer.echo)
                for pool in pools:
                    estimate = estimator.evaluate(pool, whole=True)
                    assert window.last is not None
                    found.append((estimate, *window.last))
            finally:
                window.close()
        entries = list(read_log(Path(run_dir) / "events"))
        return [_compared(setting, spec, problem, entries, *each) for each in found]


def compared_pools(problem: Problem) -> tuple[Pool, ...]:
    """Return the cheapest pool that holds, the best of one kind, and one that violates by about 4 points."""
    queues = Queues(problem, confidence=0.0)
    table = [queues.evaluate(pool, whole=True) for pool in Space(problem.kinds).pools()]
    holding = sorted((each for each in table if each.holds(problem.attainment)), key=lambda each: each.price)
    alone = [each for each in holding if sum(map(bool, each.pool)) == 1]
    near = [each for each in table if abs(each.attainment - VIOLATING) <= NEAR]
    # On a pool that is all but overloaded, how many are late hangs on every microsecond.
    violating = min(near, key=lambda each: max(each.utilisation.values()))
    return tuple(dict.fromkeys(each.pool for each in (holding[0], alone[0], violating)))


def _compared(
    setting: Setting,
    spec: SimulationSpec,
    problem: Problem,
    entries: Entries,
    estimate: Estimate,
    summary: Summary,
    records: Records,
) -> Compared:
    took = messages_of(entries, summary.start_ns, records, problem)
    known = read_problem(with_messages(spec, took.between_us, took.around_us))
    expected = Queues(known).evaluate(estimate.pool, whole=True)
    return Compared(
        model=setting.name,
        slower=slower(setting),
        pool=estimate.pool,
        price=estimate.price,
        queries=estimate.queries,
        live=estimate.attainment,
        low=estimate.low,
        high=estimate.high,
        queues=expected.attainment,
        simulate=Simulated(known).evaluate(estimate.pool, whole=True).attainment,
        apart=100 * (estimate.attainment - expected.attainment),
        free=Queues(problem).evaluate(estimate.pool, whole=True).attainment,
        lost=summary.lost + summary.unanswered,
        **msgspec.structs.asdict(took),
    )


def messages_of(entries: Entries, start_ns: int, records: Records, problem: Problem) -> Messages:
    """Read from event log entries what messages took in a window that began at an instant.

    Its requests came in the client's order.
    """
    sent, replied = records.columns()
    profiles = {kind: each.infer_ns for kind, each in problem.models[0].profiles.items()}
    arrived: dict[int, tuple[int, int]] = {}
    kinds: dict[str, str] = {}
    infers: dict[int, tuple[int, Infer]] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for now_ns, entry in entries:
        match entry:
            case WorkerJoined():
                kinds[entry.worker] = entry.device_kind
            case RequestArrived() if now_ns >= start_ns and len(arrived) < len(records):
                arrived[entry.request_id] = len(arrived), now_ns
            case Infer() if entry.request_ids[0] in arrived:
                infers[entry.action_id] = now_ns, entry
            case Result(status=Status.OK) if entry.action_id in infers:
                sent_ns, infer = infers.pop(entry.action_id)
                place, arrived_ns = arrived[infer.request_ids[0]]
                if replied["outcome"][place] != OUTPUTS:
                    continue
                profiled_ns = profiles[kinds[entry.worker]][infer.batch_size]
                began_ns, took_ns = entry.begin_ns - sent_ns, entry.end_ns - entry.begin_ns
                between_ns = now_ns - entry.end_ns + began_ns + took_ns - profiled_ns
                latency_ns = int(replied["replied_ns"][place] - sent["intended_ns"][place])
                around_ns = latency_ns - (sent_ns - arrived_ns) - profiled_ns - between_ns
                rows.append((between_ns, around_ns, began_ns, took_ns - profiled_ns, place))
    between, around, began, longer, _ = np.array(rows).T / 1e3
    return Messages(
        between_us=float(between.mean()),
        around_us=float(around.mean()),
        lag_us=float(np.quantile(sent["sent_ns"] - sent["intended_ns"], 0.99)) / 1e3,
        late_begins=float((began > 5e3).mean()),
        longer_us=float(longer.mean()),
    )
