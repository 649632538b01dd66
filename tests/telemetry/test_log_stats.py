"""What `log_stats` counts, against a run of which everything is known."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mainspring.cli.views.log_tables import print_stats, size
from mainspring.messages.actions import Infer, Load, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import RequestArrived, WorkerJoined
from mainspring.simulator.run import simulate
from mainspring.telemetry.lifecycles import Lifecycles, RequestLife
from mainspring.telemetry.log import EventLogWriter, read_entries
from mainspring.telemetry.log_stats import Longest, log_stats
from mainspring.telemetry.runs import choose_run
from mainspring.telemetry.slices import slice_run
from tests.telemetry.recordings import EVENTFUL, record


def test_it_counts_what_clients_saw(tmp_path: Path) -> None:
    stats = log_stats(record(tmp_path, segment_bytes=200_000))
    (run,) = stats.runs
    summary = simulate(EVENTFUL).summary
    assert run.requests == summary.offered
    # What a gateway answers by itself in the end, the controller hears of as cancelled.
    timed_out = summary.rejected["timed_out"]
    assert run.rejected | {"timed_out": timed_out} == summary.rejected
    assert run.outcomes["cancelled"] == timed_out
    assert sum(run.outcomes.values()) == run.requests
    # A request that is executed by its deadline may be late at its gateway, never the other way round.
    assert summary.goodput <= run.outcomes["in_time"] <= summary.goodput + summary.late
    assert run.offered_rps == pytest.approx(run.requests / run.seconds)
    assert summary.p50_ms is not None
    assert run.latency_p50_ms == pytest.approx(summary.p50_ms, rel=0.25), "the network is in one of them"
    entries = [entry for _, entry in read_entries(tmp_path)]
    assert stats.records == len(entries) == sum(run.records.values())
    assert stats.segments == run.segments == len(list(tmp_path.glob("*.events"))) > 3
    assert stats.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.events"))
    assert run.workers == {"worker-0": "gpu", "worker-1": "gpu"}
    assert run.models == run.models_asked == 8
    assert run.actions["INFER"]["lost"] == 3
    assert sum(run.actions["INFER"].values()) == run.records["Infer"]
    assert (run.whole, run.sliced, run.policy) == (True, None, "clockwork")


def test_runs_are_counted_apart(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path)
    first, second = log_stats(tmp_path).runs
    assert (first.number, second.number) == (1, 2)
    assert first.outcomes == second.outcomes
    assert first.run != second.run


def test_a_slice_says_of_what(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole")
    run = choose_run(whole)
    slice_run(run, tmp_path / "part", run.first_ns + 10**9, run.first_ns + 2 * 10**9)
    (stats,) = log_stats(tmp_path / "part").runs
    assert stats.sliced is not None
    assert stats.sliced.of == str(whole)
    assert stats.seconds == pytest.approx(1.0)
    assert stats.requests == pytest.approx(920, rel=0.1)


def test_a_part_has_what_came_in_it_with_its_end(tmp_path: Path) -> None:
    record(tmp_path, segment_bytes=200_000)
    run = choose_run(tmp_path)
    middle_ns = run.first_ns + 1_300_000_000
    (whole,) = log_stats(tmp_path).runs
    parts = [
        log_stats(tmp_path, (run, from_ns, to_ns)).runs[0]
        for from_ns, to_ns in ((run.first_ns, middle_ns), (middle_ns, run.last_ns + 1))
    ]
    assert [part.part_begins_s for part in parts] == [0.0, 1.3]
    assert sum(part.seconds for part in parts) == pytest.approx(whole.seconds)
    for name in ("requests", "cold"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    for name in ("outcomes", "rejected", "records"):
        counted = Counter(getattr(parts[0], name)) + Counter(getattr(parts[1], name))
        wanted = Counter(getattr(whole, name))
        # Where its instants lie does not matter: a header is about the whole run.
        del counted["SegmentHeader"], wanted["SegmentHeader"]
        assert counted == wanted
    for kind, ends in whole.actions.items():
        assert Counter(parts[0].actions.get(kind, {})) + Counter(parts[1].actions.get(kind, {})) == ends
    assert "running" not in parts[0].outcomes, "the end is read where it is later"
    assert all(part.outcomes["in_time"] > 500 for part in parts)


def test_models_are_told_apart_the_slowest_first(tmp_path: Path) -> None:
    record(tmp_path)
    (run,) = log_stats(tmp_path).runs
    lives: dict[str, list[int]] = {}
    outcomes: dict[str, Counter[str]] = {}

    def ended(life: RequestLife) -> None:
        outcomes.setdefault(life.request.model, Counter())[life.outcome] += 1
        if life.outcome in ("in_time", "late") and life.ended_ns is not None:
            lives.setdefault(life.request.model, []).append(life.ended_ns - life.arrived_ns)

    reader = Lifecycles(ended)
    for now_ns, entry in read_entries(tmp_path):
        reader.take(now_ns, entry)
    reader.finish()
    assert sum(model.requests for model in run.by_model.values()) == run.requests
    assert {name: model.outcomes for name, model in run.by_model.items()} == outcomes
    for name, model in run.by_model.items():
        exact_ns = float(np.percentile(lives[name], 99, method="inverted_cdf"))
        assert model.latency_p99_ms == pytest.approx(exact_ns / 1e6, rel=0.005)
    slowest = [model.latency_p99_ms or 0.0 for model in run.by_model.values()]
    assert slowest == sorted(slowest, reverse=True)


def log_of_durations(folder: Path) -> Path:
    """Write a log of a LOAD and of INFERs of 1 to 100 ms on the device and half of that on the host; 50 ms
    were predicted of each. The last does not end well, and of the one before it the parts are not known."""
    log, ms = EventLogWriter(folder), 1_000_000
    log.append(1, WorkerJoined("w", "gpu", 8))
    log.append(1, Load(1000, "w", "m", (0,), 1, ms, 1, 9 * ms))
    log.append(9 * ms, Result(1000, "w", Status.OK, 1, 8 * ms + 1, device_ns=7 * ms))
    for each in range(1, 103):
        now_ns = each * 1000 * ms
        log.append(now_ns, RequestArrived(each, "m", 1, None))
        log.append(now_ns, Infer(each, "w", "m", 1, (each,), (1,), (False,), 1, 2, now_ns, 50 * ms))
        status = Status.ENGINE_ERROR if each == 102 else Status.OK
        device_ns = 0 if each == 101 else each * ms
        result = Result(each, "w", status, now_ns, now_ns + each * 3 * ms // 2, device_ns=device_ns)
        log.append(now_ns + 900 * ms, result)
    log.close()
    return folder


def test_what_actions_took_is_told_by_part_and_which_took_longer_than_predicted(tmp_path: Path) -> None:
    (run,) = log_stats(log_of_durations(tmp_path)).runs
    infer, load = run.parts["INFER"], run.parts["LOAD"]
    assert infer.device_ms == pytest.approx((50, 99, 100), rel=0.005)
    assert infer.host_ms == pytest.approx((25, 49.5, 50), rel=0.005)
    assert infer.longer_ms == pytest.approx((25, 98.5, 100), rel=0.005)
    assert infer.longest == Longest(100, "m", 100.0, 100.0, 50.0)
    assert load.device_ms == pytest.approx((7, 7, 7), rel=0.005)
    assert (load.longer_ms, load.longest.longer_ms) == ((0.0, 0.0, 0.0), -1.0)
    console = Console(width=80, record=True, markup=False, highlight=False)
    print_stats(console, "log", log_stats(tmp_path))
    shown = " ".join(console.export_text().split())
    assert re.search(r"INFER ok 101, engine_error 1 device p50, p99, p99.99: \d", shown)
    assert (
        "the most 100 ms, of action 100 (m), which took 100 ms on the device and 50 ms on the host" in shown
    )
    assert shown.count("the most") == 1, "the LOAD took less"


def test_parts_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    log = EventLogWriter(tmp_path)
    log.append(1, WorkerJoined("w", "gpu", 8))
    log.append(1, Load(1, "w", "m", (0,), 1, 5, 1, 9))
    log.append(9, Result(1, "w", Status.OK, 1, 8))
    log.close()
    (run,) = log_stats(tmp_path).runs
    assert run.parts == {}
    assert run.actions == {"LOAD": {"ok": 1}}


def test_a_person_sees_it(tmp_path: Path) -> None:
    console = Console(width=100, record=True, markup=False, highlight=False)
    record(tmp_path)
    print_stats(console, "log", log_stats(tmp_path))
    shown = " ".join(console.export_text().split())
    assert "records of" in shown
    assert "in_time" in shown
    assert "policy clockwork workers 2 (gpu 2) models 8, of which 8 were asked for" in shown
    assert "lost 3" in shown
    assert "p50 p99 outcomes" not in shown, "models are shown where they are asked for"
    print_stats(console, "log", log_stats(tmp_path), 3)
    shown = " ".join(console.export_text().split())
    assert "model requests p50 p99 outcomes m-" in shown
    assert "and 5 more" in shown


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.234 kB"), (64 << 20, "67.11 MB")]
)
def test_sizes_are_readable(count: int, text: str) -> None:
    assert size(count) == text
