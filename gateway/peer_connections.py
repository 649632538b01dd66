"""The connections to the controller and to the workers' data addresses; nothing here ever waits."""

from __future__ import annotations

import os
import secrets
import socket as sockets
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final

import msgspec

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.memory import Lent, Memory
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import FROM_WORKER, BadMessage, encode
from mainspring.messages.peers import (
    ClientSegment,
    ClientSegmentOver,
    ClientSegmentTaken,
    GatewayHello,
    Input,
    Output,
    Place,
    Read,
    Segment,
    Taken,
)
from mainspring.messages.roles import Role
from mainspring.transport import controllers
from mainspring.transport.bounds import Delivery, Limits, Port
from mainspring.transport.greeting import Pass, present
from mainspring.transport.handshake import Identity
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.shared_memory import Unusable, map_to_read
from mainspring.transport.slab import LEAST_SHARED_BYTES, Found, Reader

_LARGEST_PART: Final = 8
"""The worker is told as soon as this part of its memory may be written again."""

Sent = tuple[Input, Sequence[Any], list[Any]]
"""A message, its frames, and what of the slab it names."""


class Shared:
    """See the module's docstring; of one link, over all of its connections."""

    def __init__(self, link: Port, memory: Memory) -> None:
        self._link = link
        self._memory = memory
        self._opened = 0
        """The number of the link's connection that this is about."""
        self._offered = self._answered = False
        """Whether the slab was offered over the connection, and whether the worker has it."""
        self._sent = 0
        """Inputs with places that went over it."""
        self._leases: deque[tuple[int, list[Any]]] = deque()
        """The inputs that the worker may still read, by number, with the bytes that each named."""
        self._clients: dict[int, bool] = {}
        """Clients' segments that were handed on, by number: whether the worker reads them."""
        self._outputs: Reader | None = None
        self._outputs_bytes = 0
        self._lent: dict[int, weakref.ref[Any]] = {}
        """Places of the worker that are in use here, by stamp."""
        self._ended: deque[tuple[int, int]] = deque()
        """Stamps and sizes of those that are so no more."""
        self._unsaid: list[int] = []
        """The stamps that the worker is yet to be told of."""
        self._unsaid_bytes = 0

    # --- inputs ---

    def send(self, message: msgspec.Struct, frames: Sequence[Any]) -> Delivery:
        """Send a message with its tensors, those that are large as places if the worker can read them."""
        if self._ready() and isinstance(message, Input):
            placed, left, named = self._placed(message, frames)
            delivery = self._link.send((encode(placed), *left), keeps=not named)
            if delivery is Delivery.SENT:
                self._note_sent(placed, named)
            if delivery is not Delivery.GONE:
                return delivery
        # Without a connection they are kept for the next one, where places of this one mean nothing.
        return self._link.send((encode(message), *frames))

    def _ready(self) -> bool:
        """Return whether the worker reads the slab; offer it over a new connection."""
        link = self._link
        if link.opened != self._opened:
            self._opened = link.opened
            self._forget()
        if not self._offered and link.local and self._memory.size:
            offer = encode(Segment(self._memory.size))
            self._offered = link.send_descriptor((offer,), self._memory.descriptor) is Delivery.SENT
        return self._answered and link.connected

    def _forget(self) -> None:
        """Forget what was about a connection that has ended."""
        self._offered = self._answered = False
        self._sent = 0
        self._leases.clear()
        self._clients.clear()
        self._outputs = None
        self._lent.clear()
        self._ended = deque()
        self._unsaid, self._unsaid_bytes = [], 0

    def _placed(self, message: Input, frames: Sequence[Any]) -> Sent:
        places: list[Place | None] = []
        left: list[Any] = []
        named: list[Any] = []
        for frame in frames:
            shared = self._shared(frame) if len(frame) >= LEAST_SHARED_BYTES else None
            if shared is None:
                places.append(None)
                left.append(frame)
            else:
                view, place = shared
                places.append(place)
                named.append(view)
        self._collect()
        if not named and not self._unsaid:
            return message, frames, named
        said = tuple(self._unsaid)
        more = msgspec.structs.replace(message, places=tuple(places) if named else (), read=said)
        return more, left, named

    def _note_sent(self, message: Input, named: list[Any]) -> None:
        """Keep what a message that was sent names; the worker is told what it says."""
        if named:
            self._sent += 1
            self._leases.append((self._sent, named))
        if message.read:
            self._unsaid, self._unsaid_bytes = [], 0

    def _shared(self, frame: Any) -> tuple[memoryview, Place] | None:
        """Return a tensor's bytes where the worker can read them, and their place; None: they are sent."""
        if type(frame) is memoryview and (lent := self._memory.lendings.find(frame)) is not None:
            segment, offset = lent
            if self._reads(segment):
                return frame, Place(offset, len(frame), 0, 0, segment.number)
        found = self._in_slab(frame)
        if found is None:
            return None
        view, (offset, slot, stamp) = found
        return view, Place(offset, len(view), slot, stamp)

    def _reads(self, segment: Lent) -> bool:
        """Return whether the worker reads a client's memory, which it is given if it was not."""
        known = self._clients.get(segment.number)
        if known is None:
            offer = encode(ClientSegment(segment.number, len(segment.mapped)))
            if self._link.send_descriptor((offer,), segment.descriptor) is Delivery.SENT:
                self._clients[segment.number] = False
        return bool(known)

    def _end_clients(self) -> None:
        """Have the worker unmap the memory of clients that have left."""
        over = self._clients.keys() - self._memory.lendings.numbers
        for number in over:
            if self._link.send((encode(ClientSegmentOver(number)),), keeps=False) is Delivery.SENT:
                del self._clients[number]

    def _in_slab(self, frame: Any) -> tuple[memoryview, Found] | None:
        """Return a tensor's bytes in the slab, where they are copied if they are not; None: no room."""
        if type(frame) is memoryview and (found := self._memory.find(frame)) is not None:
            return frame, found
        # One copy: a frame takes two, and wakes the worker for each piece of it.
        place = self._memory.share(len(frame))
        if place is None:
            return None
        place[:] = frame
        found = self._memory.find(place)
        assert found is not None, "a place that was just taken"
        return place, found

    # --- outputs ---

    def receive(self, parts: Sequence[Any]) -> tuple[Output, tuple[Any, ...]] | None:
        """Return a worker's outputs; None for a message that is about the memory. Raises `BadMessage`."""
        message = FROM_WORKER.decode(parts[0])
        match message:
            case Segment():
                self._begin(message)
                return None
            case Taken():
                self._took(message.inputs)
                return None
            case ClientSegmentTaken(number=number, refusal=refusal):
                if number in self._clients:
                    self._clients[number] = not refusal
                return None
            case Output():
                self._took(message.taken)
                return message, self._frames(message, parts[1:])

    def _begin(self, message: Segment) -> None:
        """Map the memory that the worker answers with."""
        descriptor = self._link.descriptor()
        if self._link.opened != self._opened or not self._offered or self._answered:
            raise BadMessage("a segment came that was not asked for")
        self._answered = True
        if descriptor is None:
            return
        try:
            self._outputs = Reader(map_to_read(descriptor, message.size))
            self._outputs_bytes = message.size
        except (Unusable, ValueError, OSError) as error:
            raise BadMessage(f"the segment can't be used: {error}") from None

    def _took(self, inputs: int) -> None:
        """Let go of what the worker reads no more."""
        if inputs > self._sent:
            raise BadMessage(f"{inputs} inputs are said to be read, and {self._sent} were sent")
        leases = self._leases
        while leases and leases[0][0] <= inputs:
            leases.popleft()

    def _frames(self, message: Output, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return the tensors of a message, those that have places uncopied; raise `BadMessage`."""
        if not message.places:
            return tuple(parts)
        left = iter(parts)
        try:
            frames = tuple([next(left) if each is None else self._lend(each) for each in message.places])
        except StopIteration:
            raise BadMessage("a message has fewer frames than tensors") from None
        if next(left, None) is not None:
            raise BadMessage("a message has more frames than tensors")
        self._collect()
        if self._unsaid_bytes * _LARGEST_PART > self._outputs_bytes:
            self.tell()
        return frames

    def _lend(self, place: Place) -> memoryview:
        if self._outputs is None:
            raise BadMessage("a place was named, and there is no segment")
        try:
            found = self._outputs.read(place.offset, place.size, place.slot)
        except ValueError as error:
            raise BadMessage(str(error)) from None
        if place.stamp in self._lent:
            raise BadMessage(f"the place with stamp {place.stamp} was named before")
        note = partial(_note, self._ended, (place.stamp, place.size))
        self._lent[place.stamp] = weakref.ref(found, note)
        return found.data

    def _collect(self) -> None:
        while self._ended:
            stamp, size = self._ended.popleft()
            if self._lent.pop(stamp, None) is not None:
                self._unsaid.append(stamp)
                self._unsaid_bytes += size

    def settle(self) -> None:
        """Let go of what a connection that has ended was about; tell the worker what it is yet to be told."""
        if self._link.ended >= self._opened:
            self._forget()
        self.tell()

    def tell(self) -> None:
        """Tell the worker which of its places are in use no more, if there are any."""
        if self._clients:
            self._end_clients()
        self._collect()
        if self._unsaid and self._link.opened == self._opened:
            read = Read(tuple(self._unsaid))
            if self._link.send((encode(read),), keeps=False) is Delivery.SENT:
                self._unsaid, self._unsaid_bytes = [], 0


def _note(ended: deque[tuple[int, int]], what: tuple[int, int], _: object) -> None:
    ended.append(what)


CONTROLLER_BACKLOG_BYTES = 256 << 20
OnViolation = Callable[[str], object]
LinkOf = Callable[..., Link]
"""Makes a link from what `Link` is made from."""


def _controller_link(
    limits: Limits,
    shows: Pass,
    identity: bytes,
    link: LinkOf,
    count: Callable[[str], object],
    hub: Hub,
    address: str,
) -> Link:
    found = connect(hub, address, limits, shows, Identity(Role.CONTROLLER), name=identity, link=link)
    found.on_violation = lambda _: count("bad_framing_from_controller")
    return found


class ControllerLink:
    """The connection to the controller."""

    def __init__(
        self,
        hub: Hub,
        config: GatewayConfig,
        address: str,
        count: Callable[[str], object],
        link: LinkOf = Link,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        """Begin to connect by a ``link``; ``count`` counts, by why, what could not be read or sent.

        Raises OSError if it is not an address, or the keys can't be used.
        """
        self._count = count
        shows = present(Role.GATEWAY, config.keys)
        named = config.name or (shows.keys.name_of(Role.GATEWAY) if shows.keys is not None else "")
        unique = secrets.token_hex(4)
        self.name = named or f"{sockets.gethostname()[:64]}-{os.getpid()}-{unique}"
        """The gateway's name at this controller."""
        # A connection's name has at most 255 bytes, and a gateway's as many as controllers take.
        identity = f"gateway:{self.name}".encode()[:200] + f":{unique}".encode()
        limits = Limits(
            config.max_message_bytes, CONTROLLER_BACKLOG_BYTES, config.controller_backlog_messages
        )

        # What can't be sent now is not kept for a controller to come: it would not know this gateway.
        begin = partial(_controller_link, limits, shows, identity, link, count)
        self.port = controllers.connect(hub, address, begin, clock)

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; return False if there is no connection or no room."""
        return self.port.send((encode(message),)) is Delivery.SENT

    def greet(self, seed: int = 0) -> None:
        """Say hello; ``seed`` as `GatewayHello.seed`."""
        self.port.greet((encode(GatewayHello(PROTOCOL_VERSION, self.name, self.port.epoch, seed)),))

    def deliver(self, message: msgspec.Struct) -> bool:
        """Send a message; count it and return False if there is no connection or no room."""
        if self.port.send((encode(message),)) is Delivery.SENT:
            return True
        self._count("unsent_to_controller")
        return False

    def receive(self) -> Any:
        """Return the next message's bytes, None if there is none; the controller sends no tensors."""
        parts = self.port.receive()
        return None if parts is None else parts[0]


class WorkerLinks:
    """A connection to each worker's data address, where the worker of that name must prove to be."""

    def __init__(
        self,
        hub: Hub,
        config: GatewayConfig,
        on_violation: OnViolation,
        memory: Memory | None = None,
        link: LinkOf = Link,
    ) -> None:
        """Raise OSError if the keys can't be used; workers of this host may read ``memory``."""
        self._link = link
        self._hub = hub
        self._shows = present(Role.GATEWAY, config.keys)
        self._limits = Limits(
            config.max_message_bytes,
            config.input_backlog_bytes,
            config.input_backlog_messages,
            descriptors=1,
        )
        self._memory = memory or Memory(0)
        self._on_violation = on_violation
        self._links: dict[str, tuple[str, Link, Shared]] = {}
        self._workers: dict[object, str] = {}

    def connect(self, worker: str, address: str) -> None:
        """Begin to connect to a worker; raise OSError if it is not an address."""
        known = self._links.get(worker)
        if known is not None and known[0] == address:
            return
        self.disconnect(worker)
        there = Identity(Role.WORKER, worker.encode())
        link = connect(self._hub, address, self._limits, self._shows, there, keeps=True, link=self._link)
        link.on_violation = self._on_violation
        self._links[worker] = (address, link, Shared(link, self._memory))
        self._workers[link] = worker

    def disconnect(self, worker: str) -> None:
        """Close the worker's connection, if there is one, with what waits for it."""
        known = self._links.pop(worker, None)
        if known is not None:
            del self._workers[known[1]]
            known[1].close(0)

    def renew_slab(self) -> None:
        """Have another slab, which workers are offered over new connections."""
        self._memory.renew()
        for worker, (address, link, _) in list(self._links.items()):
            if link.local:
                self.disconnect(worker)
                self.connect(worker, address)

    def worker_of(self, port: object) -> str | None:
        """Return whose connection it is; None once it is closed."""
        return self._workers.get(port)

    def link_of(self, worker: str) -> Link | None:
        """Return the connection to a worker."""
        known = self._links.get(worker)
        return None if known is None else known[1]

    def send(self, worker: str, message: msgspec.Struct, frames: Sequence[Any]) -> bool:
        """Send a message with its tensors; return False if the worker is not known or there is no room."""
        known = self._links.get(worker)
        return known is not None and known[2].send(message, frames) is Delivery.SENT

    def outputs(self, worker: str, parts: Sequence[Any]) -> tuple[Output, tuple[Any, ...]] | None:
        """Return the outputs in a message of a worker; None if it has none. Raises `BadMessage`."""
        known = self._links.get(worker)
        return None if known is None else known[2].receive(parts)

    def settle(self) -> None:
        """Tell the workers what of their memory is in use no more; now and then is enough."""
        for _, _, shared in self._links.values():
            shared.settle()


def connect(
    hub: Hub,
    address: str,
    limits: Limits,
    shows: Pass,
    there: Identity,
    *,
    name: bytes = b"",
    keeps: bool = False,
    link: LinkOf = Link,
) -> Link:
    """Begin to connect to whom must be there; raise OSError if it is not an address."""
    try:
        return link(hub, address, limits, name=name, keeps=keeps, shows=shows, expects=there)
    except ValueError as error:
        whom = f"{there.role} {there.name.decode()}".strip()
        raise OSError(f"{address!r} is not an address of the {whom}: {error}") from None
