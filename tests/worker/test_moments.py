"""What a worker tells with a request's outputs of where its time went."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.peers import OutputTimes
from mainspring.worker.moments import Moments
from tests.worker.peers import infer, load


def ended(action_id: int, begin_ns: int, end_ns: int, status: Status = Status.OK) -> Result:
    return Result(action_id, "w", status, begin_ns, end_ns)


def cold(action_id: int, request_ids: tuple[int, ...], *which: bool) -> Infer:
    ones = (1,) * len(request_ids)
    return Infer(action_id, "w", "m", len(ones), request_ids, ones, which, 0, 1_000, 0, 1)


def test_durations_of_a_requests_steps() -> None:
    moments = Moments()
    moments.accepted(infer(1, (7, 8)))
    moments.placed(1, 7, 100, 130)
    moments.placed(1, 8, 130, 190)
    result = ended(1, 250, 400)
    assert moments.times(410, result, 7) == OutputTimes(30, 120, 10)
    assert moments.times(425, result, 8) == OutputTimes(60, 60, 25)
    moments.ended(result)
    assert moments.times(430, result, 7) is None, "an action that has ended is forgotten"


def test_only_a_request_that_found_the_model_nowhere_is_told_of_its_load() -> None:
    moments = Moments()
    moments.accepted(load(1))
    moments.ended(ended(1, 1_000, 1_600))
    moments.accepted(cold(2, (7, 8), True, False))
    moments.placed(2, 7, 1_100, 1_110)
    moments.placed(2, 8, 1_100, 1_110)
    result = ended(2, 1_650, 1_700)
    assert moments.times(1_705, result, 7) == OutputTimes(10, 540, 5, 600, 50)
    assert moments.times(1_705, result, 8) == OutputTimes(10, 540, 5)


def test_a_load_that_failed_or_was_undone_is_told_to_nobody() -> None:
    moments = Moments()
    for number, undo in enumerate(("failed", "unloaded")):
        moments.accepted(load(10 + number))
        moments.ended(ended(10 + number, 0, 5, Status.ENGINE_ERROR if undo == "failed" else Status.OK))
        if undo == "unloaded":
            moments.unloaded("m")
        moments.accepted(cold(20 + number, (7,), True))
        moments.placed(20 + number, 7, 6, 7)
        assert moments.times(20, ended(20 + number, 8, 9), 7) == OutputTimes(1, 1, 11)


def test_nothing_is_kept_of_actions_that_have_ended_or_were_abandoned() -> None:
    moments = Moments()
    for action_id in range(100):
        moments.accepted(cold(action_id, (7,), True))
        moments.placed(action_id, 7, 0, 1)
        moments.accepted(load(1_000 + action_id))
        moments.ended(ended(action_id, 1, 2))
        moments.ended(ended(1_000 + action_id, 1, 2))
    assert not moments._placed
    assert not moments._cold
    assert not moments._loading
    assert len(moments._loaded) == 1
    moments.accepted(cold(1, (7,), True))
    moments.placed(1, 7, 0, 1)
    moments.clear()
    assert moments.times(5, ended(1, 2, 3), 7) is None
