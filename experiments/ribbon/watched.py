"""A change of load on a running cluster of emulated devices, with ``mainspring plan --watch`` beside it.

Clients send a model's queries all along. The plan's search moves the cluster from the best pool of one kind
to a cheaper one, then half as many requests again come; the process notices, searches again, and leaves the
cluster as its second plan has it. Nothing tells it of the change.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import typer

from mainspring.client.client import Client
from mainspring.experiments.ribbon.changed import LOAD
from mainspring.experiments.ribbon.data import SHARED, Setting
from mainspring.experiments.ribbon.emulated import emulated_cluster, emulated_table
from mainspring.planner.plan import Plan
from mainspring.planner.problem import Pool, Problem, read_problem
from mainspring.planner.writing import toml
from mainspring.simulator.spec_file import parse_spec
from mainspring.traces.arrival import Arrival
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import Summary
from mainspring.traces.source import OpenSource

PATIENCE_S = 900.0
"""How long a search may take."""
LOOK_S = 0.2
DELAY_US = 300
"""What a message takes on two cores that are shared by all of the processes (part ``live``)."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Two searches on one running cluster, and what became of the requests meanwhile."""

    model: str
    began: Pool
    first: Pool
    evaluations: int
    violating: int
    search_s: float
    noticed_s: float
    """From the change of load until it was noticed."""
    load: float
    """So many times the load, as it was noticed."""
    second: Pool
    evaluations_again: int
    violating_again: int
    again_s: float
    """From the notice until the second plan."""
    requests: int
    """Sent, all on violating pools and those that waited for the second search among them."""
    answered: int
    in_time: float
    lost: int
    unsent: int
    """Requests that the clients came to after their deadline, on cores that they share with the cluster."""
    ended_on: Pool
    """What the cluster was in the end."""


class Growing:
    """A model's queries again and again, at a load that may be changed while they are sent."""

    def __init__(self, problem: Problem) -> None:
        self.load = 1.0
        self.models = tuple(model.name for model in problem.models)
        self._queries = list(problem.arrivals())

    def source(self, rng: np.random.Generator) -> OpenSource:
        """Start to play."""
        del rng
        return OpenSource(self._arrivals())

    def _arrivals(self) -> Iterator[Arrival]:
        now_ns = 0
        while True:
            before_ns = 0
            for each in self._queries:
                now_ns += round((each.time_ns - before_ns) / self.load)
                before_ns = each.time_ns
                yield Arrival(now_ns, each.model, each.rows, each.slo_ns)


class Process:
    """A plan that runs beside, with when it said what."""

    def __init__(self, spec: Path, address: str, seconds: float, output: Path) -> None:
        command = [sys.executable, "-m", "mainspring", "plan", str(spec), "--evaluate", "live", "--watch"]
        options = ["--window", f"{seconds:g}s", "--confidence", "0", "--address", address]
        self._plan = output / "plan.json"
        self._process = subprocess.Popen(
            [*command, *options, "--output", str(output)], stdout=subprocess.PIPE, text=True
        )
        self.noticed_s = 0.0
        """When it said that the load has changed, on the monotonic clock."""
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def plan(self, least_load: float) -> Plan:
        """Wait for a plan for at least a load; raise RuntimeError if the process ends, or takes too long."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self._process.poll() is None:
            if self._plan.is_file():
                found = msgspec.json.decode(self._plan.read_bytes(), type=Plan)
                if found.load >= least_load:
                    return found
            time.sleep(LOOK_S)
        raise RuntimeError(f"the plan's process made no plan for {least_load:g} times the load")

    def end(self) -> None:
        """Interrupt the process and wait for its end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def _read(self, said: IO[str]) -> None:
        for line in said:
            if "load has changed" in line:
                self.noticed_s = time.monotonic()
            typer.echo(f"  {line.rstrip()}")


@contextmanager
def clients(growing: Growing, problem: Problem, address: str, found: list[Summary]) -> Iterator[None]:
    """Send queries until the block ends; what became of them is added to ``found``."""
    replayer, stop = Replayer(ReplayConfig(address=address, straggler_wait_s=30.0)), threading.Event()

    def play() -> None:
        rows = np.unique(problem.queries.rows).tolist()
        found.append(replayer.play(growing, stop=stop, rows=rows)[0])

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        replayer.close()


def watched(setting: Setting, seconds: float, folder: Path, shared: Path = SHARED) -> Watched:
    """Search, change the load, have it noticed, and search again, on a running cluster."""
    table = emulated_table(setting, seconds, folder, shared)
    for group in table["devices"]:
        group["most"] = math.ceil(LOAD * group["most"])
    table["network"] = {"delay_us": DELAY_US}
    path = folder / f"{setting.key}-watched.toml"
    path.write_text(toml(table), encoding="utf-8")
    spec = parse_spec(table, path.name, planned=True)
    problem = read_problem(spec)
    began = (setting.one_kind, *[0] * (len(setting.kinds) - 1))
    growing, played = Growing(problem), list[Summary]()
    with (
        tempfile.TemporaryDirectory(prefix="mainspring-") as run_dir,
        emulated_cluster(spec, began, Path(run_dir)) as cluster,
        Client(cluster.address) as client,
        clients(growing, problem, cluster.address, played),
    ):
        start_s = time.monotonic()
        process = Process(path, cluster.address, seconds, Path(run_dir) / "plan")
        try:
            first = process.plan(0.0)
            first_s, growing.load = time.monotonic(), LOAD
            second = process.plan((1 + LOAD) / 2)
            second_s = time.monotonic()
        finally:
            process.end()
        ended_on = tuple(kind.running for kind in client.status().kinds)
    return _summed_up(
        setting.name,
        began,
        (first, second),
        ended_on,
        played[0],
        (first_s - start_s, process.noticed_s - first_s, second_s - process.noticed_s),
    )


def _summed_up(
    model: str,
    began: Pool,
    plans: tuple[Plan, Plan],
    ended_on: Pool,
    played: Summary,
    times_s: tuple[float, float, float],
) -> Watched:
    first, second = plans
    unsent = played.unsent + played.expired
    return Watched(
        model=model,
        began=began,
        first=first.best.pool if first.best is not None else (),
        evaluations=len(first.evaluations),
        violating=first.violating,
        search_s=times_s[0],
        noticed_s=times_s[1],
        load=second.load,
        second=second.best.pool if second.best is not None else (),
        evaluations_again=len(second.evaluations),
        violating_again=second.violating,
        again_s=times_s[2],
        requests=played.offered - unsent,
        answered=played.offered - unsent - played.lost - played.unanswered,
        in_time=played.goodput_share,
        lost=played.lost + played.unanswered,
        unsent=unsent,
        ended_on=ended_on,
    )
