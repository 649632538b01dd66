"""How many records a second the console's view takes in on one core, and what its history and queries cost.

Twelve devices and 4,026 models under 3,000 requests a second, played in virtual time.
``make bench-console-view`` runs it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import typer

from mainspring.console.queries.cluster import cluster
from mainspring.console.queries.memory import memory
from mainspring.console.queries.models import models
from mainspring.console.queries.request import request
from mainspring.console.queries.schedule import schedule
from mainspring.console.view.actions import Lane
from mainspring.console.view.view import View
from mainspring.controller.logged_scheduler import about
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.events import Wakeup
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec
from mainspring.telemetry.entries import FORMAT, Entry, SegmentHeader

TARGET = 60_000.0
"""Records a second."""
INFER_MS = {"1": 2.6, "2": 3.9, "4": 6.0, "8": 10.0, "16": 17.3}
SECOND_NS = 1_000_000_000

Stream = list[tuple[int, Entry]]


def cluster_of(rate: float, seconds: float) -> SimulationSpec:
    """Return the cluster that is measured, a part of whose requests have little time."""
    return SimulationSpec(
        devices=(DeviceGroup(count=12),),
        models=(ModelGroup(name="m", infer_ms=INFER_MS, load_ms=8.0, copies=4026),),
        workload=(
            WorkloadSpec(rate=0.95 * rate, zipf_exponent=0.9),
            WorkloadSpec(rate=0.05 * rate, zipf_exponent=0.9, slo_ms=9.0),
        ),
        scheduler=SchedulerConfig(),
        warm_up_s=0.0,
        duration_s=seconds,
    )


def recorded(rate: float, seconds: float) -> Stream:
    """Play a cluster and return its event stream, as an observer gets it."""
    spec = cluster_of(rate, seconds)
    header = SegmentHeader(FORMAT, 1, True, 0, about(spec.scheduler))
    stream: Stream = [(0, header)]

    def record(now_ns: int, entry: Entry) -> None:
        if not isinstance(entry, Wakeup):
            stream.append((now_ns, entry))

    simulate(spec, analyse=False, record=record)
    return stream


def filled(rate: float, seconds: float) -> View:
    """Play a cluster, and return a view that has followed it."""
    spec, view = cluster_of(rate, seconds), View()
    view.take(0, SegmentHeader(FORMAT, 1, True, 0, about(spec.scheduler)))
    simulate(spec, analyse=False, record=view.take)
    return view


def taken_in(view: View, stream: Stream) -> float:
    """Let a view take a stream in; return how many records a second of processor time that is."""
    gc.collect()
    take = view.take
    began_s = time.process_time()
    for now_ns, entry in stream:
        take(now_ns, entry)
    return len(stream) / (time.process_time() - began_s)


def cost_ms(query: Callable[[], object], times: int = 15) -> float:
    """Return the median of what a query and its encoding as JSON take."""
    taken = []
    for _ in range(times):
        began_ns = time.perf_counter_ns()
        msgspec.json.encode(query())
        taken.append((time.perf_counter_ns() - began_ns) / 1e6)
    return statistics.median(taken)


def queries(view: View) -> list[Figure]:
    """Return what a picture costs of each kind."""
    now_ns = view.now_ns
    version = view.seq - 900
    rejected = next(view.traffic.ended.newest(("rejected",)))
    asked: dict[str, Callable[[], object]] = {
        "cluster": lambda: cluster(view),
        "memory, 1,984 pages": lambda: memory(view, "worker-0"),
        "schedule, 5 s whole": lambda: schedule(view, now_ns - 5 * SECOND_NS, now_ns + SECOND_NS),
        "schedule, what changed in 0.1 s": lambda: schedule(
            view, now_ns - 5 * SECOND_NS, now_ns + SECOND_NS, after=version
        ),
        "schedule, 5 s of a minute ago": lambda: schedule(
            view, now_ns - 65 * SECOND_NS, now_ns - 60 * SECOND_NS
        ),
        "models, 100 rows sorted": lambda: models(view, sort="in_time", descending=True),
        "request, a rejected one": lambda: request(view, str(rejected.id)),
    }
    return [Figure(f"query {name}", cost_ms(query), "ms") for name, query in asked.items()]


def main(
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 3_000.0,
    seconds: Annotated[float, typer.Option(min=1, help="Virtual seconds that are played.")] = 10.0,
    minutes: Annotated[float, typer.Option(min=0, help="History that the view is filled with.")] = 5.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print a table, write it as JSON."""
    stream = recorded(rate, seconds)
    speed = statistics.median([taken_in(View(), stream) for _ in range(3)])
    a_second = len(stream) / seconds
    del stream
    base_bytes = psutil.Process().memory_info().rss
    view = filled(rate, minutes * 60)
    gc.collect()
    grown_bytes = psutil.Process().memory_info().rss - base_bytes
    figures = [
        Figure("records taken in", speed, "records/s", TARGET, at_least=True),
        Figure("records a second of the cluster", a_second, "records/s"),
        Figure("share of a core that taking them in needs", 100 * a_second / speed, "%"),
    ]
    figures += [
        Figure("resident set grown by history and the simulated cluster", grown_bytes / 1e6, "MB"),
        Figure("actions remembered", sum(map(len, lanes(view))), "actions"),
        Figure("requests remembered", len(view.traffic.ended), "requests"),
    ]
    title = f"The console's view: 12 devices, 4,026 models, {rate:,.0f} requests a second"
    publish("console_view", title, figures + queries(view), output)


def lanes(view: View) -> list[Lane]:
    """Return every executor's lane."""
    return [lane for history in view.histories.values() for lane in history.lanes]


if __name__ == "__main__":
    typer.run(main)
