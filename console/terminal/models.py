"""The table of models: where they are, what waits for them, what became of their requests."""

from __future__ import annotations

from rich.text import Text

from mainspring.console.payloads import ModelLine, Models
from mainspring.console.terminal.lines import Column, ago, cut, milliseconds, number, table

_COLUMNS = (
    Column("model", 18),
    Column("where", 11),
    Column("queue", 5, right=True),
    Column("req/s", 6, right=True),
    Column("late", 4, right=True),
    Column("reject", 6, right=True),
    Column("cold", 5, right=True),
    Column("load/m", 6, right=True),
    Column("evict/m", 7, right=True),
    Column("in time", 7, right=True),
    Column("p99 ms", 7, right=True),
    Column("pages", 5, right=True),
    Column("loaded", 7, right=True),
    Column("SLO ms", 7, right=True),
    Column("ms by batch", 0),
)


def models_lines(found: Models, width: int, now_ns: int, asked: str) -> list[Text]:
    """Return a line about what was asked for (``asked``), a header, and a line for each model."""
    shown = f"{found.offset + 1:,}-{found.offset + len(found.rows):,} of " if found.rows else ""
    first = Text(cut(f"{shown}{found.total:,} models, {asked}", width))
    styles = ["red" if each.failed_on else "yellow" if each.thrashes else "" for each in found.rows]
    return [first, *table(_COLUMNS, [_row(each, now_ns) for each in found.rows], width, styles)]


def _row(line: ModelLine, now_ns: int) -> tuple[str, ...]:
    times = " ".join(f"{size}:{milliseconds(ms)}" for size, ms in sorted(line.infer_ms.items()))
    return (
        line.name,
        _where(line),
        f"{line.queued:,}",
        number(line.demand_rps),
        f"{line.late:,}{'~' if line.erratic else ''}",
        f"{line.rejected:,}",
        f"{line.cold:,}",
        f"{line.loads_pm:,.0f}",
        f"{line.evictions_pm:,.0f}{'!' if line.thrashes else ''}",
        f"{line.in_time:,}",
        milliseconds(line.p99_ms),
        f"{line.pages:,}{'*' if line.pinned else ''}",
        ago(line.last_load_ns, now_ns),
        milliseconds(line.slo_ms),
        times,
    )


def _where(line: ModelLine) -> str:
    """Return where a model is, the best first: resident, loading, prepared, failed."""
    if line.resident_on:
        more = f"+{len(line.resident_on) - 1}" if len(line.resident_on) > 1 else ""
        return f"{line.resident_on[0]}{more}"
    if line.loading_on:
        return f"loads {line.loading_on[0]}"
    if line.prepared_on:
        return f"prep on {line.prepared_on}"
    return f"failed on {line.failed_on}" if line.failed_on else "nowhere"
