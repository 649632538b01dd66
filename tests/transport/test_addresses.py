"""Hosts by name: the thread that resolves them waits, and no other does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mainspring.experiments.blocking import LIMITS, Server
from mainspring.transport import addresses
from mainspring.transport.bounds import Delivery
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.link import Link
from tests.patience import PATIENCE_S

SHOWS = Pass(secret=b"s" * 32)
NAME = "worker.example"
RESOLVE = addresses.resolve


class Resolver:
    """Stands in for the operating system's resolver of names: it answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[addresses.Address] = []
        self.answer = threading.Event()
        self.fails = False

    def __call__(self, address: addresses.Address, flags: int = 0) -> addresses.Target:
        if flags:
            return RESOLVE(address, flags)
        self.asked.append(address)
        assert self.answer.wait(PATIENCE_S)
        if self.fails:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return socket.AF_INET, ("127.0.0.1", address.port)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(addresses, "resolve", made)
    yield made
    made.answer.set()


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(secret=SHOWS.secret)
    yield made
    made.close()


def serve_until(hub: Hub, condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        hub.wait(1_000_000)


def named(server: Server) -> str:
    return f"tcp://{NAME}:{server.address.rpartition(':')[2]}"


def test_others_are_served_while_a_name_is_looked_up(hub: Hub, server: Server, resolver: Resolver) -> None:
    slow = Link(hub, named(server), LIMITS, keeps=True, shows=SHOWS)
    assert slow.send([b"later"]) is Delivery.SENT
    quick = Link(hub, server.address, LIMITS, keeps=True, shows=SHOWS)
    assert quick.send([b"now"]) is Delivery.SENT
    serve_until(hub, lambda: server.poll(0))
    assert server.receive()[1:] == [b"now"]
    assert not slow.connected
    resolver.answer.set()
    serve_until(hub, lambda: server.poll(0))
    assert server.receive()[1:] == [b"later"]
    assert [each.host for each in resolver.asked] == [NAME]


def test_a_name_that_is_not_found_is_asked_for_again_and_once_at_a_time(
    hub: Hub, server: Server, resolver: Resolver
) -> None:
    link = Link(hub, named(server), LIMITS, shows=SHOWS)
    for _ in range(5):
        # The time that a connection has is over; the lookup goes on.
        link.tick(time.monotonic_ns() + 60_000_000_000)
    assert len(resolver.asked) <= 1
    resolver.fails = True
    resolver.answer.set()
    serve_until(hub, lambda: len(resolver.asked) >= 3)
    assert not link.connected
    resolver.fails = False
    serve_until(hub, lambda: server.poll(0) or link.connected)


def test_a_link_can_be_closed_while_its_name_is_looked_up(
    hub: Hub, server: Server, resolver: Resolver
) -> None:
    link = Link(hub, named(server), LIMITS, shows=SHOWS)
    threads = [each for each in threading.enumerate() if each.name == "lookup"]
    link.close(0)
    resolver.answer.set()
    for each in threads:
        each.join(PATIENCE_S)
        assert not each.is_alive()
    hub.wait(0)
    assert not link.connected


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_host_in_numbers_needs_no_lookup(resolver: Resolver, host: str) -> None:
    found = addresses.in_numbers(addresses.Address(host.strip("[]"), 7400))
    assert found is not None
    assert found[1][:2] == (host.strip("[]"), 7400)
    assert addresses.in_numbers(addresses.Address("localhost", 7400)) is None


def test_what_can_be_no_name_is_said_not_to_be_found() -> None:
    with pytest.raises(OSError, match="no host"):
        addresses.resolve(addresses.Address("x" * 64 + ".example", 1))
