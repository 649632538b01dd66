"""The time for which each message of a stream was held on its way, by the clocks of both ends. Pure.

The sender stamps each message with its own clock, the receiver compares the stamp with its own. Two clocks
that run evenly differ by a constant, and the way itself takes a least time; a message that takes longer than
the fastest one lately was held for the difference: in a queue of the sender, a socket or the receiver.
"""

from __future__ import annotations

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
