"""Requests are admitted, queued, retried, and leave without outputs: rejected, expired or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.plans import Plan, earliest_finish_ns, plans, reject_evidence, soonest_in_time_ns
from mainspring.cluster.requests import Place, Request
from mainspring.cluster.residency import is_given_up
from mainspring.cluster.state import Change
from mainspring.cluster.status import impossible
from mainspring.messages.actions import Ahead, Doubted, Ranked, Reject, RejectEvidence
from mainspring.messages.codes import Reason
from mainspring.messages.events import RequestArrived
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.load_queue import MissedModels
from mainspring.scheduler.opening.admission import AdmissionWhileOpening
from mainspring.scheduler.overdue_actions import overdue_detail
from mainspring.scheduler.overload import Overload, sentence
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.preparing import Preparing
from mainspring.scheduler.state import SchedulerState, is_replicated_widely

_QUEUED: Final = Place.QUEUED
LOWEST: Final = 1_000
"""Lower priorities, which are larger numbers, count as this one."""
_STEP_NS: Final = 1 << 46
"""Longer than any best-effort request waits."""


class RequestLifecycle:
    """Everything that happens to a request before it is dispatched, or instead."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        preparing: Preparing,
        backlog: BestEffort,
        missed: MissedModels,
        admission: AdmissionWhileOpening,
        overload: Overload,
    ) -> None:
        self._state = state
        self._policy = policy
        self._preparing = preparing
        self._backlog = backlog
        self._missed = missed
        self._admission = admission
        self._overload = overload
        self._tenants = state.tenants
        config = state.config
        self._max_queue_sizes = config.max_queue_sizes
        state.query_ended = self.withdrawn
        self.share: Callable[[int, Request], None] = lambda _now_ns, _piece: None
        """Gives a piece of a query the due instant that follows from what is left of the query's time."""
        self._bound = min(config.max_queued_requests, config.max_queued_requests_per_model)

    def arrived(self, now_ns: int, event: RequestArrived, change: Change) -> None:
        """Queue a request that has arrived, or reject it at once. An id that is known already is ignored.

        It is rejected if no plan (`cluster.plans`) is in time, though a plan puts it before everything that
        is queued; it is told what was possible.
        """
        cluster = self._state.cluster
        if not change.requests:
            if event.request_id not in cluster.requests:
                self._state.emit(now_ns, Reject(event.request_id, *self.unserved(event)))
            return
        request = change.requests[0]
        model, rows, due_ns = request.model, request.rows, request.due_ns
        if (event.tenant or self._tenants.used) and self._over_share(now_ns, request):
            return
        bounded = bool(cluster.operations or self._max_queue_sizes) or cluster.queued >= self._bound
        if not 1 <= rows <= model.max_rows or bounded:
            refusal = self._refusal(now_ns, event, model)
            if refusal is not None:
                self._state.reject(now_ns, request, *refusal)
                return
        if due_ns is None and self._comes_too_late(now_ns, request):
            return
        soonest_ns = -1 if due_ns is None else soonest_in_time_ns(cluster, now_ns, model, rows, due_ns)
        if soonest_ns < 0 and not self._admits(now_ns, request):
            return
        if now_ns < self._admission.until_ns and due_ns is not None and self._policy.refuses:
            why = self._promised(now_ns, model, rows, due_ns)
            if why:
                found = plans(cluster, now_ns, model, rows, 0)
                self._turn_away(now_ns, request, found, Reason.DEADLINE_UNREACHABLE, why)
                return
        priority = event.priority
        if priority > 0:
            finish_ns = earliest_finish_ns(plans(cluster, now_ns, model, rows, due_ns))
            self.rank(now_ns, request, priority, finish_ns)
        self.queue(now_ns, request, arrives=True)

    def _over_share(self, now_ns: int, request: Request) -> bool:
        """Charge a request's tenant; refuse the request if he is ahead of his share, and return whether."""
        if not 1 <= request.rows <= request.model.max_rows:
            return False
        refusal = self._tenants.refused(now_ns, request, self._state.cluster.open_workers)
        if refusal is None:
            return False
        self._state.emit(now_ns, Reject(request.id, Reason.OVER_SHARE, *refusal))
        return True

    def _comes_too_late(self, now_ns: int, request: Request) -> bool:
        """Refuse a request without a deadline if those before it take too long; return whether."""
        beyond = self._backlog.beyond_horizon(now_ns, request.model, request.rows)
        if beyond is None:
            return False
        detail = (
            f"requests without a deadline are expected to wait for {beyond[0] / 1e9:.0f} s, and the bound "
            f"(best_effort_horizon_ms) is {self._state.config.best_effort_horizon_ms / 1e3:.0f} s"
        )
        self._turn_away(now_ns, request, [], Reason.OVERLOADED, detail, beyond[1])
        return True

    def _admits(self, now_ns: int, request: Request) -> bool:
        """Return whether to queue a request though no worker that holds its model is known to be in time;
        reject it if not."""
        cluster, model, rows, due_ns = self._state.cluster, request.model, request.rows, request.due_ns
        found = plans(cluster, now_ns, model, rows, due_ns)
        finish_ns = earliest_finish_ns(found)
        if due_ns is not None and finish_ns is not None and finish_ns > due_ns and self.doubt(now_ns, model):
            found = plans(cluster, now_ns, model, rows, due_ns)
            finish_ns = earliest_finish_ns(found)
        in_time = finish_ns is not None and (due_ns is None or finish_ns <= due_ns)
        turned_away = not in_time and (finish_ns is None or self._policy.refuses)
        if turned_away and due_ns is not None and finish_ns is not None:
            turned_away = not self._hopes(found, rows, due_ns)
        return not turned_away or self._waits(now_ns, request, found)

    def _promised(self, now_ns: int, model: Model, rows: int, due_ns: int) -> str:
        """Return why a request that a plan has in time is refused all the same: an OPEN is too close."""
        finish_ns = earliest_finish_ns(plans(self._state.cluster, now_ns, model, rows, due_ns))
        in_time = finish_ns is not None and finish_ns <= due_ns
        return self._admission.refusal(now_ns, model, rows, due_ns) if in_time else ""

    def rank(self, now_ns: int, request: Request, priority: int, finish_ns: int | None) -> None:
        """Have a request with a priority wait as if it were due earlier, or had arrived earlier."""
        due_ns, turn_ns = request.due_ns, request.turn_ns
        if due_ns is None:
            turn_ns = preferred_turn_ns(now_ns, priority)
        else:
            due_ns = self._preferred(due_ns, priority, finish_ns)
        if due_ns != request.due_ns or turn_ns != request.turn_ns:
            self._state.emit(now_ns, Ranked(request.id, due_ns, turn_ns))

    def _preferred(self, due_ns: int, priority: int, finish_ns: int | None) -> int:
        """Return when a request with a priority counts as due: no sooner than it could be served."""
        preferred_ns = preferred_due_ns(due_ns, priority, self._state.ns.equal_slack)
        return due_ns if finish_ns is None or finish_ns > preferred_ns else preferred_ns

    def queue(self, now_ns: int, request: Request, arrives: bool = False) -> None:
        """Put an admitted request into its model's queue; ``arrives`` says that it was not there before."""
        state, model, due_ns = self._state, request.model, request.due_ns
        state.cluster.enqueue(request)
        if due_ns is not None and is_replicated_widely(state.cluster, model):
            state.idle_workers.want(model)
        else:
            full_ns = now_ns + state.ns.lookahead
            for placement in model.usable.values():
                state.wants_for_request(full_ns, placement.worker)
        if due_ns is None:
            self._backlog.add(request)
            self._missed.want(model)
        else:
            last_start_ns = due_ns - model.fastest_ns(request.rows) - state.ns.dispatch_delay
            if arrives:
                self._backlog.saw_deadline(now_ns, last_start_ns - now_ns)
            give_up_ns = self._policy.give_up_ns(request, last_start_ns)
            look_ns = self._overload.first_look_ns(now_ns, request)
            self._look_again(request, give_up_ns, look_ns)
            self._policy.queued(now_ns, request)
            if look_ns is not None:
                self._overload.changed(now_ns, model)

    def _look_again(self, request: Request, give_up_ns: int | None, look_ns: int | None) -> None:
        """Have `expire` called once a request is to be given up, or looked at before that."""
        state = self._state
        if give_up_ns is not None and (look_ns is None or give_up_ns < look_ns):
            look_ns = give_up_ns + 1
        if look_ns is not None:
            state.alarms.set_expiry(look_ns, request, state.cluster.queued)

    def expire(self, now_ns: int, request: Request) -> None:
        """Reject a queued request whose deadline no dispatch can meet, or that the policy keeps no longer, or
        that so much stands before that it is improbable to be served."""
        if request.place is not _QUEUED or request.due_ns is None:
            return
        give_up_ns = self._policy.give_up_ns(request, self._state.last_start_ns(request))
        if give_up_ns is None or now_ns <= give_up_ns:
            if not self._refused_early(now_ns, request):
                self._look_again(request, give_up_ns, self._overload.next_look_ns(now_ns, request))
            return
        self._unqueue(now_ns, request)
        self._policy.gave_up(now_ns, request)
        self._overload.missed(now_ns, request)
        waited_ms = (now_ns - request.arrived_ns) / 1e6
        why, earliest_ns = self._policy.gives_up_because, None
        if now_ns > self._state.last_start_ns(request):
            why = "no worker could begin it in time"
            finish_ns = now_ns + self._state.ns.dispatch_delay + request.model.fastest_ns(request.rows)
            earliest_ns = finish_ns + self._state.ns.response_margin
        detail = f"waited {waited_ms:.1f} ms; {why}{overdue_detail(now_ns, request.model)}"
        evidence = self._evidence(now_ns, request)
        self._state.reject(now_ns, request, Reason.DEADLINE_PASSED, detail, earliest_ns, evidence)
        if request.cold:
            self._missed.want(request.model)

    def _refused_early(self, now_ns: int, request: Request) -> bool:
        """Refuse a queued request if so much stands before it that it would be late; return whether."""
        ahead = self._overload.ahead(now_ns, request)
        if ahead is None or request.due_ns is None or self._overload.keeps(request):
            return False
        self._unqueue(now_ns, request)
        self._policy.gave_up(now_ns, request)
        self._overload.refused(now_ns)
        finish_ns = ahead.begin_ns + ahead.duration_ns + self._state.ns.response_margin
        detail = sentence(ahead, request.due_ns, finish_ns - request.arrived_ns, request.rows)
        evidence = self._evidence(now_ns, request, ahead)
        self._state.reject(now_ns, request, Reason.OVERLOADED, detail, finish_ns, evidence)
        if request.cold:
            self._missed.want(request.model)
        return True

    def withdrawn(self, now_ns: int, change: Change) -> None:
        """React to requests that are cancelled; outputs of one that is dispatched the gateway discards."""
        for request in change.requests:
            self._tenants.withdrawn(request)
            self._unqueued(now_ns, request)
            self._overload.withdrawn(request)

    def move(self, now_ns: int, request: Request, ranked: Ranked) -> None:
        """Have a queued request wait as if it were due at another instant."""
        self._unqueue(now_ns, request)
        self._state.emit(now_ns, ranked)
        self.queue(now_ns, request)

    def hasten(self, model: Model) -> None:
        """Have a model prepared before others: requests came for it."""
        self._preparing.hasten(model.base)

    def full(self, model: Model, more: int) -> str | None:
        """Return why so many more requests can't wait for a model; None if they can."""
        found = self._full(model, more)
        return None if found is None else found[2]

    def retry(self, now_ns: int, request: Request, reason: Reason, detail: str) -> None:
        """Queue a request again whose action failed, or reject it if that can't help."""
        if request.place is Place.GONE:
            return
        state = self._state
        lost = is_given_up(state.cluster, request.model)
        if request.query is not None:
            # A worker was busy for longer than predicted, and a step's share may be shorter than that.
            self.share(now_ns, request)
        hopeless = self._hopeless(now_ns, request) or request.failures >= state.config.max_attempts
        if not state.cluster.serves(request.model):
            state.reject(now_ns, request, Reason.MODEL_REMOVED, f"model {request.model.name!r} was removed")
        elif lost or hopeless:
            if request.due_ns is not None:
                self._policy.failed(now_ns, request)
            if lost and reason is Reason.DEADLINE_PASSED:
                # The deadline may be far off: the batch that failed does not show that no worker is left.
                reason, detail = impossible(state.cluster, request.model)
            state.reject(now_ns, request, reason, detail, None, self._evidence(now_ns, request))
        else:
            self.queue(now_ns, request)

    def reconsider(self, now_ns: int, model: Model) -> None:
        """Reject what waits for a model, after a loss, if no worker will run it unless something changes."""
        if not model.waiting:
            return
        if is_given_up(self._state.cluster, model):
            reason, detail = impossible(self._state.cluster, model)
            evidence = reject_evidence(self._state.cluster, model, [], model.waiting - 1)
            self.reject_queued(now_ns, model, reason, detail, evidence)
        elif model.waiting_idly:
            self._missed.want(model)

    def reject_queued(
        self,
        now_ns: int,
        model: Model,
        reason: Reason,
        detail: str,
        evidence: RejectEvidence | None = None,
    ) -> None:
        """Reject everything that waits for a model."""
        with_deadline, best_effort = self._state.cluster.clear_queue(model)
        for request in with_deadline:
            self._policy.unqueued(now_ns, request)
        for each in model.by_bucket:
            self._overload.forget(each)
        for request in [*with_deadline, *best_effort]:
            if request.place is Place.GONE:
                # With another piece of its query.
                continue
            self._state.reject(now_ns, request, reason, detail, None, evidence)

    def _evidence(self, now_ns: int, request: Request, ahead: Ahead | None = None) -> RejectEvidence:
        """Return by when each worker could run a request that is no longer queued."""
        model = request.model
        found = plans(self._state.cluster, now_ns, model, request.rows, 0)
        return reject_evidence(self._state.cluster, model, found, model.waiting, ahead)

    def _unqueue(self, now_ns: int, request: Request) -> None:
        """Take a request out of its queue."""
        self._state.cluster.dequeue(request)
        self._unqueued(now_ns, request)

    def _unqueued(self, now_ns: int, request: Request) -> None:
        """Tell the other parts that a request has left its queue."""
        if request.due_ns is not None:
            self._policy.unqueued(now_ns, request)
            self._overload.changed(now_ns, request.model)

    def _waits(self, now_ns: int, request: Request, found: list[Plan]) -> bool:
        """Return whether a request that no plan serves in time may wait all the same; reject it if not."""
        state, model, finish_ns = self._state, request.model, earliest_finish_ns(found)
        reason = Reason.DEADLINE_UNREACHABLE
        detail = f"no worker could finish in time{overdue_detail(now_ns, model)}"
        if finish_ns is None:
            reason, detail = impossible(state.cluster, model)
        if reason is Reason.MODEL_NOT_READY:
            self._preparing.hasten(model.base)
            if request.due_ns is None:
                return True
        earliest_ns = None if finish_ns is None else finish_ns + state.ns.response_margin
        self._turn_away(now_ns, request, found, reason, detail, earliest_ns)
        return False

    def _turn_away(
        self,
        now_ns: int,
        request: Request,
        found: list[Plan],
        reason: Reason,
        detail: str,
        earliest_ns: int | None = None,
    ) -> None:
        """Reject a request on arrival."""
        model = request.model
        self._policy.refused(now_ns, model, request.rows)
        evidence = reject_evidence(self._state.cluster, model, found, model.waiting)
        self._state.reject(now_ns, request, reason, detail, earliest_ns, evidence)
        self._missed.want(model)

    def _hopes(self, found: list[Plan], rows: int, due_ns: int) -> bool:
        """Return whether any plan gives a request a chance to be in time."""
        for plan in found:
            index = plan.placement.model.index_of[rows]
            needed_ns = self._policy.least_ns(plan.placement, index, plan.duration_ns)
            if plan.begin_ns + needed_ns <= due_ns:
                return True
        return False

    def _hopeless(self, now_ns: int, request: Request) -> bool:
        """Return whether a request is past the instant until which it is kept."""
        if request.due_ns is None:
            return False
        give_up_ns = self._policy.give_up_ns(request, self._state.last_start_ns(request))
        return give_up_ns is not None and now_ns > give_up_ns

    def unserved(self, event: RequestArrived) -> tuple[Reason, str]:
        """Return why no model is there for a request."""
        served = self._state.cluster.models.get(event.model)
        if served is None:
            return Reason.UNKNOWN_MODEL, f"there is no model {event.model!r}"
        symbols = ", ".join(map(str, served.spec.symbols)) or "none"
        return Reason.BAD_INPUT, f"sizes {event.sizes}; model {served.name!r} takes {symbols}"

    def _refusal(
        self, now_ns: int, event: RequestArrived, model: Model
    ) -> tuple[Reason, str, int | None] | None:
        """Return why a request can't be admitted, whatever workers could do, and when to come again, if that
        is known; None if it can."""
        if not 1 <= event.rows <= model.max_rows:
            detail = f"{event.rows} rows; model {model.name!r} takes 1 to {model.max_rows} in a request"
            return Reason.TOO_MANY_ROWS, detail, None
        full = self._full(model, 1)
        if full is None:
            return None
        waiting, most, detail = full
        again_ns = self._backlog.room_ns(now_ns, model, event.rows, waiting, waiting - most + 1)
        return Reason.OVERLOADED, detail, again_ns

    def _full(self, model: Model, more: int) -> tuple[int, int, str] | None:
        """Return how many requests wait where ``more`` may not, how many may, and the sentence; None if there
        is room."""
        state = self._state
        queued, config = state.cluster.queued, state.config
        if queued + more > config.max_queued_requests:
            return queued, config.max_queued_requests, f"{queued} requests are queued, which is the bound"
        waiting = model.base.waiting
        if waiting + more > config.max_queued_requests_per_model:
            detail = f"{waiting} requests wait for {model.base.name!r}, which is the bound"
            return waiting, config.max_queued_requests_per_model, detail
        if state.cluster.operations or self._max_queue_sizes:
            name = model.base.spec.public_name
            most = state.cluster.max_queue_size(name) or self._max_queue_sizes.get(name)
            if most is not None and waiting + more > most:
                detail = f"{waiting} requests wait for {name!r}, and its bound (max_queue_size) is {most}"
                return waiting, most, detail
        return None

    def doubt(self, now_ns: int, model: Model) -> bool:
        """Doubt the estimates by which a model's request is about to be turned away; return whether any is
        doubted."""
        for kind, times in model.infer_times.items():
            if times.doubtful(now_ns) or model.load_times[kind].doubtful(now_ns):
                self._state.emit(now_ns, Doubted(model.base.name))
                return True
        return False


def preferred_due_ns(due_ns: int, priority: int, slice_ns: int) -> int:
    """Return what a request with a priority counts as due at, at most a slice before ``due_ns``.

    1 is the highest priority, as in Triton, and 0 means none: behind all others. A request with one counts as
    due at the beginning of the slice of time that its deadline falls into, so that in every policy's queue it
    comes before others of its slice. Requests without a priority keep their order, and cost nothing.
    """
    return min(due_ns, due_ns - due_ns % slice_ns + min(priority, LOWEST) - 1)


def preferred_turn_ns(arrived_ns: int, priority: int) -> int:
    """Return when a best-effort request counts as arrived; the earliest is served first."""
    return arrived_ns if priority <= 0 else arrived_ns - (LOWEST + 1 - min(priority, LOWEST)) * _STEP_NS
