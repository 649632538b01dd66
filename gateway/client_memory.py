"""Memory of clients of this host, which they write and the gateway reads: their requests name places there.

A client offers it once over its framed connection, as a file in memory whose size is sealed, so that nothing
that the client does later can end who reads it. It is mapped here to be read. Every offset and size that a
request names is checked against what was mapped, and by the bounds of inputs that come as frames.

A client may write there while its request runs. That shows in its own answer and in no other, because
whatever stands for more than this one request (the outputs that are kept for equal inputs) is made of a copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.memory import Lendings, Lent
from mainspring.messages.clients import InferRequest, Stretch
from mainspring.transport.shared_memory import Bytes, Unusable

LEAST_BYTES = 1 << 12
"""Less is not worth a mapping."""


class BadPlace(Exception):
    """A request names a place that can't be read; the text names what was wrong."""


class ClientMemories:
    """The memory that clients of one front end have offered, by the names of their connections."""

    def __init__(self, config: GatewayConfig, lendings: Lendings, *, local: bool) -> None:
        """``local``: whether descriptors can come along with these clients' messages.

        Workers find what is offered in ``lendings``.
        """
        self._lendings = lendings
        self._most_bytes = config.client_memory_bytes if local else 0
        self._most_message_bytes = config.max_message_bytes
        self._lent: dict[bytes, Lent] = {}
        self._bytes = 0
        """Bytes of all memory that is mapped."""

    @property
    def room_bytes(self) -> int:
        """Return the bytes that one more client may offer."""
        return max(0, self._most_bytes - self._bytes)

    def offer(self, peer: bytes, size: int, descriptor: int | None) -> str:
        """Map what a client offers; return why it can't be read, or "". The descriptor is closed."""
        if descriptor is None:
            return "the descriptor of the memory did not come along; it only can over a connection by name"
        if not self._most_bytes or peer in self._lent or not LEAST_BYTES <= size <= self.room_bytes:
            os.close(descriptor)
            if not self._most_bytes:
                return "this gateway reads no memory of clients ([gateway] client_memory_bytes)"
            if peer in self._lent:
                return "this connection has offered memory before; it may do so once"
            return (
                f"{size:,} bytes are offered; from {LEAST_BYTES:,} to {self.room_bytes:,} can be read at "
                "present ([gateway] client_memory_bytes)"
            )
        try:
            self._lent[peer] = self._lendings.begin(descriptor, size)
        except Unusable as error:
            return f"the memory can't be read: {error}"
        except OSError as error:
            return f"the memory can't be mapped here: {error.strerror}"
        self._bytes += size
        return ""

    def frames(self, peer: bytes, request: InferRequest, parts: Sequence[Any]) -> list[Any]:
        """Return a request's tensors in the order of its headers, those with places uncopied.

        Raises `BadPlace` for a place that the client has not offered.
        """
        if len(request.places) != len(request.inputs):
            raise BadPlace(
                f"{len(request.places)} places were named for {len(request.inputs)} inputs: each has one, or "
                "nil"
            )
        lent = self._lent.get(peer)
        if lent is None:
            raise BadPlace("a place was named, and this connection has no memory that the gateway reads")
        left = iter(parts)
        frames: list[Any] = []
        for header, place in zip(request.inputs, request.places, strict=True):
            frame = next(left, None) if place is None else _read(lent.mapped, header.name, place)
            if frame is None:
                raise BadPlace(f"{len(parts)} frames came, and more of its inputs have no place")
            frames.append(frame)
        if next(left, None) is not None:
            raise BadPlace(f"{len(parts)} frames came, and fewer of its inputs have no place")
        if (size := sum(map(len, frames))) > self._most_message_bytes:
            raise BadPlace(
                f"the inputs have {size:,} bytes; the gateway takes at most {self._most_message_bytes:,}"
            )
        return frames

    def end(self, peer: bytes) -> None:
        """A connection has ended: its memory stays mapped only for the requests that are still about it."""
        lent = self._lent.pop(peer, None)
        if lent is not None:
            self._bytes -= len(lent.mapped)
            self._lendings.end(lent)


def _read(mapped: Bytes, name: str, place: Stretch) -> memoryview:
    offset, size = place.offset, place.size
    if offset < 0 or size <= 0 or offset + size > len(mapped):
        raise BadPlace(
            f"input {name[:100]!r} is said to be {size:,} bytes at {offset:,}; the memory that was offered "
            f"has {len(mapped):,}"
        )
    return mapped[offset : offset + size].data
