"""What answers take from the request table to the client, learnt for each way and size. Pure.

Front ends in the gateway's own loop say what each answer took until the kernel, or the library that writes
it, was done with it. The controller's deadline is the client's less that (`InferRequest.back_ns`).
"""

from __future__ import annotations

from mainspring.messages.delays import Smoothed

HTTP = b"http"
"""The way of all HTTP connections."""
_MOST = 4_096
"""Ways and sizes that are remembered."""
_LARGEST_SHARE = 4
"""At most this part of an SLO is kept for the way back: one bad moment must not end all service."""


class Back:
    """See the module's docstring.

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
