"""The time from the client to the gateway and back to the caller, learnt from replies. Pure.

The way back is learnt for each size of answer, as the retransmission timer of TCP is (RFC 6298): a smoothed
mean and four times the smoothed deviation. It ends where the caller has its result, so that a busy event loop
between the socket and the caller is part of it.
"""

from __future__ import annotations

from mainspring.messages.delays import Delays, Smoothed

_LARGEST_SHARE = 4
"""Divisor of an SLO: at most 1/4 is reserved for the way back, so that one bad moment can't end all
service."""
_MODELS = 4_096
"""Models whose answers' sizes are remembered."""


class Paths:
    """Both ways of one connection; instants are on the client's clock unless stated otherwise."""

    def __init__(self) -> None:
        self._back = Delays()
        self._least_round_ns: int | None = None
        self._estimates: dict[int, Smoothed] = {}
        self._bytes_of: dict[str, int] = {}

    @property
    def one_way_ns(self) -> int:
        """Half of the fastest round trip: what no comparison of clocks can show."""
        return 0 if self._least_round_ns is None else self._least_round_ns // 2

    def round_trip(self, took_ns: int) -> None:
        """Learn from a message and its acknowledgement."""
        if self._least_round_ns is None or took_ns < self._least_round_ns:
            self._least_round_ns = max(0, took_ns)

    def came_back(self, left_gateway_ns: int, now_ns: int, size_bytes: int, model: str | None = None) -> None:
        """Learn from an answer that is with its caller now.

        ``left_gateway_ns`` is on the gateway's clock; ``model`` is whose answers have this size, None for an
        answer without outputs.
        """
        sample_ns = self._back.held_ns(left_gateway_ns, now_ns) + self.one_way_ns
        size_class = size_bytes.bit_length()
        known = self._estimates.get(size_class)
        if known is None:
            self._estimates[size_class] = Smoothed(sample_ns, now_ns)
        else:
            known.learn(sample_ns, now_ns)
        if model is not None:
            if len(self._bytes_of) >= _MODELS:
                self._bytes_of.clear()
            self._bytes_of[model] = size_bytes

    def slowest_ns(self, now_ns: int) -> int:
        """Return what an answer of the slowest size is expected to take to its caller."""
        return max((each.expected_ns(now_ns) for each in self._estimates.values()), default=0)

    def back_ns(self, now_ns: int, model: str, slo_ns: int) -> int:
        """Return what an answer for ``model`` is expected to take to its caller, at most a share of its SLO.

        Before the model's first answer it is that of the slowest size known.
        """
        size_class = self._bytes_of.get(model, -1).bit_length()
        found = self._estimates.get(size_class) if model in self._bytes_of else None
        expected_ns = self.slowest_ns(now_ns) if found is None else found.expected_ns(now_ns)
        return min(expected_ns, max(0, slo_ns) // _LARGEST_SHARE)
