"""The views as lines: the cluster, its executors' past and planned actions, and a worker's memory."""

from __future__ import annotations

from rich.text import Text

from mainspring.console.payloads import (
    ActionLine,
    Attainment,
    Cluster,
    Eviction,
    Extent,
    HappeningLine,
    Memory,
    RequestLine,
    Schedule,
    WorkerPicture,
)
from mainspring.console.queries.schedule import in_order
from mainspring.console.terminal.lines import (
    NOTHING,
    Column,
    ago,
    bar,
    cut,
    heading,
    milliseconds,
    number,
    percent,
    sparkline,
    table,
)
from mainspring.console.view.happenings import ADDED, REFUSED, REMOVED

GOOD, FAIR = 0.99, 0.95
"""Shares answered in time from which on a row is green, or yellow."""
HAPPENINGS = 5
"""The newest that are shown."""
AWAITED = 3
"""Models that are not served yet and are named."""
_STATES = {"gone": "red", "silent": "red", "draining": "yellow"}
_HAPPENED = {
    **dict.fromkeys(("gone", "silent", "failed"), "red"),
    **dict.fromkeys(("refused", "slow"), "yellow"),
    "back": "green",
}
_ATTAINMENT = (
    Column("last s", 6),
    Column("offered/s", 9, right=True),
    Column("in time/s", 9, right=True),
    Column("%", 5, right=True),
    Column("late", 6, right=True),
    Column("rejected", 8, right=True),
    Column("cold", 6, right=True),
    Column("p50 ms", 7, right=True),
    Column("p99 ms", 7, right=True),
    Column("p99.99", 7, right=True),
    Column("SLO ms", 7, right=True),
)
_WORKERS = (
    Column("worker", 11),
    Column("state", 8),
    Column("pages used", 11, right=True),
    Column("EXEC", 11),
    Column("LOAD", 11),
    Column("out", 3, right=True),
    Column("exec us", 7, right=True),
    Column("load us", 7, right=True),
    Column("res", 5, right=True),
    Column("prep", 5, right=True),
    Column("clock us", 8, right=True),
    Column("device", 9),
    Column("not ok", 0),
)
_RECENT = (
    Column("ago", 6, right=True),
    Column("outcome", 9),
    Column("model", 18),
    Column("why", 22),
    Column("request", 16),
    Column("detail", 0),
)


def cluster_lines(found: Cluster, width: int, now_ns: int) -> list[Text]:
    """Return the view's lines; ``width`` is in cells."""
    spans = ((10, found.last_10s), (60, found.last_60s), (300, found.last_300s))
    lines = table(
        _ATTAINMENT, [_attained(*each) for each in spans], width, [_how_well(each) for _, each in spans]
    )
    lines += _series(found, width)
    codes = ", ".join(f"{code} {count:,}" for code, count in found.last_300s.rejected.items())
    lines.append(Text(cut(f"rejected, by code: {codes or 'none'}", width)))
    turned_away = ", ".join(f"{code} {count:,}" for code, count in found.last_300s.turned_away.items())
    if turned_away:
        lines.append(Text(cut(f"refused by gateways themselves: {turned_away}", width)))
    awaited = [*found.awaited.items()][:AWAITED]
    lines += [Text(cut(f"{name} is not served yet: {why}", width)) for name, why in awaited]
    more = len(found.awaited) + found.awaited_more - len(awaited)
    if more:
        lines.append(Text(f"and {more:,} more models are not served yet"))
    lines += [Text(""), heading(f"{len(found.workers)} worker{'s' * (len(found.workers) != 1)}", width)]
    lines += _workers(found, width)
    if found.happenings:
        lines += [Text(""), heading("what happened to workers and the controller", width)]
        lines += [
            Text(
                cut(f"{ago(each.at_ns, now_ns):>7} ago  {_told(each)}", width),
                style=_HAPPENED.get(each.kind, ""),
            )
            for each in found.happenings[:HAPPENINGS]
        ]
    if found.operations:
        lines += [Text(""), heading("operators did", width)]
        lines += [
            Text(cut(f"{ago(each.at_ns, now_ns):>7} ago  {each.who}: {each.what}", width))
            for each in found.operations
        ]
    lines += [Text(""), heading("rejected and late, newest first", width)]
    if found.recent:
        styles = ["yellow" if each.outcome == "late" else "red" for each in found.recent]
        lines += table(_RECENT, [_recent(each, now_ns) for each in found.recent], width, styles)
    else:
        lines.append(Text("none"))
    return lines


def _told(each: HappeningLine) -> str:
    """Return what happened, and to whom unless the text says it."""
    if each.kind in (ADDED, REMOVED, REFUSED):
        return each.text
    return f"{each.worker or 'controller'}: {each.text}"


def _workers(found: Cluster, width: int) -> list[Text]:
    """Return the workers, those of a kind together, and the kinds that a provider has."""
    workers = sorted(found.workers, key=lambda each: (each.device_kind, in_order(each.name)))
    styles = [_STATES.get(each.state, "") for each in workers]
    lines = table(_WORKERS, [_worker(each) for each in workers], width, styles)
    details = [f"{each.name}: {each.detail}" for each in workers if each.detail]
    lines += [Text(cut(detail, width), style="yellow") for detail in details]
    for kind in found.kinds:
        text = f"{kind.kind}: {kind.running} of {kind.wanted} wanted, {len(kind.leaving)} about to leave"
        text += f", {kind.worth}" if kind.worth else ""
        fault = f"; {kind.fault}" if kind.fault else ""
        lines.append(Text(cut(text + fault, width), style="yellow" if fault else ""))
    return lines


def _share(each: Attainment) -> float | None:
    """Return which share of what was offered was answered in time."""
    return each.in_time_rps / each.offered_rps if each.offered_rps else None


def _how_well(each: Attainment) -> str:
    """Return a row's style."""
    share = _share(each)
    return "" if share is None else "green" if share >= GOOD else "yellow" if share >= FAIR else "red"


def _attained(seconds: int, each: Attainment) -> tuple[str, ...]:
    """Return a row; of how much less than ``seconds`` it is stands before them."""
    if not each.seconds:
        return (f"0/{seconds}", *[NOTHING] * 10)
    return (
        f"{each.seconds:.0f}/{seconds}" if round(each.seconds) < seconds else f"{seconds}",
        number(each.offered_rps),
        number(each.in_time_rps),
        percent(_share(each)),
        f"{each.late:,}",
        f"{sum(each.rejected.values()):,}",
        f"{each.cold:,}",
        milliseconds(each.p50_ms),
        milliseconds(each.p99_ms),
        milliseconds(each.p9999_ms),
        milliseconds(each.slo_p50_ms),
    )


def _series(found: Cluster, width: int) -> list[Text]:
    """Return offered and in-time requests of each second as two sparklines of one scale."""
    room = max(1, width - 20)
    top = max([*found.series.offered[-room:], 1])
    return [
        Text(cut(f"{name:<9} {sparkline(values, room, top)} {top:,}/s", width))
        for name, values in (("offered", found.series.offered), ("in time", found.series.in_time))
    ]


def _worker(each: WorkerPicture) -> tuple[str, ...]:
    failed = ", ".join(f"{what} {count:,}" for what, count in each.failed.items())
    return (
        each.name,
        each.state,
        f"{each.pages - each.pages_free:,}/{each.pages:,}",
        f"{bar(each.exec_busy, 6)}{percent(each.exec_busy):>5}",
        f"{bar(each.load_busy, 6)}{percent(each.load_busy):>5}",
        str(each.outstanding),
        number(each.infer_error_p99_us, 0),
        number(each.load_error_p99_us, 0),
        f"{each.resident:,}",
        f"{each.prepared:,}",
        NOTHING if each.clock is None else f"±{each.clock.error_us:,.0f}",
        each.device_kind,
        failed,
    )


def _recent(each: RequestLine, now_ns: int) -> tuple[str, ...]:
    why = each.reason or (f"took {milliseconds(each.latency_ms)} ms" if each.latency_ms is not None else "")
    return (ago(each.arrived_ns, now_ns), each.outcome, each.model, why, each.id, each.detail)


FREE = "·"
LOADING = "~"
"""A page that a LOAD is writing, whosever it will be."""
_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red", "white")
_MODELS = (
    Column("", 2),
    Column("model", 30),
    Column("pages", 6, right=True),
    Column("state", 9),
    Column("used", 8, right=True),
    Column("extents", 0),
)
_EVICTIONS = (
    Column("ago", 7, right=True),
    Column("model", 26),
    Column("pages", 6, right=True),
    Column("for", 0),
)


def memory_lines(found: Memory, width: int, now_ns: int, *, nth: int = 1, of: int = 1) -> list[Text]:
    """Return the view's lines; the worker is the ``nth`` of ``of``."""
    used = found.pages - found.pages_free
    gb = found.pages * found.page_bytes / 1e9
    title = (
        f"{found.worker} ({nth} of {of}): {used:,} of {found.pages:,} pages used, {found.pages_free:,} free; "
        f"{found.page_bytes >> 20} MiB each, {gb:.1f} GB"
    )
    lines = [heading(title, width), *_map(found, width)]
    lines.append(Text(cut(f"{FREE} free   {LOADING} being loaded   a letter: the model below", width), "dim"))
    lines.append(Text(""))
    extents: list[list[Extent]] = [[] for _ in found.models]
    for extent in found.extents:
        if extent.model >= 0:
            extents[extent.model].append(extent)
    each_model = zip(found.models, extents, found.last_used_ns, strict=True)
    rows = [
        _model(index, name, held, ago(at_ns, now_ns)) for index, (name, held, at_ns) in enumerate(each_model)
    ]
    lines += table(_MODELS, rows, width, [style_of(index) for index in range(len(rows))])
    lines += [Text(""), heading("evicted, newest first", width)]
    if found.evictions:
        lines += table(_EVICTIONS, [_evicted(each, now_ns) for each in found.evictions], width)
    else:
        lines.append(Text("none"))
    return lines


def symbol_of(index: int) -> str:
    """Return the letter of a model; more models than letters share them."""
    return _SYMBOLS[index % len(_SYMBOLS)]


def style_of(index: int) -> str:
    """Return the colour of a model, which only helps the eye: the letter says which it is."""
    return _STYLES[index % len(_STYLES)]


def _map(found: Memory, width: int) -> list[Text]:
    """Return the pages, as many to a line as fit in tens, with the number of the first one before them."""
    digits = len(str(max(0, found.pages - 1)))
    room = max(10, (width - digits - 1) // 11 * 10)
    cells = [cell for extent in found.extents for cell in [_cell(extent)] * extent.count]
    lines = []
    for first in range(0, len(cells), room):
        line = Text(f"{first:>{digits}} ", style="dim")
        for offset, (symbol, style) in enumerate(cells[first : first + room]):
            line.append((" " if offset and offset % 10 == 0 else "") + symbol, style=style)
        lines.append(line)
    return lines


def _cell(extent: Extent) -> tuple[str, str]:
    if extent.state == "loading":
        return LOADING, f"not dim {style_of(extent.model)}"
    if extent.state == "free" or extent.model < 0:
        return FREE, "dim"
    return symbol_of(extent.model), f"not dim {style_of(extent.model)}"


def _model(index: int, model: str, extents: list[Extent], used: str) -> tuple[str, ...]:
    state = "loading" if any(each.state == "loading" for each in extents) else "resident"
    spans = ", ".join(
        f"{each.first}" if each.count == 1 else f"{each.first}-{each.first + each.count - 1}"
        for each in extents
    )
    pages = sum(each.count for each in extents)
    return symbol_of(index), model, f"{pages:,}", state, used, spans


def _evicted(each: Eviction, now_ns: int) -> tuple[str, ...]:
    return ago(each.at_ns, now_ns), each.model, f"{each.pages:,}", each.for_model or "(nothing yet)"


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
        first = _slice_cell(found, _begin_ns(action), room)
        last = max(first, _slice_cell(found, _end_ns(action) - 1, room))
        mark = RAN[turn % 2] if action.status == "ok" else FAILED if action.status else PLANNED
        for cell in range(max(0, first), min(room, last + 1)):
            if mark != FAILED or cells[cell] == " ":
                cells[cell] = mark
    now = _slice_cell(found, now_ns, room)
    if 0 <= now < room and cells[now] in (" ", PLANNED):
        cells[now] = NOW
    return "".join(cells)


def _scale(found: Schedule, room: int, now_ns: int) -> str:
    """Return the instants of the two ends, from now."""
    left, right = (f"{(each - now_ns) / 1e6:+,.0f} ms" for each in (found.from_ns, found.to_ns))
    return left + right.rjust(max(0, room - len(left)))


def _slice_cell(found: Schedule, at_ns: int, room: int) -> int:
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
