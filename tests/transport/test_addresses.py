"""Hosts by name: the thread that resolves them waits, and no other does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mainspring.transport import addresses
from mainspring.transport.bounds import Delivery
from mainspring.transport.greeting import Pass
from mainspring.transport.hub import Hub
from mainspring.transport.keys import Keys
from mainspring.transport.link import Link
from mainspring.transport.listener import Listener
from tests.blocking import LIMITS, Server
from tests.patience import PATIENCE_S
from tests.transport.issuing import Issue

NAME = "worker.example"
RESOLVE = addresses.resolve


class Resolver:
    """Stands in for the operating system's resolver of names: it answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[addresses.Address] = []
        self.answer = threading.Event()
        self.fails = False
        self.attempts: list[int] = []

    def __call__(self, address: addresses.Address, flags: int = 0, attempt: int = 0) -> addresses.Target:
        self.attempts.append(attempt)
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
def shows(issued: Issue) -> Pass:
    """What both ends show."""
    return Pass(keys=Keys(str(issued("tool", "*"))))


@pytest.fixture
def server(shows: Pass) -> Iterator[Server]:
    made = Server(keys=shows.keys)
    yield made
    made.close()


def serve_until(hub: Hub, condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        hub.wait(1_000_000)


def named(server: Server) -> str:
    return f"tcp://{NAME}:{server.address.rpartition(':')[2]}"


def test_others_are_served_while_a_name_is_looked_up(
    hub: Hub, server: Server, resolver: Resolver, shows: Pass
) -> None:
    slow = Link(hub, named(server), LIMITS, keeps=True, shows=shows)
    assert slow.send([b"later"]) is Delivery.SENT
    quick = Link(hub, server.address, LIMITS, keeps=True, shows=shows)
    assert quick.send([b"now"]) is Delivery.SENT
    serve_until(hub, lambda: server.poll(0))
    assert server.receive()[1:] == [b"now"]
    assert not slow.connected
    resolver.answer.set()
    serve_until(hub, lambda: server.poll(0))
    assert server.receive()[1:] == [b"later"]
    assert [each.host for each in resolver.asked] == [NAME]


def test_a_name_that_is_not_found_is_asked_for_again_and_once_at_a_time(
    hub: Hub, server: Server, resolver: Resolver, shows: Pass
) -> None:
    link = Link(hub, named(server), LIMITS, shows=shows)
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
    hub: Hub, server: Server, resolver: Resolver, shows: Pass
) -> None:
    link = Link(hub, named(server), LIMITS, shows=shows)
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


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("tcp://[::1]:7401", "::1", 7401),
        ("tcp://[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("tcp://gpu-7.example:80", "gpu-7.example", 80),
        ("tcp://10.0.0.1:80", "10.0.0.1", 80),
    ],
)
def test_hosts_are_numbers_of_either_kind_or_names(text: str, host: str, port: int) -> None:
    assert addresses.parse(text) == addresses.Address(host, port)
    assert str(addresses.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["tcp://::1:7401", "tcp://:1", "tcp://[]:1", "tcp://a/b:1", "tcp://[a:1", "tcp://a]:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        addresses.parse(text)


def test_an_address_of_ipv6_without_brackets_is_told_how_to_write_it() -> None:
    with pytest.raises(ValueError, match=r"in brackets, like tcp://\[::1\]:7401"):
        addresses.parse("tcp://fd00::7:7401")


def test_peers_meet_at_an_address_of_ipv6(hub: Hub, shows: Pass) -> None:
    listener = Listener(hub, "tcp://[::1]:*", LIMITS, shows)
    assert listener.address.startswith("tcp://[::1]:")
    link = Link(hub, listener.address, LIMITS, name=b"w", shows=shows)
    give_up = time.monotonic() + PATIENCE_S
    while not link.connected and time.monotonic() < give_up:
        hub.wait(10**6)
    assert link.connected


def test_a_name_with_several_addresses_is_tried_at_each(hub: Hub, resolver: Resolver, shows: Pass) -> None:
    resolver.answer.set()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        link = Link(hub, f"tcp://{NAME}:{taken.getsockname()[1]}", LIMITS, shows=shows)
        give_up = time.monotonic() + PATIENCE_S
        while len(resolver.asked) < 3 and time.monotonic() < give_up:
            hub.wait(10**6)
        assert not link.connected
    assert [each for each in resolver.attempts if each] == [1, 2][: len(resolver.attempts)]


def test_each_attempt_takes_the_next_address_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 5, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 5)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    targets = [addresses.resolve(addresses.Address(NAME, 5), attempt=each)[0] for each in range(3)]
    assert targets == [socket.AF_INET, socket.AF_INET6, socket.AF_INET]


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("gateway.localhost", True),
        ("10.0.0.1", False),
        ("fd00::1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_known_by_number_and_by_name(host: str, is_loopback: bool) -> None:
    assert addresses.is_loopback(host) is is_loopback


def test_the_host_at_the_other_end_of_a_connection_is_this_one_or_has_a_number() -> None:
    class Far(socket.socket):
        def getpeername(self) -> tuple[str, int]:
            return "10.0.0.2", 5

        def getsockname(self) -> tuple[str, int]:
            return "10.0.0.1", 6

    one, other = socket.socketpair()
    with one, other, Far() as far:
        assert addresses.host_of(one) == ""
        assert addresses.host_of(far) == "10.0.0.2"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as near:
        near.connect(server.getsockname())
        assert addresses.host_of(near) == ""
