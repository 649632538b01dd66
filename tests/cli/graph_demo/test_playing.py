"""The cascade of the demonstration, live: asked both ways in turns, and what is said of each."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.graph_demo import material
from mainspring.cli.graph_demo.asking import ReadDigit, ReadText
from mainspring.cli.graph_demo.playing import GRAPH, STEPS, Turn, load_for, play_turns, rows_of
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.asynchronous import AsyncClient
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import Profile


def test_a_cascade_is_asked_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "TREES", 20)
    store = Store(tmp_path / "store")
    for name in ("digits-fast", "digits-slow"):
        material._trained(store, name, tmp_path)
    (tmp_path / "graphs").mkdir()
    shutil.copy(material.GRAPHS / "read-digit.toml", tmp_path / "graphs")
    gateway, controller = free_ports(2)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "store": str(store.root),
            "run_dir": str(tmp_path / "run"),
            "graphs": str(tmp_path / "graphs"),
        },
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "worker": {"realtime": False},
    }
    specs = {name: store.manifest(name).spec() for name in store.names()}
    said: list[str] = []

    async def asked(address: str) -> tuple[ReadDigit, list[Turn]]:
        digit = ReadDigit()
        digit.slo_ms = 60_000.0
        async with AsyncClient(address) as client:
            await digit.look(client)
            load = load_for(digit, specs, 0.5)
            assert set(load.shares) == {*specs}
            assert sum(load.shares.values()) == pytest.approx(1)
            load = load._replace(rate=40.0, shares=dict.fromkeys(specs, 0.5))
            return digit, await play_turns([digit], [load], client, 1.0, 2, 0, said.append)

    with LocalCluster(make_plan(read_config(tables, "test")), said.append) as cluster:
        digit, turns = asyncio.run(asked(cluster.address))
    assert [turn.way for turn in turns] == [GRAPH, STEPS, STEPS, GRAPH]
    graph, steps = rows_of(turns, tmp_path / "run" / "events")
    assert (graph.way, steps.way) == (GRAPH, STEPS)
    # Both were asked for the same, nothing was missed, and what ran is what the answers took.
    assert graph.requests == steps.requests > 20
    assert graph.in_time == steps.in_time == 1
    assert graph.right == steps.right > 0.8
    assert graph.executed == steps.executed
    assert graph.in_vain == steps.in_vain == 0
    assert 0 < digit.unsure.mean() < 0.5
    slow = graph.executed["digits-slow"] / graph.executed["digits-fast"]
    assert 0 < slow < 0.6


def test_the_load_is_a_share_of_the_device_and_each_step_has_its_share_of_the_time() -> None:
    durations = {"open-page": 1, "detect-text": 20, "find-lines": 2, "recognise-line": 10, "spell": 1}

    class Spec:
        def __init__(self, ms: int) -> None:
            self.profiles = {"cpu": Profile(infer_ns={1: ms * 1_000_000}, load_ns=1)}

    reads = ReadText(0)
    load = load_for(reads, {name: Spec(ms) for name, ms in durations.items()}, 0.5)  # type: ignore[misc]
    lines = sum(len(each) for each in reads._texts) / len(reads._texts)
    whole_s = (1 + 20 + 2 + 11 * lines) / 1e3
    assert load.rate == pytest.approx(0.5 / whole_s)
    assert load.share == pytest.approx(0.5)
    assert load.shares["detect-text"] == pytest.approx(0.020 / whole_s)
