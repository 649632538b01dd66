"""The memory that a worker shares with each gateway of its host: it reads inputs in the gateway's memory, and
the gateway reads outputs in memory of the worker's that only that connection knows.

An input is copied from the gateway's memory to IO memory, once, as its message is taken; one that comes
before its action is copied aside. So nothing here reads a place after the message that names it was worked
off, which the gateway is told by a count of such messages, and may use the place again. A gateway that takes
the worker for dead does not wait for that: then the place's stamp is another one, and the input is unusable.

A device with memory of its own may copy inputs from the gateway's memory itself (`engine.SharesInputs`). Then
a message counts as worked off once its copies have ended, and those before it; the stamps are looked at then.
An input that turns out to be unusable so late spoils the outputs of its request, which are not sent.

A gateway may hand on memory of its clients too, which they write and nobody stamps: an input is read there
before its message is worked off, and what is read later than its client waited for is of no use to anyone.

The memory for outputs lives as long as the connection: a gateway that still sends them to its clients after
it keeps its mapping, and nobody writes there again.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mainspring.messages.codec import BadMessage, encode
from mainspring.messages.peers import (
    ClientSegment,
    ClientSegmentOver,
    ClientSegmentTaken,
    Input,
    Place,
    Read,
    Segment,
    Taken,
)
from mainspring.transport.bounds import Delivery, Peers
from mainspring.transport.shared_memory import Bytes, OwnMemory, Unusable, map_to_read
from mainspring.transport.slab import LEAST_SHARED_BYTES, Reader, Slab
from mainspring.worker.engine import SharedInputs, SharesInputs

LOG = logging.getLogger(__name__)

OVERTAKEN = "its gateway did not wait until its inputs were read"
MOST_CLIENTS = 1024
"""Clients' segments of one gateway at one time; of further clients the gateway copies inputs to its own."""

Frames = Sequence[Any]
"""Tensors' bytes, each as bytes, or an array or memoryview of them."""


class _Peer:
    """A gateway of this host."""

    def __init__(self, inputs: Reader, shared: SharedInputs | None) -> None:
        self.inputs = inputs
        self.shared = shared
        """Copier of inputs to the device from there; None if there is none."""
        self.begun = 0
        """`SharedInputs.begun` behind the last message that was worked off."""
        self.copying: deque[tuple[int, Input]] = deque()
        """Messages whose copies, or those before them, may not have ended, and `SharedInputs.begun` behind
        each."""
        self.clients: dict[int, Bytes] = {}
        """Segments of its clients, by number."""
        self.outputs: Slab | None = None
        self.own: OwnMemory | None = None
        self.taken = 0
        """Messages with places that were worked off."""
        self.told = 0
        """Number of these that the gateway knows of."""
        self.lent: dict[int, memoryview] = {}
        """Outputs that the gateway may read, by stamp."""


class Segments:
    """See the module's docstring; the network thread calls it."""

    def __init__(
        self,
        data: Peers,
        slab_bytes: int,
        device: SharesInputs | None = None,
        spoil: Callable[[int, int], object] = lambda _action_id, _request_id: None,
    ) -> None:
        """``data`` is where gateways connect; ``slab_bytes`` is for the outputs to each: 0 for none.

        ``device`` copies inputs from gateways' memory itself, if it can. ``spoil`` is called with an action
        and a request of it whose inputs were overtaken while they were copied so.
        """
        self._data = data
        self._slab_bytes = slab_bytes
        self._device = device
        self._spoil = spoil
        self._peers: dict[bytes, _Peer] = {}
        self._over: list[SharedInputs] = []
        """Copiers of connections that have ended."""
        data.on_end = self.end

    def said(self, sender: bytes, message: Segment | ClientSegment | ClientSegmentOver | Read) -> None:
        """Work off what a gateway says about memory; raise `BadMessage` if it makes no sense."""
        match message:
            case Segment():
                self.begin(sender, message)
            case ClientSegment():
                self._begin_client(sender, message)
            case ClientSegmentOver(number=number):
                if (peer := self._peers.get(sender)) is not None:
                    peer.clients.pop(number, None)
            case Read():
                self.read(sender, message.stamps)

    def begin(self, sender: bytes, message: Segment) -> None:
        """Map a gateway's memory, and answer with memory for it; raise `BadMessage` if it can't be used."""
        descriptor = self._data.descriptor(sender)
        if descriptor is None:
            raise BadMessage("a segment came without its descriptor")
        if sender in self._peers:
            os.close(descriptor)
            raise BadMessage("a second segment came")
        try:
            mapped = map_to_read(descriptor, message.size)
            reader = Reader(mapped)
        except (Unusable, ValueError, OSError) as error:
            raise BadMessage(f"the gateway's segment can't be used: {error}") from None
        peer = _Peer(reader, None if self._device is None else self._device.share(mapped))
        self._peers[sender] = peer
        if self._slab_bytes and self._offer(sender, peer):
            return
        self._data.send(sender, (encode(Segment(0)),))

    def _begin_client(self, sender: bytes, message: ClientSegment) -> None:
        """Map memory of a gateway's client, and say whether that worked; raise `BadMessage`."""
        descriptor, peer, number = self._data.descriptor(sender), self._peers.get(sender), message.number
        if descriptor is None:
            raise BadMessage("a client's segment came without its descriptor")
        refusal = ""
        if peer is None or number in peer.clients or number < 1:
            os.close(descriptor)
            raise BadMessage(f"a client's segment {number} came, before the gateway's own or again")
        if len(peer.clients) >= MOST_CLIENTS:
            os.close(descriptor)
            refusal = f"{MOST_CLIENTS:,} segments of clients are mapped, the most that are"
        else:
            try:
                peer.clients[number] = map_to_read(descriptor, message.size, huge=False)
            except Unusable as error:
                refusal = str(error)
            except OSError as failure:
                refusal = f"it can't be mapped ({failure.strerror})"
        self._data.send(sender, (encode(ClientSegmentTaken(number, refusal)),))

    def _offer(self, sender: bytes, peer: _Peer) -> bool:
        """Give a gateway memory to read outputs in; return False if that can't be."""
        try:
            own = OwnMemory("mainspring-outputs", self._slab_bytes)
        except OSError as error:
            LOG.warning("no memory to share outputs in (%s): they are sent as frames", error.strerror)
            return False
        answer = encode(Segment(own.size))
        if self._data.send_descriptor(sender, (answer,), own.descriptor) is not Delivery.SENT:
            own.close()
            return False
        peer.outputs, peer.own = Slab(own.bytes), own
        return True

    def end(self, sender: bytes) -> None:
        """A connection has ended, and what was shared over it with it."""
        peer = self._peers.pop(sender, None)
        if peer is None:
            return
        if peer.own is not None:
            peer.own.close()
        if peer.shared is not None:
            peer.shared.close()
            self._settle(peer, peer.shared)
            self._over.append(peer.shared)

    def advance(self) -> None:
        """Do one piece of what makes memory ready for the device to copy from, or releases it."""
        for shared in self._over:
            if not shared.advance():
                self._over.remove(shared)
            return
        for peer in self._peers.values():
            if peer.shared is not None and peer.shared.advance():
                return

    # --- inputs ---

    def frames(self, sender: bytes, message: Input, parts: Frames) -> Frames:
        """Return the tensors of a message, those with places uncopied; raise `BadMessage`."""
        if not message.places:
            return parts
        peer = self._peers.get(sender)
        if peer is None:
            raise BadMessage("an input names a place, and no segment came")
        left = iter(parts)
        found: list[Any] = []
        for place in message.places:
            try:
                frame = next(left) if place is None else _read(peer, place)
            except StopIteration:
                raise BadMessage(f"{len(parts)} frames came, and more of its inputs have no place") from None
            except ValueError as error:
                raise BadMessage(f"an input of it is not there: {error}") from None
            found.append(frame)
        if next(left, None) is not None:
            raise BadMessage(f"{len(parts)} frames came, and fewer of its inputs have no place")
        return found

    def overtaken(self, sender: bytes, places: Sequence[Place | None]) -> str:
        """Say what is wrong with what was read of places until now; "" if it was theirs."""
        peer = self._peers.get(sender)
        return OVERTAKEN if any(places) and (peer is None or _overtaken(peer, places)) else ""

    def shared(self, sender: bytes) -> SharedInputs | None:
        """Return what copies a gateway's inputs to the device from where they are, if anything does."""
        peer = self._peers.get(sender)
        return None if peer is None else peer.shared

    def took(self, sender: bytes, message: Input) -> None:
        """A message with places was worked off: nothing but the device reads them any more."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        if peer.shared is None:
            peer.taken += 1
            return
        # What was copied aside, or to IO memory, was looked at then.
        looks_again = peer.shared.begun != peer.begun
        peer.begun = peer.shared.begun
        peer.copying.append((peer.begun, message if looks_again else Input(message.action_id, 0)))
        self._settle(peer, peer.shared)

    def settle(self) -> None:
        """Count the messages whose copies to the device have ended, and look at their stamps."""
        for peer in self._peers.values():
            if peer.shared is not None:
                self._settle(peer, peer.shared)

    def _settle(self, peer: _Peer, shared: SharedInputs) -> None:
        if not peer.copying:
            return
        ended = shared.ended()
        while peer.copying and peer.copying[0][0] <= ended:
            _, message = peer.copying.popleft()
            peer.taken += 1
            if _overtaken(peer, message.places):
                self._spoil(message.action_id, message.request_id)

    def taken(self, sender: bytes) -> int:
        """Return how many such messages of a gateway there were, for it to be told now."""
        peer = self._peers.get(sender)
        if peer is None:
            return 0
        peer.told = peer.taken
        return peer.taken

    def tell(self) -> None:
        """Tell gateways what outputs have not told them."""
        self.settle()
        for sender, peer in self._peers.items():
            if peer.told != peer.taken:
                message = encode(Taken(peer.taken))
                if self._data.send(sender, (message,)) is Delivery.SENT:
                    peer.told = peer.taken

    # --- outputs ---

    def lend(self, sender: bytes, frames: Frames) -> tuple[tuple[Place | None, ...], Frames]:
        """Copy large outputs to memory that their gateway reads; return their places, and what is left.

        No places: all go as frames. `read` says when the gateway has done with them.
        """
        peer = self._peers.get(sender)
        if peer is None or peer.outputs is None or max(map(len, frames), default=0) < LEAST_SHARED_BYTES:
            return (), frames
        places: list[Place | None] = []
        left: list[Any] = []
        for frame in frames:
            view = peer.outputs.take(len(frame)) if len(frame) >= LEAST_SHARED_BYTES else None
            found = None if view is None else peer.outputs.find(view)
            if view is None or found is None:
                places.append(None)
                left.append(frame)
                continue
            np.frombuffer(view, np.uint8)[:] = np.frombuffer(frame, np.uint8)
            offset, slot, stamp = found
            places.append(Place(offset, len(frame), slot, stamp))
            peer.lent[stamp] = view
        return tuple(places), left

    def read(self, sender: bytes, stamps: Sequence[int]) -> None:
        """A gateway has done with these places."""
        peer = self._peers.get(sender)
        if peer is not None:
            for stamp in stamps:
                peer.lent.pop(stamp, None)

    def take_back(self, sender: bytes, places: Sequence[Place | None]) -> None:
        """Take back what was lent in a message that was not sent."""
        self.read(sender, [place.stamp for place in places if place is not None])


def _overtaken(peer: _Peer, places: Sequence[Place | None]) -> bool:
    """Return whether a place of the gateway's own memory is not what it was named for any more."""
    return any(
        place is not None and not place.client and not peer.inputs.holds(place.slot, place.stamp)
        for place in places
    )


def _read(peer: _Peer, place: Place) -> Bytes:
    """Return the bytes at a place, uncopied; raise ValueError if there are none."""
    if not place.client:
        return peer.inputs.read(place.offset, place.size, place.slot)
    mapped = peer.clients.get(place.client)
    if mapped is None:
        raise ValueError(f"there is no client's segment {place.client}")
    if place.offset < 0 or place.size <= 0 or place.offset + place.size > len(mapped):
        raise ValueError(
            f"{place.size:,} bytes at {place.offset:,} are not in a client's segment of {len(mapped):,}"
        )
    return mapped[place.offset : place.offset + place.size]
