"""The time for which each message of a stream was held on its way, by the clocks of both ends. Pure.

The sender stamps each message with its own clock, the receiver compares the stamp with its own. Two clocks
that run evenly differ by a constant, and the way itself takes a least time; a message that takes longer than
the fastest one lately was held for the difference: in a queue of the sender, a socket or the receiver.

`Ways` takes what a request was held on its way off its SLO. `Back` learns how long answers take from
the gateway to their clients: the controller's deadline is the client's less that (`InferRequest.back_ns`).
"""

from __future__ import annotations

import msgspec

from mainspring.messages.clients import ClientHello, InferRequest

_HALF_LIFE_NS = 2_000_000_000
"""Time in which an estimate halves without new samples."""
_SPAN_NS = 10_000_000_000
"""The minimum covers the last one to two spans: short enough that two clocks whose rates differ by 50 parts
per million stay within a millisecond, long enough that some message is not held."""


class Delays:
    """The delays of one stream, in one direction."""

    __slots__ = ("_least", "_least_before", "_span_began_ns")

    def __init__(self) -> None:
        self._least: int | None = None
        self._least_before: int | None = None
        self._span_began_ns = 0

    def held_ns(self, sent_ns: int, received_ns: int) -> int:
        """Return how much longer a message took than the fastest one lately; 0 for the first.

        ``sent_ns`` is on the sender's clock, ``received_ns`` on the receiver's, and never goes back.
        """
        took = received_ns - sent_ns
        if self._least is None:
            self._least, self._span_began_ns = took, received_ns
        elif received_ns - self._span_began_ns > _SPAN_NS:
            silent = received_ns - self._span_began_ns > 2 * _SPAN_NS
            self._least_before = None if silent else self._least
            self._least, self._span_began_ns = took, received_ns
        elif took < self._least:
            self._least = took
        before = self._least_before
        least = self._least if before is None or self._least < before else before
        return took - least


class Smoothed:
    """A bound that samples rarely exceed: their smoothed mean and four times their smoothed deviation (RFC
    6298)."""

    __slots__ = ("_at_ns", "_deviation_ns", "_mean_ns")

    def __init__(self, sample_ns: int, now_ns: int) -> None:
        self._mean_ns, self._deviation_ns, self._at_ns = sample_ns, sample_ns // 2, now_ns

    def learn(self, sample_ns: int, now_ns: int) -> None:
        """Learn from a sample."""
        self._deviation_ns += (abs(sample_ns - self._mean_ns) - self._deviation_ns) // 4
        self._mean_ns += (sample_ns - self._mean_ns) // 8
        self._at_ns = now_ns

    def expected_ns(self, now_ns: int) -> int:
        """Return the estimate, which decays while no sample comes."""
        halves = max(0, now_ns - self._at_ns) // _HALF_LIFE_NS
        return (self._mean_ns + 4 * self._deviation_ns) >> min(halves, 62)


HTTP = b"http"
"""The way of all HTTP connections."""
_MOST = 4_096
"""Ways and sizes that are remembered."""
_LARGEST_SHARE = 4
"""Divisor of the SLO: no more than this share is kept for the way back, so that one bad moment does not end
all service."""


class Ways:
    """The way of each client that stamps what it sends, by its connection."""

    def __init__(self) -> None:
        self._delays: dict[bytes, Delays] = {}

    def hello(self, now_ns: int, peer: bytes, message: ClientHello) -> None:
        """Begin with a client's hello: it was most likely held by nothing."""
        self._delays.pop(peer, None)
        if message.sent_ns is not None:
            delays = self._delays[peer] = Delays()
            delays.held_ns(message.sent_ns, now_ns)

    def forget(self, peer: bytes) -> None:
        """A client is gone."""
        self._delays.pop(peer, None)

    def arrived(self, now_ns: int, peer: bytes, request: InferRequest) -> InferRequest:
        """Return a request with what is left of its SLO now that it is here; at least a nanosecond.

        What is too late already is refused by the controller, which knows what would have been possible.
        """
        if request.sent_ns is None:
            return request
        delays = self._delays.get(peer)
        if delays is None:
            delays = self._delays[peer] = Delays()
        held_ns = delays.held_ns(request.sent_ns, now_ns)
        if request.slo_ns is None or request.slo_ns <= 0 or not held_ns:
            return request
        return msgspec.structs.replace(request, slo_ns=max(1, request.slo_ns - held_ns))


class Back:
    """The time that answers take, learnt for each way and size.

    A way is whatever its answers' times have in common: HTTP's all end with the kernel and are one way;
    gRPC's end when the client's library has them, so each connection is a way of its own, and a client that
    reads slowly is planned earlier alone.
    """

    def __init__(self) -> None:
        self._estimates: dict[tuple[bytes, int], Smoothed] = {}

    def took(self, way: bytes, size_bytes: int, took_ns: int, now_ns: int) -> None:
        """Learn from an answer of about this size."""
        kind = (way, size_bytes.bit_length())
        known = self._estimates.get(kind)
        if known is None:
            if len(self._estimates) >= _MOST:
                del self._estimates[next(iter(self._estimates))]
            self._estimates[kind] = Smoothed(took_ns, now_ns)
        else:
            known.learn(took_ns, now_ns)

    def expected_ns(self, way: bytes, size_bytes: int, slo_ns: int | None, now_ns: int) -> int:
        """Return what such an answer takes, at most a part of its SLO; 0 before one was seen."""
        known = self._estimates.get((way, size_bytes.bit_length()))
        if known is None or slo_ns is None:
            return 0
        return min(known.expected_ns(now_ns), max(0, slo_ns) // _LARGEST_SHARE)
