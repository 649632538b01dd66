"""Query ``models``: the table of models, searched, sorted, and cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from mainspring.cluster.estimates import InferTimes
from mainspring.cluster.models import Model
from mainspring.cluster.placements import PREPARED_STATES, State
from mainspring.cluster.residency_bits import hosts
from mainspring.cluster.state import Cluster
from mainspring.cluster.status import is_erratic
from mainspring.console.payloads import ModelLine, Models
from mainspring.console.queries.asking import BadQuery
from mainspring.console.view.models import COLD, EVICTIONS, IN_TIME, LATE, LOADS, REJECTED, ModelHistory
from mainspring.console.view.view import View
from mainspring.messages.operating import SetDefaultSlo

_KEYS: dict[str, Callable[[Model, ModelHistory], Any]] = {
    "name": lambda model, _: model.name,
    "queued": lambda model, _: model.waiting,
    "demand": lambda _, seen: seen.demand,
    "in_time": lambda _, seen: seen.counts[IN_TIME],
    "late": lambda _, seen: seen.counts[LATE],
    "rejected": lambda _, seen: seen.counts[REJECTED],
    "cold": lambda _, seen: seen.counts[COLD],
    "pages": lambda model, _: model.pages,
    "resident": lambda model, _: sum(each.state is State.RESIDENT for each in model.usable.values()),
    "last_load": lambda _, seen: seen.last_load_ns or 0,
    "loads": lambda _, seen: seen.counts[LOADS],
    "evictions": lambda _, seen: seen.counts[EVICTIONS],
}
SORTS = tuple(_KEYS)
"""Columns by which the table can be sorted."""
THRASHES = 3
"""Evictions within the last minutes from which a model thrashes, if it was loaded again after most."""
LIMIT = 1_000
"""Rows that one answer holds at most."""


def models(
    view: View,
    *,
    search: str = "",
    sort: str = "name",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Models:
    """Return at most ``limit`` rows from ``offset`` on of the models whose names contain ``search``.

    ``sort`` is one of `SORTS`; models that are equal in it are in the order of their names. Raises `BadQuery`
    for another column, and for an ``offset`` or ``limit`` out of bounds.
    """
    if sort not in _KEYS:
        raise BadQuery(f"there is no column {sort!r} to sort by: choose of {', '.join(SORTS)}")
    if offset < 0 or not 0 <= limit <= LIMIT:
        raise BadQuery(
            f"offset is {offset} and limit {limit}; they must be at least 0, limit at most {LIMIT}"
        )
    sought = search.casefold()
    found = [model for model in view.cluster.models.values() if sought in model.name.casefold()]
    found.sort(key=lambda model: model.name)
    if sort != "name" or descending:
        key = _KEYS[sort]
        found.sort(key=lambda model: key(model, view.traffic.model(model.name)), reverse=descending)
    kind = commonest_kind(view)
    rows = [model_line(view, model, kind) for model in found[offset : offset + limit]]
    return Models(total=len(found), offset=offset, rows=rows)


def model_line(view: View, model: Model, kind: str) -> ModelLine:
    """Return one row; ``kind`` is the kind of device whose estimates it shows, at the largest sizes."""
    seen = view.traffic.model(model.name)
    counts, times = seen.counts, model.by_bucket[-1].infer_times.get(kind)
    minutes = max(1, view.traffic.seconds.in_window(300)) / 60
    latencies_ns = sorted(seen.latencies_ns)
    return ModelLine(
        name=model.name,
        pages=model.pages,
        resident_on=where(view.cluster, model, State.RESIDENT),
        loading_on=where(view.cluster, model, State.LOADING),
        prepared_on=len(where(view.cluster, model, *PREPARED_STATES)),
        failed_on=len(where(view.cluster, model, State.FAILED, State.BROKEN)),
        queued=model.waiting,
        demand_rps=seen.demand / max(1, view.traffic.seconds.in_window(10)),
        in_time=counts[IN_TIME],
        late=counts[LATE],
        rejected=counts[REJECTED],
        cold=counts[COLD],
        last_load_ns=seen.last_load_ns,
        infer_ms=estimates_ms(times),
        pinned=model.name in view.cluster.pinned,
        slo_ms=_slo_ms(view, model),
        loads_pm=counts[LOADS] / minutes,
        evictions_pm=counts[EVICTIONS] / minutes,
        p50_ms=_rank_ms(latencies_ns, 50),
        p99_ms=_rank_ms(latencies_ns, 99),
        erratic=is_erratic(model),
        thrashes=counts[EVICTIONS] >= THRASHES and 2 * counts[LOADS] >= counts[EVICTIONS],
    )


def estimates_ms(times: InferTimes | None) -> dict[int, float]:
    """Return present estimates by batch size; none of a kind of device that no worker has."""
    return {} if times is None else {size: ns / 1e6 for size, ns in zip(times.sizes, times.ns, strict=True)}


def where(cluster: Cluster, model: Model, *states: State) -> list[str]:
    """Return the workers on which a model is in one of these states, and stays."""
    placements = [each for each in model.placements.values() if each.state in states and not each.leaving]
    found = [each.worker for each in placements]
    if State.PREPARED in states and model.prepared & cluster.worker_bits.taken:
        workers = hosts(cluster, model)
        found += [
            each
            for each in workers
            if model.prepared & each.bit and each.name not in model.placements and not each.stopping
        ]
    return [worker.name for worker in sorted(found, key=lambda worker: worker.number)]


def _slo_ms(view: View, model: Model) -> float | None:
    """Return the default SLO that an operator set for a model."""
    _, asked = view.cluster.operations.get(("slo", model.spec.public_name), (0, None))
    if asked is None or not isinstance(asked.command, SetDefaultSlo) or asked.command.slo_ns is None:
        return None
    return asked.command.slo_ns / 1e6


def _rank_ms(ascending_ns: list[int], percent: int) -> float | None:
    """Return a percentile by nearest rank."""
    return ascending_ns[-(-percent * len(ascending_ns) // 100) - 1] / 1e6 if ascending_ns else None


def commonest_kind(view: View) -> str:
    """Return the kind of device that most workers have, the first by name among equals; empty for none."""
    kinds = Counter(worker.kind for worker in view.cluster.workers.values() if worker.device_kind)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")
