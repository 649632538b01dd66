from __future__ import annotations

import msgspec
import pytest

from mainspring.controller.model_counters import ModelCounters
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import GatewayLeft, ModelAdded, ModelRemoved, RequestArrived, WorkerLeft
from mainspring.messages.peers import ModelStatus
from tests.controller.peers import spec

BLANK = ModelStatus("m0", 1, (), (), 0)


@pytest.fixture
def counters() -> ModelCounters:
    made = ModelCounters()
    made.event(ModelAdded(spec("m0")))
    for request_id, deadline_ns in ((1, 100), (2, 100), (3, None), (4, 50)):
        made.event(RequestArrived(request_id, "m0", 1, deadline_ns))
    return made


def infer(action_id: int, *request_ids: int) -> Infer:
    ones = tuple(1 for _ in request_ids)
    cold = tuple(False for _ in request_ids)
    return Infer(action_id, "w", "m0", 4, request_ids, ones, cold, 0, 1, 0, 1)


def counts(counters: ModelCounters) -> tuple[int, int, int, int]:
    model = counters.counted(BLANK)
    return model.arrived, model.finished, model.late, model.rejected


def test_each_request_is_counted_once_as_what_became_of_it(counters: ModelCounters) -> None:
    counters.command(infer(1, 1, 2, 3, 4))
    counters.event(Result(1, "w", Status.TOO_LATE, 0, 0))
    assert counts(counters) == (4, 0, 0, 0)
    counters.command(infer(2, 1, 3, 4))
    counters.event(Result(2, "w", Status.OK, 10, 90))
    counters.event(Result(2, "w", Status.OK, 10, 90))
    counters.command(Reject(2, Reason.DEADLINE_PASSED, ""))
    counters.command(Reject(2, Reason.DEADLINE_PASSED, ""))
    assert counts(counters) == (4, 2, 1, 1)


def test_what_left_is_forgotten(counters: ModelCounters) -> None:
    counters.command(infer(1, 1))
    counters.event(WorkerLeft("w", "gone"))
    counters.event(Result(1, "w", Status.OK, 0, 1))
    counters.event(GatewayLeft(0))
    counters.command(Reject(2, Reason.NO_WORKER, ""))
    assert counts(counters) == (4, 0, 0, 0)


def test_infers_of_a_worker_that_was_dropped_are_forgotten(counters: ModelCounters) -> None:
    counters.take(infer(1, 1))
    counters.take(DropWorker("w", "it owes a result"))
    counters.take(Result(1, "w", Status.OK, 0, 1))
    assert counts(counters) == (4, 0, 0, 0)
    counters.take(WorkerLeft("v", "gone"))
    counters.take(ModelRemoved("m0"))
    assert counters.departures == 3


def test_a_model_that_is_not_served_has_no_counts(counters: ModelCounters) -> None:
    counters.event(RequestArrived(9, "unknown", 1, None))
    counters.command(Reject(9, Reason.UNKNOWN_MODEL, ""))
    assert counts(counters) == (4, 0, 0, 0)
    counters.event(ModelRemoved("m0"))
    assert counts(counters) == (0, 0, 0, 0)
    counters.event(ModelAdded(spec("m0")))
    counters.command(Reject(1, Reason.MODEL_REMOVED, ""))
    assert counts(counters)[0] == 0


def test_older_peers_that_do_not_count_are_understood() -> None:
    old = msgspec.to_builtins(BLANK)
    for field in ("arrived", "finished", "late", "rejected"):
        del old[field]
    assert msgspec.convert(old, ModelStatus) == BLANK
