"""A plan for a person: how the search goes, what it found, what would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mainspring.planner.estimate import Estimate, told_ms
from mainspring.planner.plan import Plan
from mainspring.planner.problem import Pool


def progress(last: Estimate, tried: int, best: Estimate | None) -> str:
    """Return one line about a search that goes on."""
    did = (
        f"{last.attainment:.2%} in time{'' if last.complete else ' so far'}"
        if last.queries
        else "does not get through what waited"
    )
    said = f"{tried} tried, last {last.pool} {did} at {last.price:g}"
    return said + (f"; best {best.pool} at {best.price:g}" if best is not None else "; none holds yet")


def plan_fields(found: Plan) -> dict[str, Any]:
    """Return what ``plan.json`` holds: a plan, and of which queries each share in time is."""
    fields: dict[str, Any] = msgspec.to_builtins(found)
    for estimate in _estimates(fields):
        whole = estimate["complete"]
        estimate["attainment_of"] = (
            "all queries" if whole else "the queries until it was given up as violating"
        )
    return fields


def _estimates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every estimate within what was made of a plan."""
    if isinstance(value, dict):
        if {"attainment", "complete"} <= value.keys():
            yield value
        for each in list(value.values()):
            yield from _estimates(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _estimates(each)


def told(found: Plan, output: Path) -> list[str]:
    """Return the lines for a person."""
    tried = len(found.evaluations)
    made = f"{tried} pools tried, {found.violating} of them violating; {found.ended}"
    best = found.best
    if best is None:
        return [*_failed(found), made, str(output / "plan.json")]
    lines = [_line(found, best)]
    one = found.one_kind
    if one is not None:
        alone = f"{_named(found, one.pool)}, the best of one kind, {one.price:g} an hour"
        saved = found.saved or 0.0
        lines.append(f"saves {saved:.1%} of {alone}" if saved >= 0 else f"costs more than {alone}")
    else:
        lines.append("no pool of one kind holds")
    if found.floor_price is not None:
        above = best.price / found.floor_price - 1
        lines.append(
            f"{above:.1%} more than {found.floor_price:g} an hour, for less than which no scheduler could "
            "keep the promise"
        )
    lines += [made + ("; it is the cheapest" if found.proven else "")]
    return [*lines, f"{output / 'plan.toml'}  {output / 'plan.json'}"]


def _failed(found: Plan) -> list[str]:
    """Say that no pool holds, and what would do."""
    share = f"{found.objective:.10g}"
    nearest = found.nearest
    which = "within the kinds' most" if found.proven else "that was tried"
    lines = [f"no pool {which} ends {share} of the requests in time"]
    if nearest is not None:
        lines.append(f"the nearest: {_line(found, nearest)}")
    if found.advice is None:
        return lines
    advice = found.advice
    for more in advice.more:
        pool = _named(found, more.pool)
        lines.append(f"{more.extra} more {more.kind} would do: {pool} holds, for {more.price:g} an hour")
    if advice.target_ms is not None:
        lines.append(f"or a target of {told_ms(advice.target_ms)}")
    if advice.load_share:
        lines.append(f"or {advice.load_share:.1%} of the load, on {_named(found, advice.load_pool)}")
    return lines


def _line(found: Plan, estimate: Estimate) -> str:
    """Return what a pool does, as far as it is known: a cluster's own requests are counted, not timed."""
    used = ", ".join(f"{kind} {share:.0%}" for kind, share in estimate.utilisation.items())
    timed = f", p50 {told_ms(estimate.p50_ms)}, p99 {told_ms(estimate.p99_ms)}" if estimate.p99_ms else ""
    so_far = "" if estimate.complete else " when it was given up"
    return (
        f"{_named(found, estimate.pool)}: {estimate.price:g} an hour, {estimate.attainment:.2%} in "
        f"time{so_far} ({estimate.low:.2%} to {estimate.high:.2%}){timed}"
        + (f"; busy: {used}" if used else "")
    )


def _named(found: Plan, pool: Pool) -> str:
    parts = [f"{count} {kind}" for kind, count in zip(found.kinds, pool, strict=True) if count]
    return " + ".join(parts)
