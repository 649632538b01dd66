"""``mainspring status``, and that every counter of the code is explained to operators."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring import Client
from mainspring.cli.main import build_app
from mainspring.cli.views.counters import COUNTERS, counters_table, explain
from mainspring.client.errors import ERROR_OF_REASON
from mainspring.gateway.graphs import applications
from mainspring.messages import peers
from mainspring.messages.codes import Reason
from mainspring.messages.ids import gateway_number
from mainspring.messages.sharding import first_map
from mainspring.messages.status import ClusterStatus, ModelStatus
from mainspring.transport.bounds import Delivery
from mainspring.transport.controllers import STANDBY
from tests.gateway.fakes import fake_cluster, gateway, wait_until

ROOT = Path(__file__).resolve().parents[3]
COUNTED = (
    r'counts\["([^"]+)"\] \+=',
    r'_dropped\.count\("([^"]+)"',
    r'_drop\(\s*"([^"]+)"',
    r'(?:_| )count\(\s*"([^"]+)"',
    r'self\.dropped\["([^"]+)"\] \+=',
    r'Delivery\.(?:GONE|FULL): "([^"]+)"',
    r'^DROPPED = "([^"]+)"',
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["status", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def counters_in_the_code() -> set[str]:
    sources = [
        path for folder in ("controller", "gateway", "worker") for path in (ROOT / folder).rglob("*.py")
    ]
    found = {
        name
        for path in sources
        for pattern in COUNTED
        for name in re.findall(pattern, path.read_text(), re.MULTILINE)
    }
    codes = (peers.Refused.__doc__ or "").split("one of")[1]
    # A controller that stands by has no status to count in.
    found |= set(re.findall(r"[a-z_]+", codes)) - {STANDBY}
    return found | {delivery.value for delivery in Delivery if delivery is not Delivery.SENT}


def test_every_counter_of_the_code_is_explained_and_no_other() -> None:
    found = counters_in_the_code()
    assert len(found) > 40
    assert found | {"event log off", *applications.COUNTED.values()} == set(COUNTERS)


def test_the_operators_page_has_every_counter_and_every_reason() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert counters_table() in page
    assert set(ERROR_OF_REASON) == set(Reason)
    for reason in Reason:
        assert f"| `{reason.value}` |" in page


def test_counters_with_a_name_before_them_are_explained() -> None:
    assert explain("worker-0: gateway: reads too slowly") == COUNTERS["gateway: reads too slowly"]
    assert explain("event log off: /x: No space left on device") == COUNTERS["event log off"]
    assert explain("odd") == ("", "")


def test_it_shows_counters_with_what_to_do() -> None:
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        with Client(address) as client:
            wait_until(lambda: len(client.models()) == len(cluster.specs))
        cluster.do(lambda: cluster.controller.send([cluster._gateway, b"\xc1"]))
        shown = json.loads(run("--address", address, "--json").stdout)
        assert shown["policy"] == "clockwork"
        assert shown["dropped_messages"] == {"odd": 1, "bad_messages_from_controller": 1}
        output = " ".join(run("--address", address).stdout.split())
        assert "no worker is connected" in output
        assert "bad_messages_from_controller 1 invalid messages from the controller; install" in output


def test_several_controllers_are_shown_and_one_that_does_not_answer() -> None:
    with fake_cluster() as first, fake_cluster(number=gateway_number(1, 3), models=("other",)) as second:
        first.shard_map = first_map([first.address, second.address], (30, 20))
        with (
            gateway(first.address, shards=(first.address, second.address)) as address,
            Client(address) as client,
        ):
            wait_until(lambda: len(client.models()) == 6)
            shown = " ".join(run("--address", address).stdout.split())
            assert "map of version 1" in shown
            assert f"0 {first.address} 30 0 5 0" in shown
            assert f"1 {second.address} 20 0 1 0" in shown
            second.silent = True
            wait_until(lambda: not client.status().shards[1].up)
            assert f"1 {second.address} 20 no answer" in " ".join(run("--address", address).stdout.split())


def test_a_model_that_is_not_ready_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ModelStatus("torn", 1, (), (), 0, ("worker-0: weights.bin was altered",))
    lacks = ModelStatus("lame", 1, ("worker-1",), (), 0, ("worker-0: too large",))
    unready = {
        "torn": "can't be loaded: worker-0 says: weights.bin was altered",
        "left": "no worker: too large",
    }
    told = ClusterStatus("clockwork", (), (failed, lacks), 0, {}, {"left": "too large"}, unready=unready)
    monkeypatch.setattr(Client, "status", lambda _client: told)
    with fake_cluster() as cluster, gateway(cluster.address) as address:
        lines = run("--address", address).stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines if line.startswith("model ")] == [
        "model torn is not ready",
        "model left is not ready",
        "model lame lacks a worker",
    ]
