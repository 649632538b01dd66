"""A gateway on real sockets with two controllers: routing, maps, status, and what is wrong with either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.gateway.config import GatewayConfig
from mainspring.messages import peers
from mainspring.messages.ids import gateway_number, shard_of
from mainspring.messages.sharding import ShardMap, first_map
from tests.gateway.fakes import FakeCluster, fake_cluster, gateway, make_spec, serving, wait_until
from tests.gateway.metrics.test_server import of, scrape

INPUT = {"data": np.ones((1, 4), np.float32)}
MODELS = (("double", "first"), ("hold", "second"))
"""Of each shard."""


@pytest.fixture
def two() -> Iterator[list[FakeCluster]]:
    """Two controllers with a worker each, the second one's named ``fake-1``."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                fake_cluster(number=gateway_number(shard, 3), models=MODELS[shard], worker=f"fake-{shard}")
            )
            for shard in range(2)
        ]


def with_map(two: list[FakeCluster], version: int, **models: int) -> ShardMap:
    """Have the first controller tell a map to whom it welcomes, and return it."""
    made = first_map([each.address for each in two], version=version)
    two[0].shard_map = ShardMap(version, made.shards, models)
    return two[0].shard_map


def test_each_controller_gets_the_requests_for_its_models(two: list[FakeCluster]) -> None:
    with_map(two, 1)
    with (
        gateway(two[0].address, shards=tuple(each.address for each in two)) as address,
        Client(address) as client,
    ):
        wait_until(lambda: len(client.models()) == 4)
        for shard, model in ((0, "first"), (1, "second")):
            assert client.infer(model, INPUT, slo_ms=5000).timing.worker == f"fake-{shard}"
            assert {shard_of(each.request_id) for each in two[shard].arrivals} == {shard}
        status = client.status()
        assert [(each.number, each.up, each.models) for each in status.shards] == [(0, True, 2), (1, True, 2)]
        assert (status.map_version, len(status.models), status.dropped_messages["odd"]) == (1, 4, 2)


def test_a_newer_map_decides_and_an_older_one_is_answered_with_it(two: list[FakeCluster]) -> None:
    for each in two:
        each.specs["both"] = make_spec("both")
    newest = with_map(two, 7, both=1)
    with (
        gateway(two[0].address, shards=tuple(each.address for each in two)) as address,
        Client(address) as client,
    ):
        wait_until(lambda: len(client.models()) == 5)
        assert client.infer("both", INPUT, slo_ms=5000).timing.worker == "fake-1"
        two[0].tell(with_map(two, 6, both=0))
        wait_until(lambda: two[0].told_maps == [newest])
        assert client.infer("both", INPUT, slo_ms=5000).timing.worker == "fake-1"
        two[1].tell(with_map(two, 9, both=0))
        two[0].tell(ShardMap(8, first_map(["tcp://x:1", "tcp://y:1"]).shards))
        wait_until(lambda: client.status().dropped_messages.get("bad_shard_maps") == 2)
        assert client.status().map_version == 7
        two[0].tell(with_map(two, 8, both=0))
        wait_until(lambda: client.status().map_version == 8)
        assert client.infer("both", INPUT, slo_ms=5000).timing.worker == "fake-0"


def test_without_the_first_controller_the_last_map_holds(two: list[FakeCluster]) -> None:
    for each in two:
        each.specs["both"] = make_spec("both")
    with_map(two, 2, both=1)
    with (
        gateway(
            two[0].address, shards=tuple(each.address for each in two), controller_timeout_ms=1_000.0
        ) as address,
        Client(address) as client,
    ):
        wait_until(lambda: len(client.models()) == 5)
        two[0].silent = True
        wait_until(lambda: [each.up for each in client.status().shards] == [False, True])
        for model in ("both", "second"):
            assert client.infer(model, INPUT, slo_ms=5000).timing.worker == "fake-1"
        with pytest.raises(MainspringError, match="no connection to the controller"):
            client.infer("first", INPUT, slo_ms=100)
        assert client.status().map_version == 2


def test_a_controller_that_is_another_shard_is_not_used(two: list[FakeCluster]) -> None:
    two[1].number = 3
    with (
        gateway(two[0].address, shards=tuple(each.address for each in two)) as address,
        Client(address) as client,
    ):
        wait_until(lambda: client.status().dropped_messages.get("wrong_shard"))
        assert [each.up for each in client.status().shards] == [True, False]
        assert client.infer("first", INPUT, slo_ms=5000).timing.worker == "fake-0"
        with pytest.raises(MainspringError, match="not told all of its models"):
            client.infer("second", INPUT, slo_ms=1000)


def test_workers_of_one_name_in_two_shards_are_told_of(two: list[FakeCluster]) -> None:
    with (
        gateway(two[0].address, shards=tuple(each.address for each in two)) as address,
        Client(address) as client,
    ):
        wait_until(lambda: len(client.models()) == 4)
        two[1].tell(peers.WorkerUp("fake-0", "tcp://127.0.0.1:1"))
        wait_until(lambda: client.status().dropped_messages.get("worker_names_taken_twice"))


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        (("tcp://a:1", "tcp://b:1", "tcp://a:1"), "the gateway's shards have tcp://a:1 twice"),
        (tuple(f"tcp://a:{port}" for port in range(65)), "65; there may be 64"),
    ],
)
def test_shards_that_can_not_be_are_refused(shards: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GatewayConfig(shards=shards)


def test_metrics_have_each_shard_and_the_counts_of_all(two: list[FakeCluster]) -> None:
    with_map(two, 4)
    shards = tuple(each.address for each in two)
    with (
        serving(
            two[0].address, shards=shards, metrics_address="http://127.0.0.1:0", controller_timeout_ms=1_000.0
        ) as addresses,
        Client(addresses.zeromq) as client,
    ):
        wait_until(lambda: len(client.models()) == 4)
        found = scrape(addresses.metrics)
        assert [of(found, "mainspring_shard_up", shard=str(shard)) for shard in range(2)] == [1, 1]
        assert [of(found, "mainspring_shard_models", shard=str(shard)) for shard in range(2)] == [2, 2]
        assert of(found, "mainspring_shard_map_version") == 4
        assert of(found, "mainspring_models") == 18, "each of the two controllers says 9"
        two[1].silent = True
        wait_until(lambda: of(scrape(addresses.metrics), "mainspring_shard_up", shard="1") == 0)
        found = scrape(addresses.metrics)
        assert of(found, "mainspring_controller_up") == 1
        assert of(found, "mainspring_models") == 9
