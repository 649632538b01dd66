"""How long inputs travel is measured, and planned for like any duration."""

from mainspring.messages.actions import Command, Infer, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import RequestCancelled
from tests.scheduler.hand import MS, Hand, reasons, spec

DELAY_NS = MS // 2


def warm_hand() -> Hand:
    hand = Hand(spec("m"))
    hand.warm("m")
    return hand


def ask(hand: Hand, now_ms: float, id_: int, slo_ms: float | None = 100) -> Infer:
    (infer,) = [c for c in hand.request(now_ms, id_, "m", slo_ms) if isinstance(c, Infer)]
    return infer


def ended(
    hand: Hand, action: Infer, begin_ms: float, inputs_ms: float | None, status: Status = Status.OK
) -> list[Command]:
    begin_ns = int(begin_ms * MS)
    end_ns = begin_ns + (action.predicted_duration_ns if status is Status.OK else 0)
    inputs_ns = 0 if inputs_ms is None else int(inputs_ms * MS)
    result = Result(action.action_id, "w0", status, begin_ns, end_ns, inputs_ns=inputs_ns)
    return hand.feed(end_ns / MS, result)


def wait_ms(action: Infer) -> float:
    """From sending an action to its predicted begin, beyond the delay of any."""
    return (action.predicted_begin_ns - action.earliest_ns - DELAY_NS) / MS


def test_a_batch_is_predicted_to_begin_when_its_inputs_can_be_there() -> None:
    hand = warm_hand()
    first = ask(hand, 50, 1)
    assert wait_ms(first) == 0
    ended(hand, first, 57, 57)
    assert wait_ms(ask(hand, 100, 2)) == 6.5


def test_inputs_that_come_within_the_delay_change_nothing() -> None:
    hand = warm_hand()
    ended(hand, ask(hand, 50, 1), 50.5, 50.4)
    assert wait_ms(ask(hand, 100, 2)) == 0


def test_inputs_that_queue_behind_others_are_not_charged_for_them() -> None:
    hand = warm_hand()
    first = ask(hand, 50, 1)
    second = ask(hand, 50, 2)
    ended(hand, first, 60.5, 60.5)
    ended(hand, second, 64.5, 61.5)
    assert wait_ms(ask(hand, 100, 3)) == 10, "the second's own inputs took 1 ms"


def test_inputs_that_did_not_come_are_given_half_as_much_again() -> None:
    hand = warm_hand()
    infer = ask(hand, 50, 1)
    (again,) = [c for c in ended(hand, infer, 60.5, None, Status.INPUT_MISSING) if isinstance(c, Infer)]
    assert wait_ms(again) == 15


def test_the_estimate_is_the_maximum_of_the_last_ten() -> None:
    hand = warm_hand()
    ended(hand, ask(hand, 50, 1), 58.5, 58.5)
    for index in range(10):
        now_ms = 100 + 50 * index
        infer = ask(hand, now_ms, 2 + index)
        assert wait_ms(infer) == 8
        ended(hand, infer, now_ms + 2.5, now_ms + 2.5)
    assert wait_ms(ask(hand, 1000, 20)) == 2


def test_inputs_that_were_refused_had_come() -> None:
    hand = warm_hand()
    ended(hand, ask(hand, 50, 1, 20), 60.5, 60.5, Status.INPUT_MISSING)
    assert wait_ms(ask(hand, 200, 3)) == 10


def test_nothing_is_learnt_where_a_request_was_cancelled() -> None:
    hand = warm_hand()
    infer = ask(hand, 100, 2)
    hand.feed(101, RequestCancelled(2))
    ended(hand, infer, 112, None, Status.INPUT_MISSING)
    assert wait_ms(ask(hand, 200, 3)) == 0


def test_a_request_whose_inputs_cant_be_there_in_time_is_refused_at_once() -> None:
    hand = warm_hand()
    ended(hand, ask(hand, 50, 1), 70.5, 70.5)
    assert reasons(hand.request(100, 2, "m", 24)) == [Reason.DEADLINE_UNREACHABLE]
    assert wait_ms(ask(hand, 100, 3, 26)) == 20


def test_exec_is_asked_for_work_early_enough_for_inputs_to_travel() -> None:
    """Each batch takes 4 ms and its inputs 20 ms: with a lookahead of 5 ms EXEC would idle between them."""
    hand = warm_hand()
    ended(hand, ask(hand, 50, 1), 70.5, 70.5)
    first = ask(hand, 100, 2, 300)
    assert wait_ms(first) == 20
    second = hand.request(101, 3, "m", 300)
    assert [type(c) for c in second] == [Infer], "the first begins at 120.5 ms only"
    assert isinstance(second[0], Infer)
    assert second[0].predicted_begin_ns == int(140.5 * MS), "inputs travel one batch's behind the other's"
