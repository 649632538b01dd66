"""Bytes of an encrypted connection that the kernel has yet to take: encrypted, they leave as they are."""

from __future__ import annotations

import socket
from typing import Final

FLAGS: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
"""Flags of every send and receive: it never waits, and raises no signal if the peer has gone."""


class Unsent:
    """The encrypted bytes that wait for one socket."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected socket that does not block."""
        self._socket = sock
        self._left = memoryview(b"")

    def __bool__(self) -> bool:
        return self._left.nbytes > 0

    def push(self, data: bytes = b"") -> bool:
        """Hand what waits to the kernel, and ``data`` behind it; return whether nothing is left.

        Raises OSError if the connection is broken.
        """
        if data:
            self._left = memoryview(bytes(self._left) + data if self._left else data)
        while self._left:
            try:
                sent = self._socket.send(self._left, FLAGS)
            except BlockingIOError:
                return False
            self._left = self._left[sent:]
        return True
