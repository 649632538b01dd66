"""A listener of an event loop (asyncio) that speaks TLS with each client before a protocol is made for it.

The loop's own servers bound neither the number of handshakes under way nor what they cost together, and keep
the certificate that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable

from mainspring.transport import addresses
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.transport.keys import ServerKeys

LOG = logging.getLogger(__name__)

MAX_HANDSHAKES = 256
"""Handshakes under way; a further one ends the oldest."""
_ACCEPTS_AT_ONCE = 64
_AGAIN_S = 0.1
"""Until connections are accepted again after the process has run out of descriptors."""


class TlsServer:
    """Listens at one address; its methods are those of the loop's servers."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        keys: ServerKeys,
        handshake_s: float,
        on_flood: Callable[[], object] = lambda: None,
    ) -> None:
        """Serve from now on; ``handshake_s``: seconds that a client has to prove itself.

        ``on_flood`` is called for each connection that is closed because its host begins too many handshakes.
        """
        self.sockets = (listening,)
        self._listening = listening
        self._factory, self._keys, self._handshake_s = factory, keys, handshake_s
        self._loop = asyncio.get_running_loop()
        self._rate, self._on_flood = HandshakeRate(time.monotonic_ns()), on_flood
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._paused: asyncio.TimerHandle | None = None
        self._open = True
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Take nothing new; connections that stand are their protocols' to end."""
        if not self._open:
            return
        self._open = False
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for task in list(self._under_way):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, source = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._pause(error)
                    return
                continue
            if not self._rate.allows(time.monotonic_ns(), source[0]):
                sock.close()
                self._on_flood()
                continue
            sock.setblocking(False)
            if len(self._under_way) >= MAX_HANDSHAKES:
                oldest = next(iter(self._under_way))
                del self._under_way[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._secure(sock))
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _secure(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, sock, ssl=self._keys.context(), ssl_handshake_timeout=self._handshake_s
            )
        except asyncio.CancelledError:
            sock.close()
        except (OSError, TimeoutError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
            if reason == "HTTP_REQUEST":
                reason = "it speaks HTTP without TLS, and the address is one of https://"
            LOG.info("ended a new connection: %s", reason)
            with contextlib.suppress(OSError):
                sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment; otherwise the loop would hear of waiting connections without end."""
        LOG.warning("can't take another connection: %s", error.strerror)
        self._loop.remove_reader(self._listening.fileno())
        self._paused = self._loop.call_later(_AGAIN_S, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._loop.add_reader(self._listening.fileno(), self._accept)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens; raise OSError if the address can't be had."""
    family, target = addresses.resolve(addresses.Address(host, port), socket.AI_PASSIVE)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(target)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening
