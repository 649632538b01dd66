"""Query ``memory``: who owns the pages of one worker."""

from __future__ import annotations

from itertools import islice

from mainspring.console.payloads import Eviction, Extent, Memory
from mainspring.console.queries.asking import Unknown
from mainspring.console.view.view import View
from mainspring.console.view.workers import Run, runs
from mainspring.messages.model import PAGE_BYTES


def memory(view: View, worker: str, *, evictions: int = 100) -> Memory:
    """Return a worker's pages and at most ``evictions``; raise `Unknown` for an unknown worker."""
    there = view.cluster.workers.get(worker)
    gone = view.gone().get(worker)
    if there is not None:
        size, free, owned = there.pages.size, there.pages.free, runs(there)
    elif gone is not None:
        size, free, owned = gone.pages, gone.pages_free, [*gone.runs]
    else:
        names = ", ".join(sorted(view.cluster.workers)) or "none"
        raise Unknown(f"there is no worker {worker!r}; there are: {names}")
    used = {run.model: run.last_used_ns for run in owned if run.model}
    indices = {model: index for index, model in enumerate(used)}
    history = view.history(worker)
    return Memory(
        worker=worker,
        pages=size,
        pages_free=free,
        page_bytes=PAGE_BYTES,
        models=[*used],
        extents=[Extent(run.first, run.count, indices.get(run.model, -1), _state(run)) for run in owned],
        last_used_ns=[used_ns or None for used_ns in used.values()],
        evictions=[
            Eviction(each.at_ns, each.model, each.pages, each.for_model)
            for each in islice(reversed(history.evictions), max(0, evictions))
        ],
    )


def _state(run: Run) -> str:
    return "free" if not run.model else "loading" if run.loading else "resident"
