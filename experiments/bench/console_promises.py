"""What the console promises, in one run: how fast a recording opens and seeks, and what ten pages cost.

A recording of half an hour is simulated and written as an event log; it is opened (until a script gets how
the cluster stood) and sought at instants throughout it. Then pages are opened on a console of a controller
under load, in turns with none, and the controller's processor time is compared.
``make bench-console-promises`` runs it.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.console import controller, fleet
from mainspring.experiments.bench.console_page import playing, replay, seek, write_log
from mainspring.experiments.bench.console_view import INFER_MS
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.spec import DeviceGroup, ModelGroup, SimulationSpec, WorkloadSpec

OPENS_S = 2.0
SEEKS_MS = 200.0
PAGES = 10
PAGES_COST = 1.01
"""The controller's time with ten pages, to its time with none."""
SHOWS = ("cluster", "schedule", "models", "cluster", "schedule")
"""What the pages show, in turn."""
SETTLE_S = 2.0
CONSOLE_S = 15.0
"""For a console to start, within the length of the load."""
PATIENCE_S = 120.0
LOOK_S = 0.005
SEED = 7


def cluster_of(rate: float, minutes: float) -> SimulationSpec:
    """Return the cluster that is recorded."""
    return SimulationSpec(
        devices=(DeviceGroup(count=4),),
        models=(ModelGroup(name="m", infer_ms=INFER_MS, load_ms=8.0, copies=400),),
        workload=(
            WorkloadSpec(rate=0.95 * rate, zipf_exponent=0.9),
            WorkloadSpec(rate=0.05 * rate, zipf_exponent=0.9, slo_ms=9.0),
        ),
        scheduler=SchedulerConfig(),
        warm_up_s=0.0,
        duration_s=60 * minutes,
    )


def picture(url: str) -> dict[str, Any]:
    """Return how the cluster stands where a console's recording is looked at."""
    with urllib.request.urlopen(f"{url}/api/cluster", timeout=PATIENCE_S) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def shown(url: str, at_ns: int | None = None) -> None:
    """Wait until a console shows the instant that it was sent to, or any."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        found = picture(url)
        there = found["data"]["workers"] if at_ns is None else found["replay"]["at_ns"] == at_ns
        if there and found["head"]["state"] == "recorded":
            return
        time.sleep(LOOK_S)
    raise SystemExit(f"the console did not show what was asked for within {PATIENCE_S:g} s")


def of_recording(folder: Path, seeks: int) -> list[Figure]:
    """Open a log and go to instants throughout it; return how long that takes."""
    began_s = time.monotonic()
    with playing(folder) as url:
        shown(url)
        opened_s = time.monotonic() - began_s
        seek(url, playing=False)
        while replay(url)["reached_ns"] < 0.99 * replay(url)["last_ns"]:
            time.sleep(0.1)
        whole_s = time.monotonic() - began_s
        run, chance, taken_ms = replay(url), random.Random(SEED), []
        for _ in range(seeks):
            at_ns = chance.randrange(run["first_ns"], run["last_ns"])
            begin_s = time.monotonic()
            seek(url, at_ns=at_ns)
            shown(url, at_ns)
            taken_ms.append((time.monotonic() - begin_s) * 1e3)
    size = sum(each.stat().st_size for each in folder.iterdir()) / 1e6
    return [
        Figure(
            "a recording opens in",
            opened_s,
            "s",
            OPENS_S,
            note=f"{size:,.0f} MB, start of the process included",
        ),
        Figure("gone through in", whole_s, "s"),
        Figure("seeks in, median", statistics.median(taken_ms), "ms", SEEKS_MS),
        Figure("seeks in, slowest", max(taken_ms), "ms", SEEKS_MS, note=f"of {seeks}"),
    ]


def live(url: str) -> None:
    """Wait until a console follows its controller."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            if picture(url)["head"]["state"] == "live":
                return
        time.sleep(0.1)
    raise SystemExit(f"the console did not follow its controller within {PATIENCE_S:g} s")


def look(url: str, show: str, stop: threading.Event) -> None:
    """Be a page: ask for a show, and say of each picture that it was seen."""
    from websockets.sync.client import connect

    with connect(url.replace("http", "ws", 1) + "/ws?deflate=1", max_size=None) as socket:
        socket.send(json.dumps({"show": show, "params": {}, "every_ms": 100}))
        number = 0
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                socket.recv(timeout=0.5)
                number += 1
                socket.send(json.dumps({"seen": number + 1_000_000}))


@contextlib.contextmanager
def pages(url: str, count: int) -> Iterator[None]:
    """Hold a number of pages open."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=look, args=(url, SHOWS[number % len(SHOWS)], stop)) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def of_pages(rate: float, rounds: int, seconds: float) -> list[Figure]:
    """Open pages on a live console, in turns with none; return what they cost the controller."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "mainspring", "console", "--controller", address, "--address", url]
    length_s = CONSOLE_S + 2 * rounds * (SETTLE_S + seconds) + 30
    used: dict[int, list[float]] = {0: [], PAGES: []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pid = stack.enter_context(controller(folder, address))
        stack.enter_context(fleet(address, rate, length_s))
        console = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        stack.callback(console.terminate)
        live(url)
        for number in range(2 * rounds):
            # 0, ten, ten, 0: what drifts strikes both alike.
            count = PAGES if number % 4 in (1, 2) else 0
            with pages(url, count):
                time.sleep(SETTLE_S)
                before, began_s = usage_of(pid), time.monotonic()
                time.sleep(seconds)
                used[count].append(usage_of(pid).since(before).cpu_ns / 1e9 / (time.monotonic() - began_s))
    ratios = [many / none for many, none in zip(used[PAGES], used[0], strict=True)]
    return [
        Figure("controller's CPU, no page", statistics.median(used[0]), "processors"),
        Figure(f"controller's CPU, {PAGES} pages", statistics.median(used[PAGES]), "processors"),
        Figure(
            f"controller's CPU, {PAGES} pages to none",
            statistics.median(ratios),
            "x",
            PAGES_COST,
            note=f"rounds {min(ratios):.3f} to {max(ratios):.3f}",
        ),
    ]


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="Length of the recording.")] = 30.0,
    recorded: Annotated[float, typer.Option(min=1, help="Requests a second in it.")] = 100.0,
    seeks: Annotated[int, typer.Option(min=1, help="Instants that are sought.")] = 15,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second while pages are open.")] = 1_000.0,
    rounds: Annotated[int, typer.Option(min=2, help="Turns with pages, and as many without.")] = 6,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each turn.")] = 3.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print a table, write it as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder), cluster_of(recorded, minutes))
        figures = of_recording(Path(folder), seeks)
    figures += of_pages(rate, rounds, seconds)
    title = (
        f"What the console promises: {minutes:g} min at {recorded:,.0f} r/s recorded, {rate:,.0f} r/s live"
    )
    publish("console_promises", title, figures, output)


if __name__ == "__main__":
    typer.run(main)
