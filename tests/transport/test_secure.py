"""What is said over TLS stays between the two, whoever speaks to a listener, however slowly or wrongly."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mainspring.transport import keys, listener
from mainspring.transport.keys import BadKeys, Keys
from mainspring.transport.secure import SecureSocket
from tests.blocking import LIMITS, Client, Server
from tests.patience import PATIENCE_S
from tests.transport.issuing import Issue
from tests.transport.raw import by_tcp, over_tcp_alone

SECRET = b"what nobody else is to see, such as a token"
PATTERN = os.urandom(64)
"""Of a tensor, to be looked for on the way."""


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    over_tcp_alone(monkeypatch)


@pytest.fixture
def own(issued: Issue) -> Keys:
    return Keys(str(issued("tool", "*")))


@pytest.fixture
def server(own: Keys) -> Iterator[Server]:
    made = Server(keys=own)
    yield made
    made.close()


@contextmanager
def recorded(address: str) -> Iterator[tuple[str, bytearray]]:
    """Yield an address that passes on to another, and what has passed, both ways together."""
    listening = socket.create_server(("127.0.0.1", 0))
    passed, stop = bytearray(), threading.Event()

    def relay() -> None:
        listening.settimeout(PATIENCE_S)
        one, _ = listening.accept()
        with one, by_tcp(address) as other:
            ends = {one: other, other: one}
            while not stop.is_set():
                for end in select.select([one, other], [], [], 0.05)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    passed.extend(data)
                    ends[end].sendall(data)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", passed
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        listening.close()


def converse(server: Server, client: Client) -> None:
    """Have both say much to each other, tensors and a secret among it."""
    client.send([b"token " + SECRET, PATTERN * 20_000, PATTERN])
    thread = threading.Thread(target=client.flush)
    thread.start()
    peer, *parts = server.receive(PATIENCE_S * 1e3)
    thread.join()
    assert [bytes(part) for part in parts] == [b"token " + SECRET, PATTERN * 20_000, PATTERN]
    server.send([peer, b"answer", PATTERN])
    assert [bytes(part) for part in client.receive(PATIENCE_S * 1e3)] == [b"answer", PATTERN]


def test_a_recording_relay_sees_no_tensor_and_no_token(own: Keys) -> None:
    server = Server(keys=own)
    with recorded(server.address) as (address, passed):
        client = Client(address, b"somebody", keys=own)
        thread = threading.Thread(target=lambda: [server.poll(1) for _ in range(300)])
        thread.start()
        thread.join()
        converse(server, client)
        assert len(passed) > 1_000_000
        for seen in (PATTERN, SECRET, b"somebody", b"answer"):
            assert seen not in passed
        client.close()
    server.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "which is no TLS"),
        (bytes(100), "which is no TLS"),
        (b"\x16\x03\x01\x00\x05hello", "TLS with it failed"),
        (b"\x16\x03\x01\xff\xff" + bytes(70_000), "TLS with it failed"),
        (b"MSPG" + bytes(60), "it speaks no TLS"),
    ],
)
def test_garbage_ends_its_own_connection_alone(server: Server, own: Keys, said: bytes, why: str) -> None:
    heard: list[str] = []
    server.listener.on_violation = heard.append
    raw = by_tcp(server.address)
    raw.sendall(said)
    until_s = time.monotonic() + PATIENCE_S
    while not heard:
        assert time.monotonic() < until_s
        server.poll(10)
    assert why in heard[0]
    assert not server.listener._greeting
    raw.close()
    works(server, own)


def works(server: Server, own: Keys) -> None:
    client = Client(server.address, keys=own)
    client.send([b"x"])
    until_s = time.monotonic() + PATIENCE_S
    while not client.link.connected:
        assert time.monotonic() < until_s, client.link.failure
        server.poll(1)
        client.poll(1)
    assert server.receive(PATIENCE_S * 1e3)[1] == b"x"
    client.close()


def test_a_handshake_that_stops_halfway_is_given_up_and_others_are_served_meanwhile(
    server: Server, own: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GREETING_NS", 500_000_000)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    hello = said.read()
    slow = [by_tcp(server.address) for _ in range(3)]
    for raw, part in zip(slow, (hello, hello[:40], hello[:1]), strict=True):
        raw.sendall(part)
    works(server, own)
    until_s = time.monotonic() + PATIENCE_S
    while server.listener._greeting:
        assert time.monotonic() < until_s
        server.poll(20)
    for raw in slow:
        raw.close()


def test_the_handshakes_under_way_are_bounded(
    server: Server, own: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_GREETINGS", 4)
    raws = [by_tcp(server.address) for _ in range(20)]
    for raw in raws:
        raw.sendall(b"\x16")
    for _ in range(10):
        server.poll(2)
    assert len(server.listener._greeting) <= 4
    works(server, own)
    for raw in raws:
        raw.close()


def test_what_comes_after_the_handshake_and_is_no_tls_ends_the_connection(own: Keys) -> None:
    """One that changes a byte on the way is noticed before anything is made of it."""
    server = Server(keys=own)
    client = Client(server.address, b"somebody", keys=own)
    client.send([b"first"])
    until_s = time.monotonic() + PATIENCE_S
    while not client.link.connected:
        assert time.monotonic() < until_s
        client.poll(1)
        server.poll(1)
    assert server.receive(PATIENCE_S * 1e3)[1] == b"first"
    channel = client.link._channel
    assert channel is not None
    channel._socket.plain.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    while server.listener._peers:
        assert time.monotonic() < until_s
        server.poll(5)
    client.close()
    server.close()


def test_an_answer_that_comes_at_once_finds_the_owner_of_the_connection(own: Keys) -> None:
    """The connecting end says its first word alone when it is made, however quickly the other one answers."""
    one, other = socket.socketpair()
    ends = [one, other]
    for each in ends:
        each.setblocking(False)

    class Answering:
        """A socket whose other end has answered before it is read."""

        def __getattr__(self, name: str) -> object:
            return getattr(one, name)

        def send(self, data: bytes, flags: int) -> int:
            sent = one.send(data, flags)
            listening.advance()
            return sent

    listening = SecureSocket(other, own, True)
    connecting = SecureSocket(Answering(), own, False)  # type: ignore[arg-type]
    assert connecting.certificate is None
    assert connecting.advance()
    assert listening.advance()
    for each in ends:
        each.close()


def test_the_other_ends_host_is_known_over_tls_too(server: Server, own: Keys) -> None:
    client = Client(server.address, b"somebody", keys=own)
    until_s = time.monotonic() + PATIENCE_S
    while not client.link.connected:
        assert time.monotonic() < until_s
        client.poll(1)
        server.poll(1)
    (peer,) = server.listener._peers
    assert server.listener.certificate(peer) is not None
    assert server.listener.host_of(peer) == "", "it is this host"
    client.close()


def test_keys_that_are_of_no_use_say_why(issued: Issue, tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="mainspring keys issue"):
        Keys(str(tmp_path / "none"))
    for name in ("cert.pem", "key.pem"):
        with pytest.raises(BadKeys, match=f"has no {name}"):
            Keys(str(tmp_path))
        (tmp_path / name).write_bytes((issued("tool", "*") / name).read_bytes())
    with pytest.raises(BadKeys, match="is open to others"):
        Keys(str(tmp_path))
    (tmp_path / "key.pem").chmod(0o600)
    with pytest.raises(BadKeys, match=r"has no ca\.pem"):
        Keys(str(tmp_path))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(BadKeys, match=r"ca\.pem is no certificate in PEM"):
        Keys(str(tmp_path))
    (tmp_path / "ca.pem").write_bytes((issued("tool", "*") / "ca.pem").read_bytes())
    assert Keys(str(tmp_path)).cluster == "here"
    (tmp_path / "key.pem").write_bytes((issued("tool", "other") / "key.pem").read_bytes())
    with pytest.raises(BadKeys, match="are no certificate with its key"):
        Keys(str(tmp_path))


def test_files_are_looked_at_again_and_bad_ones_left_alone(
    issued: Issue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for each in issued("tool", "*").iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
        (tmp_path / each.name).chmod(0o600)
    made, now_ns = Keys(str(tmp_path)), time.monotonic_ns()
    serial = made.own.serial
    assert not made.look(now_ns + 2 * keys.LOOK_NS)
    (tmp_path / "cert.pem").write_text("half")
    assert not made.look(now_ns + 4 * keys.LOOK_NS)
    assert "is not taken" in caplog.text
    assert made.own.serial == serial
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((issued("tool", "newer") / name).read_bytes())
    assert made.look(now_ns + 6 * keys.LOOK_NS)
    assert made.own.serial != serial


def test_a_part_that_is_large_is_bounded_over_tls_too(own: Keys) -> None:
    server = Server(keys=own)
    client = Client(server.address, b"somebody", keys=own)
    client.send([b"m", bytes(LIMITS.part_bytes + 1)])
    heard: list[str] = []
    server.listener.on_violation = heard.append
    until_s = time.monotonic() + PATIENCE_S
    while not heard:
        assert time.monotonic() < until_s
        client.poll(1)
        server.poll(1)
    assert "a part of" in heard[0]
    client.close()
    server.close()
