"""How long each message of a stream was held on its way, by the clocks of both ends. Pure.

The sender stamps each message with its own clock, the receiver compares the stamp with its own. Two clocks
that run evenly differ by a constant, and the way itself takes a least time; what a message took beyond the
least that one took lately is what it was held: in a queue of the sender's, of a socket, of the receiver's.
"""

from __future__ import annotations

_SPAN_NS = 10_000_000_000
"""The least is of the last one to two such spans: short enough that two clocks that differ by 50 millionths
stay within a millisecond, long enough that some message finds the way free."""


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
