"""Connections of a town: order, stalls, breaks, and what a kernel says that knows a connection no more."""

from heapq import heappop
from random import Random

from mainspring.simulator.environment import Agenda
from mainspring.simulator.town.ports import ANY, TownHub, TownLink, TownListener
from mainspring.simulator.town.streams import Network
from mainspring.transport.bounds import Delivery

MS = 1_000_000
ADDRESS = "tcp://10.0.0.1:7000"


class Pair:
    """A link and the listener that it connects to, 1 ms apart."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.network = Network(self.agenda, Random(0), MS, 0)
        self.there = TownHub(self.network, "10.0.0.1", lambda: None)
        self.here = TownHub(self.network, "10.0.0.2", lambda: None)
        self.listener = TownListener(self.there, ADDRESS)
        self.link = TownLink(self.here, ADDRESS, ANY, b"worker", b"w", keeps=False)
        self.until(5 * MS)

    def until(self, instant_ns: int) -> None:
        """Let everything happen until an instant."""
        entries = self.agenda.entries
        while entries and entries[0][0] <= instant_ns:
            self.agenda.now_ns, _, function, arguments = heappop(entries)
            function(*arguments)
        self.agenda.now_ns = instant_ns

    def came(self) -> list[bytes]:
        """Return what the listener receives."""
        found = []
        while (received := self.listener.receive()) is not None:
            found.append(received[1][0])
        return found


def test_messages_come_in_order_after_the_delay() -> None:
    pair = Pair()
    for number in range(3):
        assert pair.link.send((bytes([number]),)) is Delivery.SENT
    assert pair.came() == []
    pair.until(7 * MS)
    assert pair.came() == [b"\0", b"\1", b"\2"]


def test_a_stall_of_one_way_delays_that_way_and_loses_nothing() -> None:
    pair = Pair()
    pair.link.send((b"on its way",))
    pair.network.stall("10.0.0.2", "10.0.0.1", 50 * MS)
    pair.link.send((b"behind",))
    assert pair.listener.send(b"worker/w", (b"back",)) is Delivery.SENT
    pair.until(40 * MS)
    assert pair.came() == []
    assert pair.link.receive() == [b"back"]
    pair.until(60 * MS)
    assert pair.came() == [b"on its way", b"behind"]


def test_a_break_loses_what_is_on_its_way_and_the_link_connects_again() -> None:
    pair = Pair()
    pair.link.send((b"lost",))
    (stream,) = pair.network.streams.values()
    pair.network.break_off(stream, (0, 0))
    pair.until(6 * MS)
    assert pair.link.connected
    assert pair.link.receive() is None
    assert not pair.link.connected
    assert pair.link.send((b"refused",)) is Delivery.GONE
    pair.until(200 * MS)
    assert pair.came() == []
    assert (pair.link.opened, pair.link.ended, pair.listener.ended) == (2, 1, 1)


def test_an_end_that_noticed_nothing_is_told_when_it_sends() -> None:
    pair = Pair()
    pair.there.close((None, None))
    pair.until(1_000 * MS)
    assert not pair.link.pending()
    pair.link.send((b"to nobody",))
    pair.until(1_010 * MS)
    assert pair.link.receive() is None
    assert pair.link.ended == 1


def test_a_host_without_power_tells_nobody() -> None:
    pair = Pair()
    pair.network.off.add("10.0.0.1")
    pair.there.close((None, None))
    pair.link.send((b"to nobody",))
    pair.until(1_000 * MS)
    assert not pair.link.pending()


def test_a_connection_that_nobody_uses_ends_when_a_host_that_lost_power_is_back() -> None:
    for back_ms, noticed_ms in ((3_500, 4_100), (60_000, 12_100)):
        pair = Pair()
        pair.network.off.add("10.0.0.1")
        pair.there.close((None, None))
        pair.until(min(back_ms, noticed_ms - 200) * MS)
        assert pair.link.connected
        if back_ms < noticed_ms:
            pair.network.off.discard("10.0.0.1")
        pair.until(noticed_ms * MS)
        pair.link.receive()
        assert not pair.link.connected
