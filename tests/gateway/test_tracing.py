"""What a trace says of a request, and which requests are traced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Accepted, Connection, Dispatched
from mainspring.gateway.core.requests import Pending
from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip.settings import TraceSettings
from mainspring.gateway.tracing import Parent, Trace, Tracing, parse_traceparent
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Output, OutputTimes
from tests.gateway.fakes import make_spec

MS = 1_000_000
SHIFT_NS = 10**18
"""Unix time less the gateway's clock."""
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SIGNATURE = Signature(make_spec("m"))


class Traced:
    """Traces of requests whose times the test makes up; ``now_ns`` is the clock."""

    def __init__(self, draw: float = 0.0, **options: Any) -> None:
        self.now_ns = 100 * MS
        self.traces: list[Trace] = []
        self.counts: Counter[str] = Counter()
        config = GatewayConfig(trace_address="http://127.0.0.1:4318", **options)
        self.settings = TraceSettings(config)
        self.tracing = Tracing(
            config,
            self.settings,
            self.traces.append,
            self.counts,
            lambda: draw,
            lambda: self.now_ns,
            lambda: self.now_ns + SHIFT_NS,
        )

    def answer(
        self, times: OutputTimes | None, *, arrived_ns: int = 0, at_ns: int = 10 * MS, **more: Any
    ) -> None:
        request = pending(arrived_ns, **more)
        dispatch = Dispatched(7, "w", 4, bool(times and times.load_ns), at_ns)
        request.dispatches.append(dispatch)
        self.tracing.answered(self.now_ns, request, dispatch, Output(7, 1, 20 * MS, times))


def pending(arrived_ns: int = 0, traceparent: str = "", slo_ns: int | None = 150 * MS) -> Pending:
    accepted = Accepted("m", 2, slo_ns, (0,), (0,), SIGNATURE, traceparent)
    deadline_ns = None if slo_ns is None else arrived_ns + slo_ns
    return Pending(0, Connection("calls", b""), 0, accepted, (), arrived_ns, deadline_ns, deadline_ns, 10**12)


def times_of(trace: Trace) -> dict[str, tuple[float, float]]:
    """Return the begin and end of every step in milliseconds on the gateway's clock."""
    return {
        step.name: ((step.start_ns - SHIFT_NS) / MS, (step.end_ns - SHIFT_NS) / MS)
        for step in (trace.request, *trace.steps)
    }


def test_the_steps_of_a_cold_request() -> None:
    traced = Traced(trace_sample_ratio=1.0)
    traced.answer(OutputTimes(4 * MS, 46 * MS, 6 * MS, 30 * MS, 5 * MS), traceparent=TRACEPARENT)
    [trace] = traced.traces
    # 90 ms from the dispatch, of which the worker tells 76: 7 ms for each way.
    assert times_of(trace) == {
        "gateway": (0, 100),
        "queue": (0, 10),
        "input": (10, 21),
        "load": (32, 62),
        "exec": (67, 87),
        "output": (87, 100),
    }
    assert [step.name for step in trace.steps] == ["queue", "input", "load", "exec", "output"]
    assert trace.parent == Parent(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert trace.request.attributes == {
        "mainspring.model": "m",
        "mainspring.version": 1,
        "mainspring.rows": 2,
        "mainspring.slo_ms": 150.0,
        "mainspring.left_ms": 50.0,
        "mainspring.worker": "w",
        "mainspring.cold_start": True,
    }
    assert trace.error == ""


@given(
    arrived_ns=st.integers(0, 100 * MS),
    at_ns=st.integers(0, 100 * MS),
    durations=st.lists(st.integers(0, 200 * MS), min_size=5, max_size=5),
)
def test_steps_lie_within_their_request_whatever_the_worker_tells(
    arrived_ns: int, at_ns: int, durations: list[int]
) -> None:
    traced = Traced(trace_sample_ratio=1.0)
    traced.answer(OutputTimes(*durations), arrived_ns=arrived_ns, at_ns=at_ns)
    whole, steps = traced.traces[0].request, traced.traces[0].steps
    assert whole.start_ns <= whole.end_ns
    for step in steps:
        assert step.start_ns <= step.end_ns
        if step.name != "load":
            assert whole.start_ns <= step.start_ns
            assert step.end_ns <= whole.end_ns
    queue, entered, *_, execute, output = steps
    assert queue.end_ns <= entered.start_ns <= entered.end_ns <= execute.start_ns
    assert execute.end_ns <= output.start_ns


def test_a_worker_that_tells_nothing_leaves_the_rest_of_the_time_to_the_ways() -> None:
    traced = Traced(trace_sample_ratio=1.0)
    traced.answer(None)
    assert times_of(traced.traces[0])["exec"] == (45, 65)


def test_a_cached_answer_has_no_steps() -> None:
    traced = Traced(trace_sample_ratio=1.0)
    traced.tracing.answered(traced.now_ns, pending(), None, None)
    [trace] = traced.traces
    assert trace.steps == ()
    assert trace.request.attributes["mainspring.cached"] is True


def test_a_refused_request_waited_until_it_was_refused_or_dispatched() -> None:
    traced = Traced(trace_sample_ratio=1.0)
    traced.tracing.refused(pending(), Reason.DEADLINE_PASSED)
    sent = pending()
    sent.dispatches.append(Dispatched(1, "w", 1, False, 30 * MS))
    traced.tracing.refused(sent, Reason.TIMED_OUT)
    first, second = traced.traces
    assert times_of(first) == {"gateway": (0, 100), "queue": (0, 100)}
    assert times_of(second) == {"gateway": (0, 100), "queue": (0, 30)}
    assert (first.error, second.request.attributes["mainspring.reason"]) == ("deadline_passed", "timed_out")


def test_a_request_that_is_no_good_is_one_step() -> None:
    traced = Traced()
    request = InferRequest(1, "x" * 1_000, (), None, traceparent=TRACEPARENT)
    traced.tracing.turned_away(request, Reason.UNKNOWN_MODEL)
    [trace] = traced.traces
    assert (trace.steps, trace.error) == ((), "unknown_model")
    assert len(str(trace.request.attributes["mainspring.model"])) == 200


@pytest.mark.parametrize(
    ("draw", "traceparent", "traced"),
    [
        (0.009, "", True),
        (0.011, "", False),
        (0.9, TRACEPARENT, True),
        (0.0, TRACEPARENT[:-1] + "0", False),
        (0.0, "nonsense", True),
    ],
)
def test_the_client_decides_if_it_says_so_and_else_chance(
    draw: float, traceparent: str, traced: bool
) -> None:
    stage = Traced(draw)
    stage.answer(None, traceparent=traceparent)
    stage.tracing.refused(pending(traceparent=traceparent), Reason.OVERLOADED)
    assert len(stage.traces) == 2 * traced


def test_clients_of_the_protocols_decide_by_the_trace_settings() -> None:
    traced = Traced(0.4)
    traced.settings.change("m", {"trace_rate": "2", "trace_count": "3"})
    for _ in range(5):
        traced.answer(None)
    assert len(traced.traces) == 3
    assert traced.settings.shown("m")["trace_count"] == "0"
    traced.settings.change("m", {"trace_count": None, "trace_level": ["OFF"]})
    traced.answer(None, traceparent=TRACEPARENT)
    assert len(traced.traces) == 3


def test_no_more_than_so_many_in_a_second() -> None:
    traced = Traced(trace_sample_ratio=1.0, trace_max_per_s=3)
    for _ in range(10):
        traced.answer(None)
    assert (len(traced.traces), traced.counts) == (3, {"traces_left_out": 7})
    traced.now_ns += 1_000 * MS
    traced.answer(None)
    assert len(traced.traces) == 4


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 255))
def test_any_traceparent_of_the_standard_is_understood(trace_id: int, span_id: int, flags: int) -> None:
    text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    assert parse_traceparent(text) == Parent(trace_id, span_id, bool(flags & 1))
    assert parse_traceparent(f"cc{text[2:]}-what comes later") == Parent(trace_id, span_id, bool(flags & 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ff" + TRACEPARENT[2:],
        TRACEPARENT.upper(),
        TRACEPARENT + "-more",
        TRACEPARENT + "x",
        TRACEPARENT[:-1],
        "00-" + "0" * 32 + TRACEPARENT[35:],
        TRACEPARENT[:36] + "0" * 16 + "-01",
        "cc" + TRACEPARENT[2:] + "-" + "x" * 1_000,
    ],
)
def test_anything_else_is_no_traceparent(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text())
def test_no_text_does_any_harm(text: str) -> None:
    assert parse_traceparent(text) is None or text[2] == "-"


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        GatewayConfig(trace_sample_ratio=1.5)
