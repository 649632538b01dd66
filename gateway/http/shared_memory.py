"""System shared memory over HTTP: regions that clients register, and the tensors of requests there.

What Triton's clients ask of memory that is not shared, here or with them, gets what a Triton without regions
says: reading and clearing succeed, for clients clear up before they start; sharing does not.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mainspring.gateway.http.connection import HttpConnection
from mainspring.gateway.http.exchange import Exchange, Fault
from mainspring.gateway.oip.datatypes import Unserved
from mainspring.gateway.oip.spans import Span
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.peer_users import end_of
from mainspring.gateway.regions import NO_CUDA, Owner, Parts, Regions, not_shared
from mainspring.gateway.services import Services
from mainspring.transport.tokens import from_header

_ESTABLISHED = 1


class Registration(msgspec.Struct):
    """The memory that a region is made of."""

    key: str
    byte_size: int
    offset: int = 0


class SharedMemory:
    """Handles these routes, and finds the parts of regions that requests name."""

    def __init__(self, services: Services, problem: Callable[[Mapping[bytes, bytes]], str]) -> None:
        """``problem`` says why a request with these headers may change nothing; empty if it may."""
        self._regions = services.regions
        self._gate = services.driver.gate
        self._problem = problem

    # --- routes ---

    def status(self, exchange: Exchange) -> None:
        """List the client's regions, or one of them."""
        name = exchange.arguments[0] if exchange.arguments else ""
        if (mine := self._mine(exchange)) is None:
            no_regions(exchange)
            return
        regions, owner = mine
        exchange.reply_json(regions.status(owner, name))

    def register(self, exchange: Exchange) -> None:
        """Register a region."""
        regions, owner = self._sharing(exchange)
        asked = exchange.decoded(Registration)
        regions.register(owner, exchange.arguments[0], asked.key, asked.offset, asked.byte_size)
        exchange.reply_json({})

    def unregister(self, exchange: Exchange) -> None:
        """Forget one of the client's regions, or all."""
        if (mine := self._mine(exchange)) is not None:
            regions, owner = mine
            regions.unregister(owner, exchange.arguments[0] if exchange.arguments else "")
        exchange.reply_json({})

    # --- for others ---

    def served_to(self, exchange: Exchange) -> bool:
        """Say whether a request's client may share memory."""
        return self._mine(exchange) is not None

    def parts(self, exchange: Exchange, spans: Sequence[Span]) -> Parts:
        """Return where the bytes of a request's spans are; raise `Unserved`, `Fault` or `RegionError`."""
        regions, owner = self._sharing(exchange)
        if problem := self._problem(exchange.headers):
            raise Fault(403, problem)
        return regions.parts(owner, spans)

    def filled(self, frames: Sequence[Any], parts: Parts, limit_bytes: int) -> Steps[list[Any]]:
        """Do as `Regions.filled`."""
        assert self._regions is not None, "parts of regions where there are none"
        return self._regions.filled(frames, parts, limit_bytes)

    def _sharing(self, exchange: Exchange) -> tuple[Regions, Owner]:
        mine = self._mine(exchange)
        if mine is None:
            raise Unserved(not_shared(self._regions, "send tensors as binary data"))
        return mine

    def _mine(self, exchange: Exchange) -> tuple[Regions, Owner] | None:
        """Return the regions and whose of them are the client's; None if memory is not shared with it."""
        sender = exchange.sender
        if self._regions is None or not isinstance(sender, HttpConnection):
            return None
        if sender.user is None:
            sender.user = _user(self._regions, sender)
        if sender.user is None:
            return None
        shown = from_header(exchange.header(b"authorization")) if self._gate.closed else None
        return self._regions, Owner(sender.user, (shown and shown.digest) or b"")


def _user(regions: Regions, connection: HttpConnection) -> int | None:
    """Return the user at the other end of a connection; None if that is not known."""
    own, peer, opened = (connection.told(name) for name in ("sockname", "peername", "socket"))
    if own is None or peer is None or opened is None:
        return None
    try:
        user = regions.users.user_of(end_of(*peer[:2]), end_of(*own[:2]))
        # If it had ended, another user's might have taken its number meanwhile.
        state = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except (OSError, ValueError):
        return None
    return user if state == _ESTABLISHED else None


# Memory of GPUs, which is not shared.


def no_regions(exchange: Exchange) -> None:
    """List the regions of memory that is not shared: there are none."""
    if exchange.arguments:
        raise Fault(
            404, f"there is no region {exchange.arguments[0][:100]!r}: this memory is not shared here"
        )
    exchange.reply_json([])


def no_register(_exchange: Exchange) -> None:
    """Refuse to share a GPU's memory."""
    raise Unserved(NO_CUDA)


def no_unregister(exchange: Exchange) -> None:
    """Share it no more: it never was."""
    exchange.reply_json({})
