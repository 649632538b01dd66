"""What gateways refuse themselves is in the event stream once, by reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mainspring.controller.peer_lifecycle import INTERVAL_NS
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.events import GatewayRefused
from mainspring.messages.peers import GatewayHello, Goodbye, Pong
from mainspring.telemetry.log import EventLogWriter, read_entries
from tests.controller.test_shell import Bench

MS = 1_000_000


class Told:
    """A bench whose gateway answers pings, and its log."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(EventLogWriter(folder))
        self._folder = folder

    @property
    def events(self) -> list[GatewayRefused]:
        """What the log says that gateways refused."""
        self.bench.logged.flush()
        return [entry for _, entry in read_entries(self._folder) if isinstance(entry, GatewayRefused)]

    def pong(self, now_ns: int, refused: dict[str, int]) -> None:
        self.bench.receive(now_ns, b"gateway/g", Pong(1, 0, now_ns, now_ns, refused=refused))

    def total(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for event in self.events:
            found.update(event.requests)
        return found


def test_each_refusal_is_told_once_and_not_more_often_than_once_a_second(
    tmp_path: Path,
) -> None:
    told = Told(tmp_path)
    told.pong(10, {"unknown_model": 7})
    for step in range(1, 31):
        told.pong(step * 100 * MS, {"unknown_model": 7 + 10 * step, "bad_input": step // 10})
        told.bench.shell.peers.beat(step * 100 * MS)
    assert len(told.events) <= 3 * 1_000_000_000 // INTERVAL_NS + 1
    told.bench.receive(3_100 * MS, b"gateway/g", Goodbye("it stops"))
    # What was refused before the controller knew the gateway is not told: nobody can say when that was.
    assert told.total() == {"unknown_model": 300, "bad_input": 3}
    assert {event.gateway for event in told.events} == {"g0"}


def test_a_gateway_that_starts_again_counts_from_zero_and_strange_words_are_left_out(
    tmp_path: Path,
) -> None:
    told = Told(tmp_path)
    told.pong(10, {})
    told.pong(20, {"bad_input": 5, "x" * 1000: 5, "bad_slo": -3})
    told.bench.shell.peers.beat(100 * MS)
    told.bench.receive(200 * MS, b"gateway/g", GatewayHello(PROTOCOL_VERSION, "g0"))
    told.pong(210 * MS, {})
    told.pong(300 * MS, {"bad_input": 2})
    told.bench.shell.peers.beat(2_000 * MS)
    assert told.total() == {"bad_input": 7}
