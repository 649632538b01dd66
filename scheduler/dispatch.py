"""INFERs go out and results come in: keeping EXEC executors busy for the lookahead, and no more."""

from __future__ import annotations

from itertools import accumulate, takewhile
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.placements import Placement
from mainspring.cluster.plans import Plan
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.rolling import is_outlier
from mainspring.cluster.state import Change
from mainspring.cluster.workers import Worker
from mainspring.messages.actions import Infer, Load, Open, Prepare, Release, Result, Unanswered, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.scheduler.alarms import WorkerTimers
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.opening.scheduling import Openings
from mainspring.scheduler.overdue_actions import OverdueActions
from mainspring.scheduler.overload import Overload
from mainspring.scheduler.policies.base import Batch, Policy
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.residency import Residency
from mainspring.scheduler.state import WIDE_FROM, SchedulerState, is_replicated_widely

BEST_EFFORT_WINDOW_NS: Final = 1_000_000_000
"""Time after the predicted beginning within which an INFER without any deadline may begin."""
_INFER: Final = Infer
_OK: Final = Status.OK


class Dispatcher:
    """Turns the policy's batches into INFERs, and reacts to results."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        residency: Residency,
        backlog: BestEffort,
        lifecycle: RequestLifecycle,
        overdue_actions: OverdueActions,
        openings: Openings,
        overload: Overload,
    ) -> None:
        self._state = state
        self._policy = policy
        self._residency = residency
        self._backlog = backlog
        self._lifecycle = lifecycle
        self._overdue_actions = overdue_actions
        self._openings = openings
        self._overload = overload

    def fill(self, now_ns: int, worker: Worker) -> None:
        """Give a worker's EXEC executor batches until it is busy for the lookahead, or longer where inputs
        take their time: they travel while the batches before them run."""
        state, timeline, durations = self._state, worker.exec, self._state.ns
        soonest_ns = now_ns + durations.dispatch_delay
        ahead_ns = durations.lookahead + worker.lead_ns
        timers = state.timers(worker)
        state.asked(timers)
        while True:
            available_ns = timeline.available_ns(now_ns, soonest_ns)
            if available_ns > now_ns + ahead_ns and len(timeline):
                self._look_again(now_ns, worker, available_ns - ahead_ns)
                state.idle_workers.busy(worker)
                return
            if self._opens(now_ns, worker, available_ns, idle=False):
                continue
            batch = self._backlog.turn(now_ns, worker)
            if batch is not None:
                self._send(now_ns, timers, self._together(batch))
                continue
            batch = self._policy.next_batch(now_ns, worker, available_ns)
            if batch is not None and self._policy.refuses and now_ns < self._openings.admission.until_ns:
                batch = self._openings.first_of(now_ns, worker, available_ns, batch)
            if batch is None and available_ns <= soonest_ns and now_ns >= timers.held_until_ns:
                # A policy that refuses nothing has promised nothing to what waits.
                if self._policy.refuses and self._openings.under_way:
                    batch = self._openings.next_batch(now_ns, worker, available_ns)
                if batch is None and self._opens(now_ns, worker, available_ns, idle=True):
                    continue
                batch = batch or self._backlog.next_batch(now_ns, worker)
            if batch is None:
                if now_ns < timers.held_until_ns and self._asks_again(timers):
                    # The batch that it was held for may be gone; then what waits behind that batch is next.
                    state.look_after_hold(timers)
                if available_ns > soonest_ns and len(timeline):
                    self._look_again(now_ns, worker, available_ns - durations.dispatch_delay)
                state.idle_workers.left_idle(timers)
                return
            self._send(now_ns, timers, self._together(batch))

    def _together(self, batch: Batch) -> Batch:
        """Return the batch of those of a batch's requests that may share an execution."""
        if len(batch.requests) > 1:
            most = batch.placement.model.most_rows
            if most:
                batch = of_rows(batch, most)
            if batch.placement.of is not None and not batch.placement.model.spec.pad:
                batch = of_one_shape(batch)
            if self._state.has_suspects:
                batch = isolated(batch)
        return batch

    def _asks_again(self, timers: WorkerTimers) -> bool:
        """Return whether a worker that is kept free is to be asked again at the end, even if another one is,
        too, that it waits with."""
        waits = timers.held_for is None or self._openings.waiting or self._openings.under_way
        return bool(waits) or self._backlog.waits_for(timers.worker)

    def _opens(self, now_ns: int, worker: Worker, available_ns: int, *, idle: bool) -> bool:
        """Send the OPEN that is due next, if one is; what can't wait for its end is for other workers."""
        if not self._openings.waiting:
            return False
        action = self._residency.open_next(now_ns, worker, available_ns, idle=idle)
        if action is None:
            return False
        if not self._openings.can_wait(now_ns, action.predicted_duration_ns):
            self._overdue_actions.opens(now_ns, worker)
        return True

    def _look_again(self, now_ns: int, worker: Worker, when_ns: int) -> None:
        """Have EXEC filled at an instant; if an overdue action moves that on with the time, its result will
        have it filled. If nothing waits, the next request will (`RequestLifecycle.queue`)."""
        if worker.exec.overruns(now_ns):
            self._overdue_actions.watch(now_ns, worker)
        elif self._rests():
            self._state.rests(when_ns, worker)
        else:
            self._state.arm_exec(when_ns, worker)

    def _rests(self) -> bool:
        """Return whether no executor can be given anything before another request comes or an action ends.

        Wide models are left out: which of their workers is asked hangs on what has been noted of all.
        """
        cluster = self._state.cluster
        opens = self._openings.waiting or self._openings.under_way
        return not cluster.queued and not opens and len(cluster.workers) <= WIDE_FROM

    def ended(self, now_ns: int, result: Result, change: Change) -> bool:
        """React to a result; return False if it shows that the worker and the state disagree.

        Results of actions that nobody waits for any more have changed nothing.
        """
        worker, action, state = change.worker, change.action, self._state
        if worker is None:
            return True
        if change.stops:
            self._residency.retire(now_ns, worker)
        if isinstance(action, Infer):
            self._infer_ended(now_ns, worker, action, result, change)
        elif isinstance(action, Open):
            self._open_ended(now_ns, worker, action, result, change)
        elif isinstance(action, Load):
            placement = _concerned(change)
            if state.tenants.used:
                state.tenants.loaded(placement.model, _charged_ns(action, result))
            agrees = self._residency.load_ended(now_ns, placement, action, result)
            self._backlog.offer_all(placement)
            self._lifecycle.reconsider(now_ns, placement.model)
            return agrees
        elif action is not None:
            return self._other_ended(now_ns, worker, action, result, change)
        return True

    def _other_ended(
        self,
        now_ns: int,
        worker: Worker,
        action: Unload | Prepare | Release,
        result: Result,
        change: Change,
    ) -> bool:
        """React to the result of an action without a window; return whether worker and state agree."""
        concerned: Model | None = None
        failed = isinstance(action, Prepare) and result.status not in (Status.OK, Status.NOT_OPEN)
        if failed and change.placement is not None:
            concerned = change.placement.model
        agrees = self._residency.other_ended(now_ns, worker, action, result, change)
        if isinstance(action, Release):
            # The model's replacement has reached the last worker, and all workers may be drained.
            cluster = self._state.cluster
            model = cluster.models.get(action.model)
            if model is not None and not model.absent & cluster.worker_bits.taken:
                concerned = model
        if concerned is not None:
            self._lifecycle.reconsider(now_ns, concerned)
        return agrees

    def overdue(self, now_ns: int, worker: Worker) -> str | None:
        """Return which result a worker has owed for too long, or None after arranging for the next check."""
        state = self._state
        state.timers(worker).watched = False
        limits = []
        executed, loaded = worker.exec.first(), worker.load.first()
        if executed is not None:
            opens = isinstance(executed.action, Open)
            timeout_ns = state.ns.prepare_timeout if opens else state.ns.action_timeout
            limits.append(max(executed.end_ns, executed.action.latest_ns) + timeout_ns)
        if loaded is not None:
            limits.append(max(loaded.end_ns, loaded.action.latest_ns) + state.ns.action_timeout)
        for action, sent_ns in worker.others.values():
            slow = isinstance(action, Prepare | Release)
            limits.append(sent_ns + (state.ns.prepare_timeout if slow else state.ns.action_timeout))
        if not limits:
            return None
        if min(limits) <= now_ns:
            return f"an action's result is owed since {(now_ns - min(limits)) / 1e6:.0f} ms past its time-out"
        # An action with a nearer limit may be sent meanwhile, and a watched worker gets no second alarm.
        state.watch(min(*limits, now_ns + state.ns.action_timeout), worker)
        return None

    def unanswered(self, now_ns: int, worker: Worker) -> Unanswered | None:
        """Return the INFER whose result a worker has owed for too long; None if it is another action's."""
        slot = worker.exec.first()
        timeout_ns = self._state.ns.action_timeout
        if slot is None or not isinstance(slot.action, Infer):
            return None
        if max(slot.end_ns, slot.action.latest_ns) + timeout_ns > now_ns:
            return None
        action, waited_ns = slot.action, now_ns - slot.begin_ns
        return Unanswered(action.model, action.batch_size, waited_ns, action.sizes)

    def _send(self, now_ns: int, timers: WorkerTimers, batch: Batch) -> None:
        """Send a batch as one INFER."""
        state, worker, placement, requests = self._state, timers.worker, batch.placement, batch.requests
        action = self._infer(now_ns, worker, batch)
        state.emit(now_ns, action, batch)
        best_effort = requests[0].due_ns is None
        self._backlog.ran(now_ns, worker, action.predicted_duration_ns, best_effort)
        timers.hold_ns = None
        if not timers.watched:
            state.watch(action.latest_ns + action.predicted_duration_ns + state.ns.action_timeout, worker)
        if not best_effort:
            self._policy.dispatched(now_ns, batch)
            if (
                state.idle_workers.idle
                and placement.model.queue.dues
                and is_replicated_widely(state.cluster, placement.model)
            ):
                state.idle_workers.want(placement.model)
            self._overload.sent(now_ns, batch)
        else:
            self._backlog.offer(placement)

    def _infer(self, now_ns: int, worker: Worker, batch: Batch) -> Infer:
        """Return a batch's INFER."""
        state, placement, requests = self._state, batch.placement, batch.requests
        index = batch.size_index
        sizes, request_sizes = _sizes(placement.model, requests)
        plan = Plan(now_ns, now_ns + state.ns.dispatch_delay, placement, index)
        begin_ns, duration_ns = plan.begin_ns, plan.duration_ns
        if placement.of is not None:
            # It was planned at the bucket's ceilings, before it was known what is in it.
            duration_ns = placement.at_sizes_ns(duration_ns, placement.times.sizes[index], sizes)
        if requests[0].due_ns is None:
            latest_ns = begin_ns + BEST_EFFORT_WINDOW_NS
        elif self._policy.serves_late:
            latest_ns = begin_ns + state.ns.action_window
        else:
            due_ns = requests[0].due_ns or 0
            for request in requests:
                if request.due_ns is not None and request.due_ns < due_ns:
                    due_ns = request.due_ns
            needed_ns = self._policy.least_ns(placement, index, duration_ns)
            latest_ns = min(due_ns - needed_ns, begin_ns + state.ns.action_window)
        # In the order of the fields: names would take longer.
        return _INFER(
            state.next_action_id(),
            worker.name,
            placement.model.base.name,
            placement.times.sizes[index],
            tuple([request.id for request in requests]),
            tuple([request.rows for request in requests]),
            tuple([request.cold for request in requests]),
            now_ns,
            max(latest_ns, begin_ns),
            begin_ns,
            self._policy.held_ns(placement, index, duration_ns),
            plan.evidence(),
            sizes,
            request_sizes,
        )

    def _open_ended(self, now_ns: int, worker: Worker, action: Open, result: Result, change: Change) -> None:
        """React to an OPEN's result."""
        placement = _concerned(change)
        if worker.stalled:
            self._overdue_actions.exec_ended(now_ns, worker)
        self._state.wants(worker)
        self._residency.open_ended(now_ns, placement, action, result, change)
        if result.status is not _OK:
            self._lifecycle.reconsider(now_ns, placement.model)

    def _infer_ended(
        self, now_ns: int, worker: Worker, action: Infer, result: Result, change: Change
    ) -> None:
        """Close a batch: its requests are done, or wait again, or are rejected."""
        placement = _concerned(change)
        if worker.stalled:
            self._overdue_actions.exec_ended(now_ns, worker)
        self._state.wants(worker)
        done, tenants = result.status is _OK, self._state.tenants
        if tenants.used:
            taken_ns = result.end_ns - result.begin_ns
            if not placement.times.spreads.erratic:
                taken_ns = _charged_ns(action, result)
            tenants.executed(change.requests, taken_ns, result.end_ns, done)
        if done:
            taken_ns = result.end_ns - result.begin_ns
            self._policy.executed(now_ns, placement, change.size_index, taken_ns, change.requests)
        else:
            if change.unwanted:
                self._residency.unwanted(now_ns, change)
                self._lifecycle.reconsider(now_ns, placement.base.model)
            self._try_again(now_ns, change.requests, action, result)
        if placement.leaving and placement.base.infers == 0:
            self._residency.leave(now_ns, placement.base)

    def _try_again(self, now_ns: int, requests: list[Request], action: Infer, result: Result) -> None:
        """Give the requests of a failed INFER another chance."""
        late = result.status in (Status.TOO_LATE, Status.INPUT_MISSING, Status.NOT_RESIDENT)
        in_vain = late and requests[0].due_ns is not None
        reason = Reason.DEADLINE_PASSED if in_vain else Reason.WORKER_FAILED
        detail = f"{result.worker} {'could not begin' if late else 'failed to run'} the batch"
        detail = f"{detail}: {result.detail or result.status.value}"
        spoilt = result.status in (
            Status.INPUT_MISSING,
            Status.ENGINE_ERROR,
            Status.BAD_VALUES,
            Status.OVERRUN,
        )
        alone = len(requests) == 1
        if alone and result.status in (Status.BAD_VALUES, Status.OVERRUN):
            # It would fail again, and no worker is at fault.
            if requests[0].place is not Place.GONE:
                self._state.reject(now_ns, requests[0], Reason.BAD_VALUES, result.detail or detail)
            return
        # Inputs that came and were refused will be refused again; inputs that did not come may come.
        unusable = spoilt and alone and result.end_ns <= action.latest_ns
        for request in requests:
            # Nothing bounds how often an INFER may begin too late, but a deadline that no policy enforces.
            counts = not late or (request.due_ns is not None and self._policy.serves_late)
            request.failures += unusable or counts
            if spoilt and not alone:
                # Which request's inputs are missing, or fail the engine, is not known until each runs alone.
                # Inputs may just have been slow, and requests that run alone make a busy device busier.
                request.spoilt += 1
                if request.spoilt > 1 or result.status is not Status.INPUT_MISSING:
                    self._state.suspect(request)
            self._lifecycle.retry(now_ns, request, reason, detail)


def _charged_ns(action: Infer | Load, result: Result) -> int:
    """Return how long an action took, as its tenants are charged; that it stood still was nobody's wish."""
    taken_ns, expected_ns = result.end_ns - result.begin_ns, action.predicted_duration_ns
    return expected_ns if is_outlier(taken_ns, expected_ns) else taken_ns


def _concerned(change: Change) -> Placement:
    """Return the placement that a result's action was about."""
    assert change.placement is not None, f"{change.action} was about what nobody knows"
    return change.placement


def isolated(batch: Batch) -> Batch:
    """Return the batch's first request if it is a suspect, else those before the first suspect."""
    first = batch.requests[0]
    requests = [first] if first.suspect else [*takewhile(lambda each: not each.suspect, batch.requests)]
    return _only(batch, requests)


def of_rows(batch: Batch, most: int) -> Batch:
    """Return the first of a batch's requests that have at most so many rows, and its first in any case."""
    ends = accumulate([request.rows for request in batch.requests])
    count = max(1, sum([end <= most for end in ends]))
    return batch if count == len(batch.requests) else _only(batch, batch.requests[:count])


def of_one_shape(batch: Batch) -> Batch:
    """Return those of a bucket's batch that have the sizes of its first: an execution has one shape."""
    sizes = batch.requests[0].event.sizes
    same = [request for request in batch.requests if request.event.sizes == sizes]
    return batch if len(same) == len(batch.requests) else _only(batch, same)


def _sizes(model: Model, requests: list[Request]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the sizes that a batch of a model runs at and, unless all requests have these, those of each.

    They are the largest size of each symbol, or the bucket's ceilings if it runs at no others.
    """
    first = requests[0].event.sizes
    if not first:
        return first, ()
    own = tuple([request.event.sizes for request in requests])
    if model.spec.at_ceilings:
        most = model.base.spec.bucket_of(first)
    else:
        most = tuple([max([sizes[symbol] for sizes in own]) for symbol in range(len(first))])
    return most, () if own.count(most) == len(own) else own


def _only(batch: Batch, requests: list[Request]) -> Batch:
    """Return a batch of some of its requests, of a size that fits them.

    It keeps its size where the fitting one would be slower (that size's estimate may be an outlier): the
    policy found that the requests can end in time at the size it chose, and nothing checks that again.
    """
    times = batch.placement.times
    chosen, fitting = batch.size_index, times.index_for(sum([request.rows for request in requests]))
    slower = times.ns[fitting] > times.ns[chosen] or times.transfer_ns[fitting] > times.transfer_ns[chosen]
    return Batch(batch.placement, chosen if slower else fitting, requests)
