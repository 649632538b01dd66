"""The cluster: what was asked for and answered, workers, and the newest requests that were not in time."""

from __future__ import annotations

from rich.text import Text

from mainspring.console.payloads import Attainment, Cluster, HappeningLine, RequestLine, WorkerPicture
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
