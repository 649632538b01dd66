"""Pages on a worker into which a model could be loaded, and the models that would have to go first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.residency import able, at
from mainspring.cluster.state import Cluster
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import LoadReason


class LoadPlan:
    """A LOAD that could be sent: its pages, and the placements to UNLOAD before it."""

    __slots__ = ("idle", "pages", "placement", "reason", "victims")

    def __init__(self, placement: Placement, pages: tuple[int, ...], victims: tuple[Placement, ...]) -> None:
        self.placement = placement.base
        self.pages = pages
        self.victims = victims
        self.idle = False
        """True if only idle LOAD executors do it: no request that waits needs it at once."""
        self.reason = LoadReason.DEMAND
        """The reason why it is sent, for the evidence."""


def plan_load(
    placement: Placement, unused_since_ns: int | None = None, victims: Iterable[Placement] | None = None
) -> LoadPlan | None:
    """Find pages for a model on a worker, evicting by least recent use (appendix B); None if there is none.

    Models with work in flight stay. Models with queued requests go last; with ``unused_since_ns`` they
    stay, and so do models that were used after that instant. ``victims`` are who may go instead, in order.
    """
    extents, table = placement.model.on(placement.worker.kind).extents, placement.worker.pages
    need = placement.model.pages_on(placement.worker)
    if need > table.size:
        return None
    pages = table.place(extents) if need <= table.free else None
    if pages is not None:
        return LoadPlan(placement, pages, ())
    if victims is None:
        victims = _victims(placement.worker, unused_since_ns)
    taken: list[Placement] = []
    freed: list[int] = []
    next_try = 1
    for victim in victims:
        if victim.stays:
            continue
        taken.append(victim)
        freed.extend(victim.pages)
        if table.free + len(freed) < need or len(taken) < next_try:
            continue
        next_try = 2 * len(taken)
        pages = table.place(extents, freed)
        if pages is not None:
            break
    else:
        pages = table.place(extents, freed) if freed else None
    if pages is None:
        return None
    owners = table.owners(pages)
    return LoadPlan(placement, pages, tuple(v for v in taken if v.model.name in owners))


def plan_on_freest(
    cluster: Cluster, model: Model, room: Mapping[str, Worker], only: str | None = None
) -> LoadPlan | None:
    """Find pages for a model on the worker that has the most, among those whose LOAD executor has ``room``.

    ``only`` names the one that is asked for, None for any.
    """
    found = [worker for worker in able(model, room.values()) if only in (None, worker.name)]
    for worker in sorted(found, key=lambda worker: (-worker.pages.free, worker.number)):
        plan = plan_load(at(cluster, model, worker))
        if plan is not None:
            return plan
    return None


def wrong_with(plan: LoadPlan, room: Mapping[str, Worker]) -> str | None:
    """Return why a plan can't be carried out as things are, or None: a policy may come from anywhere."""
    placement, worker = plan.placement, plan.placement.worker
    if room.get(worker.name) is not worker:
        return f"{worker.name}'s LOAD executor has no room; only workers in SchedulerState.load_room have"
    if not placement.loadable:
        return f"it can't be loaded there: {placement}"
    for victim in plan.victims:
        if victim.worker is not worker or victim.state is not State.RESIDENT or victim.infers:
            return f"a victim can't be evicted there: {victim}"
    owners = worker.pages.owners(plan.pages) - {None, *[victim.model.name for victim in plan.victims]}
    if owners:
        return f"its pages belong to {', '.join(sorted(map(str, owners)))}, which is not a victim"
    return None


def _victims(worker: Worker, unused_since_ns: int | None) -> Iterator[Placement]:
    """Yield the placements that may be evicted, in the order in which they should go."""
    for placement in worker.lru.values():
        if unused_since_ns is not None and placement.last_used_ns > unused_since_ns:
            return
        if not placement.infers and not placement.model.waiting:
            yield placement
    if unused_since_ns is None:
        for placement in worker.lru.values():
            if placement.infers == 0 and placement.model.waiting:
                yield placement
