"""Messages that have begun to come: one that stops growing ends its connection, with what was kept of it."""

from __future__ import annotations

from mainspring.transport.bounds import PROGRESS_NS
from mainspring.transport.channel import Channel

LOOK_AGAIN_NS = 1_000_000_000
"""From the end of the time to the verdict: a process that stood still itself has read its sockets by then."""
IDLE_NS = 1 << 61


class Progress:
    """Of the connections of one listener."""

    def __init__(self) -> None:
        self._due: dict[Channel, tuple[int, bool]] = {}
        """When each is looked at, and whether that is for the second time."""

    def __bool__(self) -> bool:
        return bool(self._due)

    def unfinished(self, channel: Channel, now_ns: int) -> int:
        """Note that a message is under way; return when `overdue` is to be asked."""
        if channel not in self._due:
            channel.grows()
            self._due[channel] = now_ns + PROGRESS_NS, False
        return self._due[channel][0]

    def finished(self, channel: Channel) -> None:
        """Note that the message came whole, or the connection is over."""
        self._due.pop(channel, None)

    def overdue(self, now_ns: int) -> list[Channel]:
        """Return the connections whose message has stopped growing; `finished` must be called for each."""
        found = []
        for channel, (due_ns, again) in list(self._due.items()):
            if due_ns > now_ns:
                continue
            if not channel.drained or channel.grows():
                self._due[channel] = now_ns + PROGRESS_NS, False
            elif again:
                found.append(channel)
            else:
                self._due[channel] = now_ns + LOOK_AGAIN_NS, True
        return found

    @property
    def next_ns(self) -> int:
        """When `overdue` is to be asked."""
        return min((due_ns for due_ns, _ in self._due.values()), default=IDLE_NS)
