"""Whose calls are in flight, and what their answers hold."""

from __future__ import annotations

import itertools

import pytest

from mainspring.gateway.core.effects import Connection
from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.grpc.peers import Peers
from mainspring.gateway.memory import Budget
from mainspring.messages.codes import Reason

ONE, OTHER = "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:2"


def peers_with(all_bytes: int = 1_000, per_connection_bytes: int = 100) -> tuple[Peers, Budget]:
    numbers = itertools.count()
    answers = Budget(all_bytes)
    return Peers(
        lambda: Connection("calls", bytes([next(numbers)])), answers, per_connection_bytes, set[str]().add
    ), answers


def test_calls_of_one_client_share_a_connection_while_any_is_in_flight() -> None:
    peers, _ = peers_with()
    first = peers.call(ONE)
    second, other = peers.call(ONE), peers.call(OTHER)
    assert first.connection == second.connection != other.connection
    assert len(peers) == 2
    second.end()
    other.end()
    assert len(peers) == 1
    third = peers.call(ONE)
    assert third.connection == first.connection
    first.end()
    third.end()
    assert len(peers) == 0
    assert peers.call(ONE).connection != first.connection


def test_answers_of_one_connection_have_a_bound_and_one_alone_has_none() -> None:
    peers, answers = peers_with()
    call, beside = peers.call(ONE), peers.call(ONE)
    call.hold(500)
    with pytest.raises(BadRequest, match=r"on this connection .* hold 500 bytes and may hold 100") as caught:
        beside.hold(1)
    assert caught.value.reason is Reason.OVERLOADED
    peers.call(OTHER).hold(100)
    call.let_go(500)
    beside.hold(60)
    call.hold(40)
    assert answers.held_bytes == 200
    call.end()
    beside.end()
    assert answers.held_bytes == 100


def test_all_answers_together_have_a_bound() -> None:
    peers, answers = peers_with(250)
    calls = [peers.call(f"ipv4:127.0.0.1:{port}") for port in range(3)]
    calls[0].hold(100)
    calls[1].hold(100)
    with pytest.raises(BadRequest, match="of all clients"):
        calls[2].hold(51)
    calls[2].hold(50)
    for call in calls:
        call.end()
    assert (answers.held_bytes, len(peers)) == (0, 0)
