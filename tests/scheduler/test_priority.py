"""Priority: a turn among requests of equal slack, for all policies alike, and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.messages.actions import Command, Infer
from mainspring.messages.codec import encode
from mainspring.messages.events import RequestArrived
from mainspring.messages.peers import Arrival
from mainspring.scheduler.request_lifecycle import LOWEST, preferred_due_ns, preferred_turn_ns
from tests.scheduler.hand import MS, Hand, reasons, spec

POLICIES = ("mainspring", "clockwork", "edf")


@given(st.integers(-(1 << 62), 1 << 62), st.integers(1, 1 << 40), st.integers(1, 10**9))
def test_a_priority_costs_less_than_a_slice_and_never_gains_time(
    due_ns: int, priority: int, slice_ns: int
) -> None:
    preferred_ns = preferred_due_ns(due_ns, priority, slice_ns)
    assert due_ns - slice_ns < preferred_ns <= due_ns
    assert preferred_due_ns(due_ns, priority + 1, slice_ns) >= preferred_ns


@given(st.integers(0, 1 << 52), st.integers(0, 60 * 10**9), st.integers(1, LOWEST - 1))
def test_among_best_effort_requests_a_higher_priority_always_goes_first(
    arrived_ns: int, later_ns: int, priority: int
) -> None:
    first = preferred_turn_ns(arrived_ns + later_ns, priority)
    assert first < preferred_turn_ns(arrived_ns, priority + 1)
    assert preferred_turn_ns(arrived_ns + later_ns, LOWEST) < preferred_turn_ns(arrived_ns, 0) == arrived_ns
    assert abs(first) < 1 << 62


def served(hand: Hand, commands: list[Command], since_ms: float) -> list[int]:
    """End each INFER 50 ms after the one before, until there is none; return the order of requests."""
    order: list[int] = []
    now_ms = since_ms
    waiting = [each for each in commands if isinstance(each, Infer)]
    while waiting:
        infer = waiting.pop(0)
        order += infer.request_ids
        now_ms += 50
        waiting += [each for each in hand.ok(now_ms, infer) if isinstance(each, Infer)]
    return order


def arrive(
    hand: Hand, now_ms: float, id_: int, deadline_ms: float | None, priority: int, model: str = "m"
) -> list[Command]:
    deadline_ns = None if deadline_ms is None else int(deadline_ms * MS)
    return hand.feed(now_ms, RequestArrived(id_, model, 4, deadline_ns, priority))


def busy(policy: str, *names: str) -> tuple[Hand, list[Command]]:
    """A worker with all models resident that is busy for 50 ms from 200 on."""
    hand = Hand(*[spec(name, single_ms=20) for name in names], policy=policy)  # type: ignore[arg-type]
    for number, name in enumerate(names):
        hand.warm(name, 60 * number)
    return hand, arrive(hand, 200, 1, 10_000, 0, names[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_deadlines_are_served_by_priority_and_others_by_deadline(policy: str) -> None:
    hand, first = busy(policy, "m")
    for id_, deadline_ms, priority in (
        (2, 5_000.4, 0),
        (3, 5_000.3, 2),
        (4, 5_000.6, 1),
        (5, 5_000.5, 2),
        (6, 4_999.9, 0),
        (7, 5_001.0, 1),
    ):
        assert arrive(hand, 201, id_, deadline_ms + 1, priority) == []
    assert served(hand, first, 201) == [1, 6, 4, 3, 5, 2, 7]


@pytest.mark.parametrize("policy", POLICIES)
def test_best_effort_requests_are_served_by_priority_across_models(policy: str) -> None:
    hand, first = busy(policy, "m", "n")
    for id_, priority, model in (
        (2, 0, "m"),
        (3, 0, "n"),
        (4, 2, "m"),
        (5, 1, "n"),
        (6, 2, "n"),
        (7, 1, "m"),
        (8, 2, "m"),
    ):
        arrive(hand, 200 + id_, id_, None, priority, model)
    assert served(hand, first, 210) == [1, 5, 7, 4, 6, 8, 2, 3]


def test_a_priority_never_makes_a_request_be_refused() -> None:
    hand = Hand(spec("m", single_ms=20), equal_slack_ms=40.0)
    hand.warm("m")
    # Served at once it ends at 352 or so: in time, and long after the begin of its slice.
    commands = arrive(hand, 300, 1, 300 + 56, 1)
    assert reasons(commands) == []
    assert [type(each) for each in commands] == [Infer]


def test_requests_without_a_priority_are_logged_and_sent_as_before() -> None:
    for message in (RequestArrived(1, "m", 1, None), Arrival(1, "m", 1, None)):
        assert b"priority" not in encode(message)
        told = msgspec.structs.replace(message, priority=3)
        assert msgspec.msgpack.decode(encode(told), type=type(message)) == told
