"""What an observer of the controller's event stream counts for whoever scrapes."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.cluster.follow import follow
from mainspring.cluster.state import Cluster
from mainspring.messages.actions import Command, DropWorker, Infer, Load, Prepare, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import (
    Event,
    ModelAdded,
    ModelRemoved,
    RequestArrived,
    Resident,
    Wakeup,
    WorkerJoined,
    WorkerLeft,
)
from mainspring.messages.metrics import ClusterMetrics, HistogramCounts, ModelActions, WorkerActions
from mainspring.telemetry.actions import WORKERS_REMEMBERED, ActionCounts
from mainspring.telemetry.bounded import OTHER, RANK_NS
from tests.controller.peers import spec

MS = 1_000_000


def joined(name: str = "w", pages: int = 10, *resident: Resident) -> WorkerJoined:
    return WorkerJoined(name, "cpu", pages, {}, resident)


def infer(action_id: int, model: str = "m", worker: str = "w", predicted_ns: int = 2 * MS) -> Infer:
    return Infer(action_id, worker, model, 4, (1, 2), (1, 2), (True, False), 0, 9, 0, predicted_ns)


def load(action_id: int, model: str = "m", worker: str = "w", pages: tuple[int, ...] = (0, 1, 2)) -> Load:
    return Load(action_id, worker, model, pages, 0, 9, 0, 5 * MS)


def ok(action_id: int, duration_ns: int, worker: str = "w", status: Status = Status.OK) -> Result:
    return Result(action_id, worker, status, 1_000, 1_000 + duration_ns)


class Counted:
    """Counts beside the state that they are shown with."""

    def __init__(self, models: int) -> None:
        self.counts = ActionCounts(models)
        self.cluster = Cluster()
        self.now_ns = 0

    def take(self, entry: Event | Command) -> None:
        self.now_ns += 1
        follow(self.cluster, self.now_ns, entry)
        self.counts.take(entry)


def fed(*entries: Event | Command, models: int = 3) -> Counted:
    counts = Counted(models)
    added = (ModelAdded(spec(name)) for name in ("m", "a", "b", "first", "second"))
    for entry in (joined(), *added, *entries):
        counts.take(entry)
    return counts


def told(counts: Counted, now_ns: int = 0) -> ClusterMetrics:
    return counts.counts.metrics(now_ns, 7, counts.cluster)


def model(metrics: ClusterMetrics, name: str) -> ModelActions:
    [found] = [each for each in metrics.models if each.model == name]
    return found


def worker(metrics: ClusterMetrics, name: str = "w") -> WorkerActions:
    [found] = [each for each in metrics.workers if each.worker == name]
    return found


def bucket(histogram: HistogramCounts, bounds: tuple[int, ...], value: int) -> int:
    """Return the observations in the bucket that a value belongs to."""
    return histogram.counts[sum(bound < value for bound in bounds)]


def seen(ended: dict[str, int]) -> dict[str, int]:
    """Return what was counted at all."""
    return {ending: count for ending, count in ended.items() if count}


def test_durations_errors_batches_and_busy_time_of_actions() -> None:
    metrics = told(fed(load(1), ok(1, 4 * MS), infer(2), ok(2, 3 * MS), infer(3), ok(3, MS)))
    own = model(metrics, "m")
    assert own.load.sum == 4 * MS
    assert bucket(own.load, metrics.duration_bounds_ns, 4 * MS) == 1
    assert own.load_error.sum == MS
    assert bucket(own.infer_error, metrics.error_bounds_ns, -MS) == 1, "it took longer than predicted"
    assert bucket(own.infer_error, metrics.error_bounds_ns, MS) == 1
    assert bucket(own.batch, metrics.batch_bounds, 4) == 2
    assert own.rows == 6
    assert worker(metrics).busy_ns == {"exec": 4 * MS, "load": 4 * MS, "prepare": 0}
    assert seen(worker(metrics).ended) == {"INFER ok": 2, "LOAD ok": 1}
    assert (metrics.models_served, metrics.requests_queued) == (7, 0)


def test_the_devices_part_and_the_hosts_are_told_apart() -> None:
    ended = msgspec.structs.replace(ok(1, 3 * MS), device_ns=2 * MS + 900_000)
    own = worker(told(fed(infer(1), ended, load(2), ok(2, 4 * MS))))
    metrics = told(fed())
    assert (own.device["exec"].sum, own.host["exec"].sum) == (2 * MS + 900_000, 100_000)
    assert bucket(own.host["exec"], metrics.host_bounds_ns, 100_000) == 1
    assert bucket(own.device["exec"], metrics.duration_bounds_ns, 2 * MS + 900_000) == 1
    assert own.device["load"].sum + own.host["load"].sum == 4 * MS


def test_pages_are_used_from_the_loads_end_to_the_unloads() -> None:
    counts = fed(load(1), Wakeup(), RequestArrived(1, "m", 1, None))
    assert worker(told(counts)).pages_used == 0
    counts.take(ok(1, MS))
    assert worker(told(counts)).pages_used == 3
    counts.take(Unload(2, "w", "m"))
    counts.take(ok(2, 0))
    assert (worker(told(counts)).pages, worker(told(counts)).pages_used) == (10, 0)


def test_what_a_worker_holds_when_it_joins_is_counted() -> None:
    counts = fed(joined("v", 8, Resident("m", spec("m").artifact, (3, 4))))
    assert worker(told(counts), "v").pages_used == 2


def test_actions_that_failed_are_counted_by_how_and_leave_the_rest_alone() -> None:
    metrics = told(
        fed(load(1), ok(1, MS, status=Status.ENGINE_ERROR), infer(2), ok(2, 0, status=Status.TOO_LATE))
    )
    assert seen(worker(metrics).ended) == {"INFER too_late": 1, "LOAD engine_error": 1}
    assert worker(metrics).busy_ns == {"exec": 0, "load": 0, "prepare": 0}
    assert worker(metrics).pages_used == 0
    assert {each.rows for each in metrics.models} == {0}


def test_erratic_models_are_told_by_their_labels() -> None:
    """Those without a label of their own are counted under the common one."""
    counts = fed(infer(1), ok(1, MS), models=1)
    told(counts)
    assert {each.model: each.erratic for each in told(counts, 2 * RANK_NS).models} == {"m": 0, OTHER: 0}
    # All five models have one executable.
    counts.cluster.estimates.infer_times("cpu", spec("m")).spreads.erratic = True
    assert {each.model: each.erratic for each in told(counts, 2 * RANK_NS).models} == {"m": 1, OTHER: 4}


def test_a_prepare_is_busy_time_and_no_models() -> None:
    metrics = told(fed(Prepare(1, "w", spec("m")), ok(1, 7 * MS)))
    assert worker(metrics).busy_ns["prepare"] == 7 * MS


@pytest.mark.parametrize("parting", [WorkerLeft("w", "silent"), DropWorker("w", "overdue")])
def test_a_worker_that_left_is_not_told_of_and_goes_on_when_it_is_back(
    parting: WorkerLeft | DropWorker,
) -> None:
    counts = fed(infer(1), ok(1, MS), infer(2), parting)
    assert told(counts).workers == ()
    assert not counts.counts._open, "its actions have no result any more"
    counts.take(ok(2, MS))
    counts.take(joined())
    assert worker(told(counts)).busy_ns["exec"] == MS
    counts.take(infer(3))
    counts.take(ok(3, MS))
    assert worker(told(counts)).busy_ns["exec"] == 2 * MS


def test_workers_that_left_are_remembered_up_to_a_bound() -> None:
    counts = fed()
    for number in range(WORKERS_REMEMBERED + 10):
        counts.take(joined(f"w{number}"))
        counts.take(WorkerLeft(f"w{number}", ""))
    assert len(counts.counts._gone) == WORKERS_REMEMBERED


def test_models_beyond_the_bound_share_a_label_until_they_are_the_busier_ones() -> None:
    counts = fed(models=1)
    assert model(told(counts), OTHER).rows == 0
    for action_id in range(1, 12):
        counts.take(infer(action_id, "first" if action_id == 1 else "second"))
        counts.take(ok(action_id, MS))
    assert (model(told(counts), "first").rows, model(told(counts), OTHER).rows) == (3, 30)
    metrics = told(counts, RANK_NS)
    assert (model(metrics, "second").rows, model(metrics, OTHER).rows) == (0, 30)
    counts.take(infer(20, "second"))
    counts.take(ok(20, MS))
    counts.take(infer(21, "first"))
    counts.take(ok(21, MS))
    metrics = told(counts, RANK_NS + 1)
    assert (model(metrics, "second").rows, model(metrics, OTHER).rows) == (3, 33)


def test_a_model_that_was_removed_frees_its_place() -> None:
    counts = fed(infer(1, "a"), ok(1, MS), ModelRemoved("a"), infer(2, "b"), ok(2, MS), models=1)
    assert [each.model for each in told(counts).models] == ["b", OTHER]


def test_results_of_unknown_actions_are_nobodys() -> None:
    counts = fed(ok(99, MS), ok(98, MS, worker="stranger"))
    ended = worker(told(counts)).ended
    assert seen(ended) == {}
    assert {"INFER ok", "INFER engine_error", "LOAD ok", "PREPARE ok"} <= set(ended), "zeros from the start"


def test_actions_of_a_worker_that_never_joined_are_nobodys() -> None:
    counts = Counted(2)
    for entry in (infer(1), ok(1, MS), WorkerLeft("w", "")):
        counts.take(entry)
    assert told(counts).workers == ()
