"""Queries: the whole is admitted or refused on arrival, and each piece gets a due instant of its own.

A query becomes several requests (`messages.queries`). The policy sees those, and decides of each as of any
other request. What concerns the query as one is here: whether all of it can be in time with the queues as
they are, what is left of its time for each step (InferLine, section 4, plans such a pipeline for whole
clusters and by the second), and that nothing of it goes on once a piece that it needs can't be in time.
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.models import Model
from mainspring.cluster.plans import Plan, earliest_finish_ns, plans, reject_evidence
from mainspring.cluster.requests import Place, Query, Request
from mainspring.cluster.state import Change
from mainspring.cluster.status import impossible
from mainspring.messages.actions import Ranked, Reject, RejectEvidence
from mainspring.messages.codes import Reason
from mainspring.messages.events import QueryArrived, RequestArrived
from mainspring.messages.queries import Chosen, QueryStep
from mainspring.scheduler.best_effort import BestEffort
from mainspring.scheduler.load_queue import MissedModels
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.query_plans import Planned, Whole, count_of, members_of, model_of
from mainspring.scheduler.request_lifecycle import RequestLifecycle
from mainspring.scheduler.state import SchedulerState
from mainspring.scheduler.variants import Choice, Prices

FIRST_HOP_NS: Final = 600_000
"""Time from a step's end to the arrival of what waits for it, until some were measured."""
HOP_WEIGHT: Final = 1 / 16
"""Weight of one hop in their mean."""

Refusal = tuple[Reason, str, int | None, RejectEvidence | None]
"""Reason, sentence, earliest finish of the whole, and evidence."""


class Queries:
    """Decides what concerns a query as one."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        lifecycle: RequestLifecycle,
        backlog: BestEffort,
        missed: MissedModels,
    ) -> None:
        self._state = state
        self._policy = policy
        self._lifecycle = lifecycle
        self._backlog = backlog
        self._missed = missed
        self._slack = state.config.query_slack
        self._tenants = state.tenants
        lifecycle.share = self._share
        self._hop_ns = float(FIRST_HOP_NS)
        self._prices = Prices()
        self._ahead: dict[str, float] = {}
        """Rows under a condition that are to be expected for each model, since it was last asked for."""
        state.cluster.stepped = []

    def arrived(self, now_ns: int, event: QueryArrived, change: Change) -> None:
        """Admit a query, or reject it at once. An id that is known already is ignored."""
        if not change.taken:
            return
        query = self._state.cluster.queries[event.query_id]
        if (event.tenant or self._tenants.used) and self._over_share(now_ns, query):
            return
        # Of a family alone the plans of its members say whether the whole can be in time.
        choice = self._choice(now_ns, query, 0) if len(event.steps) == 1 else None
        refusal = self._refusal(now_ns, query, choice)
        if refusal is not None:
            self._state.emit(now_ns, Reject(query.id, *refusal))
            return
        if choice is None:
            self._choose(now_ns, query)
        else:
            self._chose(now_ns, query, 0, choice)
        for step in event.steps:
            model = self._model(step.model, step.sizes)
            if step.after and model is not None and not model.usable and self._comes(step):
                self._missed.want(model)

    def _over_share(self, now_ns: int, query: Query) -> bool:
        """Refuse a query whose tenant is ahead of his share; return whether. Its pieces are charged."""
        workers = self._state.cluster.open_workers
        refusal = self._tenants.query_refused(now_ns, query.event.tenant, workers)
        if refusal is None or query.due_ns is None:
            return False
        self._state.emit(now_ns, Reject(query.id, Reason.OVER_SHARE, *refusal))
        return True

    def _comes(self, step: QueryStep) -> bool:
        """Say whether a step is to be expected: of one under a condition, once it has a row in the mean.

        Its model is loaded for the demand upstream times its share (InferLine, section 4).
        """
        if step.certain:
            return True
        rows = self._ahead.get(step.model, 0.0) + step.share * step.rows
        self._ahead[step.model] = 0.0 if rows >= 1.0 else rows
        return rows >= 1.0

    def took(self, now_ns: int, event: RequestArrived, change: Change) -> bool:
        """Queue a piece of an admitted query; return False if it is of none that is known.

        Such a one may run again, since its outputs were lost, after all others have ended.
        """
        query = self._state.cluster.queries.get(event.query)
        if query is None or event.step >= len(query.done):
            return False
        if not change.requests:
            if event.request_id not in self._state.cluster.requests:
                refusal = self._unserved(event.model, event.sizes)
                self._withdrawn(now_ns, Reject(query.id, *refusal))
            return True
        request = change.requests[0]
        if not 1 <= request.rows <= request.model.max_rows:
            detail = f"a piece has {request.rows} rows; model {event.model!r} takes {request.model.max_rows}"
            self._state.reject(now_ns, request, Reason.TOO_MANY_ROWS, detail)
            return True
        if self._tenants.used:
            self._tenants.joined(now_ns, request)
        after = query.event.steps[event.step].after
        if after and not query.done[event.step] and len(query.open) == 1:
            self._hopped(now_ns - max([query.ended_ns.get(each, now_ns) for each in after]))
        self._share(now_ns, request)
        if event.priority > 0:
            found = plans(self._state.cluster, now_ns, request.model, request.rows, request.due_ns)
            self._lifecycle.rank(now_ns, request, event.priority, earliest_finish_ns(found))
        self._lifecycle.queue(now_ns, request, arrives=True)
        return True

    def learnt(self, now_ns: int, query_id: int) -> None:
        """Give the pieces of a query that wait their due instants again: more is known of its steps."""
        query = self._state.cluster.queries.get(query_id)
        if query is not None:
            query.ended_ns = {each: ns for each, ns in query.ended_ns.items() if query.ended(each)}
            self.share_out(now_ns, [query], anew=True)

    def share_out(self, now_ns: int, queries: list[Query], anew: bool = False) -> None:
        """Give the pieces that wait their due instants again, where a step of their query has ended."""
        for query in queries:
            if self._state.cluster.queries.get(query.id) is not query:
                continue
            ended = [index for index in range(len(query.done)) if query.ended(index)]
            if len(ended) == len(query.ended_ns) and not anew:
                continue
            for index in ended:
                query.ended_ns.setdefault(index, now_ns)
            self._choose(now_ns, query)
            for piece in list(query.open.values()):
                if piece.place is not Place.QUEUED:
                    continue
                due_ns = self._due_of(now_ns, query, piece)
                if due_ns != piece.due_ns:
                    self._lifecycle.move(now_ns, piece, Ranked(piece.id, due_ns, piece.turn_ns))

    # --- admission of the whole ---

    def _refusal(self, now_ns: int, query: Query, choice: Choice | None) -> Refusal | None:
        """Return why a query can't be served, whole and in time; None if it can.

        ``choice`` is the member of the one step that it has, if one would be in time.
        """
        for step in query.event.steps:
            if choice is not None:
                model = self._model(choice.offer.model, step.sizes)
            else:
                model = self._quickest(step) if step.members else self._model(step.model, step.sizes)
            if model is None:
                return (*self._unserved(step.model, step.sizes), None, None)
            if step.after or not step.rows:
                continue
            full = self._lifecycle.full(model, count_of(model, step.rows))
            if full is not None:
                return Reason.OVERLOADED, full, None, None
            beyond = None
            if query.due_ns is None:
                beyond = self._backlog.beyond_horizon(now_ns, model, step.rows)
            if beyond is not None:
                return Reason.OVERLOADED, f"it would wait for {beyond[0] / 1e9:.0f} s", beyond[1], None
        if choice is not None:
            return None
        whole = Whole(self._state.cluster, now_ns, query, round(self._hop_ns))
        late = whole.late
        if late is not None and late[1] and self._lifecycle.doubt(now_ns, late[0]):
            whole = Whole(self._state.cluster, now_ns, query, round(self._hop_ns))
            late = whole.late
        if late is None:
            return None
        return self._late(now_ns, query, whole, *late)

    def _late(
        self, now_ns: int, query: Query, whole: Whole, model: Model, found: list[Plan], detail: str
    ) -> Refusal | None:
        """Return the refusal for a step that stands in the way; None if the policy refuses none for it."""
        reason, earliest_ns = Reason.DEADLINE_UNREACHABLE, None
        if not found:
            reason, detail = impossible(self._state.cluster, model)
            if reason is Reason.MODEL_NOT_READY:
                self._lifecycle.hasten(model)
                if query.due_ns is None:
                    return None
        elif not self._policy.refuses:
            return None
        else:
            detail += self._less(now_ns, query)
            earliest_ns = whole.finish_ns + self._state.ns.response_margin
            needed_ms = (earliest_ns - now_ns) / 1e6
            detail = f"{detail}; a deadline of {needed_ms:.0f} ms would be accepted"
        self._policy.refused(now_ns, model, model.piece_rows)
        self._missed.want(model)
        evidence = reject_evidence(self._state.cluster, model, found, model.waiting)
        return reason, detail, earliest_ns, evidence

    def _less(self, now_ns: int, query: Query) -> str:
        """Say which members could be in time that the client of a query of one step does not take."""
        step, due_ns = query.event.steps[0], query.due_ns
        if len(query.event.steps) > 1 or not step.at_least or due_ns is None:
            return ""
        offers = Planned(self._state.cluster, now_ns, due_ns, ties=True).offers(step, within=False)
        less = [each for each in offers if each.score < step.at_least and each.finish_ns <= due_ns]
        could = f"; {less[0].model!r} of {less[0].score:g} could" if less else ""
        return f"; it takes at least {step.at_least:g}{could}"

    # --- members of families ---

    def _choose(self, now_ns: int, query: Query) -> None:
        """Choose the members for the steps of a query that may begin now (`scheduler.variants`)."""
        for index, step in enumerate(query.event.steps):
            if not step.members or not step.rows or query.done[index]:
                continue
            began = index in [piece.event.step for piece in query.open.values()]
            if began or not all(each in query.ended_ns for each in step.after):
                continue
            choice = self._choice(now_ns, query, index, late=True)
            if choice is not None:
                self._chose(now_ns, query, index, choice)

    def _choice(self, now_ns: int, query: Query, index: int, *, late: bool = False) -> Choice | None:
        """Return the member for a step that may begin now; None if none is in time.

        With ``late`` the one that ends first then, and None only if none can run.
        """
        step = query.event.steps[index]
        if not step.members or not step.rows:
            return None
        due_ns = query.due_ns
        if len(query.event.steps) > 1:
            quickest = self._quickest(step)
            if quickest is None:
                return None
            due_ns = self._due_ns(now_ns, query, index, quickest, min(step.rows, quickest.piece_rows))
        offers = Planned(self._state.cluster, now_ns, due_ns, ties=True).offers(step)
        choice = self._prices.choose(now_ns, offers, due_ns)
        if choice is None and late and offers:
            return Choice(min(offers, key=lambda each: each.finish_ns), 0.0)
        return choice

    def _chose(self, now_ns: int, query: Query, index: int, choice: Choice) -> None:
        """Have a step be of a member; those that no worker holds are to be loaded."""
        for model, _ in members_of(self._state.cluster, query.event.steps[index]):
            if not model.usable:
                self._missed.want(model)
        self._state.emit(now_ns, Chosen(query.id, index, choice.offer.model, choice.price))

    def _quickest(self, step: QueryStep) -> Model | None:
        """Return the model of a step; of a family the member that its client takes and that needs least."""
        found = [model for model, _ in members_of(self._state.cluster, step)]
        return min(
            found, key=lambda each: each.fastest_ns(min(step.rows or 1, each.piece_rows)), default=None
        )

    def _model(self, name: str, sizes: tuple[int, ...]) -> Model | None:
        return model_of(self._state.cluster, name, sizes)

    def _unserved(self, name: str, sizes: tuple[int, ...]) -> tuple[Reason, str]:
        return self._lifecycle.unserved(RequestArrived(0, name, 1, None, sizes=sizes))

    def _withdrawn(self, now_ns: int, reject: Reject) -> None:
        self._lifecycle.withdrawn(now_ns, self._state.emit(now_ns, reject))

    # --- due instants ---

    def _hopped(self, hop_ns: int) -> None:
        """Learn how long it took from a step's end until the next one's first piece came."""
        self._hop_ns += HOP_WEIGHT * (hop_ns - self._hop_ns)

    def _share(self, now_ns: int, piece: Request) -> None:
        """Give a piece that is in no queue its due instant, unless its query has ended."""
        query = piece.query
        if query is None or self._state.cluster.queries.get(query.id) is not query:
            return
        due_ns = self._due_of(now_ns, query, piece)
        if due_ns != piece.due_ns:
            self._state.emit(now_ns, Ranked(piece.id, due_ns, piece.turn_ns))

    def _free_ns(self, now_ns: int, model: Model, rows: int) -> int:
        """Return when a piece could begin if it came first: the time to share out begins then. What a worker
        has been sent is not interrupted, and may take longer than the whole share of a short step."""
        found = plans(self._state.cluster, now_ns, model, rows, None)
        return max(now_ns, min([plan.begin_ns for plan in found], default=now_ns))

    def _due_of(self, now_ns: int, query: Query, piece: Request) -> int | None:
        """Return when a piece must have ended, as the slack is shared out now."""
        return self._due_ns(now_ns, query, piece.event.step, piece.model, piece.rows)

    def _due_ns(self, now_ns: int, query: Query, index: int, model: Model, rows: int) -> int | None:
        """Return when a piece of a step must have ended, of so many rows of a model, if it came now."""
        steps, due_ns = query.event.steps, query.due_ns
        if due_ns is None or len(steps) == 1:
            return due_ns
        now_ns = self._free_ns(now_ns, model, rows)
        hop_ns = round(self._hop_ns)
        needed_ns = [self._needed_ns(query, each) for each in range(len(steps))]
        tail_ns, following = [0] * len(steps), [0] * len(steps)
        for later in range(len(steps) - 1, index, -1):
            if not (steps[later].required and steps[later].certain and steps[later].rows):
                continue
            for each in steps[later].after:
                behind_ns = hop_ns + needed_ns[later] + tail_ns[later]
                if behind_ns > tail_ns[each]:
                    tail_ns[each], following[each] = behind_ns, following[later] + 1
        before_ns, before = self._before(query, index, needed_ns, hop_ns)
        own_ns = before_ns + needed_ns[index]
        slack_ns = due_ns - now_ns - own_ns - tail_ns[index]
        if self._slack == "latest" or slack_ns <= 0 or not following[index]:
            return due_ns - tail_ns[index]
        if self._slack == "even":
            part = (before + 1) / (before + 1 + following[index])
        else:
            part = own_ns / (own_ns + tail_ns[index])
        return now_ns + own_ns + int(slack_ns * part)

    def _before(self, query: Query, index: int, needed_ns: list[int], hop_ns: int) -> tuple[int, int]:
        """Return the longest time until a step can begin, and how many steps that are."""
        steps = query.event.steps
        longest_ns, count = [0] * (index + 1), [0] * (index + 1)
        for each in range(index + 1):
            for former in steps[each].after:
                if former in query.ended_ns:
                    continue
                until_ns = longest_ns[former] + needed_ns[former] + hop_ns
                if until_ns > longest_ns[each]:
                    longest_ns[each], count[each] = until_ns, count[former] + 1
        return longest_ns[index], count[index]

    def _needed_ns(self, query: Query, index: int) -> int:
        """Return how long a step takes by itself on the workers that hold its model."""
        step = query.event.steps[index]
        model = self._quickest(step) if step.members else self._model(step.model, step.sizes)
        if index in query.ended_ns or model is None or not step.rows:
            return 0
        each_ns = model.fastest_ns(min(step.rows, model.piece_rows))
        return each_ns * -(-count_of(model, step.rows) // max(1, len(model.usable)))
