"""What the console's page takes of the browser: its main thread, and bytes, at ten pictures a second.

Twelve devices and 4,026 models under 3,000 requests a second, simulated and written as an event log, which
`mainspring console --log` plays at its own speed: the pictures are those of a live cluster of that size, and
the cluster takes nothing of the machine that the browser is measured on.
``make bench-console-page`` runs it; it needs Debian's chromium and ``pip install .[dev]``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.controller.logged_scheduler import about
from mainspring.experiments.bench.console_view import cluster_of
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.events import Wakeup
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SimulationSpec
from mainspring.telemetry.entries import FORMAT, Entry, SegmentHeader

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

VIEWS = {
    "cluster": "#/cluster",
    "memory": "#/memory/{worker}",
    "schedule": "#/schedule",
    "schedule, one worker": "#/schedule/{worker}",
    "models": "#/models?sort=demand&order=falling",
    "model": "#/model/{model}",
}
BUSY_TARGET = 50.0
"""Percent of a core that the page's main thread may take."""
BYTES_TARGET = 2e6
"""Bytes a second that a page may take."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PLAY_FROM_S = 10.0
"""Where in the log each view begins to be measured: what came before is its history."""
SETTLE_MS = 2_000.0
_READY_S = 60.0


def write_log(folder: Path, spec: SimulationSpec) -> None:
    """Simulate a cluster and write its event log, which begins at 0 of its clock, and now by the calendar."""
    folder.mkdir(exist_ok=True)
    encode = msgspec.msgpack.Encoder().encode
    unix_ns = time.time_ns()
    with (folder / "00000001.events").open("wb") as file:
        file.write(encode((0, SegmentHeader(FORMAT, unix_ns, True, unix_ns, about(spec.scheduler)))))

        def record(now_ns: int, entry: Entry) -> None:
            if not isinstance(entry, Wakeup):
                file.write(encode((now_ns, entry)))

        simulate(spec, analyse=False, record=record)


@contextmanager
def playing(folder: Path) -> Iterator[str]:
    """Run a console of a log; yield its address."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("mainspring")), "console"]
    process = subprocess.Popen([*command, "--log", str(folder), "--address", url], stdout=subprocess.DEVNULL)
    try:
        _wait(f"{url}/api/console", process)
        yield url
    finally:
        process.terminate()
        process.wait()


def replay(url: str) -> dict[str, Any]:
    """Return where the console's log is looked at."""
    with urllib.request.urlopen(f"{url}/api/console", timeout=_READY_S) as reply:
        found: dict[str, Any] = json.load(reply)["replay"]
    return found


def play(url: str, from_s: float, speed: float = 1.0) -> None:
    """Let the console play its log from some seconds after its beginning on."""
    seek(url, at_ns=replay(url)["first_ns"] + round(from_s * 1e9), playing=True, speed=speed)


def seek(url: str, **command: Any) -> None:
    """Look at another part of the console's log, or otherwise."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/replay", json.dumps(command).encode(), headers)
    urllib.request.urlopen(request, timeout=_READY_S).close()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _READY_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=_READY_S).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"the console does not answer at {url}: {error}") from None
            time.sleep(0.1)


class Counter:
    """Counts what comes over the page's WebSocket."""

    def __init__(self, session: CDPSession) -> None:
        self.pictures = 0
        self.bytes = 0
        session.send("Network.enable")
        session.on("Network.webSocketFrameReceived", self._arrived)

    def _arrived(self, event: dict[str, Any]) -> None:
        frame = event["response"]
        self.pictures += 1
        # Binary frames come as base64 here.
        self.bytes += len(frame["payloadData"]) * (3 if frame["opcode"] == 2 else 4) // 4


def metrics(session: CDPSession) -> dict[str, float]:
    """Return the browser's own counters of the page, in seconds and bytes."""
    return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}


def measured(page: Page, session: CDPSession, counter: Counter, seconds: float) -> dict[str, float]:
    """Let the page run; return what it took each second."""
    before, pictures, taken = metrics(session), counter.pictures, counter.bytes
    began_s = time.monotonic()
    page.wait_for_timeout(seconds * 1e3)
    after = metrics(session)
    length_s = time.monotonic() - began_s
    return {
        "busy": 100 * (after["TaskDuration"] - before["TaskDuration"]) / length_s,
        "script": 100 * (after["ScriptDuration"] - before["ScriptDuration"]) / length_s,
        "layout": 100 * (after["LayoutDuration"] - before["LayoutDuration"]) / length_s,
        "heap": after["JSHeapUsedSize"],
        "pictures": (counter.pictures - pictures) / length_s,
        "bytes": (counter.bytes - taken) / length_s,
    }


def figures_of(name: str, found: dict[str, float]) -> list[Figure]:
    """Return the figures of one view."""
    parts = (
        f"script {found['script']:.1f} %, layout {found['layout']:.1f} %, heap {found['heap'] / 1e6:.0f} MB"
    )
    return [
        Figure(f"{name}: main thread", found["busy"], "%", BUSY_TARGET, note=parts),
        Figure(f"{name}: pictures", found["pictures"], "/s"),
        Figure(f"{name}: traffic", found["bytes"], "B/s", BYTES_TARGET),
    ]


def browse(url: str, chromium: str, seconds: float) -> list[Figure]:
    """Open each view of the console at ``url`` and measure it for that long."""
    from playwright.sync_api import sync_playwright

    figures = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        counter = Counter(session)
        page.goto(f"{url}/#/cluster")
        play(url, PLAY_FROM_S)
        page.wait_for_selector(".card")
        worker = page.inner_text(".card h3 >> nth=0")
        page.goto(f"{url}/#/models")
        model = page.inner_text(".models tbody a >> nth=0")
        for name, hash_ in VIEWS.items():
            page.goto(f"{url}/{hash_.format(worker=worker, model=model)}")
            page.wait_for_selector("main:not([aria-busy])")
            play(url, PLAY_FROM_S)
            page.wait_for_timeout(SETTLE_MS)
            figures += figures_of(name, measured(page, session, counter, seconds))
        browser.close()
    return figures


def main(
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 3_000.0,
    length: Annotated[float, typer.Option(min=5, help="Virtual seconds of the log.")] = 60.0,
    seconds: Annotated[float, typer.Option(min=1, help="For how long each view is measured.")] = 5.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print a table, write it as JSON."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("there is no chromium here: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder), cluster_of(rate, length))
        with playing(Path(folder)) as url:
            figures = browse(url, chromium, seconds)
    publish("console_page", "The console's page at 12 devices, 4,026 models, 3,000 r/s", figures, output)


if __name__ == "__main__":
    typer.run(main)
