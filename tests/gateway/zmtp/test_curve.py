"""CURVE: our client and libzmq's against the gateway, and those who have no key, or garbage, or old boxes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from zmq.utils import z85

from mainspring import Client, GatewayUnreachable
from mainspring.gateway.bounds import Budget
from mainspring.gateway.zmtp import wire
from mainspring.gateway.zmtp.curve import CurveSocket, _Stream, read_curve_keys
from mainspring.transport.tokens import token_sha256
from tests.gateway.fakes import gateway, wait_until
from tests.gateway.test_encrypted import recorded
from tests.gateway.test_end_to_end import emulated, real_controller, real_worker, workers_ready
from tests.patience import PATIENCE_S

TOKEN = "ms_a_token_that_nobody_is_to_see_on_the_way"
PATTERN = b"a tensor that only gateway and worker are to see".ljust(64, b".")[:64]
X = np.frombuffer(PATTERN[:32], np.float32).reshape(2, 4)
NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, str]:
    """The file of a secret key, and the public one."""
    public, secret = zmq.curve_keypair()
    path = tmp_path / "curve.key"
    path.write_bytes(secret)
    path.chmod(0o600)
    return path, public.decode()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_requests_are_served_and_nothing_of_them_is_seen_on_the_way(key: tuple[Path, str]) -> None:
    path, public = key
    options = {"curve_key": str(path), "launcher_token_sha256": token_sha256(TOKEN)}
    with (
        real_controller([emulated("a")]) as controller,
        real_worker("one", controller),
        gateway(controller, **options) as address,
        recorded(port_of(address)) as (relayed, passed),
        Client(relayed, token=TOKEN, curve_key=public) as client,
    ):
        wait_until(lambda: workers_ready(client, 1, 1), PATIENCE_S)
        futures = [client.submit("a", {"data": X}, slo_ms=20_000) for _ in range(200)]
        assert all(future.result(PATIENCE_S)["sum"].shape == (2,) for future in futures)
    assert len(passed) > 10_000
    for seen in (TOKEN.encode(), PATTERN[:32], b"client_hello", b"infer"):
        assert seen not in passed


@pytest.mark.parametrize("curve_key", ["", "another"])
def test_clients_without_the_key_are_not_served(key: tuple[Path, str], curve_key: str) -> None:
    shown = zmq.curve_keypair()[0].decode() if curve_key else ""
    with (
        gateway(NOWHERE, curve_key=str(key[0])) as address,
        Client(address, curve_key=shown, connect_timeout_s=0.5) as client,
        pytest.raises(GatewayUnreachable),
    ):
        client.status()


def test_a_gateway_without_a_key_refuses_those_who_encrypt(key: tuple[Path, str]) -> None:
    with (
        gateway(NOWHERE) as address,
        Client(address, curve_key=key[1], connect_timeout_s=0.5) as client,
        pytest.raises(GatewayUnreachable),
    ):
        client.status()


@pytest.mark.parametrize("text", ["short", "x" * 39 + " ", "ü" * 40])
def test_a_key_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a public key of CURVE has 40 characters"):
        Client("tcp://127.0.0.1:7400", curve_key=text)
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(OSError, match="is open to others"):
        read_curve_keys(str(path))
    path.chmod(0o600)
    with pytest.raises(OSError, match="holds no secret key of CURVE"):
        read_curve_keys(str(path))
    with pytest.raises(OSError, match="can't be read"):
        read_curve_keys(str(tmp_path / "none"))


def test_the_public_key_is_the_one_of_libzmq(key: tuple[Path, str]) -> None:
    keys = read_curve_keys(str(key[0]))
    assert z85.encode(keys.public).decode() == key[1]


class Peer:
    """A DEALER of libzmq's beside a `CurveSocket` that it is connected to."""

    def __init__(self, key: tuple[Path, str], message_bytes: int = 8 << 20, room: int = 64 << 20) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        self.dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self.dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self.dealer.setsockopt(zmq.CURVE_SERVERKEY, key[1].encode())
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        sock, _ = listening.accept()
        listening.close()
        sock.setblocking(False)
        self.budget = Budget(room)
        self.end = CurveSocket(sock, read_curve_keys(str(key[0])), message_bytes, self.budget)
        self.end.sendmsg([wire.GREETING])
        assert self.read(len(wire.GREETING)) == wire.GREETING
        head = self.read(2)
        assert b"READY" in self.read(head[1])
        self.end.sendmsg([wire.ready()])
        self.end.stranger = False

    def read(self, count: int) -> bytes:
        data = bytearray(count)
        place, until_s = 0, time.monotonic() + PATIENCE_S
        while place < count:
            assert time.monotonic() < until_s
            try:
                place += self.end.recv_into(memoryview(data)[place:])
            except BlockingIOError:
                time.sleep(0.001)
        return bytes(data)

    def send(self, parts: list[bytes]) -> None:
        """Send as `Backlog` does: again from where it stopped."""
        left = [memoryview(part) for part in parts]
        until_s = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < until_s
            try:
                sent = self.end.sendmsg(left)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            while left and left[0].nbytes <= sent:
                sent -= left.pop(0).nbytes
            if left:
                left[0] = left[0][sent:]

    def close(self) -> None:
        self.end.close()
        self.dealer.close()


@pytest.fixture
def peer(key: tuple[Path, str]) -> Iterator[Peer]:
    made = Peer(key)
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 1, 200, 255, 256, 70_000, 3_000_000])
def test_frames_of_any_size_go_both_ways(peer: Peer, size: int) -> None:
    body = os.urandom(size)
    peer.dealer.send_multipart([b"first", body, b""], copy=True)
    wanted = b"".join(wire.frames([b"first", body, b""]))
    assert peer.read(len(wanted)) == wanted
    assert peer.budget.held_bytes == 0
    frames = wire.frames([b"first", body, b""])
    peer.send([bytes(part) for part in frames])
    assert peer.dealer.poll(round(PATIENCE_S * 1e3))
    assert peer.dealer.recv_multipart() == [b"first", body, b""]


def test_what_does_not_leave_at_once_leaves_later_in_order(peer: Peer) -> None:
    bodies = [os.urandom(400_000) for _ in range(40)]
    peer.dealer.setsockopt(zmq.RCVHWM, 100)
    peer.send([bytes(part) for body in bodies for part in wire.frames([body])])
    received: list[bytes] = []
    while len(received) < len(bodies):
        assert peer.dealer.poll(round(PATIENCE_S * 1e3))
        received.append(peer.dealer.recv())
    assert received == bodies


def test_a_frame_beyond_the_bounds_ends_the_connection(key: tuple[Path, str]) -> None:
    for given, stranger, why in (
        ({"message_bytes": 100_000}, False, "are allowed"),
        ({"room": 100_000}, False, "hold as many bytes as they may"),
        ({}, True, "are allowed"),
    ):
        peer = Peer(key, **given)
        peer.end.stranger = stranger
        peer.dealer.send(bytes(2_000_000))
        with pytest.raises(wire.Violation, match=why):
            peer.read(1_000_000)
        peer.close()
        assert peer.budget.held_bytes == 0


def test_what_was_said_before_or_changed_is_refused(peer: Peer) -> None:
    """A box that comes again, and one in which a bit was changed on the way."""
    seen: list[bytes] = []
    real = peer.end._socket

    class Tapped:
        def recv(self, most: int) -> bytes:
            data = real.recv(most)
            seen.append(data)
            return data

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    peer.end._socket = Tapped()  # type: ignore[assignment]
    peer.dealer.send(b"once")
    assert peer.read(6) == b"\0\4once"
    peer.end._came += b"".join(seen)
    with pytest.raises(wire.Violation, match="a nonce of it came before"):
        peer.end._take()
    seen.clear()
    body = b"\x07MESSAGE" + (1 << 40).to_bytes(8) + bytes(24)
    changed = bytearray(bytes((0, len(body))) + body)
    peer.end._came = changed
    with pytest.raises(wire.Violation, match="can't be opened"):
        peer.end._take()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n".ljust(64, b"."),
        wire.GREETING,
        wire.SIGNATURE + b"\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\4\5\4HELL",
        wire.SIGNATURE + b"\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\xff\xff",
        wire.SIGNATURE + b"\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\6" + (1 << 40).to_bytes(8),
        wire.SIGNATURE + b"\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\4\xc8\5HELLO\1" + bytes(193),
    ],
)
def test_garbage_in_place_of_a_handshake_ends_it(key: tuple[Path, str], said: bytes) -> None:
    one, other = socket.socketpair()
    other.setblocking(False)
    end = CurveSocket(other, read_curve_keys(str(key[0])), 1 << 20, Budget(1 << 20))
    one.sendall(said)
    assert end.recv_into(memoryview(bytearray(64))) == 64
    with pytest.raises(wire.Violation):
        end.recv_into(memoryview(bytearray(4_096)))
    one.close()
    end.close()


def test_a_stream_of_parts_is_taken_in_any_pieces() -> None:
    parts = [b"abc", b"", b"defgh", b"i"]
    for skip in range(10):
        stream = _Stream(parts, skip)
        rest = b"abcdefghi"[skip:]
        assert stream.take(len(rest) + 1) is None
        taken = b""
        while (piece := stream.take(min(2, len(rest) - len(taken)))) is not None and piece.nbytes:
            taken += piece
        assert taken == rest
