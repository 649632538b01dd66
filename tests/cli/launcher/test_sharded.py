"""A cluster with several controllers: who has what, and what one controller's death costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec
import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.configuration.groups import ShardsConfig
from mainspring.cli.launcher.jobs import ConsoleJob, ControllerJob, GatewayJob, WorkerJob
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.messages.sharding import first_map
from mainspring.messages.tables import ConfigError
from tests.cli.launcher.test_local import INPUT, ends_well, wait_for

MODELS = [f"{kind}-{copy}" for kind in ("quick", "slow") for copy in range(1, 9)]


def sharded(config: Config, **shards: object) -> Config:
    return msgspec.structs.replace(config, shards=ShardsConfig(**{"count": 2, **shards}))  # type: ignore[arg-type]


def test_each_controller_has_its_workers_and_all_processes_one_map(emulated: Callable[..., Config]) -> None:
    plan = make_plan(sharded(emulated(workers=3), workers=(2, 1)))
    assert [job.name for job in plan.jobs] == [
        *("controller", "controller-1", "gateway"),
        *("worker-0", "worker-1", "worker-2"),
    ]
    assert plan.shards == (2, 1)
    assert plan.stop_order[1] == ("controller", "controller-1")
    first, second, gateway, *workers = plan.jobs
    assert isinstance(first, ControllerJob)
    assert isinstance(second, ControllerJob)
    assert isinstance(gateway, GatewayJob)
    addresses = (first.controller.address, second.controller.address)
    for number, each in enumerate((first.controller, second.controller)):
        assert (each.shard, each.shards, each.shard_pages) == (number, addresses, (32, 16))
    assert first.controller.state_file != second.controller.state_file
    assert first.controller.event_log_dir != second.controller.event_log_dir
    assert gateway.gateway.shards == addresses
    joined = [each.worker.controller for each in workers if isinstance(each, WorkerJob)]
    assert joined == [addresses[0], addresses[0], addresses[1]]


def test_each_controller_has_a_console_at_a_port_of_its_own(emulated: Callable[..., Config]) -> None:
    config = sharded(emulated(workers=2, console=True))
    config = msgspec.structs.replace(
        config, console=msgspec.structs.replace(config.console, address="http://127.0.0.1:9003")
    )
    plan = make_plan(config)
    consoles = [job.console for job in plan.jobs if isinstance(job, ConsoleJob)]
    addresses = ("http://127.0.0.1:9003", "http://127.0.0.1:9004")
    assert [(each.address, each.shard, each.shards) for each in consoles] == [
        (address, shard, addresses) for shard, address in enumerate(addresses)
    ]
    controllers = [job.controller.address for job in plan.jobs if isinstance(job, ControllerJob)]
    assert [each.controller_address for each in consoles] == controllers
    assert plan.stop_order[1] == ("console", "console-1")
    assert set(addresses) <= {address for address, _ in plan.listening}


def test_consoles_at_any_port_are_so_all_and_there_must_be_ports_for_all(
    emulated: Callable[..., Config],
) -> None:
    config = sharded(emulated(workers=2, console=True))

    def at(port: int) -> list[tuple[str, tuple[str, ...]]]:
        console = msgspec.structs.replace(config.console, address=f"http://127.0.0.1:{port}")
        plan = make_plan(msgspec.structs.replace(config, console=console))
        consoles = [job.console for job in plan.jobs if isinstance(job, ConsoleJob)]
        return [(each.address, each.shards) for each in consoles]

    assert at(0) == [("http://127.0.0.1:0", ())] * 2
    assert [address.rpartition(":")[2] for address, _ in at(65_534)] == ["65534", "65535"]
    with pytest.raises(ConfigError, match="give one of at most 65534"):
        at(65_535)


def test_one_controller_is_as_without_shards(emulated: Callable[..., Config]) -> None:
    config = emulated(workers=2)
    assert make_plan(sharded(config, count=1)) == make_plan(config)


@pytest.mark.parametrize(
    ("shards", "complaint"),
    [
        ({"count": 3}, "there are 3 controllers and workers = 2: each controller needs a worker"),
        ({"workers": (2, 1)}, r"\[shards\] workers are 3 together and \[cluster\] workers is 2"),
        (
            {"count": 1, "controllers": ("tcp://127.0.0.1:7501", "tcp://10.0.0.1:7501")},
            r"\[shards\] controllers tcp://10.0.0.1:7501 is open to other hosts",
        ),
    ],
)
def test_what_can_not_be_is_refused(
    emulated: Callable[..., Config], shards: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_plan(sharded(emulated(workers=2), **shards))


def test_all_models_are_served_and_a_controllers_death_concerns_its_own(
    emulated: Callable[..., Config],
) -> None:
    plan = make_plan(sharded(emulated(workers=2, copies=8)))
    gateway = next(job.gateway for job in plan.jobs if isinstance(job, GatewayJob))
    places = {name: first_map(gateway.shards).place(name) for name in MODELS}
    assert set(places.values()) == {0, 1}
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        assert cluster.supervisor.served == len(MODELS)
        status = client.status()
        assert [(each.up, each.workers) for each in status.shards] == [(True, 1), (True, 1)]
        assert [each.models for each in status.shards] == [
            sum(place == number for place in places.values()) for number in range(2)
        ]
        assert status.map_version == 1
        assert {each.name: each.prepared_on for each in status.models} == {
            name: (f"worker-{place}",) for name, place in places.items()
        }
        for name in MODELS:
            assert client.infer(name, INPUT, slo_ms=5000).timing.worker == f"worker-{places[name]}"

        os.kill(cluster.supervisor.pid("controller-1") or 0, signal.SIGKILL)
        others = [name for name, place in places.items() if place == 0]
        ended = [client.submit(others[turn % len(others)], INPUT, slo_ms=1000) for turn in range(50)]
        assert all(map(ends_well, ended))
        of_the_dead = next(name for name, place in places.items() if place == 1)
        wait_for(
            lambda: ends_well(client.submit(of_the_dead, INPUT, slo_ms=2000)),
            "the other controller to serve again",
        )
        wait_for(lambda: all(each.up for each in client.status().shards), "both controllers in the status")


def test_a_clients_models_go_to_the_shard_that_the_map_names(emulated: Callable[..., Config]) -> None:
    plan = make_plan(sharded(emulated(workers=2)))
    gateway = next(job.gateway for job in plan.jobs if isinstance(job, GatewayJob))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        spec = next(spec for spec in client.models() if spec.name == "quick-1")
        names = [f"added-{number}" for number in range(6)]
        for name in names:
            client.add_model(msgspec.structs.replace(spec, name=name, weights_hash=f"{len(name):064}"))
        shard_map = first_map(gateway.shards, (16, 16))
        for name in names:
            wait_for(lambda name=name: ends_well(client.submit(name, INPUT, slo_ms=5000)), name)  # type: ignore[misc]
            worker = client.infer(name, INPUT, slo_ms=5000).timing.worker
            assert worker == f"worker-{shard_map.place(name)}"
            client.remove_model(name)
            with pytest.raises(MainspringError, match="is not served"):
                client.infer(name, INPUT, slo_ms=1000)
