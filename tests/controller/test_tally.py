from __future__ import annotations

import msgspec
import pytest

from mainspring.controller.tally import Tally
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.commands import DropWorker, Reject
from mainspring.messages.events import GatewayLeft, ModelAdded, ModelRemoved, RequestArrived, WorkerLeft
from mainspring.messages.peers import ModelStatus
from tests.controller.peers import spec

BLANK = ModelStatus("m0", 1, (), (), 0)


@pytest.fixture
def tally() -> Tally:
    made = Tally()
    made.event(ModelAdded(spec("m0")))
    for request_id, deadline_ns in ((1, 100), (2, 100), (3, None), (4, 50)):
        made.event(RequestArrived(request_id, "m0", 1, deadline_ns))
    return made


def infer(action_id: int, *request_ids: int) -> Infer:
    ones = tuple(1 for _ in request_ids)
    cold = tuple(False for _ in request_ids)
    return Infer(action_id, "w", "m0", 4, request_ids, ones, cold, 0, 1, 0, 1)


def counts(tally: Tally) -> tuple[int, int, int, int]:
    model = tally.counted(BLANK)
    return model.arrived, model.finished, model.late, model.rejected


def test_each_request_is_counted_once_as_what_became_of_it(tally: Tally) -> None:
    tally.command(infer(1, 1, 2, 3, 4))
    tally.event(Result(1, "w", Status.TOO_LATE, 0, 0))
    assert counts(tally) == (4, 0, 0, 0)
    tally.command(infer(2, 1, 3, 4))
    tally.event(Result(2, "w", Status.OK, 10, 90))
    tally.event(Result(2, "w", Status.OK, 10, 90))
    tally.command(Reject(2, Reason.DEADLINE_PASSED, ""))
    tally.command(Reject(2, Reason.DEADLINE_PASSED, ""))
    assert counts(tally) == (4, 2, 1, 1)


def test_what_left_is_forgotten(tally: Tally) -> None:
    tally.command(infer(1, 1))
    tally.event(WorkerLeft("w", "gone"))
    tally.event(Result(1, "w", Status.OK, 0, 1))
    tally.event(GatewayLeft(0))
    tally.command(Reject(2, Reason.NO_WORKER, ""))
    assert counts(tally) == (4, 0, 0, 0)


def test_infers_of_a_worker_that_was_dropped_are_forgotten(tally: Tally) -> None:
    tally.take(infer(1, 1))
    tally.take(DropWorker("w", "it owes a result"))
    tally.take(Result(1, "w", Status.OK, 0, 1))
    assert counts(tally) == (4, 0, 0, 0)
    tally.take(WorkerLeft("v", "gone"))
    tally.take(ModelRemoved("m0"))
    assert tally.departures == 3


def test_a_model_that_is_not_served_has_no_counts(tally: Tally) -> None:
    tally.event(RequestArrived(9, "unknown", 1, None))
    tally.command(Reject(9, Reason.UNKNOWN_MODEL, ""))
    assert counts(tally) == (4, 0, 0, 0)
    tally.event(ModelRemoved("m0"))
    assert counts(tally) == (0, 0, 0, 0)
    tally.event(ModelAdded(spec("m0")))
    tally.command(Reject(1, Reason.MODEL_REMOVED, ""))
    assert counts(tally)[0] == 0


def test_older_peers_that_do_not_count_are_understood() -> None:
    old = msgspec.to_builtins(BLANK)
    for field in ("arrived", "finished", "late", "rejected"):
        del old[field]
    assert msgspec.convert(old, ModelStatus) == BLANK
