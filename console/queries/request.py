"""Query ``request``: one request explained."""

from __future__ import annotations

from itertools import chain, islice

import msgspec

from mainspring.cluster.plans import plans, reject_evidence
from mainspring.cluster.requests import Place
from mainspring.console.payloads import Alternative, Step, Story
from mainspring.console.queries.asking import BadQuery, Unknown
from mainspring.console.queries.moves import ms
from mainspring.console.queries.telling import last_infer, of_candidate, of_plan, steps, summary
from mainspring.console.view.actions import Action
from mainspring.console.view.requests import (
    CANCELLED,
    IN_TIME,
    LATE,
    LOST,
    REJECTED,
    RUNNING,
    WAITING,
    Request,
)
from mainspring.console.view.view import View
from mainspring.messages.actions import Evidence, RejectEvidence
from mainspring.messages.choices import one_of

LAST = {
    "last-rejected": (REJECTED,),
    "last-late": (LATE,),
    "last-lost": (LOST,),
    "last": (REJECTED, LATE, LOST),
}
"""Names for the newest request of an outcome."""
_WORST = (IN_TIME, WAITING, RUNNING, LATE, LOST, CANCELLED, REJECTED)
"""Outcomes of pieces; the last of them that any has is its query's."""
SOON_NS = 5_000_000_000
"""A worker that is found to be gone within this time of a choice may have been silent when it was made."""


def request(view: View, which: str) -> Story:
    """Explain a request.

    ``which`` is its id, the beginning of an id that only one request has, or ``last-rejected``,
    ``last-late``, ``last-lost`` or ``last``. Raises `Unknown` if nothing is remembered of it, and `BadQuery`
    if several fit.
    """
    check(which)
    if which not in LAST and view.find(int(which)) is None and (pieces := view.pieces(int(which))):
        return _query(view, which, pieces)
    found = find_request(view, which)
    infer = last_infer(view, found)
    if found.evidence is None:
        found.evidence = _present(view, found)
    evidence = found.evidence
    alternatives: list[Alternative] = []
    more = 0
    if isinstance(evidence, RejectEvidence):
        alternatives, more = _possible(view, found, evidence), evidence.more
    elif evidence is not None and infer is not None and found.outcome not in (REJECTED, WAITING):
        alternatives = [_chosen(view, found, infer, evidence)]
    return Story(
        id=str(found.id),
        model=found.model,
        rows=found.rows,
        priority=found.priority,
        arrived_ns=found.arrived_ns,
        deadline_ns=found.deadline_ns,
        outcome=found.outcome,
        reason=found.reason,
        summary=summary(view, found, infer),
        earliest_finish_ns=found.earliest_finish_ns,
        steps=steps(view, found, infer),
        decided_ns=_decided_ns(view, found, infer),
        alternatives=alternatives,
        more=more,
    )


def _query(view: View, which: str, pieces: list[Request]) -> Story:
    """Explain a query: the story of the piece that ended worst, and a line for each."""
    first = min(pieces, key=lambda each: each.arrived_ns)
    worst = max(pieces, key=lambda each: (_WORST.index(each.outcome), each.ended_ns))
    whole = request(view, str(worst.id))
    ended = sum(each.outcome in (IN_TIME, LATE) for each in pieces)
    rows = sum(each.rows for each in pieces)
    graph = first.step.partition(".")[0]
    of_graph = f"Graph {graph!r}, {len({each.step for each in pieces})} steps: " if graph else ""
    lines = []
    for number, each in enumerate(pieces, 1):
        what = "arrived" if not each.ended_ns else "ended" if each.worker else "rejected"
        where = f" on {each.worker}" if each.worker else ""
        took = f" after {ms(each.ended_ns - each.arrived_ns)}" if each.step and each.ended_ns else ""
        of = f"step {each.step} (model {each.model})" if each.step else f"piece {number} of {len(pieces)}"
        why = f"; {each.chosen}" if each.chosen else ""
        text = f"{of}, request {each.id}, {each.rows} rows: {each.outcome}{where}{took}{why}"
        lines.append(Step(each.ended_ns or each.arrived_ns, what, text, each.action_id or None))
    told = f"{of_graph}{len(pieces)} pieces with {rows} rows, of which {ended} have outputs"
    return msgspec.structs.replace(
        whole,
        id=which,
        rows=rows,
        arrived_ns=first.arrived_ns,
        summary=f"{told}. {whole.summary}",
        steps=sorted(lines, key=lambda step: step.at_ns),
    )


def check(which: str) -> None:
    """Raise `BadQuery` for a text that can name no request."""
    if which not in LAST and not (which.isdecimal() and len(which) <= 20):
        raise BadQuery(
            f"{which[:80]!r} is not a request's id: give a whole number, or one of {one_of(which, LAST)}"
        )


def explained(view: View, which: str) -> bool:
    """Return whether the request or query that is meant is there and has ended."""
    if which.isdecimal() and view.find(int(which)) is None and view.pieces(int(which)):
        return int(which) not in view.cluster.queries
    try:
        return find_request(view, which).ended_ns > 0
    except (BadQuery, Unknown):
        return False


def find_request(view: View, which: str) -> Request:
    """Return the request that is meant, as `request` says; raise `Unknown` and `BadQuery` as it does."""
    check(which)
    if which in LAST:
        lost = view.lost() if LOST in LAST[which] else iter(())
        newest = next(chain(lost, view.traffic.ended.newest(LAST[which])), None)
        if newest is None:
            _, _, how = which.partition("-")
            seconds = view.limits.keep_ns / 1e9
            raise Unknown(
                f"no request was {how or 'rejected, late or lost'} in the {seconds:g} s that are remembered"
            )
        return newest
    exact = view.find(int(which))
    if exact is not None:
        return exact
    ids = chain(view.cluster.requests, view.traffic.ended.ids())
    fitting = [each for each in ids if str(each).startswith(which)]
    if not fitting:
        seconds = view.limits.keep_ns / 1e9
        raise Unknown(
            f"nothing is remembered of request {which}: there was none, or it ended more than {seconds:g} s "
            "ago, or before what is known here began"
        )
    if len(fitting) > 1:
        some = ", ".join(map(str, islice(fitting, 5)))
        raise BadQuery(f"{len(fitting)} requests' ids begin with {which}: {some} and so on; give more of it")
    known = view.find(fitting[0])
    assert known is not None, "its id was found just now"
    return known


def _present(view: View, found: Request) -> RejectEvidence | None:
    """Return by when each worker could run a request that waits, as things stand; None if it does not."""
    asked = view.cluster.requests.get(found.id)
    if asked is None or asked.place is not Place.QUEUED:
        return None
    model = asked.model
    if not 0 < asked.rows <= model.max_rows:
        # Of a log without its beginning: only batches that were seen are known.
        return None
    found_plans = plans(view.cluster, view.now_ns, model, asked.rows, 0)
    return reject_evidence(view.cluster, model, found_plans, model.waiting - 1)


def _decided_ns(view: View, found: Request, infer: Action | None) -> int:
    """Return when it was decided what became of a request; now for one that waits."""
    if infer is not None and found.outcome not in (REJECTED, WAITING):
        return infer.sent_ns
    return found.ended_ns or view.now_ns


def _possible(view: View, found: Request, evidence: RejectEvidence) -> list[Alternative]:
    """Return what workers could do for a request that was rejected or that waits, the best first."""
    alternatives = []
    best = evidence.best
    if best is not None:
        text = of_plan(view, found, best, best.worker, best.duration_ns)
        alternatives.append(_alternative(view, found, best.worker, best.finish_ns, text))
    for each in evidence.others:
        text = of_candidate(found, each)
        alternatives.append(_alternative(view, found, each.worker, each.finish_ns or None, text))
    return alternatives


def _chosen(view: View, found: Request, infer: Action, evidence: Evidence) -> Alternative:
    """Return what the worker could do that a request was sent to."""
    among = f" with {len(infer.requests) - 1} other requests" if len(infer.requests) > 1 else ""
    plan = of_plan(view, found, evidence, found.worker, infer.predicted_duration_ns)
    text = f"INFER {infer.id}, batch {infer.batch_size}{among}: {plan}"
    return _alternative(view, found, found.worker, infer.predicted_end_ns, text, chosen=True)


def _alternative(
    view: View, found: Request, worker: str, finish_ns: int | None, text: str, *, chosen: bool = False
) -> Alternative:
    feasible = finish_ns is not None
    if finish_ns is not None and found.deadline_ns is not None:
        over_ns = finish_ns + view.settings.response_margin_ns - found.deadline_ns
        feasible = over_ns <= 0
        text += f"; {ms(over_ns)} too late" if not feasible else ""
    return Alternative(worker, chosen, feasible, finish_ns, text + _found_gone(view, found, worker))


def _found_gone(view: View, found: Request, worker: str) -> str:
    """Say that a worker was found to be gone soon after a choice: it may have been silent already."""
    decided_ns = _decided_ns(view, found, last_infer(view, found))
    for session in view.sessions:
        if session.name == worker and decided_ns <= session.left_ns <= decided_ns + SOON_NS:
            why = f": {session.why}" if session.why else ""
            return f"; it was found to be gone {ms(session.left_ns - decided_ns)} later{why}"
    return ""
