"""``mainspring plan --window --watch`` on a running cluster: its own requests are watched, and their rate."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mainspring.cli import pools
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.pools import Cluster, Options, Planning
from mainspring.client.client import Client
from mainspring.planner import live, windows
from mainspring.planner.estimate import Estimate
from mainspring.planner.live import Gone
from mainspring.planner.problem import read_problem
from mainspring.planner.windows import Replayed
from mainspring.simulator.spec_file import parse_spec, read_table
from tests.cli.launcher.test_live_plan import config

TABLE = "model,input_kb,output_kb,weights_mb,transfer_ms,b1_ms\nranker,1,1,4,3,30\n"
SPEC = """
warm_up_s = 0.5
duration_s = 3
[objective]
attainment = 0.8
[scheduler]
policy = "first-free"
[[devices]]
kind = "fast"
speed = 4
price = 0.5
most = 3
[[devices]]
kind = "cheap"
price = 0.17
most = 2
[[models]]
profiles = "ranker.csv"
[[workload]]
rate = 45
slo_ms = 250
"""


NOTICED_S = 30.0
"""How long the second plan may take."""


class Written(msgspec.Struct):
    """What these tests read of a ``plan.json``."""

    load: float
    best: Estimate | None


@contextmanager
def requests(folder: Path, address: str, rate: int) -> Iterator[Replayed]:
    """Send requests at a rate, in requests a second; all are answered once the block has ended."""
    problem = read_problem(
        parse_spec(
            read_table(folder / "spec.toml", [f"workload.rate={rate}", f"duration_s={NOTICED_S}"]),
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
        yield replayed
    finally:
        ended.set()
        thread.join()
        replayed.close()


def interrupt_once_planned(path: Path, load: float) -> None:
    """Interrupt the main thread, as Ctrl-C does, once a plan for at least a load is written."""
    until = time.monotonic() + NOTICED_S
    while time.monotonic() < until:
        if msgspec.json.decode(path.read_bytes(), type=Written).load >= load:
            break
        time.sleep(0.05)
    _thread.interrupt_main()


def test_the_clusters_own_requests_are_watched_and_planned_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranker.csv").write_text(TABLE)
    (tmp_path / "spec.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pools, "plot_plan", lambda *_: None)  # Matplotlib takes seconds.
    monkeypatch.setattr(pools, "LOOK_S", 0.1)
    monkeypatch.setattr(windows, "SETTLE_S", 0.1)
    monkeypatch.setattr(live, "QUICK_S", 1.5)
    # A window in which the host stood still rules a pool out: there is time for others.
    options = Options("informed", "live", "queues", 0.0, 6, 0, 3, ())
    output = tmp_path / "out"
    output.mkdir()
    with (
        LocalCluster(make_plan(config(tmp_path, fast=0, cheap=2, speed=4.0)), lambda _: None) as cluster,
        requests(tmp_path, cluster.address, 45) as all_along,
        Client(cluster.address) as client,
    ):
        where = Cluster(cluster.address, None, 1.5)
        planning = Planning(tmp_path / "spec.toml", [], options, where, output, as_json=True)
        first = planning.run()
        assert first.best is not None
        assert first.best.pool == (0, 2)
        assert 50 <= first.best.queries <= 120, "what came in the window, not what the spec has"
        ending = threading.Thread(target=interrupt_once_planned, args=(output / "plan.json", 1.5))
        with requests(tmp_path, cluster.address, 45) as more:
            ending.start()
            with pytest.raises(KeyboardInterrupt):
                planning.watch()
            ending.join()
            kinds = client.status().kinds
    assert "the load has changed" in capsys.readouterr().out
    second = msgspec.json.decode((output / "plan.json").read_bytes(), type=Written)
    assert 1.5 < second.load < 3.0, "90 requests a second came in the place of 45"
    assert second.best is not None
    assert second.best.pool[0] >= 1, "cheap devices alone are too few"
    assert tuple(kind.wanted for kind in kinds) == second.best.pool
    assert all(kind.settled for kind in kinds)
    assert min(all_along.sent, more.sent) > 50
    assert all_along.lost == more.lost == 0
