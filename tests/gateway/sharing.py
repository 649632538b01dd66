"""A gateway and two workers that share memory, over connections that break at random."""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mainspring.gateway.memory import Memory
from mainspring.gateway.peer_connections import Shared
from mainspring.messages.codec import FROM_GATEWAY, encode
from mainspring.messages.peers import (
    Input,
    Output,
)
from mainspring.transport.bounds import Delivery
from mainspring.transport.shared_memory import Bytes, OwnMemory
from mainspring.transport.slab import LEAST_SHARED_BYTES, Slab
from mainspring.worker.segments import Segments

LARGE = LEAST_SHARED_BYTES
ROOM = 12 * LARGE
"""Of the gateway's slab, and of the worker's for one connection: soon full."""


class Wire:
    """One connection of a gateway to a worker: what was sent, in order, until it has been taken."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.to_worker: deque[tuple[list[Any], int | None]] = deque()
        self.to_gateway: deque[tuple[list[Any], int | None]] = deque()
        self.open = True


class GatewayEnd:
    """Plays a `Link` that keeps messages without a connection."""

    def __init__(self) -> None:
        self.local = True
        self.opened = self.ended = 0
        self.wire: Wire | None = None
        self.kept: list[list[Any]] = []
        self._descriptor: int | None = None

    @property
    def connected(self) -> bool:
        return self.wire is not None

    def send(self, parts: Sequence[Any], keeps: bool = True) -> Delivery:
        if self.wire is None:
            if keeps:
                self.kept.append(list(parts))
            return Delivery.SENT if keeps else Delivery.GONE
        # What a connection carries is copied by the kernel.
        self.wire.to_worker.append(([bytes(part) for part in parts], None))
        return Delivery.SENT

    def send_descriptor(self, parts: Sequence[Any], descriptor: int) -> Delivery:
        if self.wire is None:
            return Delivery.GONE
        self.wire.to_worker.append(([bytes(part) for part in parts], os.dup(descriptor)))
        return Delivery.SENT

    def descriptor(self) -> int | None:
        found, self._descriptor = self._descriptor, None
        return found

    def receive(self) -> list[Any] | None:
        if self.wire is None or not self.wire.to_gateway:
            return None
        parts, self._descriptor = self.wire.to_gateway.popleft()
        return parts


class WorkerEnd:
    """Plays a `Listener`, which has connections that the gateway has given up already."""

    def __init__(self) -> None:
        self.wires: dict[bytes, Wire] = {}
        self.on_end: Any = None
        self._descriptor: int | None = None

    def descriptor(self, peer: bytes) -> int | None:
        found, self._descriptor = self._descriptor, None
        return found

    def send(self, peer: bytes, parts: Sequence[Any], volatile: bool = False) -> Delivery:
        wire = self.wires[peer]
        if not wire.open:
            return Delivery.GONE
        wire.to_gateway.append(([bytes(part) for part in parts], None))
        return Delivery.SENT

    def send_descriptor(self, peer: bytes, parts: Sequence[Any], descriptor: int) -> Delivery:
        wire = self.wires[peer]
        if not wire.open:
            return Delivery.GONE
        wire.to_gateway.append(([bytes(part) for part in parts], os.dup(descriptor)))
        return Delivery.SENT

    def receive(self, wire: Wire) -> list[Any]:
        parts, self._descriptor = wire.to_worker.popleft()
        return parts


class ClientEnd:
    """A client with memory of its own, which the gateway has mapped."""

    def __init__(self, memory: Memory) -> None:
        self.own = OwnMemory("test-client", 8 * 4096 + 20 * LARGE, huge=False)
        self.slab = Slab(self.own.bytes)
        self.lent = memory.lendings.begin(os.dup(self.own.descriptor), self.own.size)
        self.requests: dict[int, list[memoryview]] = {}
        """What each request's inputs lie in, until its reply."""

    def write(self, request_id: int, content: bytes) -> memoryview | None:
        """Return where the gateway sees a request's input; None if there is no room for it."""
        place = self.slab.take(len(content))
        if place is None:
            return None
        place[:] = content
        found = self.slab.find(place)
        assert found is not None
        self.requests.setdefault(request_id, []).append(place)
        return self.lent.mapped[found[0] : found[0] + len(content)].data


class LateCopies:
    """Plays `SharedInputs` of a device that copies later than it is told, in its order."""

    def __init__(self, memory: Bytes) -> None:
        self.begun = 0
        self.copied: list[bytes] = []
        self.over = False
        self._memory = memory
        self._told: deque[tuple[int, int]] = deque()

    def advance(self) -> bool:
        return False

    def covers(self, offset: int, size: int) -> bool:
        return not self.over

    def send(self, io: Any, start: int, offset: int, size: int) -> None:
        self.begun += 1
        self._told.append((offset, size))

    def ended(self) -> int:
        return len(self.copied)

    def copy(self) -> None:
        """The device does what it was told first."""
        if self._told:
            offset, size = self._told.popleft()
            self.copied.append(bytes(self._memory[offset : offset + size]))

    def close(self) -> None:
        self.over = True
        while self._told:
            self.copy()


class LateDevice:
    """Plays `SharesInputs`."""

    def __init__(self) -> None:
        self.shared: list[LateCopies] = []

    def send(self, io: Any, start: int, size: int) -> None:
        raise AssertionError("it has no IO memory")

    def receive(self, io: Any) -> str:
        raise AssertionError("it has no IO memory")

    def share(self, memory: Bytes) -> LateCopies:
        self.shared.append(LateCopies(memory))
        return self.shared[-1]


class Late(NamedTuple):
    """An input whose places the device copies."""

    copies: LateCopies
    first: int
    """Which of these copies is its first."""
    wanted: list[bytes]


class World:
    """A gateway, two workers, and requests under way; the second worker has a device that reads the slab."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.memory = Memory(4 << 20)
        assert self.memory._own is not None
        self.slab = self.memory._slab = Slab(self.memory._own.bytes[: 8 * 4096 + ROOM])
        self.memory._most = ROOM
        self.links = [GatewayEnd(), GatewayEnd()]
        self.shared = [Shared(link, self.memory) for link in self.links]
        self.ends = [WorkerEnd(), WorkerEnd()]
        self.device = LateDevice()
        self.segments = [Segments(self.ends[0], ROOM), Segments(self.ends[1], ROOM, self.device, self.spoil)]
        self.late: dict[int, Late] = {}
        """By the action, inputs whose copies may not have ended."""
        self.next_action = 0
        self.requests: dict[int, list[Any]] = {}
        self.contents: dict[int, list[bytes]] = {}
        self.answers: list[tuple[list[Any], list[bytes]]] = []
        """What is being sent to clients, and what it has to be."""
        self.computed: deque[tuple[int, bytes, int]] = deque()
        self.counts: Counter[str] = Counter()
        self.next_id = 0
        self.clients = [ClientEnd(self.memory) for _ in range(3)]
        self.lent: set[int] = set()
        """Requests with inputs in a client's memory, whoever they were of."""
        for worker in range(2):
            self.connect(worker)

    # --- the gateway ---

    def arrive(self) -> None:
        """A request comes: its tensors are received into the slab or beside it, small ones beside it."""
        self.next_id += 1
        frames, contents = [], []
        client = self.rng.choice(self.clients) if self.rng.random() < 0.4 else None
        for _ in range(self.rng.randint(1, 3)):
            size = self.rng.choice((8, LARGE - 1, LARGE, LARGE + 7, 2 * LARGE))
            content = self.content(self.next_id, size)
            frame: Any = content
            if client is not None and (seen := client.write(self.next_id, content)) is not None:
                frame = seen
                self.lent.add(self.next_id)
            elif self.rng.random() < 0.6:
                frame = self.memory.take(size + 5)[5:]
                frame[:] = content
            frames.append(frame)
            contents.append(content)
        self.requests[self.next_id] = frames
        self.contents[self.next_id] = contents

    def content(self, request_id: int, size: int) -> bytes:
        return np.full(-(-size // 8), request_id, np.uint64).tobytes()[:size]

    def dispatch(self) -> None:
        """Send a request's inputs to a worker: the first time, or again."""
        if self.requests:
            request_id = self.rng.choice(list(self.requests))
            worker = self.rng.randrange(2)
            self.next_action += 1
            message = Input(self.next_action, request_id)
            self.shared[worker].send(message, self.requests[request_id])
            self.counts["dispatched"] += 1

    def reply(self) -> None:
        """A request is refused, or its client is gone."""
        if self.requests:
            self.replied(self.rng.choice(list(self.requests)))

    def replied(self, request_id: int) -> bool:
        """A request has its reply: what its inputs lay in is its client's to write to."""
        for client in self.clients:
            for place in client.requests.pop(request_id, ()):
                place[:] = bytes(len(place))
        return self.requests.pop(request_id, None) is not None

    def client_leaves(self) -> None:
        """A client dies; its requests are given up, and another one comes."""
        client = self.clients.pop(self.rng.randrange(len(self.clients)))
        for request_id in client.requests:
            self.requests.pop(request_id, None)
        self.memory.lendings.end(client.lent)
        client.own.close()
        self.clients.append(ClientEnd(self.memory))

    def take_outputs(self) -> None:
        worker = self.rng.randrange(2)
        parts = self.links[worker].receive()
        if parts is None:
            return
        received = self.shared[worker].receive(parts)
        if received is None:
            return
        output, frames = received
        self.counts["outputs in places"] += bool(output.places)
        if self.replied(output.request_id):
            wanted = [self.content(output.request_id, len(frame)) for frame in frames]
            self.answers.append((list(frames), wanted))

    def sent_to_client(self) -> None:
        if self.answers:
            self.answers.pop(self.rng.randrange(len(self.answers)))

    # --- the workers ---

    def take_input(self) -> None:
        """A worker works a message off, maybe of a connection that its gateway has given up."""
        worker = self.rng.randrange(2)
        end, segments = self.ends[worker], self.segments[worker]
        waiting = [wire for wire in end.wires.values() if wire.to_worker]
        if not waiting:
            return
        wire = self.rng.choice(waiting)
        parts = end.receive(wire)
        message = FROM_GATEWAY.decode(parts[0])
        if not isinstance(message, Input):
            segments.said(wire.name, message)
            return
        segments.read(wire.name, message.read)
        frames = segments.frames(wire.name, message, parts[1:])
        copied = [bytes(frame) for frame in frames]
        self.copy_late(segments, wire, message)
        fault = segments.overtaken(wire.name, message.places)
        if message.places:
            segments.took(wire.name, message)
            self.counts["inputs in places"] += 1
        if fault:
            assert not wire.open, "a place was used again over a connection that lasts"
            self.counts["overtaken"] += 1
            return
        self.counts["inputs in clients' memory"] += any(each and each.client for each in message.places)
        if message.request_id in self.lent and message.request_id not in self.requests:
            # It was read later than its client waited for: whatever comes of it is of no use to anyone.
            return
        assert copied == self.contents[message.request_id], "the input of another request"
        self.computed.append((worker, wire.name, message.request_id))

    def copy_late(self, segments: Segments, wire: Wire, message: Input) -> None:
        """Tell the device, if there is one, to copy what lies in the slab."""
        copies = segments.shared(wire.name)
        places = [place for place in message.places if place is not None and not place.client]
        if not isinstance(copies, LateCopies) or not places:
            return
        contents = self.contents[message.request_id]
        large = zip(message.places, contents, strict=True)
        wanted = [content for place, content in large if place is not None and not place.client]
        self.late[message.action_id] = Late(copies, copies.begun, wanted)
        for place in places:
            copies.send(None, 0, place.offset, place.size)

    def device_copies(self) -> None:
        for copies in self.device.shared:
            copies.copy()
        self.segments[1].settle()
        for action, (copies, first, wanted) in list(self.late.items()):
            found = copies.copied[first : first + len(wanted)]
            if len(found) == len(wanted):
                del self.late[action]
                assert found == wanted, "the device was given the input of another request"
                self.counts["copied by the device"] += 1

    def spoil(self, action_id: int, request_id: int) -> None:
        """Its outputs are not sent, whatever the device has read."""
        # Its message had no place for the device if it is not there.
        self.late.pop(action_id, None)
        self.counts["overtaken late"] += 1

    def send_outputs(self) -> None:
        if not self.computed:
            return
        worker, name, request_id = self.computed.popleft()
        end, segments = self.ends[worker], self.segments[worker]
        if name not in end.wires:
            return
        sizes = self.rng.choices((8, LARGE, LARGE + 9, 2 * LARGE), k=2)
        # IO memory, which is another batch's as soon as this is sent.
        rows = [bytearray(self.content(request_id, size)) for size in sizes]
        places, left = segments.lend(name, [memoryview(each) for each in rows])
        output = Output(worker, request_id, 1, None, places, segments.taken(name))
        if end.send(name, [encode(output), *left]) is not Delivery.SENT:
            segments.take_back(name, places)
        for each in rows:
            each[:] = bytes(len(each))

    def notice_end(self) -> None:
        """A worker comes to the end of a connection that its gateway has given up."""
        for end in self.ends:
            for wire in list(end.wires.values()):
                if not wire.open and not wire.to_worker:
                    del end.wires[wire.name]
                    end.on_end(wire.name)

    # --- both ---

    def connect(self, worker: int) -> None:
        link, end = self.links[worker], self.ends[worker]
        link.opened += 1
        link.wire = Wire(b"gateway/%d" % (link.opened))
        end.wires[link.wire.name] = link.wire
        kept, link.kept = link.kept, []
        for parts in kept:
            link.send(parts)

    def lose(self) -> None:
        """A connection breaks: what the gateway sent over it still comes, what the worker sends does not."""
        link = self.links[self.rng.randrange(2)]
        if link.wire is not None:
            link.wire.open = False
            link.wire = None
            link.ended += 1

    def connect_again(self) -> None:
        for worker, link in enumerate(self.links):
            if link.wire is None:
                self.connect(worker)

    def settle(self) -> None:
        for shared in self.shared:
            shared.settle()
        for segments in self.segments:
            segments.tell()

    def check(self) -> None:
        for request_id, frames in self.requests.items():
            assert [bytes(frame) for frame in frames] == self.contents[request_id], "an input has changed"
        for frames, wanted in self.answers:
            assert [bytes(frame) for frame in frames] == wanted, "a client is sent another one's output"

    def end(self) -> None:
        """Nothing more comes: all that was taken is free again."""
        for request_id in list(self.requests):
            self.replied(request_id)
        self.answers.clear()
        for _ in range(400):
            self.take_input()
            self.take_outputs()
            self.sent_to_client()
        self.requests.clear()
        self.answers.clear()
        self.computed.clear()
        self.connect_again()
        for _ in range(3):
            for _ in range(200):
                self.device_copies()
            self.settle()
            for _ in range(200):
                self.take_input()
                self.take_outputs()
        self.notice_end()
        self.slab.validate()
        assert self.slab.places == 0, "inputs are held for nobody"
        for segments in self.segments:
            assert len(segments._peers) <= 1, "memory of connections that have ended"
            for peer in segments._peers.values():
                assert peer.clients.keys() <= self.memory.lendings.numbers, "memory of clients that have left"
                assert peer.outputs is not None
                peer.outputs.validate()
                assert not peer.lent, "outputs are held for nobody"


STEPS = {
    World.arrive: 8,
    World.dispatch: 16,
    World.reply: 3,
    World.take_outputs: 14,
    World.sent_to_client: 8,
    World.take_input: 18,
    World.send_outputs: 12,
    World.notice_end: 1,
    World.client_leaves: 0.3,
    World.lose: 1,
    World.connect_again: 3,
    World.settle: 2,
    World.device_copies: 3,
}
