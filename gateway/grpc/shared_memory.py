"""System shared memory over gRPC: regions that clients register, and the tensors of requests there.

What is asked of memory that is not shared gets what a Triton without regions says: reading and clearing
succeed, for clients clear up before they start; sharing does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

from mainspring.gateway.grpc.access import TOKEN, Caller
from mainspring.gateway.grpc.messages import Message, message
from mainspring.gateway.grpc.status import Ended
from mainspring.gateway.oip.datatypes import Unserved
from mainspring.gateway.oip.spans import Span
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.peer_users import End, end_of
from mainspring.gateway.regions import NO_CUDA, Owner, Parts, Regions, not_shared
from mainspring.gateway.services import Services
from mainspring.transport.tokens import from_header

_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class SharedMemory:
    """Answers these calls, and finds the parts of regions that requests name."""

    def __init__(self, services: Services) -> None:
        self._regions = services.regions
        self._gate = services.driver.gate
        self._host, self._port = "", 0

    def listens(self, host: str, port: int) -> None:
        """Note where the server does: gRPC does not tell which of its addresses a client has called."""
        self._host, self._port = host.strip("[]"), port

    # --- calls ---

    def status(self, request: Message, caller: Caller) -> Message:
        """Answer SystemSharedMemoryStatus."""
        response = message("inference.SystemSharedMemoryStatusResponse")()
        if (mine := self._mine(caller)) is None:
            return no_status("System")(request, caller)
        regions, owner = mine
        for each in regions.status(owner, request.name):
            found = response.regions[each.name]
            found.name, found.key = each.name, each.key
            found.offset, found.byte_size = each.offset, each.byte_size
        return response

    def register(self, request: Message, caller: Caller) -> Message:
        """Answer SystemSharedMemoryRegister."""
        regions, owner = self._sharing(caller)
        regions.register(owner, request.name, request.key, request.offset, request.byte_size)
        return message("inference.SystemSharedMemoryRegisterResponse")()

    def unregister(self, request: Message, caller: Caller) -> Message:
        """Answer SystemSharedMemoryUnregister."""
        if (mine := self._mine(caller)) is not None:
            regions, owner = mine
            regions.unregister(owner, request.name)
        return message("inference.SystemSharedMemoryUnregisterResponse")()

    # --- for others ---

    def served_to(self, caller: Caller) -> bool:
        """Say whether a call's client may share memory."""
        return self._mine(caller) is not None

    def parts(self, caller: Caller, spans: Sequence[Span]) -> Parts:
        """Return where the bytes of a request's spans are; raise `Unserved` or `RegionError`."""
        if not spans:
            return {}
        regions, owner = self._sharing(caller)
        return regions.parts(owner, spans)

    def filled(self, frames: list[Any], parts: Parts, limit_bytes: int) -> Steps[list[Any]]:
        """Do as `Regions.filled`."""
        assert self._regions is not None, "parts of regions where there are none"
        return self._regions.filled(frames, parts, limit_bytes, "grpc_max_message_bytes")

    def _sharing(self, caller: Caller) -> tuple[Regions, Owner]:
        mine = self._mine(caller)
        if mine is None:
            raise Unserved(not_shared(self._regions, "send tensors in raw_input_contents"))
        return mine

    def _mine(self, caller: Caller) -> tuple[Regions, Owner] | None:
        """Return the regions and whose of them are the caller's; None if memory is not shared with it."""
        if self._regions is None:
            return None
        user = self._user(self._regions, caller.peer)
        if user is None:
            return None
        shown = from_header(caller.said(TOKEN)) if self._gate.closed else None
        return self._regions, Owner(user, (shown and shown.digest) or b"")

    def _user(self, regions: Regions, peer: str) -> int | None:
        """Return the user of a client by gRPC's name of it; None if that is not known.

        It is asked for each call: gRPC does not tell when a connection ends, and its number may be another
        user's next time.
        """
        kind, _, address = unquote(peer).partition(":")
        host, _, port = address.rpartition(":")
        if kind not in ("ipv4", "ipv6") or not port.isdecimal():
            return None
        try:
            client = end_of(host.strip("[]"), int(port))
            return regions.users.user_of(client, self._called(client))
        except ValueError:
            return None

    def _called(self, client: End) -> End:
        """Return the end that a client over the loopback has called."""
        try:
            own = end_of(self._host, self._port)
        except ValueError:
            own = None
        if own is None or own.host.is_unspecified or own.host.version != client.host.version:
            return End(ip_address(_LOOPBACK[client.host.version]), self._port)
        return own


Answering = Callable[[Message, Caller], Message]


def behaviours(shared: SharedMemory) -> Mapping[str, Answering]:
    """Return what answers each of the calls about shared memory."""
    return {
        "SystemSharedMemoryStatus": shared.status,
        "SystemSharedMemoryRegister": shared.register,
        "SystemSharedMemoryUnregister": shared.unregister,
        "CudaSharedMemoryStatus": no_status("Cuda"),
        "CudaSharedMemoryRegister": _no_register,
        "CudaSharedMemoryUnregister": _no_unregister,
    }


def no_status(kind: str) -> Answering:
    """Return what lists the regions of memory that is not shared: there are none."""
    response = message(f"inference.{kind}SharedMemoryStatusResponse")

    def status(request: Message, _caller: Caller) -> Message:
        if request.name:
            raise Ended(
                "NOT_FOUND", f"there is no region {request.name[:100]!r}: this memory is not shared here"
            )
        return response()

    return status


def _no_register(_request: Message, _caller: Caller) -> Message:
    raise Unserved(NO_CUDA)


def _no_unregister(_request: Message, _caller: Caller) -> Message:
    return message("inference.CudaSharedMemoryUnregisterResponse")()
