"""A cluster over the hosts of a test: a controller, a gateway and workers, as their commands start them."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts.network import Host
from tests.patience import PATIENCE_S

MAINSPRING = (sys.executable, "-m", "mainspring")
CONTROLLER_PORT, GATEWAY_PORT = 7401, 7400


class Cluster:
    """Processes on hosts, their logs and the event log in one folder."""

    def __init__(self, folder: Path, profiles: Path) -> None:
        self.folder = folder
        self.events = folder / "events"
        self._profiles = profiles
        self._secret = folder / "secret"
        self._secret.write_text(secrets.token_hex(32))
        self._secret.chmod(0o600)
        self._controller = ""
        self.gateway = ""
        """Where clients connect."""

    def start_controller(self, host: Host, address: str) -> None:
        """Start the controller."""
        self._controller = f"tcp://{address}:{CONTROLLER_PORT}"
        models = ("--profiles", str(self._profiles), "--copies", "2", "--event-log", str(self.events))
        self._start(host, "controller", "--address", self._controller, *models)

    def start_gateway(self, host: Host, address: str) -> None:
        """Start the gateway."""
        self.gateway = f"tcp://{address}:{GATEWAY_PORT}"
        self._start(host, "gateway", "--controller", self._controller, "--address", self.gateway)

    def start_worker(self, host: Host, name: str, *options: str) -> None:
        """Start a worker on an emulated device."""
        emulated = ("--engine", "emulated", "--device-kind", "emulated", "--pages", "8", "--no-realtime")
        self._start(host, "worker", "--name", name, "--controller", self._controller, *emulated, *options)

    def offer(self, host: Host, workers: int, seconds: float, rate: float) -> Offered:
        """Begin to offer a load from a host; return once the first request is sent."""
        log = self.folder / f"load-{secrets.token_hex(2)}.log"
        command = (
            sys.executable,
            "-m",
            "tests.hosts.load",
            self.gateway,
            str(workers),
            str(seconds),
            str(rate),
        )
        offered = Offered(host.start(*command, log=log), log, self.said)
        offered.wait_for("ready")
        return offered

    def log_of(self, name: str) -> str:
        """Return what a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def said(self) -> str:
        """Return what all processes have said."""
        return "\n".join(f"--- {each.name}\n{each.read_text()}" for each in sorted(self.folder.glob("*.log")))

    def _start(self, host: Host, verb: str, *options: str) -> None:
        name = options[options.index("--name") + 1] if "--name" in options else verb
        shown = ("--secret-file", str(self._secret), "--insecure", "--log-level", "INFO")
        host.start(*MAINSPRING, verb, *shown, *options, log=self.folder / f"{name}.log")


class Offered:
    """A load that is being offered."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, said: Callable[[], str]) -> None:
        self._process, self._log, self._said = process, log, said

    def wait_for(self, word: str) -> None:
        """Wait until the load has said this."""
        give_up_s = time.monotonic() + PATIENCE_S + 60
        while word not in self._log.read_text().splitlines():
            assert self._process.poll() is None, f"the load has ended: {self._said()}"
            assert time.monotonic() < give_up_s, f"the load did not say {word!r}: {self._said()}"
            time.sleep(0.02)

    def result(self) -> dict[str, Any]:
        """Wait for the end; return what came of it."""
        self.wait_for("offered")
        code = self._process.wait(PATIENCE_S + 60)
        assert code == 0, f"the load failed: {self._said()}"
        found: dict[str, Any] = json.loads(self._log.read_text().splitlines()[-1])
        return found
