"""Two gateways of real processes, one of which is killed again and again under load: a client of both has
exactly one reply to each request."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable

import msgspec

from mainspring import AsyncClient, Client
from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.failover import Gateways
from tests.faults.test_processes import INPUT, load, outcomes, settled, wait_for
from tests.patience import PATIENCE_S


def of_two(config: Config) -> Config:
    cluster = msgspec.structs.replace(config.cluster, gateways=2)
    return msgspec.structs.replace(config, cluster=cluster)


def kill_in_turn(cluster: LocalCluster, client: Client, kills: int) -> None:
    """Kill one gateway and then the other, each time once the client is connected to both."""
    channel = client._channel
    assert isinstance(channel, Gateways)
    for number in range(kills):
        wait_for(lambda: all(each.welcome is not None for each in channel._members), "both gateways")
        os.kill(cluster.supervisor.pid(("gateway", "gateway-1")[number % 2]) or 0, signal.SIGKILL)
        lost = channel._members[number % 2]
        wait_for(lambda lost=lost: lost.welcome is None, "the client to notice")  # type: ignore[misc]


def test_a_gateway_killed_again_and_again_loses_nothing(emulated: Callable[..., Config]) -> None:
    with (
        LocalCluster(make_plan(of_two(emulated(workers=2))), lambda _: None) as cluster,
        Client(cluster.addresses, connect_timeout_s=PATIENCE_S) as client,
    ):
        killing = threading.Thread(target=kill_in_turn, args=(cluster, client, 4))
        killing.start()
        futures = []
        while killing.is_alive():
            futures += load(client, 0.1, {}, slo_ms=1_000 * PATIENCE_S)
        killing.join()
        found = outcomes(futures)
        assert set(found) == {"ok"}, Counter(found)
        assert [cluster.supervisor.starts(name) for name in ("gateway", "gateway-1")] >= [2, 2]
        wait_for(lambda: settled(client.status()), "everything to end")


def test_the_asynchronous_client_goes_on_with_another_gateway(emulated: Callable[..., Config]) -> None:
    async def ask(addresses: tuple[str, ...], kill: Callable[[], None]) -> int:
        async with AsyncClient(addresses, connect_timeout_s=PATIENCE_S) as client:
            first = await client.infer("quick-1", INPUT, slo_ms=20_000)
            begun = [asyncio.ensure_future(client.infer("quick-1", INPUT, slo_ms=20_000)) for _ in range(50)]
            await asyncio.sleep(0)
            kill()
            return len([first, *await asyncio.gather(*begun)])

    with LocalCluster(make_plan(of_two(emulated(workers=1))), lambda _: None) as cluster:
        pid = cluster.supervisor.pid("gateway") or 0
        assert asyncio.run(ask(cluster.addresses, lambda: os.kill(pid, signal.SIGKILL))) == 51
