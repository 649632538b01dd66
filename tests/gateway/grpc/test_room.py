"""Connections that have asked for nothing are closed where few are left, and no other."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack

import pytest

from mainspring.gateway.grpc.room import SILENT_MS, Room


@pytest.mark.parametrize(
    ("host", "named"), [("127.0.0.1", "ipv4:127.0.0.1:{}"), ("::1", "ipv6:%5B::1%5D:{}")]
)
@pytest.mark.parametrize(("bound", "closed"), [(4, 2), (5, 0)])
def test_who_has_asked_stays(host: str, named: str, bound: int, closed: int) -> None:
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = stack.enter_context(socket.create_server((host, 0), family=family))
        port = listener.getsockname()[1]
        clients = [stack.enter_context(socket.create_connection((host, port), 10)) for _ in range(3)]
        served = [stack.enter_context(listener.accept()[0]) for _ in clients]
        room = Room(bound)
        room.asks(named.format(clients[1].getsockname()[1]))
        room.asks(named.format(1))
        assert asyncio.run(room.make(port)) == 0, "they have had no time to ask"
        time.sleep(SILENT_MS / 1e3 + 0.05)
        assert asyncio.run(room.make(port)) == closed
        served[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        if closed:
            assert [clients[0].recv(1), clients[2].recv(1)] == [b"", b""]
