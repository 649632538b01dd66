"""Clients that send slowly, or nothing, or don't read: bounded, and no harm to others."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import pytest

from mainspring.gateway.descriptors import file_limit, share_of
from tests.gateway.fakes import wait_until
from tests.gateway.http.conftest import Served
from tests.gateway.http.raw import Peer, infer_body, request

INFER = "/v2/models/double/infer"
Fake = Callable[..., AbstractContextManager[Served]]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"POST /v2/mod", 408),
        (request("POST", INFER, content_length="100"), 408),
        (request("POST", INFER, content_length="100000") + b"x" * 70_000, 408),
        (request("POST", INFER, transfer_encoding="chunked") + b"5\r\nabcde\r\n", 408),
    ],
)
def test_a_client_that_stops_sending_is_cut_off(fake: Fake, sent: bytes, status: int | None) -> None:
    timeouts = {
        "http_idle_timeout_ms": 300.0,
        "http_header_timeout_ms": 300.0,
        "http_body_idle_ms": 300.0,
        "http_body_timeout_ms": 60_000.0,
    }
    with fake(**timeouts) as served, Peer(served.host) as peer:
        peer.send(sent)
        if status is not None:
            reply = peer.reply()
            assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert peer.ended()


def test_a_client_that_drips_is_cut_off(fake: Fake) -> None:
    """Each byte comes in time; the whole does not."""
    with (
        fake(http_header_timeout_ms=500.0, http_body_timeout_ms=500.0) as served,
        Peer(served.host) as head,
        Peer(served.host) as body,
    ):
        body.send(request("POST", INFER, content_length="100000"))
        began = time.monotonic()
        ended: dict[Peer, float] = {}
        while len(ended) < 2:
            for peer in {head, body} - ended.keys():
                try:
                    peer.send(b"x")
                except OSError:
                    ended[peer] = time.monotonic()
            assert time.monotonic() - began < 20, "it may drip forever"
            time.sleep(0.02)


def test_a_client_that_does_not_read_is_cut_off(fake: Fake) -> None:
    with fake(http_write_timeout_ms=400.0) as served, Peer(served.host) as peer:
        body = np.zeros(1 << 20, np.float32).tobytes()
        whole = request("POST", "/v2/models/wide/infer", body, inference_header_content_length="0")
        peer.socket.settimeout(20)
        try:
            for _ in range(100):
                peer.send(whole)
        except OSError:
            pass
        else:
            raise AssertionError("400 MB of replies wait for a client that reads none")
        with Peer(served.host) as other:
            assert other.ask("POST", INFER, infer_body()).status == 200


def test_one_client_too_many_is_told_so(fake: Fake) -> None:
    with fake(http_max_connections=3) as served:
        busy = [Peer(served.host) for _ in range(3)]
        cluster = served.cluster
        assert cluster is not None
        for peer in busy:
            peer.send(request("POST", "/v2/models/hold/infer", infer_body()))
        wait_until(lambda: len(cluster.arrivals) == 3)
        with Peer(served.host) as late:
            reply = late.reply()
            assert (reply.status, "as many clients" in reply.json["error"]) == (503, True)
            assert late.ended()
        for peer in busy:
            peer.socket.close()
        wait_until(lambda: len(cluster.cancels) == 3)
        with Peer(served.host) as again:
            assert again.ask("POST", INFER, infer_body()).status == 200


def test_idle_clients_make_room(fake: Fake) -> None:
    with fake(http_max_connections=3) as served:
        idle = [Peer(served.host) for _ in range(3)]

        def served_now() -> bool:
            with Peer(served.host) as peer:
                return peer.ask("GET", "/v2/health/live").status == 200

        wait_until(served_now)
        assert any(peer.ended() for peer in idle[:1]), "the oldest one has to go"


def latency_s(served: Served, rounds: int, before_each: Callable[[], None] = lambda: None) -> float:
    """Return the upper quartile of the time that a small request takes."""
    took = []
    with Peer(served.host) as peer:
        for _ in range(rounds):
            before_each()
            began = time.perf_counter()
            assert peer.ask("POST", INFER, infer_body()).status == 200
            took.append(time.perf_counter() - began)
    return statistics.quantiles(took, n=4)[2]


def check_unharmed(alone_s: float, latency_now_s: Callable[[], float]) -> None:
    """Fail if requests take much longer than they did before, every time that one looks.

    The machine itself may be slow for a moment.
    """
    found = []
    for _ in range(5):
        found.append(latency_now_s())
        if found[-1] < 5 * alone_s + 0.002:
            return
    said = ", ".join(f"{each * 1e3:.2f}" for each in found)
    raise AssertionError(f"{said} ms instead of {alone_s * 1e3:.2f} ms")


@contextmanager
def many(host: str, count: int) -> Iterator[list[Peer]]:
    with ExitStack() as open_peers:
        yield [open_peers.enter_context(Peer(host)) for _ in range(count)]


CLIENTS = """
import resource, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
half_a_head = b"POST /v2/models/double/infer HTTP/1.1\\r\\nhost: t\\r\\ncontent-le"
half_a_body = b"POST /v2/models/double/infer HTTP/1.1\\r\\nhost: t\\r\\ncontent-length: 60000000\\r\\n\\r\\nx"
clients = []
for number in range(count):
    clients.append(socket.create_connection((host, port)))
    clients[-1].sendall((b"", half_a_head, half_a_body)[number % 3])
print("there", flush=True)
sys.stdin.read()
"""
"""A third of them is idle, a third has sent half a head, a third one byte of a large body."""


def test_ten_thousand_idle_and_half_open_clients_harm_nobody(served: Served) -> None:
    # As many as the listener takes, beside the one that is timed.
    count = min(10_000, share_of(file_limit(), listeners=2) - 200)
    assert count > 200, f"{count} descriptors to spare are too few to tell anything"
    alone_s = latency_s(served, 300)
    command = [sys.executable, "-c", CLIENTS, *served.host.split(":"), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        try:
            assert clients.stdout is not None
            assert clients.stdout.readline() == b"there\n"
            check_unharmed(alone_s, lambda: latency_s(served, 300))
        finally:
            clients.kill()


def test_slow_senders_harm_nobody(served: Served) -> None:
    alone_s = latency_s(served, 200)
    with many(served.host, 50) as peers:
        for peer in peers:
            peer.send(request("POST", INFER, transfer_encoding="chunked"))

        def send_on() -> None:
            for peer in peers[:5]:
                peer.send(b"1\r\nx\r\n")

        check_unharmed(alone_s, lambda: latency_s(served, 200, send_on))
