"""Plans on a running cluster of unlike emulated devices: real processes, scaled through the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import Config, read_config, read_tables
from mainspring.cli.configuration.groups import of_plan
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.launcher.up import Ports, cluster_config
from mainspring.client.client import Client
from mainspring.messages.tables import ConfigError
from mainspring.planner.live import Live
from mainspring.planner.plan import plan
from mainspring.planner.problem import Pool, Problem
from mainspring.planner.search import Before
from mainspring.planner.windows import Replayed
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.objective import Objective
from mainspring.simulator.spec import DeviceGroup, ModelGroup, NetworkSpec, SimulationSpec, WorkloadSpec

TABLE = "model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms\nranker,1,1,4,3,40\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ranker.csv").write_text(TABLE)
    return tmp_path


def spec(folder: Path, **fast: Any) -> SimulationSpec:
    """Return two kinds, of which one is twice as fast and three times as dear."""
    return SimulationSpec(
        devices=(
            DeviceGroup(kind="fast", speed=2.0, price=0.5, most=3, **fast),
            DeviceGroup(kind="cheap", price=0.17, most=3),
        ),
        models=(ModelGroup(profiles=str(folder / "ranker.csv")),),
        workload=(WorkloadSpec(rate=42, slo_ms=250),),
        objective=Objective(attainment=0.9),
        scheduler=SchedulerConfig(policy="first-free"),
        network=NetworkSpec(delay_us=500),
        warm_up_s=0.5,
        duration_s=4,
    )


def config(folder: Path, fast: int = 1, cheap: int = 0, speed: float = 2.0) -> Config:
    """Return a cluster of these numbers of devices of each kind."""
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "engine": "emulated",
            "profiles": str(folder / "ranker.csv"),
            "run_dir": str(folder / "run"),
            "devices": [
                {"kind": "fast", "speed": speed, "count": fast, "price": 0.5},
                {"kind": "cheap", "count": cheap, "price": 0.17},
            ],
        },
        "scheduler": {"policy": "first-free"},
        "worker": {"pages": 4, "spin_us": 0, "realtime": False},
    }
    return read_config(tables, "this test")


def test_a_search_and_a_load_change_lose_no_request_and_end_on_the_plan(folder: Path) -> None:
    windows: list[Replayed] = []
    with (
        LocalCluster(make_plan(config(folder)), lambda _: None) as cluster,
        Client(cluster.address) as client,
    ):

        def live(problem: Problem, confidence: float) -> Live:
            windows.append(Replayed(problem, cluster.address))
            return Live(problem, confidence, client=client, window=windows[-1], say=lambda _: None)

        def wanted() -> Pool:
            return tuple(kind.wanted for kind in client.status().kinds)

        asked = spec(folder)
        options: dict[str, Any] = {"search": "informed", "prior": "queues", "confidence": 0.0}
        first = plan(asked, evaluate=live, evaluations=4, **options)
        assert first.evaluate == "live"
        assert first.best is not None
        assert wanted() == first.best.pool
        assert {kind.price for kind in client.status().kinds} == {0.5, 0.17}
        again = Before(first.evaluations, first.best, 2.0)
        second = plan(asked, evaluate=live, evaluations=4, load=2.0, before=again, **options)
        assert second.best is not None
        assert second.best.price > first.best.price
        assert wanted() == second.best.pool
        assert all(kind.settled for kind in client.status().kinds)
    assert len(windows) == 2
    assert sum(each.lost for each in windows) == 0
    for each in windows:
        each.close()


def test_a_plan_is_the_devices_of_a_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_file = folder / "plan.toml"
    plan_file.write_text(
        '[[devices]]\nkind = "fast"\nspeed = 2\nprice = 0.5\nmost = 3\ncount = 2\n'
        '[[devices]]\nkind = "cheap"\nprice = 0.17\ncount = 0\n'
        '[[models]]\nprofiles = "ranker.csv"\n[[workload]]\nrate = 10\n'
    )
    monkeypatch.chdir(folder)
    groups, profiles = of_plan(plan_file)
    assert [each["count"] for each in groups] == [2, 0]
    assert profiles is not None
    found = cluster_config(None, {"cluster": {"run_dir": str(folder / "run")}}, Ports(gateway=0), plan_file)
    assert found.cluster.workers == 2
    assert found.cluster.engine == "emulated"
    jobs = make_plan(found).pool.first_jobs()
    assert [job.worker.device_kind for job in jobs] == ["fast", "fast"]


def test_a_plan_of_steps_gives_each_model_its_own_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_file = folder / "plan.toml"
    plan_file.write_text(
        '[[devices]]\nkind = "fast"\ncount = 2\nserves = "a"\nmax_batch = 4\n'
        '[[devices]]\nkind = "fast"\ncount = 3\nserves = "b"\n'
        '[[models]]\nprofiles = "ranker.csv"\n[[workload]]\nrate = 10\n'
    )
    monkeypatch.chdir(folder)
    groups, _ = of_plan(plan_file)
    assert [(each["kind"], each["count"]) for each in groups] == [("fast", 5)]
    found = cluster_config(None, {"cluster": {"run_dir": str(folder / "run")}}, Ports(gateway=0), plan_file)
    assert found.scheduler.own_workers == {"a": (2, 4, "fast"), "b": (3, 0, "fast")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[devices]]\nkind = "a"\nspeed = 0\n', "speed is 0"),
        ('[[devices]]\nkind = "a/b"\n', "kind is 'a/b'"),
        ('[[devices]]\nkind = "a"\ncout = 1\n', "did you mean 'count'"),
        ('[devices]\nkind = "a"\n', r"begin each with \[\[devices\]\]"),
        ('[[devices]]\nkind = "a"\n[[devices]]\nkind = "a"\n', "two groups of devices are of one kind"),
        ('[[devices]]\nkind = "a"\ncount = 0\n', "no group of devices has a worker"),
        ('[cluster]\nworkers = 3\n[[devices]]\nkind = "a"\n', "workers is 3 and the groups"),
        ('[cluster]\nengine = "onnxruntime"\n[[devices]]\nkind = "a"\n', "would have to be emulated"),
    ],
)
def test_groups_that_can_not_be_are_refused(folder: Path, text: str, says: str) -> None:
    path = folder / "mainspring.toml"
    path.write_text(text)

    def read() -> Config:
        tables = read_tables(path)
        tables.setdefault("cluster", {}).setdefault("engine", "emulated")
        return read_config(tables, str(path))

    with pytest.raises(ConfigError, match=says):
        read()
