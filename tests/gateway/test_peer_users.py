"""Which user the other end of a connection is, by the kernel's word."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mainspring.gateway.peer_users import End, PeerUsers, end_of
from tests.gateway.fakes import wait_until
from tests.patience import PATIENCE_S

CONNECT = """
import encodings.idna, os, socket, sys
# Another user may read nothing of this installation.
if int(sys.argv[3]):
    os.setuid(int(sys.argv[3]))
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sys.stdin.read()
"""


@pytest.fixture
def users() -> Iterator[PeerUsers]:
    users = PeerUsers()
    yield users
    users.close()


def ends(connection: socket.socket) -> tuple[End, End]:
    """Return the peer's end and the own one."""
    return end_of(*connection.getpeername()[:2]), end_of(*connection.getsockname()[:2])


@pytest.mark.parametrize(
    ("listen", "connect", "family"),
    [
        ("127.0.0.1", "127.0.0.1", socket.AF_INET),
        ("0.0.0.0", "127.0.0.7", socket.AF_INET),
        ("::1", "::1", socket.AF_INET6),
        ("::", "127.0.0.1", socket.AF_INET6),
    ],
)
def test_the_user_of_this_process(users: PeerUsers, listen: str, connect: str, family: int) -> None:
    try:
        server = socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::")
    except OSError as error:
        pytest.skip(f"this host has no such address: {error}")
    with server, socket.create_connection((connect, server.getsockname()[1])) as client:
        accepted, _ = server.accept()
        with accepted:
            assert users.user_of(*ends(accepted)) == os.getuid()
            client.close()
            wait_until(lambda: users.user_of(*ends(accepted)) is None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user(users: PeerUsers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        for user in (4_711, 0):
            client = subprocess.Popen(
                [sys.executable, "-c", CONNECT, host, str(port), str(user)], stdin=subprocess.PIPE
            )
            accepted, _ = server.accept()
            with accepted:
                assert users.user_of(*ends(accepted)) == user
            client.communicate(b"")


def test_nobody_is_taken_for_somebody(users: PeerUsers) -> None:
    """User 0 is root: what is not known must not become that."""
    own = end_of("127.0.0.1", 8_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = end_of(*server.getsockname())
        assert users.user_of(listening, own) is None
    assert users.user_of(end_of("127.0.0.1", 1), own) is None
    assert users.user_of(end_of("192.0.2.1", 50_000), own) is None
    assert users.user_of(end_of("::1", 50_000), own) is None
    with pytest.raises(ValueError, match="does not appear"):
        end_of("localhost", 80)
