"""Who is given up early because too many of the same model are before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages.actions import Infer
from mainspring.messages.commands import Command, Reject
from mainspring.scheduler.policies.mainspring.constants import CAPACITY_DOUBT, SHORT_QUEUE
from tests.scheduler.hand import MS, Hand, spec

ROW_MS = 2.5
"""What a row of `spec("m")` takes in the best batch: 10 ms for four."""


def crowded(count: int, slo_ms: float, workers: int = 1, gap_ms: float = 0.0) -> tuple[Hand, list[Command]]:
    """Return a cluster whose devices hold the model, and what becomes of that number of requests at once."""
    hand = Hand(spec("m"), workers=workers, policy="mainspring")  # type: ignore[arg-type]
    hand.warm("m")
    commands: list[Command] = []
    for number in range(count):
        commands += hand.request(100 + number * gap_ms, number, "m", slo_ms - number * gap_ms)
    return hand, commands


def played(hand: Hand, commands: list[Command], until_ms: float) -> tuple[dict[int, float], set[int]]:
    """Let each INFER take what is predicted; return when each request was refused, and who was answered."""
    refused: dict[int, float] = {}
    answered: set[int] = set()
    ends: list[tuple[float, Infer]] = []
    now_ms = 100.0
    while True:
        for command in commands:
            if isinstance(command, Reject):
                assert command.request_id not in refused
                refused[command.request_id] = now_ms
            elif isinstance(command, Infer):
                begin_ns = max(command.predicted_begin_ns, int(now_ms * MS))
                ends.append(((begin_ns + command.predicted_duration_ns) / MS, command))
        ends.sort(key=lambda end: (end[0], end[1].action_id))
        wakeup_ns = hand.scheduler.next_wakeup_ns()
        next_ms = until_ms if wakeup_ns is None else max(now_ms, wakeup_ns / MS)
        if ends and ends[0][0] <= next_ms:
            now_ms, infer = ends.pop(0)
            answered.update(infer.request_ids)
            commands = hand.ok(now_ms, infer)
        elif next_ms < until_ms:
            now_ms = next_ms
            commands = hand.scheduler.schedule(wakeup_ns or 0)
            hand.scheduler.validate()
        else:
            return refused, answered


def test_a_crowd_is_refused_bit_by_bit_and_not_at_its_deadline() -> None:
    hand, commands = crowded(400, 500)
    refused, answered = played(hand, commands, 700)
    assert len(refused) + len(answered) == 400
    assert not set(refused) & answered
    last_ms = 600 - ROW_MS * SHORT_QUEUE
    early = [at_ms for at_ms in refused.values() if at_ms < last_ms]
    assert len(early) >= len(refused) - CAPACITY_DOUBT * SHORT_QUEUE
    at_once = max(sum(at_ms <= each < at_ms + 5 for each in early if each > 100) for at_ms in early)
    assert at_once <= CAPACITY_DOUBT * 5 / ROW_MS + 2, "no more than twice as fast as they could be answered"


def test_what_is_refused_would_not_have_been_answered_in_its_place() -> None:
    hand, commands = crowded(400, 500)
    _, answered = played(hand, commands, 700)
    assert len(answered) >= int(500 / 10) * 4 - 8, "as many as the device can do"


def test_the_last_in_the_queue_are_refused_first() -> None:
    hand, commands = crowded(400, 500)
    refused, answered = played(hand, commands, 700)
    assert max(answered) < min(each for each, at_ms in refused.items() if at_ms < 400)


def test_what_twice_the_capacity_could_serve_is_kept() -> None:
    count = int(CAPACITY_DOUBT * 500 / ROW_MS)
    _, commands = crowded(count - 1, 500)
    assert not [each for each in commands if isinstance(each, Reject)]
    _, commands = crowded(2 * count, 500)
    refused = [each.request_id for each in commands if isinstance(each, Reject)]
    assert min(refused) >= count


def test_more_workers_keep_more_though_none_of_them_has_loaded_the_model() -> None:
    _, alone = crowded(600, 500)
    _, together = crowded(600, 500, workers=2)
    assert [each for each in alone if isinstance(each, Reject)]
    assert not [each for each in together if isinstance(each, Reject)]


def test_a_refusal_says_how_many_are_before_it() -> None:
    _, commands = crowded(600, 500)
    refusal = next(each for each in commands if isinstance(each, Reject))
    assert "twice as many as could be served by its deadline wait before it" in refusal.detail
    assert refusal.earliest_finish_ns is None, "when it could have been answered is not known"


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 60), slo_ms=st.integers(20, 300), workers=st.integers(1, 3))
def test_each_has_one_outcome(count: int, slo_ms: int, workers: int) -> None:
    hand, commands = crowded(count, slo_ms, workers, gap_ms=0.1)
    refused, answered = played(hand, commands, 100 + slo_ms + 200)
    assert set(refused) | answered == set(range(count))
    assert not set(refused) & answered
