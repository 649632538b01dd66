"""Makes what fails small: faults and requests are left out while a town still fails in the same way."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.simulator.town.town import Plan, Town, plan_of
from mainspring.simulator.town.workload import Workload

MOST_RUNS: Final = 60
"""Towns that are played to make one smaller."""
_LINES: Final = 15
_SILENT: Final = logging.CRITICAL + 1
_LOG: Final = logging.getLogger("mainspring")

T = TypeVar("T")


class Failure(NamedTuple):
    """A fault that was found in a town."""

    plan: Plan
    text: str
    logged: tuple[str, ...] = ()
    """The last lines that its processes logged."""


@contextmanager
def _logging_to(lines: deque[str] | None, town: Town) -> Iterator[None]:
    """Have processes log into ``lines``, with true time; None: nowhere, as it takes time."""
    level, propagates = _LOG.level, _LOG.propagate
    handler = _Lines(lines, town)
    _LOG.setLevel(_SILENT if lines is None else logging.INFO)
    _LOG.propagate = False
    _LOG.addHandler(handler)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(level)
        _LOG.propagate = propagates


class _Lines(logging.Handler):
    def __init__(self, lines: deque[str] | None, town: Town) -> None:
        super().__init__()
        self._lines, self._town = lines, town

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if self._lines is not None:
            text = record.getMessage()[:300]
            self._lines.append(f"{self._town.agenda.now_ns / 1e9:9.4f} s  {record.name[11:]}: {text}")


def failure(plan: Plan, workload: Workload, *, tells: bool = False) -> Failure | None:
    """Play a town; return what is wrong with it, None if nothing is."""
    lines: deque[str] | None = deque(maxlen=_LINES) if tells else None
    town = Town(plan, workload, tells=tells)
    with _logging_to(lines, town):
        try:
            town.run()
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            text = f"{town.agenda.now_ns / 1e9:.6f} s: {kind}{error}"
            return Failure(plan, text, tuple(lines or ()))
    return None


def failure_of(seed: int, workload: Workload) -> Failure | None:
    """Play a seed's town, likewise."""
    return failure(plan_of(seed, workload), workload)


def shrunk(found: Failure, workload: Workload, most_runs: int = MOST_RUNS) -> Failure:
    """Return the failure with as few faults and requests as are found to be enough, and its story."""
    left = most_runs
    alike = _alike(found.text)

    def fails(plan: Plan) -> bool:
        nonlocal left
        if left <= 0:
            return False
        left -= 1
        again = failure(plan, workload)
        return again is not None and _alike(again.text) == alike

    def with_faults(faults: tuple[Any, ...]) -> Plan:
        return msgspec.structs.replace(plan, faults=faults)

    def with_requests(requests: tuple[Any, ...]) -> Plan:
        return msgspec.structs.replace(plan, requests=requests)

    plan = found.plan
    plan = with_faults(_fewer(plan.faults, lambda each: fails(with_faults(each))))
    plan = with_requests(_fewer(plan.requests, lambda each: fails(with_requests(each))))
    return failure(plan, workload, tells=True) or found


def _alike(text: str) -> str:
    """Return what failures of one kind have in common."""
    return re.sub(r"[\d.]+", "", text.partition("\n")[0])[:40]


def _fewer(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leave out parts, ever smaller ones, while it still fails (Zeller and Hildebrandt's ddmin)."""
    size = len(items)
    while size:
        at = 0
        while at < len(items):
            fewer = items[:at] + items[at + size :]
            if fails(fewer):
                items = fewer
            else:
                at += size
        size //= 2
    return items


def told(found: Failure) -> Iterator[str]:
    """Return a failure for a person, line by line."""
    plan = found.plan
    yield (
        f"seed {plan.seed} fails at {found.text}\n"
        f"  {plan.gateways} gateway(s), {len(plan.pages)} worker(s) of {plan.pages} pages, "
        f"{len(plan.models)} models; {plan.delay_ns / 1e3:.0f} us on each way, and up to "
        f"{plan.jitter_ns / 1e3:.0f} us more"
    )
    yield f"  faults that are left: {len(plan.faults) or 'none'}"
    for fault in plan.faults:
        yield f"    {fault}"
    yield f"  requests that are left: {len(plan.requests)}"
    for request in plan.requests[:5]:
        slo = "best effort" if request.slo_ns is None else f"{request.slo_ns / 1e6:.0f} ms"
        yield f"    {request.at_ns / 1e9:7.3f} s  {request.model}, {request.rows} row(s), {slo}"
    for line in found.logged:
        yield f"  {line}"
    yield f"  again: mainspring simulate --town {plan.seed}"
