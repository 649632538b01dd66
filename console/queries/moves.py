"""Moves of models and their cause, as sentences, and the format of durations and instants in stories."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.cluster.rolling import is_outlier
from mainspring.console.payloads import Step
from mainspring.console.view.actions import Action
from mainspring.console.view.requests import Request
from mainspring.console.view.view import View
from mainspring.messages.actions import LoadReason, RejectEvidence


def outlying(took_ns: int, expected_ns: int) -> str:
    """Return, behind a comma, that an action took so much longer than expected that no estimate follows it;
    empty if it did not."""
    if not is_outlier(took_ns, expected_ns):
        return ""
    return f", {took_ns / max(1, expected_ns):.0f} times as long: an outlier, which no estimate follows alone"


def ms(duration_ns: int) -> str:
    """Return a duration in milliseconds, for a person."""
    return f"{duration_ns / 1e6:.1f} ms"


def at(instant_ns: int, found: Request) -> str:
    """Return an instant as the time since a request came."""
    return f"{(instant_ns - found.arrived_ns) / 1e6:+.1f} ms"


def than(difference_ns: int, more: str, less: str) -> str:
    """Return by how much something differed from what was predicted."""
    return f"{ms(abs(difference_ns))} {more if difference_ns >= 0 else less} than predicted"


def by_part(action: Action) -> str:
    """Say how much of an action's duration was the device's and the host's; empty if it is not known."""
    if not action.device_ns:
        return ""
    return f" ({action.device_ns / 1e6:.2f} ms on the device, {action.host_ns / 1e6:.2f} ms on the host)"


LOADS = 8
"""LOADs of its model that a story has at most."""
OPENS = 8
"""OPENs that it has at most."""
EVICTED = 4
"""Models that a LOAD evicted, of which it names this many at most."""
_LOADED_FOR: dict[str, str] = {
    LoadReason.PINNED: "because it is pinned",
    LoadReason.OPERATOR: "as an operator asked",
    LoadReason.DEMAND: "for requests that wait",
    LoadReason.MISSED: "as requests had missed it and LOAD was idle",
    LoadReason.REPLICATION: "as a further copy while LOAD was idle",
}


def moves(view: View, found: Request) -> Iterator[Step]:
    """Yield the LOADs of a request's model and the OPENs before it, while it was there, and how each went."""
    until_ns = found.ended_ns or view.now_ns
    for name, action in (*_loads_of(view, found), *_opens_of(view, found)):
        under_way = " was under way" if action.sent_ns < found.arrived_ns else ""
        yield Step(
            max(action.sent_ns, found.arrived_ns),
            "sent",
            f"{action.kind} {action.id} {_what(found, action)} {name}{under_way}{_why(action)}, predicted "
            f"{at(action.predicted_begin_ns, found)} to {at(action.predicted_end_ns, found)}",
            action.id,
        )
        if action.done_ns and action.done_ns <= until_ns:
            yield _ended(name, action)
        elif action.predicted_end_ns < until_ns:
            yield Step(until_ns, "overdue", _overdue(name, action, until_ns, found), action.id)


def _what(found: Request, action: Action) -> str:
    """Say what a LOAD moves, or an OPEN opens, up to the worker's name."""
    if action.kind == "LOAD":
        return "of the model to"
    return f"of the executable of {'the model' if action.model == found.model else action.model} on"


def _why(action: Action) -> str:
    """Say how much a LOAD moves, and why, behind a comma; empty of an OPEN."""
    if action.kind != "LOAD":
        return ""
    return f", {action.pages} pages" + (f", {why_loaded(action)}" if action.reason else "")


def why_loaded(action: Action) -> str:
    """Return in words why a LOAD was sent, and what was evicted for it; empty where neither is known."""
    why, evicted = _LOADED_FOR.get(action.reason, ""), action.evicted
    if not evicted:
        return why
    more = f" and {len(evicted) - EVICTED} more" if len(evicted) > EVICTED else ""
    return f"{why}, evicting {', '.join(evicted[:EVICTED])}{more}"


def _loads_of(view: View, found: Request) -> list[tuple[str, Action]]:
    """Return the LOADs of a request's model that were under way while it was there, with their workers."""
    until_ns = found.ended_ns or view.now_ns
    loads: list[tuple[str, Action]] = []
    for name, history in view.histories.items():
        lane = history.load
        latest_ns = until_ns + lane.longest_ns
        near = (*view.outstanding(lane), *lane.ended_in(found.arrived_ns, latest_ns))
        loads += [(name, each) for each in near if each.model == found.model and each.sent_ns <= until_ns]
    return sorted(loads, key=lambda each: each[1].sent_ns)[-LOADS:]


def _opens_of(view: View, found: Request) -> list[tuple[str, Action]]:
    """Return the OPENs that were under way while a request was there, with their workers.

    They are those of its model, and those on workers that ran it, hold its model now, or were considered when
    it was rejected.
    """
    until_ns = found.ended_ns or view.now_ns
    model = view.cluster.models.get(found.model)
    could = {found.worker, *(model.usable if model is not None else ())}
    if isinstance(found.evidence, RejectEvidence):
        could |= {each.worker for each in found.evidence.others if each.finish_ns}
        could |= {found.evidence.best.worker} if found.evidence.best is not None else set()
    opens: list[tuple[str, Action]] = []
    for name, history in view.histories.items():
        near = (*view.outstanding(history.exec), *history.exec.ended_in(found.arrived_ns, view.now_ns))
        opens += [
            (name, each)
            for each in near
            if each.kind == "OPEN"
            and each.sent_ns <= until_ns
            and (name in could or each.model == found.model)
        ]
    return sorted(opens, key=lambda each: each[1].sent_ns)[-OPENS:]


def _ended(worker: str, action: Action) -> Step:
    """Return the step that says how a LOAD or an OPEN ended."""
    what = "loaded" if action.kind == "LOAD" else "opened"
    if action.status != "ok":
        why = f": {action.detail}" if action.detail else ""
        text = f"{action.kind} {action.id} ended on {worker} with {action.status}{why}"
        return Step(action.done_ns, what, text, action.id)
    took_ns = action.end_ns - action.begin_ns
    longer = than(took_ns - action.predicted_duration_ns, "longer", "less")
    longer += by_part(action) + outlying(took_ns, action.predicted_duration_ns)
    text = f"{action.kind} {action.id} ended on {worker}: it took {ms(took_ns)}, {longer}"
    return Step(action.done_ns, what, text, action.id)


def _overdue(worker: str, action: Action, at_ns: int, found: Request) -> str:
    """Say of an action that it has not ended though it was predicted to."""
    late = ms(at_ns - action.predicted_end_ns)
    return f"{action.kind} {action.id} on {worker} had not ended by {at(at_ns, found)}, {late} overdue"


def unfinished(view: View, found: Request) -> str:
    """Return a sentence about the LOAD that a request waited for in vain; empty if there was none."""
    at_ns = found.ended_ns
    for name, action in reversed(_loads_of(view, found)):
        if action.predicted_end_ns < at_ns and not (action.done_ns and action.done_ns <= at_ns):
            return f" {_overdue(name, action, at_ns, found)}."
    return ""
