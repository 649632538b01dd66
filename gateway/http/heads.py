"""Heads of requests that were parsed before: a client sends the same one again and again.

To parse a head costs more than all else that a request costs until it is refused. So the bytes of a head are
remembered with what was in them, and a request whose head has these bytes, and that comes whole in one read,
is not parsed again. Of what a client shows to prove who it is nothing is kept.
"""

from __future__ import annotations

from typing import NamedTuple

from mypy_extensions import mypyc_attr

MOST = 1_024
"""Heads that are remembered; once there are more, all are forgotten."""
LONGEST_BYTES = 1_024
"""Of a head that is remembered."""
_END = b"\r\n\r\n"
_PASSING = (
    *(b"authorization", b"cookie", b"expect", b"proxy-authorization"),
    *(b"traceparent", b"tracestate", b"transfer-encoding", b"upgrade"),
)
"""Headers that are secret, different in every request, or say that the head alone is not what counts."""


class Head(NamedTuple):
    """What was in a head."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    """By lower-case name; nobody may change them."""
    version: str
    length: int
    """Of the body."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Heads:
    """What all connections of a server remember."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, head: bytes) -> Head | None:
        """Return what is in a head with its last line, if that is remembered."""
        return self._known.get(head)

    def keep(self, head: bytes, found: Head) -> None:
        """Remember what was found in a head, unless it is of a kind that is not."""
        if any(name in found.headers for name in _PASSING):
            return
        if head[:1].isspace() or head.count(b"\n") != head.count(b"\r\n"):
            # Then it may end elsewhere than behind the first empty line.
            return
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[head] = found


def head_of(read: bytearray, count: int) -> bytes:
    """Return the head that what was read begins with, its empty line included; empty if it is too long."""
    end = read.find(_END, 0, min(count, LONGEST_BYTES))
    return b"" if end < 0 else bytes(read[: end + len(_END)])
