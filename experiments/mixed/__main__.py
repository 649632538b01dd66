"""``python -m mainspring.experiments.mixed``, which ``make bench-mixed`` runs: all kinds of models at once.

Six models of fixed shapes, six with lengths, two whose time follows from values and 32 streams with a state
are served by two workers on this machine. What the cluster can do is measured in a closed loop, half of it is
offered in an open one, and in the middle a worker is killed, which the launcher restarts. Every answer is
compared with ONNX Runtime on the file. The exit code is 1 if a target is missed, with a line that says which.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.connection import Connection
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.bench.report import OUTPUT, Figure, publish, wide_console
from mainspring.experiments.bench.triton.load import before_others, poisson
from mainspring.experiments.mixed.fleet import STREAM, Subject, compiled, judge, sources
from mainspring.experiments.mixed.offering import Offering, figures, models_table, shortfalls

RUN = "mixed-run"
"""Folder of the cluster's run beside the report: `mainspring explain` tells why a request was refused."""
VICTIM = "worker-0"
WORKERS = 2
PAGES = 64
IN_FLIGHT = 16
"""While the capacity is measured."""
LOAD = 0.5
"""The part of it that is offered."""
_CONNECT_S = 60.0
_WARM_S = 3.0


class Kill(threading.Timer):
    """Kills the worker after so many seconds."""

    def __init__(self, cluster: LocalCluster, after_s: float) -> None:
        super().__init__(after_s, self._strike)
        self.daemon = True
        self.at_s = float("inf")
        self._cluster = cluster

    def _strike(self) -> None:
        pid = self._cluster.supervisor.pid(VICTIM)
        if pid is not None:
            self.at_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)


@contextmanager
def served(folder: Path, run_dir: Path) -> Iterator[LocalCluster]:
    """Run a cluster on the store in ``folder``; its event log comes into ``run_dir``."""
    shutil.rmtree(run_dir, ignore_errors=True)
    gateway, controller = free_ports(2)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {
            "store": str(folder / "store"),
            "run_dir": str(run_dir),
            "workers": WORKERS,
            "ready_timeout_s": 300,
        },
        "worker": {"pages": PAGES},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "http_address": "", "grpc_address": ""},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    with LocalCluster(make_plan(read_config(tables, "this experiment")), typer.echo) as cluster:
        yield cluster


def capacity(connection: Connection, subjects: Sequence[Subject], seconds: float) -> float:
    """Return the answers a second of a closed loop, the median of three turns after one that warms."""
    found = [
        Offering(subjects, None, seed).closed_loop(connection, IN_FLIGHT, length)
        for seed, length in enumerate((_WARM_S, *[seconds / 3] * 3))
    ]
    return statistics.median(found[1:])


def run(
    cluster: LocalCluster, subjects: Sequence[Subject], duration_s: float, capacity_s: float, slo_ms: float
) -> tuple[Offering, Kill, float]:
    """Measure the capacity, offer its half and kill a worker; return both, and the capacity in answers/s."""
    with Connection(cluster.address, "mixed") as connection:
        connection.open(_CONNECT_S)
        most_hz = capacity(connection, subjects, capacity_s)
        typer.echo(f"{most_hz:.0f} answers a second in a closed loop; {LOAD * most_hz:.0f} are asked for")
        offering = Offering(subjects, slo_ms / 1e3, seed=100)
        kill = Kill(cluster, duration_s / 2)
        kill.start()
        with before_others():
            offering.open_loop(connection, poisson(LOAD * most_hz, duration_s, seed=7).tolist())
        kill.cancel()
    return offering, kill, most_hz


def explained(cluster: LocalCluster, offering: Offering, kill: Kill, most_hz: float) -> list[Figure]:
    """Return what explains the others; call while the cluster runs."""
    restarts = cluster.supervisor.starts(VICTIM) - 1
    behind_ms = statistics.quantiles(offering.behind_s, n=100)[-1] * 1e3
    rows = [
        Figure("capacity in a closed loop", most_hz, "r/s"),
        Figure("the killed worker was restarted", restarts, "times", 1, at_least=True),
        Figure("requests sent later than due, p99", behind_ms, "ms"),
    ]
    back_s = offering.returned_s.get(VICTIM)
    if back_s is not None and back_s > kill.at_s:
        rows.append(Figure("it answered again after", back_s - kill.at_s, "s"))
    return rows


def main(
    duration: Annotated[float, typer.Option(min=4.0, help="Of the judged load, in seconds.")] = 600.0,
    capacity_s: Annotated[float, typer.Option(min=1.0, help="How long the capacity is measured.")] = 30.0,
    slo_ms: Annotated[float, typer.Option(help="Of every request.")] = 100.0,
    small: Annotated[bool, typer.Option(help="Made models only, which compile in seconds.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Serve, kill, judge, and write it down."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        folder = Path(name)
        subjects = []
        for source in sources(folder, typer.echo, small=small):
            began_s = time.monotonic()
            subjects.append(compiled(source, Store(folder / "store"), folder))
            typer.echo(f"{source.name:<20} {source.kind:<8} compiled in {time.monotonic() - began_s:.1f} s")
        with served(folder, output / RUN) as cluster:
            offering, kill, most_hz = run(cluster, subjects, duration, capacity_s, slo_ms)
            rows = explained(cluster, offering, kill, most_hz)
        stream = next(each for each in subjects if each.kind == STREAM)
        judged = judge(offering.streams, stream.file, folder, kill.at_s)
    rows += figures(offering.tallies, judged, offering.twice, kill.at_s - offering.began_s)
    tallies = [msgspec.structs.replace(each, latency_ms=[]) for each in offering.tallies]
    publish("mixed", "A mixed cluster at half its load", rows, output, models=tallies)
    wide_console().print(models_table(offering.tallies))
    short = shortfalls(rows)
    typer.echo("\n".join(f"fell short: {each}" for each in short) or "all targets were reached")
    if short:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
