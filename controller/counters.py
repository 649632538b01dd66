"""Counts of dropped messages by reason, and a limit on how often a peer is refused. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

ANSWER_INTERVAL_NS: Final = 50_000_000
"""A peer is sent the same code at most once in this time."""
PEERS_REMEMBERED: Final = 4096
"""(peer, code) pairs whose last answer is remembered; beyond it the oldest is forgotten."""


class Dropped:
    """Messages that could not be used or sent, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, why: str, messages: int = 1) -> None:
        """Count messages dropped for this reason."""
        self._counts[why] += messages

    def __getitem__(self, why: str) -> int:
        """Return how many messages were dropped for this reason."""
        return self._counts[why]

    def snapshot(self) -> dict[str, int]:
        """Return every count above zero, sorted by reason."""
        return {why: count for why, count in sorted(self._counts.items()) if count}


class AnswerLimit:
    """The limit on answers `Refused` of one code to a peer: at most one each `ANSWER_INTERVAL_NS`."""

    def __init__(self) -> None:
        self._last_ns: OrderedDict[tuple[bytes, str], int] = OrderedDict()

    def allows(self, now_ns: int, peer: bytes, code: str) -> bool:
        """Say whether an answer may be sent now; if so, note that it is sent."""
        key = (peer, code)
        last_ns = self._last_ns.get(key)
        if last_ns is not None and now_ns - last_ns < ANSWER_INTERVAL_NS:
            return False
        self._last_ns[key] = now_ns
        self._last_ns.move_to_end(key)
        if len(self._last_ns) > PEERS_REMEMBERED:
            self._last_ns.popitem(last=False)
        return True
