"""Query ``models``: the table of models, searched, sorted, and cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from mainspring.console.payloads import ModelLine, Models
from mainspring.console.queries.asking import BadQuery
from mainspring.console.view.models import (
    BROKEN,
    COLD,
    EVICTIONS,
    FAILED,
    IN_TIME,
    LATE,
    LOADING,
    LOADS,
    READY,
    REJECTED,
    RESIDENT,
    ModelState,
)
from mainspring.console.view.view import View

_KEYS: dict[str, Callable[[ModelState], Any]] = {
    "name": lambda model: model.name,
    "queued": lambda model: model.queued,
    "demand": lambda model: model.demand,
    "in_time": lambda model: model.counts[IN_TIME],
    "late": lambda model: model.counts[LATE],
    "rejected": lambda model: model.counts[REJECTED],
    "cold": lambda model: model.counts[COLD],
    "pages": lambda model: 0 if model.spec is None else model.spec.pages,
    "resident": lambda model: len(model.where(RESIDENT)),
    "last_load": lambda model: model.last_load_ns or 0,
    "loads": lambda model: model.counts[LOADS],
    "evictions": lambda model: model.counts[EVICTIONS],
}
SORTS = tuple(_KEYS)
"""By which columns the table can be sorted."""
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

    ``sort`` is one of `SORTS`; models that are equal in it are in the order of their names.
    """
    if sort not in _KEYS:
        raise BadQuery(f"there is no column {sort!r} to sort by: choose of {', '.join(SORTS)}")
    if offset < 0 or not 0 <= limit <= LIMIT:
        raise BadQuery(
            f"offset is {offset} and limit {limit}; they must be at least 0, limit at most {LIMIT}"
        )
    sought = search.casefold()
    found = [model for model in view.fleet.models.values() if sought in model.name.casefold()]
    found.sort(key=lambda model: model.name)
    if sort != "name" or descending:
        found.sort(key=_KEYS[sort], reverse=descending)
    kind = commonest_kind(view)
    rows = [model_line(view, model, kind) for model in found[offset : offset + limit]]
    return Models(total=len(found), offset=offset, rows=rows)


def model_line(view: View, model: ModelState, kind: str) -> ModelLine:
    """Return one row; ``kind`` is the kind of device whose estimates it shows."""
    spec, counts = model.spec, model.counts
    minutes = max(1, view.traffic.seconds.in_window(300)) / 60
    latencies_ns = sorted(model.latencies_ns or ())
    seconds = max(1, view.traffic.seconds.in_window(10))
    slo_ns = view.operations.slos_ns.get(model.name if spec is None else spec.public_name)
    infer_ms: dict[int, float] = {}
    if spec is not None and kind:
        times = view.fleet.durations.infers(kind, spec).times
        infer_ms = {size: ns / 1e6 for size, ns in zip(times.sizes, times.ns, strict=True)}
    return ModelLine(
        name=model.name,
        pages=0 if spec is None else spec.pages,
        resident_on=model.where(RESIDENT),
        loading_on=model.where(LOADING),
        prepared_on=len(model.where(*READY)),
        failed_on=len(model.where(FAILED, BROKEN)),
        queued=model.queued,
        demand_rps=model.demand / seconds,
        in_time=counts[IN_TIME],
        late=counts[LATE],
        rejected=counts[REJECTED],
        cold=counts[COLD],
        last_load_ns=model.last_load_ns,
        infer_ms=infer_ms,
        pinned=model.name in view.operations.pinned,
        slo_ms=None if slo_ns is None else slo_ns / 1e6,
        loads_pm=counts[LOADS] / minutes,
        evictions_pm=counts[EVICTIONS] / minutes,
        p50_ms=_rank_ms(latencies_ns, 50),
        p99_ms=_rank_ms(latencies_ns, 99),
        thrashes=counts[EVICTIONS] >= THRASHES and 2 * counts[LOADS] >= counts[EVICTIONS],
    )


def _rank_ms(ascending_ns: list[int], percent: int) -> float | None:
    """Return a percentile by nearest rank."""
    return ascending_ns[-(-percent * len(ascending_ns) // 100) - 1] / 1e6 if ascending_ns else None


def commonest_kind(view: View) -> str:
    """Return the kind of device that most workers have, the first by name among equals; empty for none."""
    kinds = Counter(worker.device_kind for worker in view.fleet.workers.values() if worker.device_kind)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")
