"""The plans of queries: of a whole one, and of what each member of a family could do for a step. Pure."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.plans import Plan, plans
from mainspring.cluster.requests import Query
from mainspring.cluster.state import Cluster
from mainspring.messages.queries import QueryStep
from mainspring.scheduler.overload import work_of
from mainspring.scheduler.variants import Offer, is_free


class Laid(NamedTuple):
    """A step's rows laid upon workers."""

    model: Model
    found: list[Plan]
    """The plans that there are for one of its batches; empty if no worker can run it."""
    end_ns: int
    in_time: int
    """Pieces that end in time."""
    busy_ns: dict[str, int]
    """Instant at which each worker has done what was laid upon it."""


class Planned:
    """Pieces, each a batch of its own, one after the other on whichever worker ends it first, behind the work
    that is due before."""

    def __init__(self, cluster: Cluster, now_ns: int, due_ns: int | None, *, ties: bool = False) -> None:
        """``ties``: what is due at the same instant is before it, too."""
        self._cluster = cluster
        self._now_ns = now_ns
        self._due_ns = due_ns
        self._ahead_ns = {} if due_ns is None else work_before(cluster, due_ns + ties)
        self._busy_ns: dict[str, int] = {}
        """Instant at which each worker has done what was laid upon it."""

    def laid(self, model: Model, rows: int, begin_ns: int) -> Laid:
        """Lay rows of a model upon the workers behind what was laid before; nothing changes."""
        found = self._workers(model, rows, begin_ns)
        if not found:
            return Laid(model, found, 0, 0, {})
        busy_ns = dict(self._busy_ns)
        return Laid(model, found, *self._lay(found, model, rows, begin_ns, busy_ns), busy_ns)

    def _workers(self, model: Model, rows: int, begin_ns: int) -> list[Plan]:
        """Return the plans for a batch of a step; those behind a LOAD only where the others are too late."""
        most = min(rows, model.piece_rows)
        found = plans(self._cluster, self._now_ns, model, most, None)
        if not found or self._due_ns is None or not model.usable:
            return found
        free_ns = sum(
            [max(0, self._due_ns - max(begin_ns, self._free_ns(plan))) // plan.duration_ns for plan in found]
        )
        return found if free_ns * most >= rows else plans(self._cluster, self._now_ns, model, most, 0)

    def _free_ns(self, plan: Plan) -> int:
        """Return when a worker can begin something of the query."""
        name = plan.placement.worker.name
        return max(plan.begin_ns + self._ahead_ns.get(name, 0), self._busy_ns.get(name, 0))

    def _lay(
        self, found: list[Plan], model: Model, rows: int, begin_ns: int, busy_ns: dict[str, int]
    ) -> tuple[int, int]:
        """Lay the pieces of a step upon the workers; return when the last ends, and how many are in time."""
        top = model.piece_rows
        free = [(max(begin_ns, self._free_ns(plan)), plan) for plan in found]
        heap = [
            (free_ns + _batch_ns(plan.placement, min(rows, top)), index)
            for index, (free_ns, plan) in enumerate(free)
        ]
        heapq.heapify(heap)
        last_ns = in_time = 0
        while rows > 0:
            end_ns, index = heap[0]
            placement = found[index].placement
            size = min(rows, top)
            if size < top and last_ns:
                end_ns += _batch_ns(placement, size) - _batch_ns(placement, top)
            rows -= size
            last_ns = max(last_ns, end_ns)
            in_time += self._due_ns is None or end_ns <= self._due_ns
            busy_ns[placement.worker.name] = end_ns
            heapq.heapreplace(heap, (end_ns + _batch_ns(placement, top), index))
        return last_ns, in_time

    def offers(self, step: QueryStep, within: bool = True) -> list[Offer]:
        """Return what the members of a step that may begin now could do for it, the best first.

        Those below the score that its client takes only if not ``within``. Nothing is planned for the others
        where time has no price for the best and it is in time.
        """
        members = members_of(self._cluster, step, within=False)
        rows, offers = step.rows, []
        batches = rows + sum([model.queue.rows for model, _ in members])
        for model, score in members:
            if within and score < step.at_least:
                continue
            plans_found = self._workers(model, rows, self._now_ns)
            if not plans_found:
                continue
            first, first_ns = plans_found[0], -1
            for plan in plans_found:
                free_ns = plan.exec_free_ns + self._ahead_ns.get(plan.placement.worker.name, 0)
                if first_ns < 0 or free_ns < first_ns:
                    first, first_ns = plan, free_ns
            end_ns = self._end_ns(plans_found, model, rows)
            batch = min(model.piece_rows, batches)
            row_ns = _batch_ns(first.placement, batch) / batch
            offers.append(Offer(model.base.name, score, end_ns, row_ns, max(0, first_ns - self._now_ns)))
            if within and len(offers) == 1 and is_free(self._now_ns, offers[0], self._due_ns):
                break
        return offers

    def _end_ns(self, found: list[Plan], model: Model, rows: int) -> int:
        """Return when the last piece of a step that may begin now would end."""
        if rows > model.piece_rows:
            return self._lay(found, model, rows, self._now_ns, dict(self._busy_ns))[0]
        return min(
            [max(self._now_ns, self._free_ns(plan)) + _batch_ns(plan.placement, rows) for plan in found]
        )


class Whole(Planned):
    """The plan of a whole query, of each family with the member that ends first."""

    def __init__(self, cluster: Cluster, now_ns: int, query: Query, hop_ns: int) -> None:
        super().__init__(cluster, now_ns, query.due_ns)
        self.finish_ns = now_ns
        """Predicted end of the last EXEC."""
        self.late: tuple[Model, list[Plan], str] | None = None
        """The first step that no worker can run, or that ends too late: its model, the plans that there are
        for one of its batches, and what is late."""
        ends_ns: list[int] = []
        for index, step in enumerate(query.event.steps):
            if not (step.rows and step.required and step.certain):
                ends_ns.append(max([ends_ns[each] for each in step.after], default=now_ns))
                continue
            begin_ns = max([ends_ns[each] + hop_ns for each in step.after], default=now_ns)
            laid = self._soonest(step, begin_ns)
            if not laid.found:
                self.late = self.late or (laid.model, [], "")
                return
            self._busy_ns = laid.busy_ns
            ends_ns.append(laid.end_ns)
            self.finish_ns = max(self.finish_ns, laid.end_ns)
            if self.late is None and self._due_ns is not None and laid.end_ns > self._due_ns:
                named = f"{step.name!r}" if step.name else f"{index}"
                one = len(query.event.steps) == 1 and not step.members
                where = "" if one else f"step {named} (model {laid.model.base.name!r}): "
                self.late = (laid.model, laid.found, where + _sentence(laid, step.rows, self._due_ns))

    def _soonest(self, step: QueryStep, begin_ns: int) -> Laid:
        """Lay a step upon the workers; of a family the member that its client takes and that ends first."""
        best: Laid | None = None
        for model, _ in members_of(self._cluster, step):
            laid = self.laid(model, step.rows, begin_ns)
            if best is None or (laid.found and (not best.found or laid.end_ns < best.end_ns)):
                best = laid
        assert best is not None, f"there is no model for {step}"
        return best


def _batch_ns(placement: Placement, rows: int) -> int:
    """Return how long a worker is busy with a batch, whichever takes longer: EXEC or its inputs."""
    times = placement.times
    index = times.index_of[rows]
    return max(1, times.ns[index], times.transfer_ns[index])


def count_of(model: Model, rows: int) -> int:
    """Return how many pieces rows of a model are."""
    return -(-rows // model.piece_rows)


def _sentence(laid: Laid, rows: int, due_ns: int) -> str:
    """Say which piece of a step is the first that would be late, and how late the last."""
    count, top, workers = count_of(laid.model, rows), laid.model.piece_rows, len(laid.found)
    late_ms = (laid.end_ns - due_ns) / 1e6
    if count == 1:
        return f"no worker could finish in time; it would be {late_ms:.1f} ms late"
    first = laid.in_time * top
    return (
        f"piece {laid.in_time + 1} of {count} (rows {first} to {min(rows, first + top) - 1} of {rows}) "
        f"could not be in time on {workers} worker{'s' * (workers != 1)}, "
        f"and the last would be {late_ms:.1f} ms late"
    )


def model_of(cluster: Cluster, name: str, sizes: tuple[int, ...]) -> Model | None:
    """Return the model, or the bucket for sizes, by a model's name; None if there is none."""
    model = cluster.models.get(name)
    return model if model is None or not (model.buckets or sizes) else model.find(sizes)


def work_before(cluster: Cluster, due_ns: int) -> dict[str, int]:
    """Return for each worker how long it takes for its part of what waits and is due before an instant."""
    found: dict[str, int] = {}
    for waiting in cluster.waiting_models():
        for model in waiting.by_bucket:
            queue, holders = model.queue, model.usable
            rows = queue.rows - queue.rows_due_from(due_ns) if queue and holders else 0
            if not rows:
                continue
            for placement in holders.values():
                name = placement.worker.name
                found[name] = found.get(name, 0) + work_of(placement, rows) // len(holders)
    return found


def members_of(cluster: Cluster, step: QueryStep, within: bool = True) -> list[tuple[Model, float]]:
    """Return the models that may answer for a step and are served, each with its score, the best first.

    With ``within`` only those that its client takes.
    """
    if not step.members:
        model = model_of(cluster, step.model, step.sizes)
        return [] if model is None else [(model, 0.0)]
    found = []
    for name, score in zip(step.members, step.scores, strict=True):
        model = model_of(cluster, name, step.sizes)
        if model is not None and (score >= step.at_least or not within):
            found.append((model, score))
    return found
