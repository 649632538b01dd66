"""Requests that a client sends ahead of their replies, while the gateway leaves: each that was read has its
answer, and the last answer says that none behind it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

import pytest

from tests.gateway.fakes import FakeCluster, wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, infer_body, request
from tests.patience import PATIENCE_S

DOUBLE = request("POST", "/v2/models/double/infer", infer_body(1))
HOLD = request("POST", "/v2/models/hold/infer", infer_body(1))
LIVE = request("GET", "/v2/health/live")


class Gateway(NamedTuple):
    host: str
    cluster: FakeCluster
    leave: Callable[[], object]
    """Begin to leave; returns once it does."""


@pytest.fixture
def gateway(
    fake: Callable[..., AbstractContextManager[Served]], request: pytest.FixtureRequest
) -> Iterator[Gateway]:
    lame_duck_ms = getattr(request, "param", 600.0)
    with ThreadPoolExecutor(1) as aside, ExitStack() as its:
        served = its.enter_context(fake(lame_duck_ms=lame_duck_ms, drain_timeout_ms=500.0 * PATIENCE_S))
        leaving: list[Future[None]] = []

        def leave() -> None:
            leaving.append(aside.submit(its.pop_all().close))

            def leaves() -> bool:
                with Peer(served.host) as other:
                    return other.ask("GET", "/v2/health/ready").status != 200

            wait_until(leaves)

        assert served.cluster is not None
        yield Gateway(served.host, served.cluster, leave)
        for each in leaving:
            each.result(PATIENCE_S)


def answers(peer: Peer, count: int) -> list[tuple[int, str]]:
    """Read the only so many replies; return the status of each and what it says of the connection."""
    replies = [peer.reply() for _ in range(count)]
    assert peer.ended()
    return [(each.status, each.headers.get("connection", "")) for each in replies]


def held(gateway: Gateway, peer: Peer, behind: bytes, count: int) -> Callable[[], None]:
    """Send one request that is held, with others behind it; return what lets it be answered."""
    before = len(gateway.cluster.arrivals)
    peer.send(HOLD + behind)
    wait_until(lambda: len(gateway.cluster.arrivals) == before + count)
    first = gateway.cluster.arrivals[before].request_id
    return lambda: gateway.cluster.do(lambda: gateway.cluster.dispatch(first, "double"))


def test_what_runs_when_it_begins_to_leave_is_answered_and_the_last_says_so(gateway: Gateway) -> None:
    with Peer(gateway.host) as peer:
        release = held(gateway, peer, DOUBLE + DOUBLE, 3)
        gateway.leave()
        peer.send(DOUBLE)
        release()
        assert answers(peer, 3) == [(200, ""), (200, ""), (200, "close")]
    assert len(gateway.cluster.arrivals) == 3


def test_a_reply_that_waits_for_those_before_it_says_so_too(gateway: Gateway) -> None:
    with Peer(gateway.host) as peer:
        release = held(gateway, peer, DOUBLE + LIVE, 2)
        gateway.leave()
        release()
        assert answers(peer, 3) == [(200, ""), (200, ""), (200, "close")]


@pytest.mark.parametrize("gateway", [3_000.0], indirect=True, ids=["there is time"])
def test_what_comes_when_it_leaves_is_answered_up_to_the_one_that_says_so(gateway: Gateway) -> None:
    gateway.leave()
    with Peer(gateway.host) as peer:
        peer.send(HOLD + DOUBLE + LIVE + DOUBLE)
        wait_until(lambda: gateway.cluster.arrivals)
        first = gateway.cluster.arrivals[0].request_id
        gateway.cluster.do(lambda: gateway.cluster.dispatch(first, "double"))
        # How many are read before the first of them is begun depends on the moment.
        replies = [peer.reply()]
        while replies[-1].headers.get("connection") != "close":
            replies.append(peer.reply())
        assert peer.ended()
    assert [each.status for each in replies] == [200] * len(replies)
    # One of the four, the third, is no inference.
    assert len(gateway.cluster.arrivals) == len(replies) - (len(replies) > 2)
    with Peer(gateway.host) as peer:
        peer.send(LIVE + DOUBLE)
        assert answers(peer, 1) == [(200, "close")]


def test_what_is_not_begun_when_it_takes_no_more_is_refused_and_the_last_says_so(gateway: Gateway) -> None:
    def refuses() -> bool:
        with Peer(gateway.host) as other:
            return other.ask("POST", "/v2/models/double/infer", infer_body(1)).status == 503

    with Peer(gateway.host) as peer:
        # Beyond as many as run side by side, requests wait their turn.
        release = held(gateway, peer, DOUBLE * 99, 64)
        gateway.leave()
        wait_until(refuses)
        peer.send(DOUBLE)
        release()
        told = answers(peer, 100)
    assert [status for status, _ in told] == [200] * 64 + [503] * 36
    assert [says for _, says in told] == [""] * 99 + ["close"]
