"""The console beside a local cluster: where it is, and that the cluster does not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from mainspring.cli.configuration.config import Config, read_config
from mainspring.cli.launcher.jobs import ConsoleJob, GatewayJob, Job
from mainspring.cli.launcher.process_plan import Plan, make_plan
from mainspring.cli.launcher.running import STARTS_BEFORE_READY, ClusterError
from mainspring.cli.launcher.supervisor import Supervisor
from mainspring.cli.launcher.up import Ports, cluster_config
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.console.config import ConsoleConfig
from mainspring.gateway.config import GatewayConfig
from mainspring.messages.tables import ConfigError
from mainspring.repository.config import RepositoryConfig

AT = "http://127.0.0.1:9003"


def console(config: Config) -> tuple[bool, str]:
    return config.cluster.console, config.console.address


def written(folder: Path, text: str = "") -> Path:
    path = folder / "mainspring.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "port", "expected"),
    [
        ("", None, (True, "http://127.0.0.1:8003")),
        ("", "8100", (True, "http://127.0.0.1:8100")),
        (f"[console]\naddress = '{AT}'", None, (True, AT)),
        (f"[console]\naddress = '{AT}'", "8100", (True, "http://127.0.0.1:8100")),
        ("[cluster]\nconsole = false", "8100", (True, "http://127.0.0.1:8100")),
    ],
)
def test_up_has_a_console_where_the_flag_or_the_file_says(
    tmp_path: Path, text: str, port: str | None, expected: tuple[bool, str]
) -> None:
    assert console(cluster_config(written(tmp_path, text), {}, Ports(console=port))) == expected


def test_the_flag_and_the_file_turn_it_off(tmp_path: Path) -> None:
    assert not cluster_config(written(tmp_path), {}, Ports(console="off")).cluster.console
    path = written(tmp_path, "[cluster]\nconsole = false")
    assert not cluster_config(path, {}, Ports()).cluster.console


def test_any_port_is_any_for_the_console_too(tmp_path: Path) -> None:
    config = cluster_config(written(tmp_path), {}, Ports(gateway=0))
    assert config.console.address != "http://127.0.0.1:8003"
    assert config.console.address != config.gateway.http_address


def test_a_port_that_is_any_is_chosen_before_it_is_told(tmp_path: Path) -> None:
    text = '[gateway]\nhttp_address = "http://[::1]:0"\nmetrics_address = "http://127.0.0.1:0"\n'
    config = cluster_config(written(tmp_path, text), {}, Ports())
    found = (config.gateway.http_address, config.gateway.metrics_address)
    assert all(int(address.rpartition(":")[2]) for address in found)
    assert [address.rpartition(":")[0] for address in found] == ["http://[::1]", "http://127.0.0.1"]


@pytest.mark.parametrize(
    ("gateway", "console", "expected"),
    [("", "", ""), ("a.toml", "", "a.toml"), ("", "b.toml", "b.toml"), ("a.toml", "b.toml", "b.toml")],
)
def test_who_may_change_things_through_the_gateway_may_from_the_console(
    tmp_path: Path, gateway: str, console: str, expected: str
) -> None:
    profiles = tmp_path / "profiles.csv"
    profiles.write_text(f"{','.join(COLUMNS)}\nm,4,4,20,2,2,3,4,6,9\n")
    cluster = {"engine": "emulated", "profiles": str(profiles), "console": True}
    tables: dict[str, dict[str, object]] = {"cluster": cluster}
    tables |= {"gateway": {"token_file": gateway}, "console": {"token_file": console}}
    jobs = make_plan(read_config(tables, "the test")).jobs
    assert [job.console.token_file for job in jobs if isinstance(job, ConsoleJob)] == [expected]


@pytest.mark.parametrize("text", ["eight", "65536", "-1"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=f"--console-port is '{text}'; give a port, 0 for any"):
        cluster_config(written(tmp_path), {}, Ports(console=text))


def test_what_follows_from_the_cluster_is_not_set_for_the_console() -> None:
    with pytest.raises(ConfigError, match="controller_address is not set here"):
        read_config({"console": {"controller_address": "tcp://127.0.0.1:7401"}}, "the test")
    with pytest.raises(ConfigError, match="`mainspring console --log` shows a log"):
        read_config({"console": {"log_dir": "x"}}, "the test")


def test_the_console_watches_the_clusters_controller_and_stops_after_the_gateway(
    emulated: Callable[..., Config],
) -> None:
    config = emulated(console=True)
    plan = make_plan(config)
    job = next(job for job in plan.jobs if isinstance(job, ConsoleJob))
    assert job.console.controller_address == f"unix://{config.cluster.run_dir}/controller.sock"
    assert plan.stop_order == (("gateway",), ("console",), ("controller",))
    assert plan.console_address == config.console.address
    assert config.console.address in [address for address, _ in plan.listening]
    assert not any(isinstance(job, ConsoleJob) for job in make_plan(emulated()).jobs)


def test_nobody_else_may_listen_where_the_console_does(emulated: Callable[..., Config]) -> None:
    config = emulated(console=True)
    gateway = msgspec.structs.replace(config.gateway, http_address=config.console.address)
    with pytest.raises(ConfigError, match="would be listened on twice"):
        make_plan(msgspec.structs.replace(config, gateway=gateway))


def supervised(job: Job, folder: Path, said: list[str]) -> Supervisor:
    cluster = SimpleNamespace(restart_delay_ms=0, restart_delay_max_ms=0)
    pool = SimpleNamespace(kinds=(), config=Config())
    plan = SimpleNamespace(
        jobs=(job,), run_dir=folder, cluster=cluster, repository=RepositoryConfig(), pool=pool
    )
    return Supervisor(cast(Plan, plan), said.append)


def test_a_console_that_dies_again_and_again_keeps_no_cluster_from_serving(tmp_path: Path) -> None:
    said: list[str] = []
    broken = ConsoleConfig(token_file=str(tmp_path / "missing"))
    consoles = supervised(ConsoleJob(name="console", console=broken), tmp_path, said)
    gateways = supervised(GatewayJob(name="gateway", gateway=GatewayConfig()), tmp_path, said)
    for supervisor in (consoles, gateways):
        supervisor._processes[0].starts = STARTS_BEFORE_READY
    consoles._report(consoles._processes[0], "exit code 1", 0)
    assert said == ["console died (exit code 1); restarting it in 0 ms"]
    with pytest.raises(ClusterError, match="as at each of its 3 starts"):
        gateways._report(gateways._processes[0], "exit code 1", 0)
