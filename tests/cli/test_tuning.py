"""A plan's tuner on a cluster: what it asks for, and when it asks for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.cli.configuration.config import Config
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.places import find_for
from mainspring.cli.tuning import (
    PlanFile,
    PlannedBest,
    PlannedStation,
    Share,
    Tuning,
    fitted,
    follow,
    read_plan,
    shared_out,
)
from mainspring.client.client import Client
from mainspring.compiler.artifact.profiles import EMULATED
from mainspring.console.live import Batch, LiveStream
from mainspring.messages.events import RequestArrived
from mainspring.messages.observing import Stage
from mainspring.messages.tables import ConfigError
from mainspring.planner.tuner import Sample, TunedStep
from tests.cli.launcher.test_local import wait_for
from tests.cli.launcher.test_scaling import Load


def plan_of(
    *stations: tuple[str, str, int, int], graph: str = "g", counts: tuple[int, ...] = (2, 20)
) -> PlanFile:
    steps = tuple(TunedStep(1.0, 5.0, 0.5, count) for _, _, _, count in stations)
    return PlanFile(
        graph=graph,
        models=tuple(model for model, _, _, _ in stations),
        best=PlannedBest(tuple(PlannedStation(f"s-{each[0]}", *each[1:]) for each in stations)),
        sample=Sample((1_000_000_000, 60_000_000_000), counts, steps),
    )


def test_steps_of_one_model_share_its_workers() -> None:
    plan = plan_of(("a", "gpu", 2, 1), ("b", "cpu", 1, 3), ("a", "gpu", 4, 2))
    assert shared_out(plan, (1, 3, 2)) == (Share("a", "gpu", 4, 3), Share("b", "cpu", 1, 3))


def test_what_a_kind_does_not_have_is_missing_in_proportion() -> None:
    plan = plan_of(("a", "gpu", 1, 1), ("b", "gpu", 1, 1), ("c", "cpu", 1, 1))
    assert fitted(plan, (6, 2, 9), {"gpu": 8, "cpu": 9}) == (6, 2, 9)
    assert fitted(plan, (6, 2, 9), {"gpu": 5, "cpu": 9}) == (4, 1, 9)
    assert fitted(plan, (6, 2, 9), {"gpu": 1}) == (1, 1, 9)


def test_a_plan_is_read_from_its_folder_and_another_file_is_refused(tmp_path: Path) -> None:
    plan = plan_of(("a", "gpu", 2, 1))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    assert read_plan(tmp_path) == read_plan(tmp_path / "plan.toml") == plan
    (tmp_path / "plan.json").write_text('{"kinds": []}')
    with pytest.raises(ConfigError, match="--search inferline"):
        read_plan(tmp_path)
    with pytest.raises(ConfigError, match="mainspring plan SPEC writes it"):
        read_plan(tmp_path / "none")


def test_it_asks_for_what_comes_as_far_as_the_cluster_grows_and_for_nothing_without_news(
    emulated: Callable[..., Config],
) -> None:
    plan, said, stop = plan_of(("quick-1", EMULATED, 1, 1), graph="quick-1"), list[str](), threading.Event()
    with (
        LocalCluster(make_plan(emulated(workers=2, max_workers=4)), lambda _: None) as cluster,
        Client(cluster.address) as client,
    ):
        wait_for(lambda: bool(client.status().kinds), "the launcher to greet the controller")
        door = find_for(cluster.address, None, None)
        stream = LiveStream(door.address, "tune", keys=door.keys())
        tuning = Tuning(plan, client, said.append)
        tuner = threading.Thread(target=follow, args=(stream, tuning, stop, said.append))
        tuner.start()
        try:
            wait_for(lambda: said == ["as planned: s-quick-1 1"], "the plan to be asked for")
            load = Load(client, rate=60, slo_ms=1000)
            # One worker beyond the plan stays for other models, so that three are the model's at most.
            wait_for(lambda: client.status().kinds[0].running == 4, "the workers that there can be")
            found = load.end()
        finally:
            stop.set()
            tuner.join()
            stream.close()
        assert client.status().kinds[0].wanted == 4
    assert any("s-quick-1 3 are needed" in line or line.endswith("s-quick-1 3") for line in said), said
    lost = sum(count for name, count in found.items() if name not in ("in time", "late", "refused"))
    assert not lost, found


def test_a_break_of_the_stream_is_no_news_of_less_traffic(emulated: Callable[..., Config]) -> None:
    plan, said = plan_of(("quick-1", EMULATED, 1, 1), graph="quick-1"), list[str]()
    with (
        LocalCluster(make_plan(emulated(workers=3)), lambda _: None) as cluster,
        Client(cluster.address) as client,
    ):
        wait_for(lambda: bool(client.status().kinds), "the launcher to greet the controller")
        tuning, second_ns = Tuning(plan, client, said.append), 1_000_000_000
        tuning.take(Batch(1, Stage.LIVE, 0, []))
        arrivals = [(at * 20_000_000, RequestArrived(at, "quick-1", 1, None)) for at in range(50)]
        tuning.take(Batch(1, Stage.LIVE, second_ns, list(arrivals)))
        grown = said[-1]
        assert "more arrives" in grown
        tuning.take(Batch(2, Stage.BEGIN, 100 * second_ns, []))
        tuning.take(Batch(2, Stage.LIVE, 101 * second_ns, []))
        assert said[-1] == grown
        tuning.take(Batch(2, Stage.LIVE, 140 * second_ns, []))
        assert said[-1] == "less arrives: s-quick-1 1"
