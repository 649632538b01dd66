"""A stranger that only begins handshakes costs a listener little, and keeps nobody else out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mainspring.messages.roles import Role
from mainspring.transport.bounds import Limits
from mainspring.transport.config import TransportConfig
from mainspring.transport.greeting import present
from mainspring.transport.handshake import Identity
from mainspring.transport.handshake_rate import MOST_HOSTS, HandshakeRate
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.patience import PATIENCE_S
from tests.transport.issuing import Issue

SECOND = 1_000_000_000
LIMITS = Limits(1 << 20, 1 << 20, 100)
DEFAULT = TransportConfig()
AT_ONCE, PER_S, ALL_AT_ONCE = (
    *(DEFAULT.handshakes_at_once, DEFAULT.handshakes_per_s),
    DEFAULT.all_handshakes_at_once,
)


def allowed(rate: HandshakeRate, now_ns: int, address: str, count: int) -> int:
    return sum(rate.allows(now_ns, address) for _ in range(count))


def test_a_host_has_a_number_at_once_and_then_so_many_a_second() -> None:
    rate = HandshakeRate(0)
    assert allowed(rate, 0, "10.0.0.1", 1000) == AT_ONCE
    assert allowed(rate, SECOND, "10.0.0.1", 1000) == PER_S
    assert allowed(rate, SECOND, "10.0.0.1", 1000) == 0
    assert allowed(rate, 1000 * SECOND, "10.0.0.1", 1000) == AT_ONCE
    assert rate.refused == 4000 - 2 * AT_ONCE - PER_S


def test_what_is_configured_counts_for_listeners_that_are_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = HandshakeRate(0)
    few = TransportConfig(
        handshakes_at_once=3, handshakes_per_s=2, all_handshakes_at_once=4, all_handshakes_per_s=2
    )
    monkeypatch.setattr(HandshakeRate, "limits", few)
    rate = HandshakeRate(0)
    assert allowed(rate, 0, "10.0.0.1", 100) == 3
    assert allowed(rate, 0, "10.0.0.2", 100) == 1
    assert allowed(rate, SECOND, "10.0.0.1", 100) == 2
    assert allowed(before, 0, "10.0.0.1", 100) == 100


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"handshakes_per_s": 0}, "handshakes_per_s is 0; it must be at least 1"),
        ({"handshakes_at_once": 5000}, "all_handshakes_at_once is 1024, below handshakes_at_once"),
    ],
)
def test_what_can_not_be_configured_is_named(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TransportConfig(**wrong)


def test_what_one_host_is_refused_takes_nothing_from_another() -> None:
    rate = HandshakeRate(0)
    allowed(rate, 0, "10.0.0.1", 100_000)
    assert allowed(rate, 0, "10.0.0.2", 10) == 10


def test_all_hosts_together_are_bounded_and_few_are_remembered() -> None:
    rate = HandshakeRate(0)
    assert sum(rate.allows(0, f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(10_000)) == ALL_AT_ONCE
    assert len(rate._hosts) == MOST_HOSTS


def test_a_network_of_64_bits_is_one_host_and_a_mapped_address_the_mapped_one() -> None:
    rate = HandshakeRate(0)
    assert sum(rate.allows(0, f"2001:db8::{n:x}") for n in range(1000)) == AT_ONCE
    assert rate.allows(0, "2001:db8:0:1::1")
    assert allowed(rate, 0, "fe80::1%eth0", 1) == 1
    assert allowed(rate, 0, "10.0.0.9", 1000) == AT_ONCE
    assert not rate.allows(0, "::ffff:10.0.0.9")


@pytest.fixture
def flood() -> Iterator[list[int]]:
    """Yield the ports that a thread connects to from 127.0.0.1, without end, and how often it has."""
    told, stop = [0, 0], threading.Event()

    def connect() -> None:
        while not stop.is_set():
            if not told[0]:
                time.sleep(0.001)
                continue
            try:
                with socket.create_connection(("127.0.0.1", told[0]), 1) as made:
                    made.sendall(b"\x16\x03\x01")
                told[1] += 1
            except OSError:
                pass

    thread = threading.Thread(target=connect)
    thread.start()
    yield told
    stop.set()
    thread.join()


def test_who_belongs_here_connects_while_a_stranger_floods(
    issued: Issue, flood: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the stranger is beyond its number at once, however slow this machine is.
    few = TransportConfig(handshakes_at_once=8, handshakes_per_s=1)
    monkeypatch.setattr(HandshakeRate, "limits", few)
    hub, refused = Hub(), list[int]()
    here = present(Role.CONTROLLER, str(issued("controller", "controller")))
    listener = Listener(hub, "tcp://[::]:*", LIMITS, here, b"controller")
    listener.on_flood = lambda: refused.append(1)
    port = int(listener.address.rpartition(":")[2])
    flood[0] = port
    deadline_s = time.monotonic() + PATIENCE_S
    while len(refused) < 200:
        hub.wait(10_000_000)
        assert time.monotonic() < deadline_s, (len(refused), flood)
    assert flood[1] > 200
    link = Link(
        hub,
        f"tcp://[::1]:{flood[0]}",
        LIMITS,
        name=b"w",
        shows=present(Role.WORKER, str(issued("worker", "w"))),
        expects=Identity(Role.CONTROLLER),
    )
    while not link.connected:
        hub.wait(10_000_000)
        assert time.monotonic() < deadline_s, "a stranger keeps it out"
    hub.close()


def test_a_listener_without_keys_counts_nobody() -> None:
    hub = Hub()
    listener = Listener(hub, "tcp://127.0.0.1:*", LIMITS, present(Role.CONTROLLER, ""), b"controller")
    listener.on_flood = lambda: pytest.fail("a connection in clear costs no handshake of TLS")
    link = Link(
        hub,
        listener.address,
        LIMITS,
        name=b"w",
        shows=present(Role.WORKER, ""),
        expects=Identity(Role.CONTROLLER),
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while not link.connected:
        hub.wait(10_000_000)
        assert time.monotonic() < deadline_s
    hub.close()
