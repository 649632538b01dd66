"""What metrics and traces cost the gateway: the same requests with each of them on and off, in turns.

One cluster of an emulated device for each setting, side by side and idle but for the one whose turn it is.
What counts is the processor time of the gateway's process for each request, which a busy machine disturbs
less than a rate; spans go to a collector in a process of its own, which throws them away.
``python -m mainspring.experiments.bench.observability``, which ``make bench-observability`` runs.
"""

from __future__ import annotations

import contextlib
import http.server
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.connection import Connection
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.serving import cluster_of, write_profile
from mainspring.experiments.bench.usage import usage_of_all
from mainspring.messages.clients import InferReply, InferRequest
from mainspring.messages.peers import TensorHeader

SIZE_KB, EXECUTE_MS = 16.0, 0.05
IN_FLIGHT = 8
SLO_NS = 10_000_000_000
SCRAPE_S = 1.0
OFF = "all off"
_WARM_UP_S = 0.5


class Setting(msgspec.Struct, frozen=True):
    """What a gateway is to do beside serving."""

    name: str
    metrics: bool = False
    scraped: bool = False
    traced: float = 0.0
    """Part of the requests."""


SETTINGS = (
    Setting(OFF),
    Setting("metrics on, not scraped", metrics=True),
    Setting("metrics scraped every second", metrics=True, scraped=True),
    Setting("1 % of the requests traced", traced=0.01),
    Setting("all requests traced", traced=1.0),
)


class Round(msgspec.Struct, frozen=True):
    """One setting's turn."""

    setting: str
    requests_hz: float
    cpu_us: float
    """Of the gateway's process for each request."""


class Contender:
    """A cluster of one setting, and a client in a closed loop."""

    def __init__(self, setting: Setting, cluster: LocalCluster, metrics: str) -> None:
        self.setting = setting
        self._cluster = cluster
        self._metrics = metrics
        self._connection = Connection(cluster.address, local=False)
        self._connection.open(10)
        self._tensor = np.zeros((1, round(SIZE_KB * 250)), np.float32)
        self._key = 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def turn(self, seconds: float) -> Round:
        """Serve for so long, and say what it took; raise RuntimeError if a request fails."""
        with self._scraping():
            before = self._used_ns()
            began = time.monotonic()
            answered = self._run(began + seconds)
            took_s = time.monotonic() - began
        return Round(
            self.setting.name, answered / took_s, (self._used_ns() - before) / 1e3 / max(1, answered)
        )

    def _used_ns(self) -> int:
        return usage_of_all(self._cluster.supervisor, ["gateway"])["gateway"].cpu_ns

    def _run(self, until: float) -> int:
        answered = out = 0
        header = TensorHeader("data", "float32", self._tensor.shape)
        while out or time.monotonic() < until:
            while out < IN_FLIGHT and time.monotonic() < until:
                self._key += 1
                self._connection.send(InferRequest(self._key, "model", (header,), SLO_NS), [self._tensor])
                out += 1
            self._connection.poll(1_000)
            while (received := self._connection.receive()) is not None:
                if not isinstance(received[0], InferReply):
                    raise RuntimeError(f"a request failed: {received[0]}")
                answered, out = answered + 1, out - 1
        return answered

    @contextmanager
    def _scraping(self) -> Iterator[None]:
        """Have the metrics read every second, at once the first time, if the setting says so."""
        stop = threading.Event()

        def scrape() -> None:
            while not stop.is_set():
                with urllib.request.urlopen(f"{self._metrics}/metrics", timeout=10) as page:
                    page.read()
                stop.wait(SCRAPE_S)

        thread = threading.Thread(target=scrape)
        if self.setting.scraped:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            if self.setting.scraped:
                thread.join()


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that throws spans away; yield its address."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mainspring.experiments.bench.observability", "--collect", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the collector can't listen at port {port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def collect(port: int) -> None:
    """Take whatever is posted, until killed."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("listening", flush=True)
    server.serve_forever()


@contextmanager
def contender(setting: Setting, run_dir: Path, traces: str) -> Iterator[Contender]:
    """Run a setting's cluster."""
    run_dir.mkdir()
    profile = write_profile(
        run_dir / "profiles.csv", input_kb=SIZE_KB, output_kb=SIZE_KB, execute_ms=EXECUTE_MS
    )
    (port,) = free_ports(1)
    metrics = f"http://127.0.0.1:{port}"
    gateway: dict[str, Any] = {"metrics_address": metrics if setting.metrics else ""}
    if setting.traced:
        gateway |= {
            "trace_address": traces,
            "trace_sample_ratio": setting.traced,
            "trace_max_per_s": 1_000_000,
        }
    tables: Mapping[str, Mapping[str, Any]] = {"cluster": {"event_log": False}, "gateway": gateway}
    with (
        cluster_of(run_dir, profile, tables) as cluster,
        contextlib.closing(Contender(setting, cluster, metrics)) as found,
    ):
        found.turn(_WARM_UP_S)
        yield found


def measure(rounds: int, turn_s: float, folder: Path) -> list[Round]:
    """Let the settings take turns, in the other order every other time."""
    with ExitStack() as stack:
        traces = stack.enter_context(collector())
        all_of_them = [
            stack.enter_context(contender(setting, folder / str(number), traces))
            for number, setting in enumerate(SETTINGS)
        ]
        return [
            each.turn(turn_s) for number in range(rounds) for each in all_of_them[:: -1 if number % 2 else 1]
        ]


def figures(found: list[Round]) -> list[Figure]:
    """Return medians over rounds, and of each setting the ratio to none of them in the same round."""
    by_name = {each.name: [turn for turn in found if turn.setting == each.name] for each in SETTINGS}
    made = []
    for name, turns in by_name.items():
        cpu_us = statistics.median(turn.cpu_us for turn in turns)
        rate = statistics.median(turn.requests_hz for turn in turns)
        note = f"{rate:.0f} requests/s, {IN_FLIGHT} in flight"
        made.append(Figure(f"{name}: processor time of the gateway for a request", cpu_us, "us", note=note))
    for name, turns in by_name.items():
        if name == OFF:
            continue
        ratios = [turn.cpu_us / off.cpu_us for turn, off in zip(turns, by_name[OFF], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds"
        made.append(Figure(f"{name} / {OFF}", statistics.median(ratios), "x", note=spread))
    return made


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each setting.")] = 7,
    turn_s: Annotated[float, typer.Option(min=0.05, help="Length of a turn.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
    collect_at: Annotated[int, typer.Option("--collect", hidden=True)] = 0,
) -> None:
    """Measure, print the figures, and write them down."""
    if collect_at:
        collect(collect_at)
        return
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        found = measure(rounds, turn_s, Path(folder))
    publish("observability", "What metrics and traces cost the gateway", figures(found), output, turns=found)


if __name__ == "__main__":
    typer.run(main)
