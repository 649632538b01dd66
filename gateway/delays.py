"""What messages take on their way from clients to the gateway, and answers on their way back. Pure.

Clients stamp what they send: what a request was held on its way comes off its SLO. Front ends in the
gateway's own loop say what each answer took until the kernel, or the library that writes it, was done with
it: the controller's deadline is the client's less that (`InferRequest.back_ns`).
"""

from __future__ import annotations

import msgspec

from mainspring.messages.clients import ClientHello, InferRequest
from mainspring.messages.delays import Delays, Smoothed

HTTP = b"http"
"""The way of all HTTP connections."""
_MOST = 4_096
"""Ways and sizes that are remembered."""
_LARGEST_SHARE = 4
"""At most this part of an SLO is kept for the way back: one bad moment must not end all service."""


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
    """What answers take, learnt for each way and size.

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
