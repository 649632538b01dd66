"""What a log of known actions tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.actions import Infer, Load, Reject, Result, Unload
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import ModelAdded, RequestArrived, Resident, WorkerJoined, WorkerLeft
from mainspring.messages.model import ModelSpec
from mainspring.telemetry.log import EventLogWriter
from mainspring.telemetry.summary import analyse_log, over_under

SECOND = 1_000_000_000
US = 1000
START = 50 * SECOND


SPECS = {
    name: ModelSpec(name, f"h-{name}", "x", (1, 2, 4), 1, (pages,), (), (), {})
    for name, pages in {"m": 4, "a": 4, "b": 3, "old": 2}.items()
}


class Story:
    """Writes a log of one worker action by action; times are microseconds from the start."""

    def __init__(self, directory: Path, pages: int = 8, *resident: Resident) -> None:
        self.log = EventLogWriter(directory)
        self.action_id = 0
        self.requests = 0
        for spec in SPECS.values():
            self.at(0, ModelAdded(spec))
        prepared = {name: spec.artifact for name, spec in SPECS.items()}
        self.at(0, WorkerJoined("w", "cpu", pages, prepared, resident))

    def at(self, us: int, entry: object) -> None:
        self.log.append(START + us * US, entry)  # type: ignore[arg-type]

    def infer(
        self, begin: int, predicted: int, actual: int, *, delay: int = 0, rows: int = 1, cold: bool = False
    ) -> None:
        """An INFER predicted to begin at ``begin``, which began ``delay`` later and took ``actual``."""
        self.action_id += 1
        ns = START + begin * US
        ids = tuple(range(self.requests + 1, self.requests + rows + 1))
        self.requests += rows
        for request_id in ids:
            self.at(begin, RequestArrived(request_id, "m", 1, None))
        ones = (1,) * rows
        size = 1 << (rows - 1).bit_length()
        infer = Infer(
            self.action_id, "w", "m", size, ids, ones, (cold,) * rows, ns, ns + SECOND, ns, predicted * US
        )
        self.at(begin, infer)
        self._result(begin + delay, begin + delay + actual)

    def load(
        self,
        begin: int,
        predicted: int,
        actual: int,
        *,
        model: str = "m",
        first_page: int = 0,
        status: Status = Status.OK,
    ) -> None:
        self.action_id += 1
        ns = START + begin * US
        pages = tuple(range(first_page, first_page + SPECS[model].pages))
        self.at(begin, Load(self.action_id, "w", model, pages, ns, ns + SECOND, ns, predicted * US))
        self._result(begin, begin + actual, status)

    def unload(self, us: int, model: str) -> None:
        self.action_id += 1
        self.at(us, Unload(self.action_id, "w", model))
        self._result(us, us)

    def _result(self, begin: int, end: int, status: Status = Status.OK) -> None:
        self.at(end, Result(self.action_id, "w", status, START + begin * US, START + end * US))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_prediction_errors_are_split_into_over_and_under(story: Story, tmp_path: Path) -> None:
    for number in range(100):
        story.infer(number * 1000, predicted=500, actual=500 - number)
    for number in range(1, 51):
        story.infer(200_000 + number * 1000, predicted=500, actual=500 + 2 * number)
    story.load(400_000, predicted=3000, actual=3400)
    story.log.close()
    summary = analyse_log(tmp_path).summary
    assert (summary.infers, summary.loads) == (150, 1)
    assert summary.infer_prediction_error_p99_us.over == pytest.approx(99, abs=1)
    assert summary.infer_prediction_error_p99_us.under == pytest.approx(100, abs=2)
    assert summary.load_prediction_error_p99_us.under == 400
    assert summary.load_prediction_error_p99_us.over is None


def test_the_completion_error_has_the_late_begin_in_it(story: Story, tmp_path: Path) -> None:
    story.infer(1000, predicted=500, actual=500, delay=250)
    story.log.close()
    analysis = analyse_log(tmp_path)
    assert analysis.infer.duration_error_ns().tolist() == [0]
    assert analysis.infer.completion_error_ns().tolist() == [250 * US]
    assert analysis.summary.infer_completion_error_p99_us.under == 250
    assert analysis.infer.predicted_ns().tolist() == analysis.infer.actual_ns().tolist() == [500 * US]


def test_the_spread_compares_executions_with_the_median_of_their_own_kind(
    story: Story, tmp_path: Path
) -> None:
    story.log.flush()
    assert analyse_log(tmp_path).summary.infer_spread_p99 is None
    for turn in range(100):
        story.infer(turn * 1000, 100, 100)
        story.infer(turn * 1000 + 500, 300, 250, rows=2)
    story.log.flush()
    assert analyse_log(tmp_path).summary.infer_spread_p99 == 1
    for turn in range(100, 110):
        story.infer(turn * 1000, 100, 400)
    story.log.close()
    assert analyse_log(tmp_path).summary.infer_spread_p99 == 4


def test_batches_cold_requests_and_rejections_are_counted(story: Story, tmp_path: Path) -> None:
    for rows, cold in ((1, True), (3, False), (4, False), (4, True)):
        story.infer(rows * 1000 * (1 + cold), predicted=10, actual=10, rows=rows, cold=cold)
    story.at(9000, RequestArrived(99, "m", 1, None))
    story.at(9001, Reject(99, Reason.DEADLINE_UNREACHABLE, "x"))
    story.at(9002, Reject(98, Reason.DEADLINE_UNREACHABLE, "x"))
    story.at(9003, Reject(97, Reason.OVERLOADED, "x"))
    story.log.close()
    summary = analyse_log(tmp_path).summary
    assert summary.batch_sizes == {1: 1, 4: 3}
    assert summary.mean_action_batch == 3.0
    assert summary.cold_requests == 5
    assert summary.requests_seen == 13
    assert summary.scheduler_rejected == {"deadline_unreachable": 2, "overloaded": 1}


def test_pages_follow_loads_unloads_and_workers(tmp_path: Path) -> None:
    story = Story(tmp_path, 10, Resident("old", SPECS["old"].artifact, (0, 1)))
    story.load(1_100_000, 1000, 1000, model="a", first_page=2)
    story.load(2_100_000, 1000, 1000, model="b", first_page=6, status=Status.BAD_PAGES)
    story.unload(3_100_000, "old")
    story.at(4_100_000, WorkerLeft("w", "gone"))
    story.at(6_000_001, RequestArrived(1, "m", 1, None))
    story.log.close()
    summary = analyse_log(tmp_path, start_ns=START).summary
    assert summary.log_series.page_occupancy == [0.2, 0.6, 0.6, 0.4, None, None]
    assert summary.page_occupancy == pytest.approx(0.45)
    assert (summary.loads, summary.unloads, summary.workers_lost) == (1, 1, 1)
    assert summary.actions_failed == {"LOAD bad_pages": 1}
    assert summary.log_series.loads == [0, 1, 0, 0, 0, 0]


def test_utilisation_splits_an_action_over_the_seconds_it_touches(story: Story, tmp_path: Path) -> None:
    story.infer(500_000, predicted=1, actual=1_500_000)
    story.load(2_000_000, predicted=1, actual=250_000)
    story.at(3_000_001, RequestArrived(1, "m", 1, None))
    story.log.close()
    series = analyse_log(tmp_path, start_ns=START).summary.log_series
    assert series.exec_utilisation == [0.5, 1.0, 0.0]
    assert series.load_utilisation == [0.0, 0.0, 0.25]


def test_only_what_ends_in_the_window_counts_but_state_is_followed_from_the_start(
    story: Story, tmp_path: Path
) -> None:
    story.load(10, 100, 100)
    story.infer(1000, 100, 100)
    story.infer(2_500_000, 100, 100)
    story.infer(9_000_000, 100, 100)
    story.log.close()
    summary = analyse_log(tmp_path, start_ns=START + 2 * SECOND, end_ns=START + 8 * SECOND).summary
    assert (summary.infers, summary.loads) == (1, 0)
    assert summary.log_series.start_ns == START + 2 * SECOND
    summary = analyse_log(tmp_path, start_ns=START + 2 * SECOND).summary
    assert summary.log_series.page_occupancy == [0.5] * 7


def test_a_new_run_in_the_same_folder_forgets_what_was_outstanding(story: Story, tmp_path: Path) -> None:
    story.at(1, Load(1, "w", "m", (0, 1, 2, 3), 0, 1, 0, 1))
    story.log.close()
    again = Story(tmp_path)
    again.action_id = 1
    again._result(10, 20)
    again.log.close()
    summary = analyse_log(tmp_path).summary
    assert (summary.loads, summary.actions_failed) == (0, {})


def test_an_empty_log_has_a_summary_and_a_missing_one_is_an_error(story: Story, tmp_path: Path) -> None:
    story.log.close()
    summary = analyse_log(tmp_path).summary
    assert (summary.infers, summary.mean_action_batch, summary.exec_utilisation) == (0, None, None)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        analyse_log(tmp_path / "nowhere")


@given(st.lists(st.integers(-(10**6), 10**6), max_size=200))
def test_over_and_under_are_percentiles_of_their_own_side(errors: list[int]) -> None:
    found = over_under(np.array(errors, np.int64), 100)
    over = [-error for error in errors if error < 0]
    under = [error for error in errors if error > 0]
    assert found.over == (max(over) / 1e3 if over else None)
    assert found.under == (max(under) / 1e3 if under else None)
