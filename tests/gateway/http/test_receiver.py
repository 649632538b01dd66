"""Bytes to requests, however they are cut up."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.http.exchange import Exchange, Fault
from mainspring.gateway.http.receiver import READ_BYTES, Receiver
from mainspring.gateway.memory import Budget
from tests.gateway.http.raw import request

MAX_BODY = 300_000

CODED = b"POST / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: "


class Sink:
    """Keeps what it is given."""

    triton = False

    def __init__(self, *, wanted: bool = True) -> None:
        self.wanted = wanted
        self.requests: list[tuple[bytes, bytes, bytes]] = []
        self.announced: list[int] = []
        self.buffers: list[Any] = []

    def begun(self, exchange: Exchange, body_bytes: int) -> bool:
        self.announced.append(body_bytes)
        return self.wanted

    def received(self, exchange: Exchange) -> None:
        self.requests.append((exchange.method, exchange.target, bytes(exchange.body)))
        self.buffers.append(exchange.body.obj)

    def replied(self, exchange: Exchange) -> None:
        raise AssertionError("nobody replies here")


def receiver(sink: Sink, limit: int = 1 << 30) -> tuple[Receiver, Budget]:
    budget = Budget(limit)
    return Receiver(sink, budget, 1_000, MAX_BODY), budget


def feed(each: Receiver, data: bytes, now_ns: int = 1) -> None:
    """Read ``data`` as the loop does: as much at a time as the receiver's buffer takes."""
    while data:
        buffer = each.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        each.feed(count, now_ns)


BODIES = st.binary(max_size=50) | st.sampled_from([b"x" * READ_BYTES, b"y" * (READ_BYTES * 3 + 7)])


@given(
    st.lists(st.tuples(BODIES, st.sampled_from(["as it is", "chunked", "upgrade"])), min_size=1, max_size=4),
    st.lists(st.integers(1, 200_000), max_size=6),
)
def test_requests_arrive_however_they_are_cut(bodies: list[tuple[bytes, str]], cuts: list[int]) -> None:
    stream = b""
    for number, (body, form) in enumerate(bodies):
        if form != "chunked":
            more = {"connection": "Upgrade", "upgrade": "h2c"} if form == "upgrade" else {}
            if not body:
                more["content_length"] = "0"
            stream += request("POST", f"/{number}", body, **more)
            continue
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
        stream += (
            request("POST", f"/{number}", transfer_encoding="chunked") + chunks + b"0\r\ntrailer: t\r\n\r\n"
        )
    sink = Sink()
    each, budget = receiver(sink)
    start = 0
    for end in [*sorted(cuts), len(stream)]:
        feed(each, stream[start:end])
        start = max(start, end)
    assert sink.requests == [(b"POST", b"/%d" % number, body) for number, (body, _) in enumerate(bodies)]
    assert budget.held_bytes == 0
    assert each.began_ns == 0


def test_a_head_that_begins_in_the_read_of_a_large_body_is_no_larger_for_it() -> None:
    sink = Sink()
    each, _ = receiver(sink)
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n0\r\n\r\n"
    feed(each, request("POST", "/", transfer_encoding="chunked") + chunk + b"GET /ne")
    feed(each, b"xt HTTP/1.1\r\nhost: t\r\n\r\n")
    assert [target for _, target, _ in sink.requests] == [b"/", b"/next"]


def test_a_large_body_is_read_to_where_it_stays() -> None:
    sink = Sink()
    each, budget = receiver(sink)
    body = bytes(range(256)) * 1_000
    data = request("POST", "/", body)
    feed(each, data[:READ_BYTES])
    assert budget.held_bytes > 0
    memory = each.buffer().obj
    feed(each, data[READ_BYTES:])
    assert sink.buffers[0] is memory
    assert sink.requests[0][2] == body
    assert budget.held_bytes == 0


def test_behind_a_large_body_a_request_is_written_to_where_it_stays_from_its_beginning_on() -> None:
    sink = Sink()
    each, budget = receiver(sink)
    body = bytes(range(256)) * 1_000
    for _ in range(3):
        feed(each, request("POST", "/", body))
    assert len(each.buffer()) < READ_BYTES // 100, "what comes along with the head is copied"
    feed(each, request("POST", "/", body[::-1]))
    # A shorter head brings some of the body along, a longer one comes in two reads.
    feed(each, request("POST", "/", body[:-1], accept="text/plain" * 30))
    feed(each, request("POST", "/", b"small"))
    assert len(each.buffer()) == READ_BYTES
    feed(each, request("POST", "/", b"smaller"))
    bodies = [found for _, _, found in sink.requests]
    assert bodies == [body, body, body, body[::-1], body[:-1], b"small", b"smaller"]
    assert budget.held_bytes == 0


def test_what_is_read_behind_a_large_body_begins_the_next_request() -> None:
    sink = Sink()
    each, budget = receiver(sink)
    large = request("POST", "/1", bytes(100_000))
    stream = 2 * (large + request("POST", "/2", b"small")) + request("GET", "/3")
    feed(each, stream)
    assert [(target, len(body)) for _, target, body in sink.requests] == [
        *2 * [(b"/1", 100_000), (b"/2", 5)],
        (b"/3", 0),
    ]
    feed(each, large[:-1])
    assert len(each.buffer()) > 1, "a read that takes all there is has to end before the buffer does"
    assert budget.held_bytes == 100_000 - 1
    feed(each, large[-1:])
    assert budget.held_bytes == 0


def test_what_is_not_wanted_is_not_kept() -> None:
    sink = Sink(wanted=False)
    each, budget = receiver(sink)
    feed(each, request("POST", "/", b"x" * 200_000) + request("GET", "/next"))
    assert [body for _, _, body in sink.requests] == [b"", b""]
    assert budget.held_bytes == 0
    assert sink.announced == [200_000, 0]


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"nonsense\r\n\r\n", 400, "not an HTTP request"),
        *(
            (f"GET / HTTP/{version}\r\nhost: t\r\n\r\n".encode(), 505, "use HTTP/1.1 or 1.0")
            for version in ("0.9", "2.0", "3.0", "9.9")
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "over HTTP/2, is spoken at the gateway's grpc_address"),
        *(
            (CODED + coding + b"\r\n\r\n0\r\n\r\n", 501, "compress it by Content-Encoding")
            for coding in (b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked", b"deflate,Chunked")
        ),
        (b"POST / HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n", 400, "Duplicate"),
        (b"POST / HTTP/1.1\r\ncontent-length: -3\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", 400, "overflow"),
        (
            b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
            "present with",
        ),
        (
            CODED + b"chunked\r\n\r\nzz\r\n",
            400,
            "not an HTTP request",
        ),
        (CODED + b"gzip\r\n\r\n", 501, "the transfer coding 'gzip' is not taken"),
        (
            CODED + b"chunked\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            400,
            "send Content-Length beside Upgrade",
        ),
        (b"CONNECT a:80 HTTP/1.1\r\n\r\n", 400, "only HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nlong: " + b"x" * 2_000 + b"\r\n\r\n", 431, "more than 1,000 bytes"),
        (b"GET /" + b"x" * 2_000, 431, "more than 1,000 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500, 431, "more than 1,000 bytes"),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int, said: str) -> None:
    each, _ = receiver(Sink())
    with pytest.raises(Fault) as caught:
        feed(each, data)
    assert caught.value.status == status
    assert said in caught.value.detail


def test_chunks_that_sum_up_to_too_much_are_refused_on_the_way() -> None:
    each, budget = receiver(Sink())
    feed(each, request("POST", "/", transfer_encoding="chunked"))
    chunk = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    with pytest.raises(Fault) as caught:
        feed(each, chunk * (MAX_BODY // 0x8000 + 1))
    assert caught.value.status == 413
    each.close()
    assert budget.held_bytes == 0


def test_bodies_on_their_way_are_bounded_together() -> None:
    sink = Sink()
    one, budget = receiver(sink, 250_000)
    other = Receiver(sink, budget, 1_000, MAX_BODY)
    data = request("POST", "/", b"x" * 200_000)
    feed(one, data[:150_000])
    with pytest.raises(Fault) as caught:
        feed(other, data[:150_000])
    assert caught.value.status == 503
    other.close()
    assert 149_000 < budget.held_bytes < 150_000, "what the other one held is given back"
    feed(one, data[150_000:])
    assert len(sink.requests) == 1


def test_announcing_much_takes_nothing_of_the_budget() -> None:
    each, budget = receiver(Sink(), 1_000)
    feed(each, request("POST", "/", content_length=str(MAX_BODY)))
    assert each.in_body
    assert budget.held_bytes == 0


def test_as_many_upgrades_as_fit_in_one_read_are_requests_like_others() -> None:
    one = request("GET", "/a", connection="Upgrade", upgrade="x")
    count = READ_BYTES // len(one)
    assert count > 1_000
    sink = Sink()
    each, _ = receiver(sink)
    feed(each, one * count + request("GET", "/b"))
    assert [target for _, target, _ in sink.requests] == [b"/a"] * count + [b"/b"]


def test_an_upgrade_that_is_not_taken_does_not_end_the_connection() -> None:
    sink = Sink()
    each, _ = receiver(sink)
    feed(each, request("GET", "/a", connection="Upgrade", upgrade="h2c") + request("GET", "/b"))
    assert [target for _, target, _ in sink.requests] == [b"/a", b"/b"]


def test_a_body_that_is_not_wanted_ends_the_connection_behind_an_upgrade() -> None:
    sink = Sink(wanted=False)
    each, budget = receiver(sink)
    feed(
        each, request("POST", "/a", b"GET /b HTTP/1.1\r\nhost: t\r\n\r\n", connection="Upgrade", upgrade="x")
    )
    feed(each, request("GET", "/c"))
    assert [target for _, target, _ in sink.requests] == [b"/a"]
    assert budget.held_bytes == 0


def test_nothing_is_taken_behind_a_request_that_closes() -> None:
    sink = Sink()
    each, _ = receiver(sink)
    feed(each, request("GET", "/a", connection="close") + request("GET", "/b"))
    feed(each, request("GET", "/c"))
    assert [target for _, target, _ in sink.requests] == [b"/a"]


def test_times_say_when_a_request_began() -> None:
    each, _ = receiver(Sink())
    data = request("POST", "/", b"x" * 100)
    feed(each, data[:10], now_ns=5)
    assert (each.began_ns, each.in_body) == (5, False)
    feed(each, data[10:-50], now_ns=7)
    assert (each.began_ns, each.last_ns, each.in_body) == (5, 7, True)
    feed(each, data[-50:], now_ns=9)
    assert (each.began_ns, each.in_body) == (0, False)


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_no_bytes_do_harm(pieces: list[bytes]) -> None:
    each, budget = receiver(Sink())
    with contextlib.suppress(Fault):
        for piece in pieces:
            feed(each, piece)
    each.close()
    assert budget.held_bytes == 0
