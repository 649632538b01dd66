"""``mainspring plan --window`` on a running cluster: its own requests are watched, and then their rate."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mainspring.cli import planning as planning_module
from mainspring.cli.launcher.plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.planning import Cluster, Options, Planning
from mainspring.client.client import Client
from mainspring.planner import windows
from mainspring.planner.live import Gone
from mainspring.planner.load import LoadWatch
from mainspring.planner.plan import Plan
from mainspring.planner.problem import read_problem
from mainspring.planner.windows import Replayed
from mainspring.simulator.spec_file import parse_spec, read_table
from tests.cli.launcher.test_live_plan import config

TABLE = "model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms\nranker,1,1,4,3,10\n"
SPEC = """
warm_up_s = 0.5
duration_s = 3
[objective]
attainment = 0.9
[scheduler]
policy = "first-free"
[[devices]]
kind = "fast"
speed = 2
price = 0.5
most = 3
[[devices]]
kind = "cheap"
price = 0.17
most = 2
[[models]]
profiles = "ranker.csv"
[[workload]]
rate = 130
slo_ms = 250
"""


@contextmanager
def requests(folder: Path, address: str, rate: int) -> Iterator[None]:
    """Send requests at a rate, in requests a second."""
    problem = read_problem(
        parse_spec(
            read_table(folder / "spec.toml", [f"workload.rate={rate}", "duration_s=15"]),
            "spec.toml",
            planned=True,
        )
    )
    ended = threading.Event()
    replayed = Replayed(problem, address)

    def watch() -> Gone | None:
        return Gone.VIOLATES if ended.is_set() else None

    thread = threading.Thread(target=replayed.run, args=((0, 2), 0.0, 1_000_000, watch))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        replayed.close()


def test_the_clusters_own_requests_are_watched_and_a_greater_rate_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranker.csv").write_text(TABLE)
    (tmp_path / "spec.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning_module, "plot_plan", lambda *_: None)  # Matplotlib takes seconds.
    monkeypatch.setattr(planning_module, "LOOK_S", 0.25)
    monkeypatch.setattr(windows, "SETTLE_S", 0.3)
    options = Options("informed", "live", "queues", 0.0, 1, 0, 3, ())
    with (
        LocalCluster(make_plan(config(tmp_path, fast=0, cheap=2)), lambda _: None) as cluster,
        requests(tmp_path, cluster.address, 130),
    ):
        where = Cluster(cluster.address, None, 1.3)
        planning = Planning(tmp_path / "spec.toml", [], options, where, tmp_path / "out", as_json=True)
        (tmp_path / "out").mkdir()
        first = planning.run()
        assert first.best is not None
        assert first.best.pool == (0, 2)
        assert 100 <= first.best.queries <= 260, "what came in the window, not what the spec has"
        watch = LoadWatch(first.rate, first.slo_ms / 1e3)
        with requests(tmp_path, cluster.address, 190), Client(cluster.address) as client:
            rate = planning_module.changed(client, watch)
    written = msgspec.json.decode((tmp_path / "out" / "plan.json").read_bytes(), type=Plan)
    assert written.best == first.best
    assert 180 < rate < 400, "320 requests a second came"
