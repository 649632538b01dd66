"""A request's story in words: what happened to it, and why it ended as it did."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.console.payloads import Step
from mainspring.console.queries.moves import at, by_part, moves, ms, outlying, than, unfinished
from mainspring.console.view.actions import Action, Lane
from mainspring.console.view.requests import (
    CANCELLED,
    IN_TIME,
    LATE,
    LOST,
    REJECTED,
    Request,
)
from mainspring.console.view.view import View
from mainspring.console.view.workers import History
from mainspring.messages.actions import (
    Ahead,
    Candidate,
    Evidence,
    PlanEvidence,
    Readiness,
    RejectEvidence,
)
from mainspring.messages.codes import Reason

WORKERS = 6
"""Workers whose work in the meantime it has at most."""
LONGEST_NS = 1_000_000_000
"""Delay beyond its prediction up to which an action that ran before another is named in full."""
_READY = {
    Readiness.RESIDENT: "resident",
    Readiness.LOADING: "being loaded",
    Readiness.PREPARED: "not resident, so after a LOAD",
}
_WHY_NOT = {
    Readiness.KNOWN: "it had not prepared the model",
    Readiness.PREPARING: "it was still preparing the model",
    Readiness.CLOSED: "it was still to open the model's executable",
    Readiness.OPENING: "it was opening the model's executable",
    Readiness.LEAVING: "it was about to give up an older copy of the model",
    Readiness.RELEASING: "it was giving up an older copy of the model",
    Readiness.FAILED: "it could not prepare the model",
    Readiness.BROKEN: "the model was given up there",
    Readiness.TOO_LARGE: "the model needs more pages than it has",
    Readiness.DRAINED: "it was drained, or about to leave",
    Readiness.ASSIGNED: "an operator keeps it for another model, or other workers for this one",
    Readiness.STOPPING: "it was stopping",
}
_BY_WORKERS = (
    *(Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.NO_WORKER),
    *(Reason.MODEL_NOT_READY, Reason.WORKER_FAILED),
)
"""Rejections that have evidence."""


def last_infer(view: View, found: Request) -> Action | None:
    """Return the INFER that a request was last in; None if there was none or it is not remembered."""
    history = view.histories.get(found.worker)
    if history is None:
        return None
    return view.action(history.exec, found.action_id, found.arrived_ns, found.ended_ns or view.now_ns)


def steps(view: View, found: Request, infer: Action | None) -> list[Step]:
    """Return what happened to a request, in the order of time."""
    found_steps = [Step(found.arrived_ns, "arrived", _arrival(found)), *moves(view, found)]
    for worker, action in _infers_of(view, found, infer):
        found_steps += _ran(found, worker, action)
    if found.outcome == REJECTED:
        found_steps.append(Step(found.ended_ns, "rejected", f"{found.reason}: {found.detail}"))
    elif found.outcome == CANCELLED:
        found_steps.append(Step(found.ended_ns, "cancelled", _cancellation(found)))
    elif found.outcome == LOST:
        text = f"it has not ended {ms(view.now_ns - (found.deadline_ns or 0))} after its deadline"
        found_steps.append(Step(view.now_ns, "lost", text))
    return sorted(found_steps, key=lambda step: step.at_ns)


def _infers_of(view: View, found: Request, last: Action | None) -> list[tuple[str, Action]]:
    """Return the INFERs that a request was in, with their workers, as far as they are remembered."""
    known = [] if last is None else [(found.worker, last)]
    if found.ended_ns and found.attempts <= len(known):
        return known
    until_ns = found.ended_ns or view.now_ns
    for worker, history in view.histories.items():
        ended = history.exec.ended_in(found.arrived_ns, until_ns)
        known += [(worker, action) for action in ended if found.id in action.requests and action != last]
    return known


def summary(view: View, found: Request, infer: Action | None) -> str:
    """Return in a sentence whether a request made it, and why."""
    if found.outcome == REJECTED:
        unrecorded = found.evidence is None and found.reason in _BY_WORKERS
        why = " By when workers could have run it was not recorded." if unrecorded else ""
        return _rejection(view, found) + why
    if found.outcome in (IN_TIME, LATE):
        return _executed(found, infer)
    if found.outcome == CANCELLED:
        return f"Cancelled {ms(found.ended_ns - found.arrived_ns)} after it came: {_cancellation(found)}."
    if found.outcome == LOST:
        return "Lost: it neither ended nor was rejected or cancelled, long past its deadline."
    since = ms(view.now_ns - found.arrived_ns)
    if infer is not None:
        end = ms(infer.predicted_end_ns - found.arrived_ns)
        return f"Sent to {found.worker}; EXEC is predicted to end {end} after it came. It came {since} ago."
    if not isinstance(found.evidence, RejectEvidence) or found.evidence.best is None:
        return f"It has waited for {since}, and no worker can run its model unless something changes."
    best = found.evidence.best
    left = ms(best.finish_ns - view.now_ns)
    return f"It has waited for {since}; {best.worker} could be done with it in {left}."


def of_plan(view: View, found: Request, evidence: Evidence, worker: str, duration_ns: int) -> str:
    """Return in words what decided when a worker could run a request, and after what."""
    history = view.histories.get(worker)
    by_ns = max(evidence.exec_free_ns, evidence.weights_ns)
    begin_ns = max(by_ns, evidence.inputs_ns)
    parts = [_weights(view, found, evidence, history)]
    if evidence.exec_after:
        lane = None if history is None else history.exec
        work = _work(view, found, lane, evidence.exec_after, evidence.exec_ahead, evidence.exec_free_ns)
        parts.append(f"EXEC busy until {at(evidence.exec_free_ns, found)} with {work}")
    else:
        parts.append("EXEC idle")
    if evidence.inputs_ns > by_ns:
        parts.append(f"inputs there at {at(evidence.inputs_ns, found)}")
    done = at(begin_ns + duration_ns, found)
    return "; ".join([*parts, f"EXEC takes {ms(duration_ns)}, so done at {done}"])


def of_candidate(found: Request, each: Candidate) -> str:
    """Return in words by when a worker that was not the best could have run a request, or why not at all."""
    if each.finish_ns:
        return f"{_READY.get(each.readiness, each.readiness.value)}; done at {at(each.finish_ns, found)}"
    # Beyond a number of workers, those that are late at first sight are not planned for.
    why = _WHY_NOT.get(each.readiness, f"{_READY.get(each.readiness, each.readiness.value)}, but too late")
    return why + (f": {each.detail}" if each.detail else "")


def _weights(view: View, found: Request, evidence: Evidence, history: History | None) -> str:
    if not evidence.weights_ns:
        return "resident"
    there = f"weights there at {at(evidence.weights_ns, found)}"
    if not isinstance(evidence, PlanEvidence) or evidence.load_id:
        return f"being loaded by LOAD {evidence.load_id}, {there}"
    behind = ""
    if evidence.load_after:
        free_ns = evidence.weights_ns - evidence.load_ns
        lane = None if history is None else history.load
        behind = f" behind {_work(view, found, lane, evidence.load_after, evidence.load_ahead, free_ns)}"
    return f"not resident: LOAD takes {ms(evidence.load_ns)}{behind}, {there}"


def _work(view: View, found: Request, lane: Lane | None, last: int, ahead: int, end_ns: int) -> str:
    """Name what stands before a plan: the last action, which was to end at ``end_ns``, and how many more."""
    # It was outstanding when the request came, and may have ended long before it was to.
    from_ns = min(found.arrived_ns, end_ns - LONGEST_NS)
    action = None if lane is None else view.action(lane, last, from_ns, end_ns + LONGEST_NS)
    what = f"action {last}"
    if action is not None:
        size = f" of batch {action.batch_size}" if action.batch_size else ""
        what = f"{action.kind} {last} ({action.model}{size})"
    return what + (f" and {ahead - 1} before it" if ahead > 1 else "")


def _rejection(view: View, found: Request) -> str:
    waited = ms(found.ended_ns - found.arrived_ns)
    if found.reason == Reason.DEADLINE_UNREACHABLE.value:
        return _turned_away(view, found)
    if found.reason == Reason.DEADLINE_PASSED.value:
        given = f" of the {_given(found)} it was given" if found.deadline_ns is not None else ""
        why = found.detail.partition("; ")[2] if found.detail.startswith("waited ") else found.detail
        told = (unfinished(view, found), _last_chance(view, found), f" {_meanwhile(view, found)}")
        return f"Rejected after {waited}{given}: {why}.{''.join(told)}"
    evidence = found.evidence
    if isinstance(evidence, RejectEvidence) and evidence.ahead is not None:
        return _refused_early(view, found, evidence.ahead)
    return f"Rejected after {waited} ({found.reason}): {found.detail}."


def _refused_early(view: View, found: Request, ahead: Ahead) -> str:
    """Say what stood before a request that was refused since it would hardly have been in time."""
    rows = f"{ahead.rows} row{'s' * (ahead.rows != 1)} of its model were due before it"
    share = f" of {ahead.workers} workers" if ahead.workers > 1 else ""
    instead = f" With {ahead.fewer_rows} of its {found.rows} rows it would be." if ahead.fewer_rows else ""
    waited, work = ms(found.ended_ns - found.arrived_ns), ms(ahead.work_ns)
    finish_ns = found.earliest_finish_ns or ahead.begin_ns + ahead.duration_ns
    return (
        f"Refused early, after {waited} of the {_given(found)} it was given: {work} of EXEC{share} ranked "
        f"before it, which counts {ahead.margin:.2f} times by what earlier refusals of its model taught, and "
        f"{rows}. So its batch of {ms(ahead.duration_ns)} could begin at {at(ahead.begin_ns, found)}. A "
        f"deadline of {ms(finish_ns - found.arrived_ns)} would be accepted.{instead}"
        f"{_last_chance(view, found)}"
    )


def _last_chance(view: View, found: Request) -> str:
    """Return a sentence about the best plan when a request was given up; empty if there was none."""
    evidence = found.evidence
    if not isinstance(evidence, RejectEvidence) or evidence.best is None:
        return ""
    best, others = evidence.best, evidence.waiting
    plan = of_plan(view, found, best, best.worker, best.duration_ns)
    also = f", and {others} others waited for its model" if others > 1 else ""
    also = ", and 1 other waited for its model" if others == 1 else also
    return f" When it was given up, the best was {best.worker}: {plan}{also}."


def _turned_away(view: View, found: Request) -> str:
    text, the_best = f"Rejected on arrival: {found.detail}.", "Before all that waits, the best was"
    if found.earliest_finish_ns is not None:
        possible, margin = (
            ms(found.earliest_finish_ns - found.arrived_ns),
            ms(view.settings.response_margin_ns),
        )
        text = (
            f"Rejected on arrival: no device could finish before {possible} (of these {margin} for the way "
            f"back), and {_had(found)}."
        )
        the_best = "The best was"
    if not isinstance(found.evidence, RejectEvidence) or found.evidence.best is None:
        return text
    best = found.evidence.best
    plan = of_plan(view, found, best, best.worker, best.duration_ns)
    return f"{text} {the_best} {best.worker}: {plan}."


def _given(found: Request) -> str:
    return "any time" if found.deadline_ns is None else ms(found.deadline_ns - found.arrived_ns)


def _had(found: Request) -> str:
    """Say of a request that was turned away how much time it had."""
    if found.deadline_ns is not None and found.deadline_ns <= found.arrived_ns:
        return f"its deadline was over {ms(found.arrived_ns - found.deadline_ns)} before it arrived"
    return f"it was given {_given(found)}"


def _meanwhile(view: View, found: Request) -> str:
    """Say what executors did while a request waited."""
    parts = []
    for name, history in view.histories.items():
        own = others = busy_ns = 0
        for action in history.exec.ended_in(found.arrived_ns, found.ended_ns):
            ran_ns = min(action.end_ns, found.ended_ns) - max(action.begin_ns, found.arrived_ns)
            if action.status == "ok" and ran_ns > 0:
                busy_ns += ran_ns
                own += action.model == found.model
                others += action.model != found.model
        if busy_ns:
            parts.append(
                f"{name} ran {own} batches of its model and {others} of others, {ms(busy_ns)} in all"
            )
    if not parts:
        return "Meanwhile no worker ran anything to its end."
    more = f"; and {len(parts) - WORKERS} other workers" if len(parts) > WORKERS else ""
    return f"Meanwhile {'; '.join(parts[:WORKERS])}{more}."


def _executed(found: Request, infer: Action | None) -> str:
    latency = ms(found.ended_ns - found.arrived_ns)
    if found.deadline_ns is None:
        text = f"Best effort: EXEC ended {latency} after it came"
    else:
        asked = ms(found.deadline_ns - found.arrived_ns)
        how = "In time" if found.outcome == IN_TIME else "Late"
        text = f"{how}: EXEC ended {latency} after it came, of {asked} that it was given"
    if infer is None:
        return f"{text}."
    waited, ran = ms(infer.sent_ns - found.arrived_ns), ms(infer.end_ns - infer.begin_ns)
    text += (
        f"; it waited {waited} for its INFER, which ran {ran} on {found.worker} as batch {infer.batch_size}"
    )
    begin_ns = infer.begin_ns - infer.predicted_begin_ns
    longer_ns = infer.end_ns - infer.begin_ns - infer.predicted_duration_ns
    if found.outcome == LATE:
        text += (
            f". It began {than(begin_ns, 'later', 'earlier')} and took "
            f"{than(longer_ns, 'longer', 'less')}{by_part(infer)}"
            f"{outlying(infer.end_ns - infer.begin_ns, infer.predicted_duration_ns)}"
        )
    return f"{text}."


def _arrival(found: Request) -> str:
    rows = "1 row" if found.rows == 1 else f"{found.rows} rows"
    if found.deadline_ns is None:
        given = "without a deadline"
    else:
        given = f"to be answered within {ms(found.deadline_ns - found.arrived_ns)}"
    cold = "; the model was resident nowhere" if found.cold else ""
    priority = f", priority {found.priority}" if found.priority else ""
    step = f"step {found.step}" if found.step else "a piece"
    piece = f", {step} of query {found.query}" if found.query not in (0, found.id) else ""
    chosen = f"; {found.chosen}" if found.chosen else ""
    refused_whole = found.step and found.query == found.id
    what = f"graph {found.step!r}" if refused_whole else found.model
    return f"for {what}, {rows}{piece}{priority}, {given}{cold}{chosen}"


def _cancellation(found: Request) -> str:
    if found.reason == "gateway_left":
        return "its gateway left"
    return "its client gave it up, or its gateway had answered it"


def _ran(found: Request, worker: str, action: Action) -> Iterator[Step]:
    """Yield what became of an INFER."""
    others = len(action.requests) - 1
    among = f" with {others} other requests" if others > 0 else ""
    yield Step(
        action.sent_ns,
        "planned",
        f"INFER {action.id} sent to {worker}: batch {action.batch_size}{among}, to begin by "
        f"{at(action.latest_ns, found)}, predicted {at(action.predicted_begin_ns, found)} to "
        f"{at(action.predicted_end_ns, found)}",
        action.id,
    )
    if action.status == "ok":
        began_ns = action.begin_ns - action.predicted_begin_ns
        took_ns = action.end_ns - action.begin_ns
        longer_ns = took_ns - action.predicted_duration_ns
        yield Step(action.begin_ns, "began", than(began_ns, "later", "earlier"), action.id)
        text = f"EXEC took {ms(took_ns)}, {than(longer_ns, 'longer', 'less')}{by_part(action)}"
        text += outlying(took_ns, action.predicted_duration_ns)
        yield Step(action.end_ns, "ended", text, action.id)
    elif action.status:
        why = f": {action.detail}" if action.detail else ""
        text = f"INFER {action.id} ended on {worker} with {action.status}{why}"
        yield Step(action.done_ns, "retried" if found.outcome != REJECTED else "ended", text, action.id)
