"""Bytes over a bare connection: what a link can do at all.

``python -m tests.hosts.bare_link send ADDRESS PORT BYTES`` waits for ``receive ADDRESS PORT BYTES``, which
prints ``ready``, ``offered`` and the seconds from the connection to the last byte.
"""

from __future__ import annotations

import socket
import sys
import time

from tests.patience import PATIENCE_S

PIECE_BYTES = 1 << 20


def send(address: str, port: int, count: int) -> None:
    """Send to the first that connects."""
    with socket.create_server((address, port)) as listening, listening.accept()[0] as sock:
        piece = bytes(PIECE_BYTES)
        for begin in range(0, count, PIECE_BYTES):
            sock.sendall(piece[: count - begin])


def receive(address: str, port: int, count: int) -> None:
    """Read all that is sent; print how long that took."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            sock = socket.create_connection((address, port), PATIENCE_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.05)
    print("ready", flush=True)
    began_s = time.monotonic()
    with sock:
        while count:
            count -= (got := len(sock.recv(PIECE_BYTES)))
            if not got:
                sys.exit("it ended early")
    print("offered", flush=True)
    print(time.monotonic() - began_s, flush=True)


if __name__ == "__main__":
    way, where, *numbers = sys.argv[1:]
    {"send": send, "receive": receive}[way](where, *map(int, numbers))
