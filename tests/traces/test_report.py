"""Records and the summary of a run: every request in exactly one place, every figure against a slow count."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.clients import Timing
from mainspring.messages.codes import Reason
from mainspring.traces import records as records_module
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.records import Records, RecordsFull
from mainspring.traces.report import read_summary, summarise, write_json

MS = 1_000_000


def timing(left_ns: int | None = 5, batch: int = 4, cold: bool = False, worker: str = "w") -> Timing:
    return Timing(10, 1, 2, left_ns, batch, cold, worker)


MISSING = ("lost", "unanswered", "unsent", "expired")
outcomes = st.sampled_from(["good", "best_effort", "late", *MISSING, "busy", "unreachable"])


@given(st.lists(st.tuples(outcomes, st.integers(0, 3 * SECOND_NS), st.integers(1, 200)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_request_is_in_exactly_one_place(requests: list[tuple[str, int, int]]) -> None:
    records = Records()
    for what, intended_ns, latency_ms in requests:
        slo_ns = None if what == "best_effort" else (latency_ms - (what == "late")) * MS
        key = records.sent(intended_ns, intended_ns + 1000, "m", 1, slo_ns)
        replied_ns = intended_ns + latency_ms * MS
        assert records.pending(key)
        match what:
            case "good":
                assert records.outputs(key, replied_ns, timing(0))
            case "best_effort":
                assert records.outputs(key, replied_ns, timing(None))
            case "late":
                assert not records.outputs(key, replied_ns, timing(0))
            case "busy":
                records.error(key, replied_ns, Reason.OVERLOADED)
            case "unreachable":
                records.error(key, replied_ns, Reason.DEADLINE_UNREACHABLE)
            case "unsent":
                records.unsent(key)
            case "unanswered":
                records.unanswered(key)
            case "expired":
                records.expired(key)
        assert records.pending(key) == (what == "lost")
    kinds = [what for what, _, _ in requests]
    summary = summarise(records, start_ns=0)
    assert summary.offered == len(requests)
    assert summary.goodput == kinds.count("good") + kinds.count("best_effort")
    for what in ("late", *MISSING):
        assert getattr(summary, what) == kinds.count(what), what
    freely = summary.best_effort
    assert (freely.offered, freely.goodput) == 2 * (kinds.count("best_effort"),)
    assert summary.with_deadline.offered == len(requests) - freely.offered
    assert (summary.with_deadline.late, summary.with_deadline.rejected) == (
        summary.late, summary.rejected_total,
    )  # fmt: skip
    expected = {"overloaded": kinds.count("busy"), "deadline_unreachable": kinds.count("unreachable")}
    assert summary.rejected == {reason: count for reason, count in expected.items() if count}
    assert summary.goodput + summary.rejected_total + summary.late + summary.missing == summary.offered
    assert records.in_flight == summary.lost
    without = [key for key, _ in records.without_reply()]
    assert without == [key for key, what in enumerate(kinds) if what == "lost"]
    series = summary.series
    assert sum(series.offered) == summary.offered
    assert sum(series.goodput) == summary.goodput
    assert sum(series.rejected) == summary.rejected_total
    assert sum(series.late) == summary.late
    assert sum(series.lost) == summary.lost
    assert sum(series.unanswered) == summary.unanswered
    assert sum(series.not_sent) == summary.unsent + summary.expired
    latencies = sorted(ms for what, _, ms in requests if what in ("good", "best_effort", "late"))
    if latencies:
        assert summary.max_ms == latencies[-1]
        assert summary.p50_ms == latencies[(len(latencies) - 1) // 2]
        assert max(value for value in series.max_ms if value is not None) == latencies[-1]


def test_latency_counts_from_the_intended_send_and_lag_is_told() -> None:
    records = Records()
    key = records.sent(1000 * MS, 1030 * MS, "m", 1, 50 * MS)
    records.outputs(key, 1060 * MS, timing(left_ns=20 * MS))
    summary = summarise(records, start_ns=7)
    assert summary.p50_ms == 60
    assert summary.replayer_lag_max_us == 30_000
    assert (summary.goodput, summary.late) == (0, 1), "in time for the gateway, not for the caller"
    assert (summary.gateway_late, summary.since_sent.p50_ms, summary.at_gateway.p50_ms) == (0, 30, 1e-5)
    assert "by 30.0 ms at p99" in summary.whose_latencies()
    assert "p50 30.0 ms" in summary.whose_latencies()
    assert summary.start_ns == 7


def test_cold_starts_batches_and_seconds() -> None:
    records = Records()
    for index, (batch, cold) in enumerate([(1, True), (4, False), (4, False), (8, False)]):
        key = records.sent(index * SECOND_NS, index * SECOND_NS, f"m{index % 2}", 1, None)
        records.outputs(key, index * SECOND_NS + MS, timing(batch=batch, cold=cold))
    summary = summarise(records, start_ns=0)
    assert (summary.cold_starts, summary.cold_start_share, summary.mean_batch) == (1, 0.25, 4.25)
    assert (summary.series.cold_starts, summary.series.mean_batch) == ([1, 0, 0, 0], [1, 4, 4, 8])
    assert (summary.models, summary.duration_s, summary.slo_ms) == (2, 3.0, None)


def test_rates_are_over_the_workloads_length_where_it_is_known() -> None:
    records = Records()
    for index in range(4):
        records.outputs(records.sent(index * SECOND_NS, 0, "m", 1, None), index * SECOND_NS + MS, timing())
    for length_s, told_s in ((0, 3.0), (8, 8.0), (2, 3.0)):
        summary = summarise(records, start_ns=0, duration_ns=length_s * SECOND_NS)
        assert (summary.duration_s, summary.offered_rate, summary.goodput_rate) == (
            told_s,
            *2 * (4 / told_s,),
        )
        assert len(summary.series.second) == max(4, length_s), "to the end, with or without a request"


def test_the_slos_asked_for_are_named_with_the_most_frequent_first() -> None:
    records = Records()
    for slo_ms in (50, 200, 50, None, 50):
        records.unsent(records.sent(0, 0, "m", 1, None if slo_ms is None else slo_ms * MS))
    summary = summarise(records, start_ns=0)
    assert (summary.slos, summary.slo_ms) == ([(50, 3), (200, 1)], 200)


def test_a_run_without_requests_has_a_report() -> None:
    summary = summarise(Records(), start_ns=0)
    assert (summary.offered, summary.goodput_share, summary.p99_ms) == (0, 1.0, None)


def test_records_grow_in_chunks_and_stop_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "CHUNK", 8)
    records = Records(max_requests=24)
    for key in range(24):
        assert records.sent(key, key, "m", 1, None) == key
        records.outputs(key, key + 5, timing(worker=f"w{key % 2}"))
    with pytest.raises(RecordsFull, match="has 24 requests"):
        records.sent(24, 24, "m", 1, None)
    sent, replied = records.columns()
    assert sent["intended_ns"].tolist() == list(range(24))
    assert replied["replied_ns"].tolist() == list(range(5, 29))
    assert replied["worker"].tolist() == [0, 1] * 12
    assert not records.pending(24)
    assert not records.pending(-1)


def test_json_is_written_whole_and_read_back(tmp_path: Path) -> None:
    records = Records()
    records.error(records.sent(0, 0, "m", 1, 5), MS, Reason.NO_WORKER)
    summary = summarise(records, start_ns=3, notes={"seed": 1})
    path = tmp_path / "deep" / "summary.json"
    write_json(path, msgspec.to_builtins(summary) | {"more": 1})
    assert read_summary(path) == summary
    assert [p.name for p in path.parent.iterdir()] == ["summary.json"]
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"summary\.json.*not a report"):
        read_summary(path)


def test_an_unwritable_report_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, object())
    assert "old" in path.read_text()
