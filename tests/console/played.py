"""A recorded run that a console plays: for the tests of the page and for the documentation's pictures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mainspring.cli.launcher.addresses import free_ports
from mainspring.controller.logged_scheduler import about
from mainspring.messages.events import Wakeup
from mainspring.simulator.run import simulate
from mainspring.simulator.spec import SimulationSpec
from mainspring.telemetry.entries import FORMAT, Entry, SegmentHeader

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
"""Options of the browser."""
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
