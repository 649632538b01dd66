"""The executors' past and planned actions: a track for each, and a list of the actions nearest to now."""

from __future__ import annotations

from rich.text import Text

from mainspring.console.payloads import ActionLine, Schedule
from mainspring.console.terminal.lines import Column, cut, heading, table

RAN = "█▓"
"""Characters of an action that ran; two neighbours differ."""
PLANNED = "░"
FAILED = "x"
NOW = "│"
_ACTIONS = (
    Column("begin ms", 9, right=True),
    Column("worker", 11),
    Column("action", 7),
    Column("model", 16),
    Column("batch", 5, right=True),
    Column("plan ms", 7, right=True),
    Column("took ms", 7, right=True),
    Column("status", 10),
    Column("window ms", 9, right=True),
    Column("detail", 0),
)
LISTED = 200
"""Actions in the list at most."""


def schedule_lines(found: Schedule, width: int, now_ns: int) -> list[Text]:
    """Return the view's lines; instants in the list count from ``now_ns``."""
    label = min(20, max(8, width // 4))
    room = max(10, width - label - 1)
    span_ms = (found.to_ns - found.from_ns) / 1e6
    title = f"{span_ms:,.0f} ms, now at {NOW}: {RAN} ran, {PLANNED} planned, {FAILED} did not run"
    lines = [heading(title, width)]
    by_lane: dict[int, list[ActionLine]] = {}
    for action in found.actions:
        by_lane.setdefault(action.lane, []).append(action)
    for index, lane in enumerate(found.lanes):
        if lane.executor == "OTHER" and index not in by_lane:
            continue
        track = _track(found, by_lane.get(index, []), room, now_ns)
        lines.append(Text(cut(f"{lane.worker} {lane.executor}", label) + " " + track))
    lines.append(Text(" " * (label + 1) + _scale(found, room, now_ns), style="dim"))
    lines += [Text(""), heading("actions, nearest to now first", width)]
    nearest = sorted(found.actions, key=lambda each: (abs(_begin_ns(each) - now_ns), each.id))[:LISTED]
    lines += table(_ACTIONS, [_row(found, each, now_ns) for each in nearest], width, [*map(_style, nearest)])
    return lines


def _track(found: Schedule, actions: list[ActionLine], room: int, now_ns: int) -> str:
    """Return one executor's time, a character for each part of the span."""
    cells = [" "] * room
    ordered = sorted(actions, key=lambda each: (_begin_ns(each), each.id))
    for turn, action in enumerate(ordered):
        first = _cell(found, _begin_ns(action), room)
        last = max(first, _cell(found, _end_ns(action) - 1, room))
        mark = RAN[turn % 2] if action.status == "ok" else FAILED if action.status else PLANNED
        for cell in range(max(0, first), min(room, last + 1)):
            if mark != FAILED or cells[cell] == " ":
                cells[cell] = mark
    now = _cell(found, now_ns, room)
    if 0 <= now < room and cells[now] in (" ", PLANNED):
        cells[now] = NOW
    return "".join(cells)


def _scale(found: Schedule, room: int, now_ns: int) -> str:
    """Return the instants of the two ends, from now."""
    left, right = (f"{(each - now_ns) / 1e6:+,.0f} ms" for each in (found.from_ns, found.to_ns))
    return left + right.rjust(max(0, room - len(left)))


def _cell(found: Schedule, at_ns: int, room: int) -> int:
    return (at_ns - found.from_ns) * room // max(1, found.to_ns - found.from_ns)


def _begin_ns(action: ActionLine) -> int:
    if action.begin_ns is not None:
        return action.begin_ns
    return action.predicted_begin_ns or action.sent_ns


def _end_ns(action: ActionLine) -> int:
    if action.end_ns is not None:
        return action.end_ns
    return max(action.predicted_end_ns, _begin_ns(action))


def _row(found: Schedule, action: ActionLine, now_ns: int) -> tuple[str, ...]:
    took = "" if action.end_ns is None or action.begin_ns is None else _ms(action.end_ns - action.begin_ns)
    planned = action.predicted_end_ns - action.predicted_begin_ns
    window = action.latest_ns - action.earliest_ns
    batch = f"{action.rows}/{action.batch_size}" if action.batch_size else ""
    return (
        f"{(_begin_ns(action) - now_ns) / 1e6:+,.1f}",
        found.lanes[action.lane].worker,
        action.kind,
        action.model,
        batch,
        _ms(planned) if planned > 0 else "",
        took,
        action.status or "planned",
        _ms(window) if window > 0 else "",
        "; ".join(filter(None, (action.why, action.detail))),
    )


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.2f}"


def _style(action: ActionLine) -> str:
    if not action.status:
        return "dim"
    return "" if action.status == "ok" else "yellow"
