"""Forecast of whether all that waits can be in time while workers open executables.

Admission (`cluster.plans`) asks whether a request could be in time if it went before all others. That is
enough where little waits. While a worker opens an executable the others have its work besides their own, and
more would be accepted than they can do. So a forecast gives everything that waits a place, by the first that
is due, in batches, each where it is done first: a request is accepted only if no more are late with it.
"""

from __future__ import annotations

import heapq
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.residency import at, is_loadable
from mainspring.scheduler.policies.base import Batch
from mainspring.scheduler.state import SchedulerState

SPARE: Final = 10
"""Part that is kept spare, in hundredths."""


class _Waiting:
    """A model's requests that wait, by their deadlines."""

    __slots__ = ("at", "dues", "loaded", "loaded_ns", "model", "rows")

    def __init__(self, model: Model, taken: Batch | None) -> None:
        """``taken`` is a batch whose requests wait no more."""
        self.model = model
        self.dues: list[int] = list(model.queue.dues)
        self.rows: list[int] = [request.rows for request in model.queue]
        if taken is not None and taken.placement.model is model:
            gone = {request.id for request in taken.requests}
            left = [index for index, request in enumerate(model.queue) if request.id not in gone]
            self.dues = [self.dues[index] for index in left]
            self.rows = [self.rows[index] for index in left]
        self.at = 0
        """The first that has no place yet."""
        self.loaded: Placement | None = None
        """Placement where a LOAD would have to bring the model, and when it would be there."""
        self.loaded_ns = 0

    def add(self, rows: int, due_ns: int) -> None:
        """Put one more request behind those that are due no later."""
        place = len(self.dues)
        while place and self.dues[place - 1] > due_ns:
            place -= 1
        self.dues.insert(place, due_ns)
        self.rows.insert(place, rows)


class Forecast:
    """A place and a time for each request that waits."""

    def __init__(
        self, state: SchedulerState, now_ns: int, busy_ns: dict[str, int], *, spare: bool = True
    ) -> None:
        """``busy_ns`` says of workers, by name, for how long EXEC will do nothing else, behind its work.

        With ``spare`` an execution counts as longer by `SPARE`, for what comes between two unforeseen.
        """
        self.late = 0
        """Number of requests that can't be in time."""
        self._state = state
        self._now_ns = now_ns
        self._soonest_ns = state.soonest_ns(now_ns)
        self._busy_ns = busy_ns
        self._spare = SPARE if spare else 0
        self._free_ns: dict[str, int] = {}
        """Instant from which on each worker's EXEC has nothing to do; of those that were asked for."""
        self._load_free_ns: dict[str, int] = {}
        """Instant from which on each worker's LOAD has nothing to do; likewise."""

    def place_all(
        self, model: Model | None = None, rows: int = 0, due_ns: int = 0, taken: Batch | None = None
    ) -> None:
        """Give each request a place, but none to a batch that is ``taken``.

        With a model, one for a request of it that has not been accepted yet, too.
        """
        found: list[_Waiting] = []
        for each in self._state.cluster.models.values():
            for bucket in each.by_bucket if each.buckets else (each,):
                if bucket is model:
                    waiting = _Waiting(bucket, taken)
                    waiting.add(rows, due_ns)
                    found.append(waiting)
                elif bucket.queue.dues:
                    found.append(_Waiting(bucket, taken))
        heap = [(each.dues[0], each.model.number, each) for each in found if each.dues]
        heapq.heapify(heap)
        while heap:
            _, number, waiting = heapq.heappop(heap)
            self._place(waiting)
            if waiting.at < len(waiting.dues):
                heapq.heappush(heap, (waiting.dues[waiting.at], number, waiting))

    def add(self, model: Model, rows: int, due_ns: int) -> bool:
        """Give one more request a place behind all others; return False, and none, if it is late there."""
        waiting = _Waiting(model, None)
        waiting.dues, waiting.rows = [due_ns], [rows]
        late = self.late
        self._place(waiting)
        in_time, self.late = self.late == late, late
        return in_time

    def _place(self, waiting: _Waiting) -> None:
        """Give the first of a model's requests a place, with others in a batch if they fill it."""
        due_ns, model = waiting.dues[waiting.at], waiting.model
        first = model.index_of[waiting.rows[waiting.at]]
        sizes = model.spec.batch_sizes
        count, taken = _filled(waiting, sizes, first)
        if count > 1 and self._run(waiting, taken, due_ns):
            waiting.at += count
            return
        if not self._run(waiting, first, due_ns):
            self.late += 1
        waiting.at += 1

    def _run(self, waiting: _Waiting, index: int, due_ns: int) -> bool:
        """Have a batch run where it ends first; return False if it is late everywhere."""
        best: Placement | None = None
        best_ns = due_ns + 1
        for placement in waiting.model.usable.values():
            begin_ns = max(self._free(placement), placement.ready_ns(self._now_ns))
            done_ns = begin_ns + self._duration_ns(placement, index)
            if done_ns < best_ns and not placement.load_stalled:
                best, best_ns = placement, done_ns
        if waiting.loaded is not None:
            begin_ns = max(self._free(waiting.loaded), waiting.loaded_ns)
            done_ns = begin_ns + self._duration_ns(waiting.loaded, index)
            if done_ns < best_ns:
                best, best_ns = waiting.loaded, done_ns
        elif best is None:
            best, best_ns = self._load(waiting, index, best_ns)
        if best is None:
            return False
        self._free_ns[best.worker.name] = best_ns
        return True

    def _load(self, waiting: _Waiting, index: int, best_ns: int) -> tuple[Placement | None, int]:
        """Have a model loaded where a batch ends first, before an instant; return where and when it ends."""
        best: Placement | None = None
        loaded_ns = 0
        cluster, model = self._state.cluster, waiting.model
        for worker in cluster.workers.values():
            if model.pages_on(worker) > worker.pages.size or not is_loadable(model, worker):
                continue
            placement = at(cluster, model, worker, keep=False)
            there_ns = self._load_free(placement) + placement.load_time.ns
            done_ns = max(self._free(placement), there_ns) + self._duration_ns(placement, index)
            if done_ns < best_ns:
                best, best_ns, loaded_ns = placement, done_ns, there_ns
        if best is not None:
            waiting.loaded, waiting.loaded_ns = best, loaded_ns
            self._load_free_ns[best.worker.name] = loaded_ns
        return best, best_ns

    def _duration_ns(self, placement: Placement, index: int) -> int:
        duration_ns = placement.times.ns[index]
        return duration_ns + duration_ns * self._spare // 100

    def _free(self, placement: Placement) -> int:
        """Return from when on EXEC has nothing to do on a placement's worker."""
        worker = placement.worker
        free_ns = self._free_ns.get(worker.name)
        if free_ns is None:
            free_ns = worker.exec.available_ns(self._now_ns, self._soonest_ns)
            free_ns += self._busy_ns.get(worker.name, 0)
            self._free_ns[worker.name] = free_ns
        return free_ns

    def _load_free(self, placement: Placement) -> int:
        """Return from when on LOAD has nothing to do on a placement's worker."""
        worker = placement.worker
        free_ns = self._load_free_ns.get(worker.name)
        return worker.load.available_ns(self._now_ns, self._soonest_ns) if free_ns is None else free_ns


def _filled(waiting: _Waiting, sizes: tuple[int, ...], least: int) -> tuple[int, int]:
    """Return how many requests fill the largest batch, and the index of its size; (1, least) for none."""
    rows, index = 0, least
    best_count, best_index = 1, least
    for count, more in enumerate(waiting.rows[waiting.at : waiting.at + sizes[-1]], start=1):
        rows += more
        while index < len(sizes) and sizes[index] < rows:
            index += 1
        if index == len(sizes):
            break
        if sizes[index] == rows:
            best_count, best_index = count, index
    return best_count, best_index
