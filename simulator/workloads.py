"""From a spec's workloads to one `traces.source.Source`: built, recorded, or several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.messages.events import RequestArrived
from mainspring.messages.model import ModelSpec
from mainspring.simulator.cluster import SpecError
from mainspring.simulator.spec import LOG, SimulationSpec, WorkloadSpec, matches
from mainspring.telemetry.log import read_log
from mainspring.traces.arrival import Arrival, Kind
from mainspring.traces.recipe import Recipe, build
from mainspring.traces.shapes import with_shapes
from mainspring.traces.source import OpenSource, Source


class SideBySide:
    """Several sources as one; of requests that are due at one instant, the first source's comes first."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def next_ns(self) -> int | None:
        """As `Source.next_ns`."""
        known = [due_ns for source in self._sources if (due_ns := source.next_ns()) is not None]
        return min(known, default=None)

    def take(self) -> Arrival:
        """As `Source.take`."""
        due = [
            (due_ns, place)
            for place, each in enumerate(self._sources)
            if (due_ns := each.next_ns()) is not None
        ]
        place = min(due)[1]
        arrival = self._sources[place].take()
        if arrival.client < 0:
            return arrival
        client = arrival.client * len(self._sources) + place
        return msgspec.structs.replace(arrival, client=client)

    def completed(self, client: int, now_ns: int) -> None:
        """As `Source.completed`."""
        number, place = divmod(client, len(self._sources))
        self._sources[place].completed(number, now_ns)

    def done(self, now_ns: int, /) -> bool:
        """As `Source.done`."""
        return all(source.done(now_ns) for source in self._sources)


def build_source(spec: SimulationSpec, models: Sequence[ModelSpec]) -> Source:
    """Return all workloads of a spec, for these models.

    Raises `SpecError`, `traces.arrival.WorkloadError` or OSError for what can't be read or be.
    """
    sources = [_source(spec, workload, place, models) for place, workload in enumerate(spec.workload)]
    return sources[0] if len(sources) == 1 else SideBySide(sources)


def title(spec: SimulationSpec, models: int) -> str:
    """Return what is simulated, for a heading."""
    devices = sum(group.count for group in spec.devices)
    parts = []
    for workload in spec.workload:
        if workload.kind == LOG:
            parts.append(f"the requests of {workload.log}")
            continue
        load = f"{workload.rate:g} requests/s" if workload.rate is not None else f"scale {workload.scale:g}"
        if workload.kind == Kind.CLOSED.value:
            load = f"{workload.concurrency} in flight each"
        slo = "no SLO" if workload.best_effort else f"SLO {workload.slo_ms:g} ms"
        parts.append(f"{workload.kind} {load}, {slo}")
    plural = "s" * (devices != 1)
    return (
        f"{models} models on {devices} simulated device{plural}, {spec.scheduler.policy}: {'; '.join(parts)}"
    )


def _source(spec: SimulationSpec, workload: WorkloadSpec, place: int, models: Sequence[ModelSpec]) -> Source:
    names = [model.name for model in models]
    chosen = [name for name in names if matches(name, workload.models)]
    if not chosen:
        raise SpecError(f"no model matches models = {workload.models!r}; there are {', '.join(names[:5])}")
    duration_ns = round((spec.warm_up_s + spec.duration_s) * 1e9)
    if workload.kind == LOG:
        source = OpenSource(_recorded(Path(str(workload.log)), set(chosen), duration_ns))
        if source.next_ns() is None:
            raise SpecError(
                f"{workload.log} has no request to any of these models: log is the folder of a run's events, "
                "and models are called as in that run"
            )
        return source
    seed = workload.seed if workload.seed is not None else spec.seed + place
    recipe = Recipe(
        kind=Kind(workload.kind),
        duration_ns=duration_ns,
        slo_ns=None if workload.best_effort else round(workload.slo_ms * 1e6),
        rows=workload.rows,
        seed=seed,
        trace=None if workload.trace is None else Path(workload.trace),
        rate=workload.rate,
        scale=workload.scale,
        time_scale=workload.time_scale,
        start_ns=round(workload.start_s * 1e9),
        cv=workload.cv,
        zipf_exponent=workload.zipf_exponent,
        concurrency=workload.concurrency,
        think_ns=round(workload.think_ms * 1e6),
    )
    named = [model for model in models if model.name in set(chosen)]
    return with_shapes(build(recipe, chosen), named, workload.shape).source(
        np.random.default_rng([seed, place])
    )


def _recorded(log: Path, names: set[str], duration_ns: int) -> Iterator[Arrival]:
    """Yield the arrivals of a log's last run, from the first one on."""
    first_ns = None
    for now_ns, event in read_log(log, last_run=True):
        if not isinstance(event, RequestArrived) or event.model not in names:
            continue
        first_ns = now_ns if first_ns is None else first_ns
        if now_ns - first_ns >= duration_ns:
            return
        slo_ns = None if event.deadline_ns is None else max(1, event.deadline_ns - now_ns)
        yield Arrival(now_ns - first_ns, event.model, event.rows, slo_ns, sizes=event.sizes)
