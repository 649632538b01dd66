"""Requests without a deadline: their batches, which executors run when no deadline needs them.

Clockwork, section 6.4: requests without an SLO run "when idle time is available or expected in the
immediate future". Where others keep the executors busy that is never. So a part of each executor's time
(`SchedulerConfig.best_effort_share`) is theirs while any wait for it: what idle time does not give them of
it they get in turns of a batch, before requests with a deadline.
"""

from __future__ import annotations

import heapq
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement, State
from mainspring.cluster.requests import Request
from mainspring.cluster.residency import is_loadable
from mainspring.cluster.timeline import NEVER_NS
from mainspring.cluster.workers import Worker
from mainspring.scheduler.config import milliseconds
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.state import SchedulerState

WATCHED_NS: Final = 1_000_000_000
"""Requests with a deadline seen within this time bound the length of best-effort batches."""
PATIENCE_NS: Final = 5_000_000
"""Time that an executor must have been idle before a best-effort request runs that could cost a deadline."""
REMEMBERED_NS: Final = 1_000_000_000
"""Time of which best-effort requests may be owed the share at most, however much idle time they got."""
COUNTED_NS: Final = 100_000_000
"""The work that waits is counted again after this time; meanwhile what comes is added."""


class BestEffort:
    """Chooses batches of best-effort requests: the oldest first on each worker, blocking no deadline."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
        self._state = state
        self._policy = policy
        self._waiting: dict[str, list[tuple[int, int, Placement]]] = {}
        self._slacks = _Slacks()
        self._share = state.config.best_effort_share
        self._horizon_ns = milliseconds(state.config.best_effort_horizon_ms)
        self._owed_ns: dict[str, float] = {}
        """Time that best-effort requests were due and did not get, by the worker that they wait for."""
        self._needed_ns: dict[str, int] = {}
        """The part of it that the request which has waited longest there needs, where that is more."""
        self._models: dict[int, Model] = {}
        """Models that had best-effort requests when the work was last counted, or got some since."""
        self._work_ns: dict[int, int] = {}
        """Time for which the best-effort requests that wait keep one executor busy, by the set of workers (of
        their bits) that can run them."""
        self._total_ns = self._counted_ns = 0
        """The sum of these, and when they were counted; until then what comes is added."""
        self._able: dict[tuple[int, int, int], int] = {}
        """These sets of workers, found since then, by where a model is held or prepared, and its pages."""
        self._busy: dict[str, _Busy] = {}
        """The busy parts of executors, by worker."""
        self._preferred = False
        """True if any request had a priority: as long as none had, turns that passed need no check."""

    def saw_deadline(self, now_ns: int, slack_ns: int) -> None:
        """Note how long a request with a deadline could wait for its dispatch: its slack."""
        self._slacks.add(now_ns, slack_ns)

    def add(self, request: Request) -> None:
        """Offer a best-effort request that was queued to the workers that can run its model."""
        self._preferred = self._preferred or request.turn_ns < request.arrived_ns
        model = request.model
        self._models[model.number] = model
        self._wait(model, request.rows)
        for placement in model.usable.values():
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

    def turn(self, now_ns: int, worker: Worker) -> Batch | None:
        """Return the batch that goes before all requests with a deadline, if it is best-effort requests' turn
        on a worker: they are owed as much time as it takes."""
        if not self._owed_ns:
            return None
        owed_ns = self._owed_ns.get(worker.name, 0.0)
        if owed_ns <= self._needed_ns.get(worker.name, 0) or not self.waits_for(worker):
            return None
        self._needed_ns.pop(worker.name, None)
        return self._next_batch(now_ns, worker, owed_ns)

    def ran(self, now_ns: int, worker: Worker, duration_ns: int, best_effort: bool) -> None:
        """Count a batch that was sent to a worker."""
        if not best_effort:
            busy = self._busy.get(worker.name)
            if busy is None:
                busy = self._busy[worker.name] = _Busy()
            busy.add(now_ns, duration_ns)
        if not self._share:
            return
        if not self.waits_for(worker):
            if self._owed_ns:
                self._owed_ns.pop(worker.name, None)
            return
        owed_ns = self._owed_ns.get(worker.name, 0.0) + self._share * duration_ns
        if best_effort:
            owed_ns -= duration_ns
            self._needed_ns.pop(worker.name, None)
        self._owed_ns[worker.name] = max(owed_ns, -self._share * REMEMBERED_NS)

    def beyond_horizon(self, now_ns: int, model: Model, rows: int) -> tuple[int, int] | None:
        """Return how long the best-effort requests that wait, and one more, are expected to take, and when
        that will be within the horizon; None if it is.

        They get what requests with deadlines left them lately of the executors that can run the model, or
        their share. Of what waits for others, too, these do their part.
        """
        own_ns = rows * model.row_ns()
        # A single executor's share would do for all that waits anywhere.
        if not self._horizon_ns or self._total_ns + own_ns <= self._share * self._horizon_ns:
            return None
        needed_ns = self._wait_ns(now_ns, model, own_ns)
        if needed_ns is None or needed_ns <= self._horizon_ns:
            return None
        return needed_ns, now_ns + needed_ns - self._horizon_ns

    def room_ns(self, now_ns: int, model: Model, rows: int, waiting: int, leave: int) -> int | None:
        """Return when ``leave`` of ``waiting`` requests are expected to have left a queue that a request of a
        model finds full; None if no worker can run it.

        Where requests without a deadline wait, these leave as `beyond_horizon` expects it, one as soon as
        another; otherwise requests like the one that came leave as fast as the executors run them.
        """
        if model.base.waiting_idly:
            needed_ns = self._wait_ns(now_ns, model, 0)
            return None if needed_ns is None else now_ns + needed_ns * leave // waiting
        executors = self._able_to_run(model).bit_count()
        return now_ns + leave * rows * model.row_ns() // executors if executors else None

    def _wait_ns(self, now_ns: int, model: Model, own_ns: int) -> int | None:
        """Return how long the best-effort requests that wait for a model's workers are expected to take,
        with ``own_ns`` of work more; None if they get no time."""
        if now_ns >= self._counted_ns + COUNTED_NS:
            self._count(now_ns)
        able = self._able_to_run(model)
        executors = self._left(now_ns, able)
        if not executors:
            return None
        work_ns = float(own_ns)
        for others, waits_ns in self._work_ns.items():
            work_ns += waits_ns * (others & able).bit_count() / others.bit_count()
        return int(work_ns / executors)

    def _count(self, now_ns: int) -> None:
        """Count the work that waits."""
        self._counted_ns, self._total_ns = now_ns, 0
        self._models = {number: each for number, each in self._models.items() if each.backlog}
        self._work_ns.clear()
        self._able.clear()
        for each in self._models.values():
            self._wait(each, sum([one.rows for one in each.backlog]))

    def _wait(self, model: Model, rows: int) -> None:
        """Count rows of a model that wait; what no worker can run now keeps none busy."""
        able = self._able_to_run(model)
        if able:
            work_ns = rows * model.row_ns()
            self._total_ns += work_ns
            self._work_ns[able] = self._work_ns.get(able, 0) + work_ns

    def _able_to_run(self, model: Model) -> int:
        """Return the set of workers that can run a model, loaded or not."""
        base = model.base
        key = base.prepared | model.held, model.pages, model.number if base.spec.others else 0
        able = self._able.get(key)
        if able is None:
            able = 0
            for worker in self._state.cluster.workers.values():
                there = model.held & worker.bit or is_loadable(model, worker)
                if there and worker.open and model.pages_on(worker) <= worker.pages.size:
                    able |= worker.bit
            self._able[key] = able
        return able

    def _left(self, now_ns: int, able: int) -> float:
        """Return how many executors' time best-effort requests get of a set of workers'."""
        left = 0.0
        for worker in self._state.cluster.workers.values():
            if worker.bit & able:
                busy = self._busy.get(worker.name)
                left += max(self._share, 1.0 if busy is None else 1.0 - busy.share(now_ns))
        return left

    def next_batch(self, now_ns: int, worker: Worker) -> Batch | None:
        """Return a batch of the model whose best-effort requests have waited longest on an idle worker."""
        return self._next_batch(now_ns, worker, None)

    def _next_batch(self, now_ns: int, worker: Worker, owed_ns: float | None) -> Batch | None:
        """Return that, or the first that takes no longer than they are owed, if that is given."""
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
            if placement.ready_ns(now_ns) > self._state.soonest_ns(now_ns):
                continue
            if owed_ns is None:
                batch = self._batch(now_ns, placement, limit_ns, turn=False)
                continue
            needed_ns = placement.times.for_rows(placement.model.backlog[0].rows)
            if needed_ns > owed_ns:
                # Whoever has waited longest is next, however long it takes: shorter ones don't go before it.
                self._needed_ns[worker.name] = needed_ns
                break
            batch = self._batch(now_ns, placement, limit_ns, turn=True)
        for placement in not_ready:
            self.offer(placement)
        return batch

    def waits_for(self, worker: Worker) -> bool:
        """Return whether best-effort requests may wait for a worker."""
        return bool(self._waiting.get(worker.name))

    def worker_left(self, worker: Worker) -> None:
        """Forget a worker's entries."""
        self._owed_ns.pop(worker.name, None)
        self._needed_ns.pop(worker.name, None)
        self._waiting.pop(worker.name, None)
        self._busy.pop(worker.name, None)
        self._able.clear()

    def validate(self) -> None:
        """Check that what waits is offered to all that hold its model; raise AssertionError if it is not."""
        for model in self._state.cluster.waiting_models():
            for each in model.by_bucket:
                for placement in each.usable.values() if each.backlog else ():
                    offered = placement.state is not State.RESIDENT or placement.backlog_key is not None
                    assert offered, f"{placement.worker.name} was not offered what waits for {each.name}"

    def _batch(self, now_ns: int, placement: Placement, limit_ns: int | None, *, turn: bool) -> Batch | None:
        """Fill the largest batch that the slack of recent deadlines allows.

        If even a single request is too long for it, one runs once the executor was idle for a while, or where
        it is their ``turn``.
        """
        times, backlog = placement.times, placement.model.backlog
        if limit_ns is not None and not turn and times.for_rows(backlog[0].rows) > limit_ns:
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
        least_ns = self._slacks.least_ns(now_ns)
        return None if least_ns is None else int(max(0, least_ns) * self._policy.slack_share(now_ns))


class _Slacks:
    """The least slack of `WATCHED_NS`: those that none less has followed since, in two lists but the last."""

    __slots__ = ("_last_ns", "_last_seen_ns", "_seen_ns", "_slacks_ns")

    def __init__(self) -> None:
        self._slacks_ns: list[int] = []
        self._seen_ns: list[int] = []
        # The last slack, and when it was seen: compiled, a number in a list is an object.
        self._last_ns, self._last_seen_ns = NEVER_NS, -WATCHED_NS - 1

    def add(self, now_ns: int, slack_ns: int) -> None:
        """Note a slack."""
        slacks_ns, seen_ns = self._slacks_ns, self._seen_ns
        if self._last_ns < slack_ns:
            slacks_ns.append(self._last_ns)
            seen_ns.append(self._last_seen_ns)
        else:
            while slacks_ns and slacks_ns[-1] >= slack_ns:
                slacks_ns.pop()
                seen_ns.pop()
        self._last_ns, self._last_seen_ns = slack_ns, now_ns

    def least_ns(self, now_ns: int) -> int | None:
        """Return the least; None without any."""
        old, since_ns = 0, now_ns - WATCHED_NS
        while old < len(self._seen_ns) and self._seen_ns[old] < since_ns:
            old += 1
        del self._slacks_ns[:old], self._seen_ns[:old]
        if self._slacks_ns:
            return self._slacks_ns[0]
        return self._last_ns if self._last_seen_ns >= since_ns else None


class _Busy:
    """The part of an executor's time that batches with deadlines took lately."""

    __slots__ = ("_since_ns", "_taken_ns", "_until_ns")

    def __init__(self) -> None:
        self._since_ns = self._until_ns = 0
        self._taken_ns = 0.0

    def add(self, now_ns: int, duration_ns: int) -> None:
        """Count a batch with deadlines."""
        self._age(now_ns)
        self._taken_ns += duration_ns

    def share(self, now_ns: int) -> float:
        """Return the part."""
        self._age(now_ns)
        return min(1.0, self._taken_ns / max(WATCHED_NS, now_ns - self._since_ns))

    def _age(self, now_ns: int) -> None:
        """Let what is older than `WATCHED_NS` count half, and less with each such time."""
        if now_ns >= self._until_ns:
            halves = (now_ns - self._until_ns) // WATCHED_NS + 1
            self._taken_ns = self._taken_ns / 2 if halves == 1 else 0.0
            self._since_ns = now_ns - WATCHED_NS
            self._until_ns = now_ns + WATCHED_NS
