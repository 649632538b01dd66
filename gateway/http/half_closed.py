"""A client that has closed its side of a connection, while requests of it have no reply yet.

It may still read, as ``nc -N`` does, or be gone: TCP says the same of both. So the first bytes of the reply
that is due next, which all replies have in common, are sent at once: the host of a client that is gone
answers them with a reset.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from mainspring.gateway.http.exchange import REPLY_BEGIN

_FIRST_S: Final = 0.01
_LONGEST_S: Final = 1.0
"""Most seconds between two looks whether there was a reset, which the loop does not notice by itself any
more."""
_CLOSED: Final = 7
"""The kernel's ``TCP_CLOSE``, as the first byte of ``TCP_INFO``."""


class HalfClosed:
    """One such client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = False
        """True if the beginning of a reply was sent before the rest of it."""
        self._pause_s = _FIRST_S

    def begin(self) -> None:
        """Send the beginning of the next reply, and see whether the client is there to get it."""
        self._begun = True
        self._transport.write(REPLY_BEGIN)
        asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def rest(self, parts: list[Any]) -> list[Any]:
        """Return what is yet to be sent of a reply."""
        if not self._begun:
            return parts
        self._begun = False
        return [parts[0][len(REPLY_BEGIN) :], *parts[1:]]

    def _look(self) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        connected = transport.get_extra_info("socket")
        if connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            transport.abort()
            return
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        asyncio.get_running_loop().call_later(self._pause_s, self._look)
