"""Requests without a deadline: their batches, which executors run when no deadline needs them.

Clockwork, section 6.4: requests without an SLO run "when idle time is available or expected in the
immediate future".
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

from mainspring.cluster.placements import Placement, State
from mainspring.cluster.requests import Request
from mainspring.cluster.workers import Worker
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.state import SchedulerState

WATCHED_NS: Final = 1_000_000_000
"""Requests with a deadline seen within this time bound the length of best-effort batches."""
PATIENCE_NS: Final = 5_000_000
"""How long an executor must have been idle before a best-effort request runs that could cost a deadline."""


class BestEffort:
    """Chooses batches of best-effort requests: the oldest first on each worker, blocking no deadline."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        self._waiting: dict[str, list[tuple[int, int, Placement]]] = {}
        self._slacks: deque[tuple[int, int]] = deque()
        self._preferred = False
        """Whether any request had a priority: as long as none had, turns that passed need no check."""

    def saw_deadline(self, now_ns: int, slack_ns: int) -> None:
        """Note how long a request with a deadline could wait for its dispatch: its slack."""
        slacks = self._slacks
        while slacks and slacks[-1][1] >= slack_ns:
            slacks.pop()
        slacks.append((now_ns, slack_ns))

    def add(self, request: Request) -> None:
        """Offer a best-effort request that was queued to the workers that can run its model."""
        self._preferred = self._preferred or request.turn_ns < request.arrived_ns
        for placement in request.model.usable.values():
            self.offer(placement)

    def offer_all(self, placement: Placement) -> None:
        """Enter a model, bucket by bucket if it has symbols."""
        for each in placement.by_bucket:
            self.offer(each)

    def offer(self, placement: Placement) -> None:
        """Enter a model with best-effort requests on a worker that can run it."""
        backlog = placement.model.backlog
        if not backlog or not placement.usable:
            return
        first, offered_ns = backlog[0], placement.backlog_key
        turn_ns = first.turn_ns
        if offered_ns is None or (turn_ns < first.arrived_ns and turn_ns < offered_ns):
            placement.backlog_key = turn_ns
            entry = (turn_ns, placement.model.number, placement)
            heapq.heappush(self._waiting.setdefault(placement.worker.name, []), entry)

    def next_batch(self, now_ns: int, worker: Worker) -> Batch | None:
        """Return a batch of the model whose best-effort requests have waited longest on an idle worker."""
        heap = self._waiting.get(worker.name)
        if not heap:
            return None
        limit_ns = self.limit_ns(now_ns)
        not_ready = []
        batch = None
        while heap and batch is None:
            turn_ns, _, placement = heapq.heappop(heap)
            if turn_ns != placement.backlog_key:
                # Offered again since, for a request that comes first.
                continue
            placement.backlog_key = None
            if not placement.usable or not placement.model.backlog:
                continue
            if self._preferred and placement.model.backlog[0].turn_ns > turn_ns:
                # That request has left; the next one's turn may come behind another model's.
                self.offer(placement)
                continue
            not_ready.append(placement)
            if placement.ready_ns(now_ns) <= self._state.soonest_ns(now_ns):
                batch = self._batch(now_ns, placement, limit_ns)
        for placement in not_ready:
            self.offer(placement)
        return batch

    def waits_for(self, worker: Worker) -> bool:
        """Return whether best-effort requests may wait for a worker."""
        return bool(self._waiting.get(worker.name))

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker's entries."""
        self._waiting.pop(worker.name, None)

    def validate(self) -> None:
        """Check that what waits is offered to all that hold its model; raise AssertionError if it is not."""
        for model in self._state.cluster.waiting_models():
            for each in model.by_bucket:
                for placement in each.usable.values() if each.backlog else ():
                    offered = placement.state is not State.RESIDENT or placement.backlog_key is not None
                    assert offered, f"{placement.worker.name} was not offered what waits for {each.name}"

    def _batch(self, now_ns: int, placement: Placement, limit_ns: int | None) -> Batch | None:
        """Fill the largest batch that the slack of recent deadlines allows.

        If even a single request is too long for it, one runs once the executor was idle for a while.
        """
        times, backlog = placement.times, placement.model.backlog
        if limit_ns is not None and times.for_rows(backlog[0].rows) > limit_ns:
            since_ns = placement.worker.exec.free_ns + PATIENCE_NS
            if now_ns < since_ns:
                self._state.arm_exec(since_ns, placement.worker)
                return None
        allowed = 0
        for index, duration_ns in enumerate(times.ns):
            if limit_ns is None or duration_ns + times.transfer_ns[index] <= limit_ns:
                allowed = index
        room = max(times.sizes[allowed], backlog[0].rows)
        requests: list[Request] = []
        rows = 0
        for request in backlog:
            if rows + request.rows > room:
                break
            requests.append(request)
            rows += request.rows
        return Batch(placement, times.index_for(rows), requests)

    def limit_ns(self, now_ns: int) -> int | None:
        """Return how long an executor may be blocked: the least slack seen lately, or the part of it that the
        policy grants; None if none was seen."""
        slacks = self._slacks
        while slacks and slacks[0][0] < now_ns - WATCHED_NS:
            slacks.popleft()
        if not slacks:
            return None
        return int(max(0, slacks[0][1]) * self._policy.best_effort_share(now_ns))
