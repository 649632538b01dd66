"""What the controller tells gateways of readiness: at once, only what has changed, all of it to new ones."""

from __future__ import annotations

from typing import Any

from mainspring.controller.standing import MOST_NAMED
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.observing import Unready
from mainspring.messages.peers import GatewayHello, Goodbye
from mainspring.messages.served import Awaited
from tests.controller.peers import spec
from tests.controller.test_shell import Bench

SECOND = 1_000_000_000


def told(bench: Bench, kind: str, peer: bytes = b"gateway/g") -> list[dict[str, Any]]:
    """Take what a gateway was told of a kind."""
    found = [message for to, message in bench.wire.sent if to == peer and message["type"] == kind]
    bench.wire.sent.clear()
    return found


def test_a_silent_worker_shows_within_a_second_and_again_when_it_is_back() -> None:
    bench = Bench()
    bench.schedule(11)
    name = spec().name
    bench.shell.registry.readiness.beat(20)
    told(bench, "standing")
    bench.shell.registry.readiness.beat(SECOND // 2)
    assert told(bench, "standing") == []
    bench.shell.registry.readiness.beat(SECOND * 8 // 10)
    (message,) = told(bench, "standing")
    assert message["models"] == {name: "no worker: w0 gives no sign of life"}
    bench.receive(SECOND, b"worker/w", Goodbye("it stops"))
    bench.shell.registry.readiness.beat(SECOND)
    (message,) = told(bench, "standing")
    assert message["models"] == {name: "no worker: none is connected"}
    bench.receive(SECOND, b"gateway/h", GatewayHello(PROTOCOL_VERSION, "g1"))
    (message,) = told(bench, "standing", b"gateway/h")
    assert message["models"] == {name: "no worker: none is connected"}, "a new gateway hears all of it"


def test_what_a_repository_awaits_is_passed_on_and_replaced_as_a_whole() -> None:
    bench = Bench()
    readiness = bench.shell.registry.readiness
    told(bench, "awaited")
    readiness.await_(Awaited({"a": "being compiled", "b": "starting"}, whole=True))
    assert [each["models"] for each in told(bench, "awaited")] == [{"a": "being compiled", "b": "starting"}]
    readiness.await_(Awaited({"a": "being compiled"}))
    assert told(bench, "awaited") == []
    readiness.await_(Awaited({"a": ""}))
    assert [each["models"] for each in told(bench, "awaited")] == [{"a": ""}]
    readiness.await_(Awaited({"c": "starting"}, whole=True))
    assert [each["models"] for each in told(bench, "awaited")] == [{"c": "starting", "b": ""}]


def test_observers_hear_of_silent_workers_and_of_some_awaited_models_by_name() -> None:
    bench = Bench()
    readiness = bench.shell.registry.readiness
    assert readiness.unready(SECOND // 2) == Unready()
    many = {f"m{number:03}": "starting" for number in range(MOST_NAMED + 7)}
    readiness.await_(Awaited(many, whole=True))
    told = readiness.unready(SECOND * 8 // 10)
    assert (told.silent, told.more) == (("w0",), 7)
    assert told.awaited == dict([*many.items()][:MOST_NAMED])
