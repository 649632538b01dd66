"""Whose calls are in flight."""

from __future__ import annotations

import itertools

from mainspring.gateway.grpc.peers import Peers
from mainspring.gateway.sends import Connection


def test_calls_of_one_client_share_a_connection_while_any_is_in_flight() -> None:
    numbers = itertools.count()
    peers = Peers(lambda: Connection("calls", bytes([next(numbers)])))
    with peers.call("ipv4:127.0.0.1:1") as first:
        with peers.call("ipv4:127.0.0.1:1") as second, peers.call("ipv4:127.0.0.1:2") as other:
            assert first == second != other
            assert len(peers) == 2
        assert len(peers) == 1
        with peers.call("ipv4:127.0.0.1:1") as third:
            assert third == first
    assert len(peers) == 0
    with peers.call("ipv4:127.0.0.1:1") as later:
        assert later != first
