"""Query ``request``: one request explained."""

from __future__ import annotations

from itertools import islice

from mainspring.console.payloads import Alternative, Story
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.queries.moment import Moment
from mainspring.console.queries.plans import Plan, ms, plans, told
from mainspring.console.queries.telling import last_infer, steps, summary
from mainspring.console.view.actions import Action
from mainspring.console.view.requests import LATE, LOST, REJECTED, RUNNING, WAITING, Request
from mainspring.console.view.view import View
from mainspring.messages.codes import Reason

LAST = {
    "last-rejected": (REJECTED,),
    "last-late": (LATE,),
    "last-lost": (LOST,),
    "last": (REJECTED, LATE, LOST),
}
"""Names for the newest request of an outcome."""
SOON_NS = 5_000_000_000
"""A worker that is found to be gone within this time of a choice may have been silent when it was made."""
_KEPT = 64
"""Stories that are told again without being made again."""


def request(view: View, which: str) -> Story:
    """Explain a request.

    ``which`` is its id, the beginning of an id that only one request has, or ``last-rejected``,
    ``last-late``, ``last-lost`` or ``last``. Raises `Unknown` if nothing is remembered of it, and `BadQuery`
    if several fit.
    """
    found = find_request(view, which)
    key = found.id, found.ended_seq
    known = view.explained.get(key)
    if isinstance(known, Story):
        return known
    story = _story(view, found)
    if found.ended_seq:
        view.explained[key] = story
        if len(view.explained) > _KEPT:
            del view.explained[next(iter(view.explained))]
    return story


def explained(view: View, which: str) -> bool:
    """Return whether the request that is meant is there and has ended."""
    try:
        return find_request(view, which).ended_seq > 0
    except (BadQuery, Unknown):
        return False


def find_request(view: View, which: str) -> Request:
    """Return the request that is meant, as `request` says."""
    book = view.traffic.book
    if which in LAST:
        newest = next(book.newest(LAST[which]), None)
        if newest is None:
            _, _, how = which.partition("-")
            seconds = view.limits.keep_ns / 1e9
            raise Unknown(
                f"no request was {how or 'rejected, late or lost'} in the {seconds:g} s that are remembered"
            )
        return newest
    if not which.isdecimal() or len(which) > 20:
        raise BadQuery(f"{which[:80]!r} is no request's id; give a whole number or one of {', '.join(LAST)}")
    exact = book.get(int(which))
    if exact is not None:
        return exact
    fitting = [each for each in book.ids() if str(each).startswith(which)]
    if not fitting:
        seconds = view.limits.keep_ns / 1e9
        raise Unknown(
            f"nothing is remembered of request {which}: there was none, or it ended more than {seconds:g} s "
            "ago, or before what is known here began"
        )
    if len(fitting) > 1:
        some = ", ".join(map(str, islice(fitting, 5)))
        raise BadQuery(f"{len(fitting)} requests' ids begin with {which}: {some} and so on; give more of it")
    return _known(view, fitting[0])


def _known(view: View, request_id: int) -> Request:
    found = view.traffic.book.get(request_id)
    assert found is not None
    return found


def _story(view: View, found: Request) -> Story:
    infer = last_infer(view, found)
    moment = _decision(view, found, infer)
    options = [] if found.spec is None else plans(moment, found.spec, found.rows)
    return Story(
        id=str(found.id),
        model=found.model,
        rows=found.rows,
        priority=found.priority,
        arrived_ns=found.arrived_ns,
        deadline_ns=found.deadline_ns,
        outcome=found.outcome,
        reason=found.reason,
        summary=summary(view, found, infer, options),
        earliest_finish_ns=found.earliest_finish_ns,
        steps=steps(view, found, infer),
        decided_ns=moment.now_ns,
        alternatives=[_alternative(view, found, infer, plan, moment.now_ns) for plan in options],
    )


def _decision(view: View, found: Request, infer: Action | None) -> Moment:
    """Return the moment of the choice that made the request what it became.

    That is the sending of its INFER; for a request that was turned away when it came its arrival, for one
    that was rejected later its end; for one that waits it is now.
    """
    if found.outcome == REJECTED:
        if found.reason == Reason.DEADLINE_UNREACHABLE.value:
            return Moment(view, found.arrived_seq, found.arrived_ns)
        return Moment(view, found.ended_seq, found.ended_ns)
    if infer is not None:
        return Moment(view, infer.sent_seq, infer.sent_ns)
    if found.outcome in (WAITING, RUNNING):
        return Moment(view, view.seq + 1, view.now_ns)
    return Moment(view, found.ended_seq, found.ended_ns)


def _alternative(
    view: View, found: Request, infer: Action | None, plan: Plan, decided_ns: int
) -> Alternative:
    chosen = infer is not None and found.outcome != REJECTED and plan.worker == found.worker
    finish_ns, text = plan.finish_ns, told(plan, found.arrived_ns)
    if chosen and infer is not None:
        finish_ns = infer.predicted_end_ns
        among = f" with {len(infer.requests) - 1} other requests" if len(infer.requests) > 1 else ""
        text = (
            f"chosen: INFER {infer.id}, batch {infer.batch_size}{among}, predicted to end at "
            f"{(finish_ns - found.arrived_ns) / 1e6:+.1f} ms; for it alone: {text}"
        )
    feasible = finish_ns is not None
    if finish_ns is not None and found.deadline_ns is not None:
        over_ns = finish_ns + view.settings.response_margin_ns - found.deadline_ns
        feasible = over_ns <= 0
        text += f"; {ms(over_ns)} too late" if not feasible else ""
    text += _found_gone(view, plan.worker, decided_ns)
    return Alternative(plan.worker, chosen, feasible, finish_ns, text)


def _found_gone(view: View, worker: str, decided_ns: int) -> str:
    """Say that a worker was found to be gone soon after a choice: it may have been silent already."""
    for session in view.fleet.sessions:
        left_ns = session.left_ns or 0
        if session.name == worker and session.joined_ns <= decided_ns <= left_ns <= decided_ns + SOON_NS:
            why = f": {session.detail}" if session.detail else ""
            return f"; it was found to be gone {ms(left_ns - decided_ns)} later{why}"
    return ""
