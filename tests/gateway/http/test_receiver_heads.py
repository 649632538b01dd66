"""Heads that came before: what is remembered, and that requests are the same as if all were parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.http.exchange import Exchange, Fault
from mainspring.gateway.http.receiver import LONGEST_BYTES, MOST, Head, Heads, Receiver, head_of
from mainspring.gateway.memory import Budget
from tests.gateway.http.raw import request


class Sink:
    """Keeps what it is given, and refuses bodies of more than 100 bytes."""

    triton = False

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []

    def begun(self, exchange: Exchange, body_bytes: int) -> bool:
        if body_bytes > 100:
            raise Fault(413, "too large")
        return exchange.target != b"/nowhere"

    def received(self, exchange: Exchange) -> None:
        what = (exchange.method, exchange.target, exchange.headers, exchange.version, bytes(exchange.body))
        self.requests.append((*what, exchange.keeps_alive, exchange.arrived_ns))

    def replied(self, exchange: Exchange) -> None:
        raise AssertionError("nobody replies here")


class Known(Heads):
    """Counts what was found."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def find(self, head: bytes) -> Head | None:
        known = super().find(head)
        self.found += known is not None
        return known


class Nothing(Heads):
    """Remembers nothing."""

    def keep(self, head: bytes, found: Head) -> None:
        pass


def outcome(heads: Heads, reads: list[bytes]) -> tuple[Sink, str, int]:
    """Return what becomes of what is read: the requests, the fault that ended it, and what is still held."""
    sink, budget = Sink(), Budget(1 << 20)
    each = Receiver(sink, budget, 2_000, 1_000, heads=heads)
    try:
        for now_ns, data in enumerate(reads, 1):
            fed = 0
            while fed < len(data):
                buffer = each.buffer()
                part = data[fed : fed + len(buffer)]
                buffer[: len(part)] = part
                each.feed(len(part), now_ns)
                fed += len(part)
    except Fault as fault:
        return sink, f"{fault.status} {fault.detail}", budget.held_bytes
    return sink, "", budget.held_bytes


HEADS = st.sampled_from(
    [
        request("GET", "/v2"),
        request("POST", "/a", b"one"),
        request("POST", "/a", b"two"),
        request("POST", "/nowhere", b"1234"),
        request("POST", "/a", b"x" * 101),
        request("POST", "/secret", b"one", authorization="Bearer t"),
        request("POST", "/last", b"one", connection="close"),
        request("POST", "/c", transfer_encoding="chunked") + b"3\r\nabc\r\n0\r\n\r\n",
        b"GET /old HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        b"\r\n\r\n",
        b"\r\n" + request("GET", "/v2"),
        b"POST /bare HTTP/1.1\nhost: t\ncontent-length: 2\n\nab\r\n\r\n",
        b"POST /bare HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\n\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ]
)


@given(st.lists(HEADS, min_size=1, max_size=3), st.lists(st.lists(HEADS, min_size=1, max_size=2), max_size=8))
def test_requests_are_what_they_are_if_all_are_parsed(first: list[bytes], reads: list[list[bytes]]) -> None:
    heads = Heads()
    for each in first:
        outcome(heads, [each, each])
    compare(heads, [b"".join(parts) for parts in reads])


@given(st.lists(HEADS, min_size=1, max_size=8), st.lists(st.integers(1, 150), min_size=1, max_size=30))
def test_it_is_so_wherever_reads_end(requests: list[bytes], sizes: list[int]) -> None:
    heads = Heads()
    for each in requests:
        outcome(heads, [each])
    stream, reads = b"".join(requests), []
    for size in sizes:
        reads.append(stream[:size])
        stream = stream[size:]
    compare(heads, [each for each in (*reads, stream) if each])


def compare(heads: Heads, joined: list[bytes]) -> None:
    """Check that what becomes of reads is the same as if nothing were remembered."""
    known, known_fault, known_held = outcome(heads, joined)
    parsed, parsed_fault, parsed_held = outcome(Nothing(), joined)
    assert known.requests == parsed.requests
    assert known_fault == parsed_fault
    assert known_held == parsed_held


@pytest.mark.parametrize("size", [1, 20])
def test_a_head_that_came_before_is_not_parsed_again(size: int) -> None:
    heads, body = Known(), b"b" * size
    sink, _, _ = outcome(heads, [request("POST", "/a", body)] * 5)
    assert heads.found == 4
    assert [each[-1] for each in sink.requests] == [1, 2, 3, 4, 5], "each came when it was read"


def test_nor_is_one_whose_body_comes_later() -> None:
    heads, whole = Known(), request("POST", "/a", b"b" * 90)
    outcome(heads, [whole])
    for cut in (whole.index(b"\r\n\r\n") + 4, len(whole) - 50, len(whole) - 1):
        sink, fault, held = outcome(heads, [whole[:cut], whole[cut:], whole])
        assert (len(sink.requests), fault, held) == (2, "", 0)
        assert [each[4] for each in sink.requests] == [b"b" * 90] * 2
    assert heads.found == 6
    unwanted = request("POST", "/nowhere", b"b" * 90)
    outcome(heads, [unwanted])
    sink, _, held = outcome(heads, [unwanted[:-60], unwanted[-60:], whole])
    assert ([each[4] for each in sink.requests], held) == ([b"", b"b" * 90], 0)


@pytest.mark.parametrize(
    "secret",
    [
        request("POST", "/a", b"one", authorization="Bearer t"),
        request("POST", "/a", b"one", cookie="t"),
        request("POST", "/a", b"one", traceparent="00-1-1-00"),
        request("POST", "/a", b"one", long="x" * LONGEST_BYTES),
        request("POST", "/a", b"one", connection="close"),
    ],
)
def test_what_is_secret_passing_or_long_is_not_remembered(secret: bytes) -> None:
    heads = Known()
    outcome(heads, [secret])
    outcome(heads, [secret])
    assert heads.found == 0


def test_of_too_many_the_former_are_forgotten() -> None:
    heads = Known()
    outcome(heads, [request("GET", f"/{number}") for number in range(MOST + 1)])
    outcome(heads, [request("GET", "/0")])
    assert heads.found == 0, "the first were forgotten"
    outcome(heads, [request("GET", f"/{MOST}")])
    assert heads.found == 1


def test_the_head_ends_behind_its_empty_line() -> None:
    assert head_of(bytearray(b"GET / HTTP/1.1\r\n\r\nmore"), 22) == b"GET / HTTP/1.1\r\n\r\n"
    assert head_of(bytearray(b"GET / HTTP/1.1\r\n\r\nmore"), 17) == b"", "what was read ends before it does"


@pytest.mark.parametrize("head", [b"\r\nGET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\na: b\r\n\r\n"])
def test_what_may_end_elsewhere_is_not_remembered(head: bytes) -> None:
    heads = Heads()
    heads.keep(head, Head(b"GET", b"/", {}, "1.1", 0))
    assert heads.find(head) is None
