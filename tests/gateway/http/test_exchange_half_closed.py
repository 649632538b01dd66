"""Clients that close their side behind a request and read on are answered; others are gone."""

from __future__ import annotations

import socket

import pytest

from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, infer_body, request

HOLD = "/v2/models/hold/infer"


def test_a_client_that_still_reads_gets_its_replies_in_their_order(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    arrived = len(cluster.arrivals)
    with Peer(served.host) as peer:
        peer.send(request("POST", HOLD, infer_body()) + request("POST", HOLD, infer_body(2)))
        peer.send(request("GET", "/v2/health/live"))
        peer.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: len(cluster.arrivals) == arrived + 2)
        peer.socket.settimeout(0.3)
        assert peer.socket.recv(1 << 16, socket.MSG_PEEK) == b"HTTP/1.1 ", "what all replies begin with"
        peer.socket.settimeout(30)
        first, second = (each.request_id for each in cluster.arrivals[arrived:])
        cluster.do(lambda: cluster.dispatch(second))
        cluster.do(lambda: cluster.dispatch(first))
        assert [len(peer.reply().json["outputs"][0]["data"]) for _ in range(2)] == [4, 8]
        assert peer.reply().json == {"live": True}
        assert peer.ended()


@pytest.mark.parametrize("body", [b"x" * 100, infer_body(1, 3)])
def test_a_refusal_is_read_too(served: Served, body: bytes) -> None:
    with Peer(served.host) as peer:
        peer.send(request("POST", "/v2/models/double/infer", body))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.reply().status == 400
        assert peer.ended()


def test_a_client_that_is_gone_gives_its_requests_up(served: Served) -> None:
    cluster = served.cluster
    assert cluster is not None
    arrived, cancelled = len(cluster.arrivals), len(cluster.cancels)
    with Peer(served.host) as peer:
        peer.send(request("POST", HOLD, infer_body()))
        wait_until(lambda: len(cluster.arrivals) == arrived + 1)
    wait_until(lambda: len(cluster.cancels) == cancelled + 1)


@pytest.mark.parametrize("sent", [b"POST /v2/mod", request("POST", HOLD, infer_body())[:-9]])
def test_what_ends_in_the_midst_of_a_request_is_told_so(served: Served, sent: bytes) -> None:
    with Peer(served.host) as peer:
        peer.send(sent)
        peer.socket.shutdown(socket.SHUT_WR)
        reply = peer.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert "ended in the midst of a request" in reply.json["error"]
        assert peer.ended()


def test_nothing_was_asked_for(served: Served) -> None:
    with Peer(served.host) as peer:
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.ended()
