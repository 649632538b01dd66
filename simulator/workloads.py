"""The source of a spec's workloads, one `traces.source.Source`: built, recorded, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from mainspring.gateway.config import GatewayConfig
from mainspring.messages.model import ModelSpec
from mainspring.simulator.offered import chosen_models, played_seed, recipe_of, recorded
from mainspring.simulator.spec import LOG, SimulationSpec, SpecError, WorkloadSpec
from mainspring.traces.arrival import Arrival, Kind
from mainspring.traces.listed import slo_title
from mainspring.traces.recipe import build
from mainspring.traces.returning import returning
from mainspring.traces.rows import Rows, RowsSpec, with_rows
from mainspring.traces.shapes import with_shapes
from mainspring.traces.source import OpenSource, Source


class SideBySide:
    """Several sources as one; of requests that are due at one instant, the first source's comes first."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def next_ns(self) -> int | None:
        """Same as `Source.next_ns`."""
        known = [due_ns for source in self._sources if (due_ns := source.next_ns()) is not None]
        return min(known, default=None)

    def take(self) -> Arrival:
        """Same as `Source.take`."""
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
        """Same as `Source.completed`."""
        number, place = divmod(client, len(self._sources))
        self._sources[place].completed(number, now_ns)

    def done(self, now_ns: int, /) -> bool:
        """Same as `Source.done`."""
        return all(source.done(now_ns) for source in self._sources)


class Owned:
    """A source whose requests are a tenant's."""

    def __init__(self, source: Source, tenant: str) -> None:
        self._source = source
        self._tenant = tenant
        self.next_ns, self.completed, self.done = source.next_ns, source.completed, source.done

    def take(self) -> Arrival:
        """Same as `Source.take`."""
        return msgspec.structs.replace(self._source.take(), tenant=self._tenant)


def build_source(spec: SimulationSpec, models: Sequence[ModelSpec]) -> Source:
    """Return all workloads of a spec, for these models.

    Raises `SpecError`, `traces.arrival.WorkloadError` or OSError for what can't be read or be.
    """
    sources: list[Source] = []
    for place, workload in enumerate(spec.workload):
        source = _source(spec, workload, place, models)
        source = returning(source, round(workload.retry_ms * 1e6))
        sources.append(Owned(source, workload.tenant) if workload.tenant else source)
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
        if workload.load is not None:
            load = f"load {workload.load:g}"
        if workload.kind == Kind.CLOSED.value:
            load = f"{workload.concurrency} in flight each"
        slos = ", ".join(f"{slo_ms:g}" for slo_ms in workload.slos_ms)
        slo = "no SLO" if workload.best_effort else f"SLO{'s' * (len(workload.slos_ms) > 1)} {slos} ms"
        if workload.kind == Kind.CSV.value and workload.trace is not None:
            usual_ms = None if workload.best_effort else workload.slos_ms[0]
            slo = slo_title(Path(workload.trace), None if usual_ms is None else round(usual_ms * 1e6))
        parts.append(f"{workload.kind} {load}, {slo}")
    plural = "s" * (devices != 1)
    return (
        f"{models} models on {devices} simulated device{plural}, {spec.scheduler.policy}: {'; '.join(parts)}"
    )


def _source(spec: SimulationSpec, workload: WorkloadSpec, place: int, models: Sequence[ModelSpec]) -> Source:
    chosen = chosen_models(workload, models)
    if workload.kind == LOG:
        source = OpenSource(recorded(spec, workload, chosen))
        if source.next_ns() is None:
            raise SpecError(
                f"{workload.log} has no request to any of these models: log is the folder of a run's events, "
                "and models are called as in that run"
            )
        return source
    playable = build(recipe_of(spec, place, chosen), [model.name for model in chosen])
    rng = np.random.default_rng(played_seed(spec, place))
    playable = with_shapes(playable, chosen, workload.shape)
    if isinstance(workload.rows, RowsSpec):
        playable = with_rows(playable, _fitting(workload.rows, chosen))
    return playable.source(rng)


def _fitting(rows: RowsSpec, chosen: Sequence[ModelSpec]) -> Rows:
    """Return a distribution of rows that a request may have; raise `SpecError` if one can't."""
    found = Rows(rows, [model.name for model in chosen])
    most = GatewayConfig().max_rows_per_request
    if found.largest > most:
        raise SpecError(
            f"requests have up to {found.largest} rows and may have {most} at most: give rows most = {most}"
        )
    return found
