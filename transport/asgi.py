"""A server of HTTP by ASGI beside the path of requests: its listening socket and connections, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mainspring.transport import addresses
from mainspring.transport.accepting import Server as Accepting
from mainspring.transport.keys import ServerKeys

_BACKLOG = 128


def listen_at(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket and host and port as an URL has them; raise OSError if it can't be had.

    A host ``*`` is every address of IPv4.
    """
    host = "0.0.0.0" if host == "*" else host
    family, target = addresses.resolve(addresses.Address(host, port), socket.AI_PASSIVE)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    shown = f"[{host}]" if ":" in host else host
    return listener, f"{shown}:{listener.getsockname()[1]}"


class Connection(H11Protocol):
    """A connection that is refused beyond a number of them, and closed if it asks for nothing."""

    most = 0
    patience_s = 0.0
    reading_s = 0.0
    """Longest time that the other end may read nothing of what is sent, in seconds; 0: any time."""
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take it, if need be in the place of one that has asked for nothing, or close it at once."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            silent = self._silent()
            if silent is None:
                transport.abort()
                return
            silent.transport.abort()
            self.connections.discard(silent)
        self._be_patient()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; a head that was begun has to come in time."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._be_patient()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """Wait until the other end has read some of what is sent, which has to happen in time."""
        super().pause_writing()
        if self.reading_s and self._reading is None:
            self._reading = self.loop.call_later(self.reading_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._read_on()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._timer is not None:
            self._timer.cancel()
        self._read_on()
        super().connection_lost(exc)

    def _silent(self) -> Connection | None:
        """Return which of the others has been waiting for longest without a whole request."""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        waiting = [(each._timer.when(), each) for each in others if each._timer is not None]
        return min(waiting, key=lambda pair: pair[0], default=(0.0, None))[1]

    def _read_on(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _be_patient(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience_s, self.transport.abort)


class Server(uvicorn.Server):
    """Leaves signals to the process, accepts with bounds, and has clients speak TLS if it has keys."""

    keys: ServerKeys | None = None
    handshake_s = 0.0
    """The time that a client has to prove itself."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on one socket from now on."""
        assert sockets, "it serves at sockets that listen"
        config, state = self.config, self.server_state

        def connection() -> asyncio.BaseProtocol:
            made: asyncio.BaseProtocol = config.http_protocol_class(
                config=config,  # type: ignore[call-arg]
                server_state=state,
                app_state=self.lifespan.state,
            )
            return made

        await self.lifespan.startup()
        server: Any = Accepting(sockets, connection, self.keys, self.handshake_s)
        self.servers = [server]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
