"""One of several controllers, without sockets: its own models, its numbers, and the map."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.controller.config import ControllerConfig
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Dropped
from mainspring.controller.sessions import SessionTable
from mainspring.controller.shell import Shell
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.ids import MAX_SESSIONS, shard_of_gateway
from mainspring.messages.peers import GatewayHello
from mainspring.messages.sharding import ShardMap, first_map
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from tests.controller.test_shell import Wire

ADDRESSES = ("tcp://a:1", "tcp://b:1", "tcp://c:1")


def shell(shard: int, addresses: tuple[str, ...] = ADDRESSES) -> tuple[Shell, Wire]:
    wire, dropped = Wire(), Dropped()
    config = ControllerConfig(shard=shard, shards=addresses)
    return Shell(config, LoggedScheduler(Scheduler(SchedulerConfig()), None, dropped), wire, dropped), wire


def greet(made: Shell, name: str = "g") -> None:
    hello = GatewayHello(PROTOCOL_VERSION, name)
    made.receive(0, f"gateway/{name}".encode(), [encode(hello)])


def maps(wire: Wire, name: str = "g") -> list[object]:
    peer = f"gateway/{name}".encode()
    return [message["version"] for to, message in wire.sent if to == peer and message["type"] == "shard_map"]


def test_every_model_is_in_one_shard() -> None:
    shells = [shell(shard)[0] for shard in range(3)]
    for number in range(50):
        assert sum(each.shards.has(f"m{number}") for each in shells) == 1
    assert all(shell(0, ())[0].shards.has(f"m{number}") for number in range(50))


def test_numbers_of_gateways_have_the_shard_above_them_and_are_used_again_when_all_were() -> None:
    table = SessionTable(16, shard=5)
    kept = table.open_gateway(0, b"gateway/kept", GatewayHello(PROTOCOL_VERSION, "kept"))
    seen = {kept.number}
    for turn in range(MAX_SESSIONS + 2):
        session = table.open_gateway(0, b"gateway/g", GatewayHello(PROTOCOL_VERSION, "g"))
        assert session.number != kept.number
        assert shard_of_gateway(session.number) == 5
        seen.add(session.number)
        assert table.gateway(session.number) is session, turn
        table.close(session)
    assert len(seen) == MAX_SESSIONS


def test_only_the_first_controller_tells_the_map() -> None:
    for shard, told in ((0, [1]), (1, [])):
        made, wire = shell(shard)
        greet(made)
        assert maps(wire) == told
    alone, wire = shell(0, ())
    greet(alone)
    assert maps(wire) == []


def test_a_newer_map_goes_to_every_gateway_and_one_that_is_known_better_counts() -> None:
    made, wire = shell(0)
    greet(made)
    greet(made, "h")
    second = first_map(ADDRESSES).moved({"m": 2})
    assert made.shards.change(second) is None
    assert maps(wire) == maps(wire, "h") == [1, 2]
    made.receive(0, b"gateway/h", [encode(msgspec.structs.replace(second, version=9))])
    assert maps(wire) == [1, 2, 9]
    made.receive(0, b"gateway/h", [encode(second)])
    made.receive(0, b"gateway/h", [encode(ShardMap(10, second.shards[:2]))])
    assert maps(wire) == [1, 2, 9]


@pytest.mark.parametrize(
    ("shard", "change", "says"),
    [
        (1, {"version": 2}, "this is shard 1: the map is kept by the first controller"),
        (0, {"version": 1}, "the map has version 1 and the one that is known 1"),
        (0, {"version": 2, "models": {"m": 3}}, "model 'm' is in shard 3; there are 0 to 2"),
        (0, {"version": 2, "shards": first_map(ADDRESSES[:2]).shards}, "the map's controllers are"),
    ],
)
def test_a_map_that_can_not_be_taken_is_refused_with_the_reason(
    shard: int, change: dict[str, object], says: str
) -> None:
    made, _ = shell(shard)
    refusal = made.shards.change(msgspec.structs.replace(first_map(ADDRESSES), **change))
    assert refusal is not None
    assert refusal[0] is Reason.BAD_MESSAGE
    assert says in refusal[1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shard": 1}, "shard is 1, which is not one of its 0 shards"),
        ({"shard": 2, "shards": ADDRESSES[:2]}, "shard is 2, which is not one of its 2 shards"),
        ({"shards": ADDRESSES, "shard_pages": (1,)}, "1 numbers for 3 shards"),
        ({"shards": (*ADDRESSES, ADDRESSES[1])}, "have the address tcp://b:1"),
    ],
)
def test_a_configuration_that_can_not_be_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ControllerConfig(**settings)  # type: ignore[arg-type]
