"""What a worker tells with a request's outputs of where its time went."""

from __future__ import annotations

from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.peers import OutputTimes
from mainspring.worker.core.request_timing import RequestTiming
from tests.worker.peers import infer, load


def ended(action_id: int, begin_ns: int, end_ns: int, status: Status = Status.OK) -> Result:
    return Result(action_id, "w", status, begin_ns, end_ns)


def cold(action_id: int, request_ids: tuple[int, ...], *which: bool) -> Infer:
    ones = (1,) * len(request_ids)
    return Infer(action_id, "w", "m", len(ones), request_ids, ones, which, 0, 1_000, 0, 1)


def test_durations_of_a_requests_steps() -> None:
    timing = RequestTiming()
    timing.accepted(infer(1, (7, 8)))
    timing.placed(1, 7, 100, 130)
    timing.placed(1, 8, 130, 190)
    result = ended(1, 250, 400)
    assert timing.times(410, result, 7) == OutputTimes(30, 120, 10)
    assert timing.times(425, result, 8) == OutputTimes(60, 60, 25)
    timing.ended(result)
    assert timing.times(430, result, 7) is None, "an action that has ended is forgotten"


def test_only_a_request_that_found_the_model_nowhere_is_told_of_its_load() -> None:
    timing = RequestTiming()
    timing.accepted(load(1))
    timing.ended(ended(1, 1_000, 1_600))
    timing.accepted(cold(2, (7, 8), True, False))
    timing.placed(2, 7, 1_100, 1_110)
    timing.placed(2, 8, 1_100, 1_110)
    result = ended(2, 1_650, 1_700)
    assert timing.times(1_705, result, 7) == OutputTimes(10, 540, 5, 600, 50)
    assert timing.times(1_705, result, 8) == OutputTimes(10, 540, 5)


def test_a_load_that_failed_or_was_undone_is_told_to_nobody() -> None:
    timing = RequestTiming()
    for number, undo in enumerate(("failed", "unloaded")):
        timing.accepted(load(10 + number))
        timing.ended(ended(10 + number, 0, 5, Status.ENGINE_ERROR if undo == "failed" else Status.OK))
        if undo == "unloaded":
            timing.unloaded("m")
        timing.accepted(cold(20 + number, (7,), True))
        timing.placed(20 + number, 7, 6, 7)
        assert timing.times(20, ended(20 + number, 8, 9), 7) == OutputTimes(1, 1, 11)


def test_nothing_is_kept_of_actions_that_have_ended_or_were_abandoned() -> None:
    timing = RequestTiming()
    for action_id in range(100):
        timing.accepted(cold(action_id, (7,), True))
        timing.placed(action_id, 7, 0, 1)
        timing.accepted(load(1_000 + action_id))
        timing.ended(ended(action_id, 1, 2))
        timing.ended(ended(1_000 + action_id, 1, 2))
    assert not timing._placed
    assert not timing._cold
    assert not timing._loading
    assert len(timing._loaded) == 1
    timing.accepted(cold(1, (7,), True))
    timing.placed(1, 7, 0, 1)
    timing.clear()
    assert timing.times(5, ended(1, 2, 3), 7) is None
