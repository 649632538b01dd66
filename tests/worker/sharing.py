"""A gateway of the worker's host, which shares memory with it over a real connection."""

from __future__ import annotations

import time

from mainspring.messages.codec import FROM_WORKER, encode
from mainspring.messages.peers import FromGateway, FromWorker, Place, Segment
from mainspring.transport.bounds import Delivery, Limits
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.shared_memory import OwnMemory, map_to_read
from mainspring.transport.slab import Reader, Slab
from tests.patience import PATIENCE_S


class Sharing:
    """A gateway with a slab, which the worker has mapped."""

    def __init__(self, address: str) -> None:
        self.hub = Hub()
        limits = Limits(1 << 28, 1 << 28, 1 << 12, descriptors=1)
        self.link = Link(self.hub, address, limits, shows=Pass("gateway"), keeps=True)
        self.own = OwnMemory("test-inputs", 4 << 20)
        self.slab = Slab(self.own.bytes)
        while not self.link.connected:
            self.hub.wait(1_000_000)
        offer = encode(Segment(self.own.size))
        assert self.link.send_descriptor((offer,), self.own.descriptor) is Delivery.SENT
        answer, _ = self.receive()
        assert isinstance(answer, Segment)
        descriptor = self.link.descriptor()
        assert (descriptor is None) == (answer.size == 0)
        self.outputs = None if descriptor is None else Reader(map_to_read(descriptor, answer.size))

    def receive(self) -> tuple[FromWorker, list[bytes]]:
        until_s = time.monotonic() + PATIENCE_S
        while (parts := self.link.receive()) is None:
            assert time.monotonic() < until_s, "the worker said nothing"
            self.hub.wait(1_000_000)
        return FROM_WORKER.decode(parts[0]), parts[1:]

    def placed(self, content: bytes) -> tuple[memoryview, Place]:
        """Put content into the slab; return what keeps it there, and where it is."""
        view = self.slab.take(len(content))
        assert view is not None
        view[:] = content
        found = self.slab.find(view)
        assert found is not None
        return view, Place(found[0], len(content), found[1], found[2])

    def send(self, message: FromGateway) -> None:
        assert self.link.send((encode(message),)) is Delivery.SENT
        self.hub.wait(0)

    def close(self) -> None:
        self.hub.close()
        self.own.close()
