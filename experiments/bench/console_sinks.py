"""Observers that read what they get and make nothing of it: what consoles cost the controller, without them.

``python -m mainspring.experiments.bench.console_sinks ADDRESS``: each line on stdin is how many there are to
be; the answer is a line with the bytes that came since the last one, and the longest time to a whole picture.
"""

from __future__ import annotations

import select
import sys
import time

from mainspring.messages.codec import TO_OBSERVER, encode
from mainspring.messages.observing import OBSERVER_VERSION, ObserverHello, Records, Stage
from mainspring.messages.peers import Goodbye, Ping, Pong
from mainspring.transport.bounds import Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link

LIMITS = Limits(part_bytes=256 << 20, backlog_bytes=1 << 20, backlog_messages=1_000)


class Sinks:
    """Some observers."""

    def __init__(self, address: str) -> None:
        self.received_bytes = 0
        self.picture_s = 0.0
        self._address = address
        self._hub = Hub()
        self._links: list[Link] = []
        self._began: dict[int, float] = {}
        self._count = 0

    def become(self, count: int) -> None:
        """Be so many."""
        while len(self._links) > count:
            link = self._links.pop()
            link.send((encode(Goodbye("done")),))
            link.close(time.monotonic_ns() + 100_000_000)
        while len(self._links) < count:
            self._count += 1
            name = f"sink-{self._count}".encode()
            link = Link(self._hub, self._address, LIMITS, name=name, keeps=True, shows=Pass("observer"))
            link.send((encode(ObserverHello(OBSERVER_VERSION, "sink")),))
            self._began[id(link)] = time.monotonic()
            self._links.append(link)
        self.received_bytes, self.picture_s = 0, 0.0

    def turn(self) -> None:
        """Read what has come."""
        self._hub.wait(20_000_000)
        for link in self._links:
            while (parts := link.receive()) is not None:
                self.received_bytes += sum(map(len, parts))
                message = TO_OBSERVER.decode(parts[0])
                if isinstance(message, Ping):
                    now_ns = time.monotonic_ns()
                    link.send((encode(Pong(message.sequence, message.sent_ns, now_ns, now_ns)),))
                elif isinstance(message, Records) and message.stage is Stage.END:
                    took_s = time.monotonic() - self._began[id(link)]
                    self.picture_s = max(self.picture_s, took_s)


def main(address: str) -> None:
    """Follow stdin until it ends."""
    sinks = Sinks(address)
    while True:
        sinks.turn()
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            print(sinks.received_bytes, sinks.picture_s, flush=True)
            sinks.become(int(line))


if __name__ == "__main__":
    main(sys.argv[1])
