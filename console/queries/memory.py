"""Query ``memory``: who owns the pages of one worker."""

from __future__ import annotations

from itertools import islice

from mainspring.console.payloads import Eviction, Extent, Memory
from mainspring.console.queries.asking import Unknown
from mainspring.console.view.models import LOADING, Placement
from mainspring.console.view.view import View
from mainspring.console.view.workers import WorkerState
from mainspring.messages.model import PAGE_BYTES


def memory(view: View, worker: str, *, evictions: int = 100) -> Memory:
    """Return a worker's pages and at most so many evictions; raise `Unknown` if there is no such worker."""
    known = view.fleet.workers.get(worker) or view.fleet.gone().get(worker)
    if known is None:
        there = ", ".join(sorted(view.fleet.workers)) or "none"
        raise Unknown(f"there is no worker {worker!r}; there are: {there}")
    indices: dict[str, int] = {}
    used: list[int | None] = []
    extents = _extents(known, indices, used)
    return Memory(
        worker=worker,
        pages=known.pages,
        pages_free=known.pages - known.used,
        page_bytes=PAGE_BYTES,
        models=[*indices],
        extents=extents,
        last_used_ns=used,
        evictions=[
            Eviction(each.at_ns, each.model, each.pages, each.for_model)
            for each in islice(reversed(known.history.evictions), max(0, evictions))
        ],
    )


def _extents(worker: WorkerState, indices: dict[str, int], used: list[int | None]) -> list[Extent]:
    """Return the runs of adjacent pages of one owner; enter each owner's index and when it was last used."""
    extents: list[Extent] = []
    first = 0
    while first < worker.pages:
        owner = worker.owner(first)
        end = first + 1
        while end < worker.pages and worker.owner(end) is owner:
            end += 1
        if owner is None:
            extents.append(Extent(first, end - first, -1, "free"))
        else:
            extents.append(Extent(first, end - first, _index(owner, indices, used), _state(owner)))
        first = end
    return extents


def _index(owner: Placement, indices: dict[str, int], used: list[int | None]) -> int:
    name = owner.model.name
    if name not in indices:
        indices[name] = len(used)
        used.append(owner.last_used_ns or None)
    return indices[name]


def _state(owner: Placement) -> str:
    return "loading" if owner.state == LOADING else "resident"
