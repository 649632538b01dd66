"""Traces of requests: what an observer of the request table makes of one that has ended.

A request costs nothing for this until it ends; then one of every N is written down, or the one whose client
asks for it with a ``traceparent`` (W3C Trace Context) that says *sampled*: a front end passes that text on in
`InferRequest.traceparent` as it came, and has nothing else to do. Where the time on the worker went comes
with its outputs, as durations; the way there and back is taken to be equally long.

`otlp` sends spans away; without it nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import NamedTuple

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Dispatched
from mainspring.gateway.core.requests import NO_TIMES, Pending, instants
from mainspring.gateway.oip.settings import TraceSettings
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output

_SECOND_NS = 1_000_000_000
_MS = 1e6
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-|$)"
)
_LONGEST_TRACEPARENT = 512

Attributes = dict[str, str | int | float | bool]


class Parent(NamedTuple):
    """The client's span."""

    trace_id: int
    span_id: int
    sampled: bool


class Step(NamedTuple):
    """A part of a request's way, with instants in Unix time."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes


class Trace(NamedTuple):
    """A request that has ended."""

    parent: Parent | None
    request: Step
    """All of it; the steps are its parts."""
    steps: tuple[Step, ...]
    error: str
    """The reason why it got no outputs; empty if it did."""


Export = Callable[[Trace], None]


def parse_traceparent(text: str) -> Parent | None:
    """Return the parent that a ``traceparent`` names; None if it is none, which starts a new trace."""
    found = _TRACEPARENT.match(text) if len(text) <= _LONGEST_TRACEPARENT else None
    if found is None or (text.startswith("00") and len(text) != 55):
        return None
    return Parent(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1))


class Tracing:
    """An observer of the request table that hands traces to ``export``."""

    def __init__(
        self,
        config: GatewayConfig,
        settings: TraceSettings,
        export: Export,
        counts: Counter[str],
        draw: Callable[[], float] = random.random,
        clock: Callable[[], int] = monotonic_ns,
        unix_clock: Callable[[], int] = time_ns,
    ) -> None:
        """``counts`` are the gateway's; ``draw`` returns a number from 0 up to 1."""
        self._settings = settings
        self._limit = config.trace_max_per_s
        self._export = export
        self._counts = counts
        self._draw = draw
        self._clock = clock
        self._unix_clock = unix_clock
        self._second = -1
        self._in_second = 0

    def answered(
        self, now_ns: int, request: Pending, dispatch: Dispatched | None, output: Output | None
    ) -> None:
        """Trace a request that got outputs."""
        wanted, parent = self._wanted(_model(request), request.accepted.traceparent, now_ns)
        if not wanted:
            return
        shift_ns = self._unix_clock() - self._clock()
        attributes = _attributes(request)
        if request.deadline_ns is not None:
            attributes["mainspring.left_ms"] = (request.deadline_ns - now_ns) / _MS
        steps: tuple[Step, ...] = ()
        if dispatch is None or output is None:
            attributes["mainspring.cached"] = True
        else:
            attributes["mainspring.worker"] = dispatch.worker
            attributes["mainspring.cold_start"] = dispatch.cold
            steps = _steps(now_ns, request, dispatch, output, shift_ns)
        whole = Step("gateway", request.arrived_ns + shift_ns, now_ns + shift_ns, attributes)
        self._export(Trace(parent, whole, steps, ""))

    def refused(self, request: Pending, reason: Reason) -> None:
        """Trace a request that got a reason instead."""
        now_ns = self._clock()
        wanted, parent = self._wanted(_model(request), request.accepted.traceparent, now_ns)
        if not wanted:
            return
        shift_ns = self._unix_clock() - now_ns
        attributes = {**_attributes(request), "mainspring.reason": reason.value}
        begin_ns, end_ns = request.arrived_ns + shift_ns, now_ns + shift_ns
        dispatched_ns = request.dispatches[-1].at_ns if request.dispatches else now_ns
        waited_ns = max(request.arrived_ns, dispatched_ns) + shift_ns
        queue = Step("queue", begin_ns, waited_ns, {"mainspring.dispatches": len(request.dispatches)})
        self._export(Trace(parent, Step("gateway", begin_ns, end_ns, attributes), (queue,), reason.value))

    def turned_away(self, request: InferRequest, reason: Reason) -> None:
        """Trace a request that the table did not see."""
        wanted, parent = self._wanted(request.model, request.traceparent, self._clock())
        if wanted:
            at_ns = self._unix_clock()
            attributes: Attributes = {
                "mainspring.model": request.model[:200],
                "mainspring.reason": reason.value,
            }
            self._export(Trace(parent, Step("gateway", at_ns, at_ns, attributes), (), reason.value))

    def _wanted(self, model: str, traceparent: str, now_ns: int) -> tuple[bool, Parent | None]:
        """Say whether to trace a request, and under which parent."""
        parent = parse_traceparent(traceparent) if traceparent else None
        sampled = None if parent is None else parent.sampled
        if not self._settings.takes(model, sampled, 0.0 if parent is not None else self._draw()):
            return False, None
        second = now_ns // _SECOND_NS
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > self._limit:
            self._counts["traces_left_out"] += 1
            return False, None
        self._settings.took(model)
        return True, parent


def _model(request: Pending) -> str:
    return request.accepted.signature.spec.public_name


def _attributes(request: Pending) -> Attributes:
    accepted = request.accepted
    spec = accepted.signature.spec
    attributes: Attributes = {
        "mainspring.model": _model(request),
        "mainspring.version": spec.version,
        "mainspring.rows": accepted.rows,
    }
    if accepted.slo_ns is not None:
        attributes["mainspring.slo_ms"] = accepted.slo_ns / _MS
    return attributes


def _steps(
    now_ns: int, request: Pending, dispatch: Dispatched, output: Output, shift_ns: int
) -> tuple[Step, ...]:
    """Return the steps of an answered request in their order, but for the pauses between them."""
    times = output.times or NO_TIMES
    sent_ns, placed_ns, begun_ns, executed_ns = instants(now_ns, request.arrived_ns, dispatch.at_ns, output)

    def step(name: str, start_ns: int, end_ns: int, attributes: Attributes) -> Step:
        return Step(name, start_ns + shift_ns, end_ns + shift_ns, attributes)

    steps = [
        step("queue", request.arrived_ns, sent_ns, {"mainspring.dispatches": len(request.dispatches)}),
        step("input", sent_ns, placed_ns, {"mainspring.copy_ms": times.input_ns / _MS}),
        step("exec", begun_ns, executed_ns, {"mainspring.batch_size": dispatch.batch_size}),
        step("output", executed_ns, now_ns, {"mainspring.copy_ms": times.output_ns / _MS}),
    ]
    if times.load_ns:
        loaded_ns = begun_ns - times.loaded_ns
        steps.insert(2, step("load", loaded_ns - times.load_ns, loaded_ns, {}))
    return tuple(steps)
