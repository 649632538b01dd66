"""Who is told early that it will not be sent in time."""

from __future__ import annotations

from mainspring.client.requests import InferCall, Outbox
from tests.client.test_requests import MS, call


def drive(
    outbox: Outbox, pace: int, until_ms: int, answers: int = 0, answered: str = "m"
) -> tuple[list[int], list[tuple[int, int]]]:
    """Send ``pace`` requests each 10 ms, and have ``answers`` of one model answered.

    Return the keys sent, and (ms, key) of what was surplus.
    """
    sent: list[int] = []
    refused: list[tuple[int, int]] = []
    on_way: list[InferCall] = []
    for now_ms in range(0, until_ms, 10):
        now_ns = now_ms * MS
        for each in [each for each in on_way if each.message.model == answered][:answers]:
            on_way.remove(each)
            outbox.answered(each)
            outbox.ended(each.message.key)
        for each in outbox.surplus(now_ns):
            each.ended = True
            refused.append((now_ms, each.message.key))
        for _ in range(pace):
            found = outbox.next(10_000, acknowledged=False)
            if found is not None and found.deadline_ns is not None and found.deadline_ns > now_ns:
                outbox.sent(now_ns, found, acknowledge=False)
                sent.append(found.message.key)
                on_way.append(found)
        outbox.validate()
    return sent, refused


def filled(count: int, slo_ms: float | None = 1_000) -> tuple[Outbox, dict[int, InferCall]]:
    outbox = Outbox()
    calls = {key: call(key, slo_ms) for key in range(count)}
    for each in calls.values():
        outbox.add(each)
    return outbox, calls


def test_what_is_far_behind_is_told_early_and_what_could_be_sent_is_kept() -> None:
    outbox, calls = filled(1_000)
    sent, refused = drive(outbox, 3, 1_000)
    assert len(sent) == 300, "as many as without it"
    assert len(refused) >= 350
    assert sorted(instant for instant, _ in refused)[len(refused) // 2] < 500
    assert not set(sent) & {key for _, key in refused}
    assert len({key for _, key in refused}) == len(refused)
    assert calls


def test_it_is_the_last_that_are_told() -> None:
    outbox, _ = filled(1_000)
    _, refused = drive(outbox, 3, 200)
    keys = [key for _, key in refused]
    assert keys
    assert min(keys) > 1_000 - len(keys) - 1


def test_nobody_is_told_while_all_may_still_be_sent() -> None:
    outbox, _ = filled(500)
    sent, refused = drive(outbox, 5, 1_000)
    assert not refused
    assert len(sent) == 500
    outbox, _ = filled(500)
    assert not drive(outbox, 3, 150)[1], "at twice the pace they would be"


def test_nothing_is_known_while_nothing_is_sent() -> None:
    outbox, _ = filled(1_000)
    assert not drive(outbox, 0, 900)[1]


def test_best_effort_waits() -> None:
    outbox, _ = filled(1_000, None)
    assert not drive(outbox, 1, 2_000)[1]


def test_each_deadline_has_its_own_measure() -> None:
    outbox, _ = filled(300, 10_000)
    for key in range(1_000, 1_200):
        outbox.add(call(key, 400))
    _, refused = drive(outbox, 2, 400)
    assert refused
    assert all(key >= 1_000 for _, key in refused), "the others have time"


def test_what_will_not_be_answered_is_told_although_it_could_be_sent() -> None:
    outbox, _ = filled(600)
    sent, refused = drive(outbox, 6, 1_000, answers=1)
    assert len(refused) >= 300, "some 100 are answered until the deadline"
    assert len(sent) >= 100, "and no fewer are sent"
    outbox, _ = filled(600)
    sent, refused = drive(outbox, 6, 1_000, answers=6)
    assert not refused, "all are answered"
    assert len(sent) == 600


def test_one_models_answers_say_nothing_of_another() -> None:
    outbox = Outbox()
    for key in range(400):
        outbox.add(call(key, 1_000, model="slow" if key % 2 else "loading"))
    slow = [each for each in range(400) if each % 2]
    _, refused = drive(outbox, 4, 900, answers=1, answered="slow")
    told = [key for _, key in refused]
    assert told
    assert set(told) <= set(slow), "the other model's answers may all come at once"


def test_what_is_due_later_does_not_stand_before() -> None:
    outbox, _ = filled(300, 60_000)
    drive(outbox, 30, 100)
    for key in range(1_000, 1_020):
        outbox.add(call(key, 2_000, called_ms=100))
    _, refused = drive(outbox, 1, 400, answers=1)
    assert not refused
