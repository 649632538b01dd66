"""What a gateway and one worker of its host share over one connection: each reads the other's memory.

The gateway offers its slab with the first message over a connection, and the worker answers with memory
that is this connection's alone; until then tensors go as frames, and so they do between hosts. The gateway
keeps an input for as long as the worker may still read it: until the worker has said so, or the connection
has ended. What the worker's outputs lie in belongs to the worker again once nothing here refers to it any
more, which the gateway says with its next input, or by itself if that would take long.

Memory of a client's is handed on to the worker with the first input that lies there. Until the worker has
answered, and to one that does not read it, inputs are copied from there to the slab.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from mainspring.gateway.memory import Lent, Memory
from mainspring.messages.codec import FROM_WORKER, BadMessage, encode
from mainspring.messages.peers import (
    ClientSegment,
    ClientSegmentOver,
    ClientSegmentTaken,
    Input,
    Output,
    Place,
    Read,
    Segment,
    Taken,
)
from mainspring.transport.bounds import Delivery
from mainspring.transport.shared_memory import Unusable, map_to_read
from mainspring.transport.slab import LEAST_SHARED_BYTES, Found, Reader

_LARGEST_PART: Final = 8
"""As soon as this part of the worker's memory may be written again, the worker is told."""

Sent = tuple[Input, Sequence[Any], list[Any]]
"""A message, its frames, and what of the slab it names."""


class Port(Protocol):
    """The end of the connection that is the gateway's: a `Link`."""

    opened: int
    ended: int

    @property
    def connected(self) -> bool:
        """Say whether there is a connection."""

    @property
    def local(self) -> bool:
        """Say whether it is to a process of this host."""

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        """As `Link.send`."""

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:
        """As `Link.send_descriptor`."""

    def descriptor(self) -> int | None:
        """As `Link.descriptor`."""


class Shared:
    """See the module's docstring; of one link, over all of its connections."""

    def __init__(self, link: Port, memory: Memory) -> None:
        self._link = link
        self._memory = memory
        self._opened = 0
        """Which of the link's connections it is about."""
        self._offered = self._answered = False
        """Whether the slab was offered over it, and the worker has it."""
        self._sent = 0
        """Inputs with places that went over it."""
        self._leases: deque[tuple[int, list[Any]]] = deque()
        """What the worker may still read: which of those inputs, and the bytes that it named."""
        self._clients: dict[int, bool] = {}
        """Clients' segments that were handed on, by number: whether the worker reads them."""
        self._outputs: Reader | None = None
        self._outputs_bytes = 0
        self._lent: dict[int, weakref.ref[Any]] = {}
        """By stamp, places of the worker that are in use here."""
        self._ended: deque[tuple[int, int]] = deque()
        """Stamps and sizes of those that are so no more."""
        self._unsaid: list[int] = []
        """Of these, the stamps that the worker is yet to be told of."""
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
