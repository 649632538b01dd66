"""A listener of an event loop (asyncio), which speaks TLS with each client before it makes a protocol for it.

The loop's own servers accept all that waits in one turn, before a protocol can refuse any of it, and go on
when the process has no descriptors left. With TLS they bound neither the number of handshakes under way nor
what they cost together, and keep the certificate that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence

from mainspring.transport import addresses
from mainspring.transport.bounds import AGAIN_NS, Shortage
from mainspring.transport.handshake_rate import HandshakeRate
from mainspring.transport.keys import ServerKeys

LOG = logging.getLogger(__name__)

MAX_HANDSHAKES = 256
"""Handshakes under way; a further one ends the oldest."""
_ACCEPTS_AT_ONCE = 16
"""Most connections accepted at once, before the protocols of former ones can refuse or end some."""


class Server:
    """Listens at one address; its methods are those of the loop's servers."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        keys: ServerKeys | None = None,
        handshake_s: float = 0.0,
        on_flood: Callable[[], object] = lambda: None,
        most_handshakes: int | None = None,
    ) -> None:
        """Serve from now on, by TLS with ``keys``.

        ``handshake_s``: seconds that a client has to prove itself.
        ``on_flood`` is called for each connection that is closed because its host begins too many handshakes;
        of ``most_handshakes`` under way, `MAX_HANDSHAKES` if None, a further one ends the oldest.
        """
        self.sockets = tuple(sockets)
        self._factory, self._keys, self._handshake_s = factory, keys, handshake_s
        self._most = MAX_HANDSHAKES if most_handshakes is None else most_handshakes
        self._loop = asyncio.get_running_loop()
        self._rate = None if keys is None else HandshakeRate(time.monotonic_ns())
        self._on_flood = on_flood
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._paused: asyncio.TimerHandle | None = None
        self._shortage = Shortage(":".join(map(str, self.sockets[0].getsockname()[:2])))
        self._open = True
        for each in self.sockets:
            each.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take nothing new; connections that stand are their protocols' to end."""
        if not self._open:
            return
        self._open = False
        if self._paused is not None:
            self._paused.cancel()
        for each in self.sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        for task in list(self._under_way):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _listen(self) -> None:
        for each in self.sockets:
            self._loop.add_reader(each.fileno(), self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, source = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if self._shortage.caused(error):
                    self._pause(error)
                    return
                continue
            if self._rate is not None and not self._rate.allows(time.monotonic_ns(), source[0]):
                sock.close()
                self._on_flood()
                continue
            try:
                addresses.prepare(sock)
            except OSError:
                # The client is gone already.
                sock.close()
                continue
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        if len(self._under_way) >= self._most:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._admit(sock))
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _admit(self, sock: socket.socket) -> None:
        try:
            if self._keys is None:
                await self._loop.connect_accepted_socket(self._factory, sock)
            else:
                await self._loop.connect_accepted_socket(
                    self._factory,
                    sock,
                    ssl=self._keys.context(),
                    ssl_handshake_timeout=self._handshake_s,
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
        self._shortage.say(LOG, error, time.monotonic_ns())
        for each in self.sockets:
            self._loop.remove_reader(each.fileno())
        self._paused = self._loop.call_later(AGAIN_NS / 1e9, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._listen()


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a socket for each address that a host has; raise OSError if one of them can't be had.

    Port 0: one that is free, the same for all of them.
    """
    sockets: list[socket.socket] = []
    try:
        found = addresses.resolve_all(addresses.Address(host, port), socket.AI_PASSIVE)
        for family, wanted in found:
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound = sockets[0].getsockname()[1] if sockets[1:] else port
            try:
                listening.bind((wanted[0], bound, *wanted[2:]))
            except OSError as error:
                # A host's name may stand for an address that this machine does not have now.
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                sockets.pop().close()
                continue
            listening.listen(backlog)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
