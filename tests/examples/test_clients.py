"""The clients of ``examples/`` against a gateway with a fake cluster behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from examples import async_client, sync_client
from mainspring import Client
from tests.gateway.fakes import fake_cluster, gateway, wait_until


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        with Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        yield address


def test_the_synchronous_client_prints_outputs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    sync_client.main("double", address, slo_ms=20_000)
    assert "twice: float32 (1, 4)" in capsys.readouterr().out


def test_the_synchronous_client_says_when_it_was_not_in_time(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sync_client.main("mute", address, slo_ms=50)
    assert "not in time" in capsys.readouterr().out


def test_the_asynchronous_client_gets_a_reply_to_each_of_1000(address: str) -> None:
    outcomes = asyncio.run(async_client.main("double", address, slo_ms=60_000))
    assert outcomes == {"answered": 1000}


def test_a_model_that_is_not_served_is_said_with_those_that_are(address: str) -> None:
    with pytest.raises(SystemExit, match=r"nope is not served; these are: .*double"):
        sync_client.main("nope", address)
    with pytest.raises(SystemExit, match=r"nope is not served; these are: .*double"):
        asyncio.run(async_client.main("nope", address))
