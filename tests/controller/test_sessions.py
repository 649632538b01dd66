"""Sessions: who owns a name, a number, a result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.controller.sessions import SessionTable
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.model import PAGE_BYTES
from mainspring.messages.peers import GatewayHello, Pong, WorkerHello


def worker(name: str = "w0") -> WorkerHello:
    return WorkerHello(PROTOCOL_VERSION, name, "cpu", 8, PAGE_BYTES, "tcp://127.0.0.1:1")


def gateway(name: str = "g0") -> GatewayHello:
    return GatewayHello(PROTOCOL_VERSION, name)


def test_gateway_numbers_begin_at_one_and_are_never_used_again() -> None:
    table = SessionTable(16)
    numbers = []
    for _ in range(3):
        session = table.open_gateway(0, b"g", gateway())
        assert table.gateway(session.number) is session
        numbers.append(session.number)
        table.close(session)
        assert table.gateway(session.number) is None
    assert numbers == [1, 2, 3]


def test_a_hello_replaces_the_same_process_and_the_owner_of_the_name() -> None:
    table = SessionTable(16)
    old = table.open_worker(0, b"a", worker("w0"))
    mine = table.open_worker(0, b"b", worker("w1"))
    assert table.replaced_by(b"b", worker("w0")) == [mine, old]
    assert table.replaced_by(b"a", worker("w0")) == [old]
    assert table.replaced_by(b"c", gateway("w0")) == []


def test_a_process_that_lost_its_name_gets_it_back_only_when_the_newer_one_is_gone() -> None:
    table = SessionTable(16)
    old = table.open_worker(0, b"old", worker())
    table.close(old, name_lost=True)
    new = table.open_worker(0, b"new", worker())
    assert table.name_is_lost(b"old", worker())
    assert not table.name_is_lost(b"newest", worker())
    table.close(new)
    assert not table.name_is_lost(b"old", worker())


def test_results_of_an_earlier_session_are_not_owned() -> None:
    session = SessionTable(16).open_worker(0, b"w", worker())
    assert not session.owns(8)
    session.joined, session.actions_after = True, 7
    assert [session.owns(action_id) for action_id in (6, 7, 8)] == [False, False, True]


def test_silence_is_measured_from_the_last_message() -> None:
    table = SessionTable(16)
    first, second = table.open_worker(0, b"w", worker()), table.open_gateway(5, b"g", gateway())
    assert table.silent_since(0) == []
    assert table.silent_since(5) == [first]
    first.heard_ns = 9
    assert table.silent_since(9) == [second]


@given(st.integers(-5, 10))
def test_a_pong_must_answer_a_ping_of_ours(sequence: int) -> None:
    session = SessionTable(16).open_worker(0, b"w", worker())
    session.ping(10)
    session.ping(20)
    pong = Pong(sequence, 10, 30, 30)
    if sequence in (1, 2):
        session.pong(40, pong)
        assert session.clock.samples == 1
    else:
        with pytest.raises(ValueError, match="answers none"):
            session.pong(40, pong)


def test_two_sessions_of_one_process_are_a_fault_of_ours() -> None:
    table = SessionTable(16)
    table.open_worker(0, b"x", worker())
    with pytest.raises(AssertionError, match="former session"):
        table.open_gateway(0, b"x", gateway())
