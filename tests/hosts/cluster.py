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

from mainspring.cli.authority import Authority
from mainspring.cli.verbs.keys import curve
from mainspring.client.connection import CURVE_VARIABLE
from tests.hosts.network import Host
from tests.patience import PATIENCE_S

MAINSPRING = (sys.executable, "-m", "mainspring")
PORTS = 7400
EMULATED = ("--engine", "emulated", "--device-kind", "emulated", "--pages", "8")


class Cluster:
    """Processes on hosts, their logs and the event log in one folder."""

    def __init__(self, folder: Path, *models: str, number: int = 0) -> None:
        """``models``: the controller's options that say which; ``number``: no other cluster has it here."""
        self.folder = folder
        self.events = folder / "events"
        self._models = models
        self._port = PORTS + 10 * number
        self._authority = Authority.create(folder / "keys", "here")
        self._curve = folder / "curve.key"
        self._client = folder / "client.key"
        curve(self._curve)
        curve(self._client, self._curve)
        self._controller = ""
        self.gateway = ""
        """Where clients connect."""

    def start_controller(self, host: Host, address: str) -> None:
        """Start the controller."""
        self._controller = f"tcp://{address}:{self._port + 1}"
        options = ("--address", self._controller, *self._models, "--event-log", str(self.events))
        self._start(host, "controller", *options)

    def start_gateway(self, host: Host, address: str) -> None:
        """Start the gateway."""
        self.gateway = f"tcp://{address}:{self._port}"
        where = ("--address", self.gateway, "--curve-key", str(self._curve))
        self._start(host, "gateway", "--controller", self._controller, *where)

    def start_worker(self, host: Host, name: str, *options: str, engine: tuple[str, ...] = EMULATED) -> None:
        """Start a worker, by default on an emulated device."""
        named = ("--name", name, "--controller", self._controller)
        self._start(host, "worker", *named, *engine, "--no-realtime", *options)

    def serve_store(self, host: Host, store: Path, address: str) -> str:
        """Serve a store to workers; return where."""
        where = f"http://{address}:{self._port + 2}"
        log = self.folder / "store.log"
        command = ("store", "serve", "--store", str(store), "--address", where, "--insecure")
        host.start(*MAINSPRING, *command, log=log)
        return where

    def offer(self, host: Host, workers: int, seconds: float, rate: float, *models: str) -> Offered:
        """Begin to offer a load from a host, to all models or to these in turn; return once it has begun.

        It begins once this number of workers has all models prepared.
        """
        end = self.folder / f"end-{secrets.token_hex(2)}"
        spoken = (self.gateway, str(workers), str(seconds), str(rate), str(end), *models)
        offered = self.run(host, "tests.hosts.load", *spoken)
        offered.end = end.touch
        return offered

    def run(self, host: Host, module: str, *arguments: str) -> Offered:
        """Begin to offer what a module offers from a host; return once it has begun."""
        log = self.folder / f"load-{secrets.token_hex(2)}.log"
        process = host.start(*self.python(module), *arguments, log=log)
        offered = Offered(process, log, self.said)
        offered.wait_for("ready")
        return offered

    def python(self, module: str) -> tuple[str, ...]:
        """Return the command that runs a module, as a client that the gateway knows."""
        return ("env", f"{CURVE_VARIABLE}={self._client}", sys.executable, "-m", module)

    def log_of(self, name: str) -> str:
        """Return what a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def said(self) -> str:
        """Return what all processes have said."""
        return "\n".join(f"--- {each.name}\n{each.read_text()}" for each in sorted(self.folder.glob("*.log")))

    def _start(self, host: Host, verb: str, *options: str) -> None:
        name = options[options.index("--name") + 1] if "--name" in options else verb
        keys = self._authority.issue(verb, name, (), 1)
        shown = ("--keys", str(keys), "--log-level", "INFO")
        host.start(*MAINSPRING, verb, *shown, *options, log=self.folder / f"{name}.log")


class Offered:
    """A load that is being offered."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, said: Callable[[], str]) -> None:
        self._process, self._log, self._said = process, log, said
        self.end: Callable[[], None] = lambda: None
        """Have it end before its time, if it can."""

    def wait_for(self, word: str) -> None:
        """Wait until the load has said this."""
        give_up_s = time.monotonic() + PATIENCE_S + 60
        while word not in self._log.read_text().splitlines():
            assert self._process.poll() is None, f"the load has ended: {self._said()}"
            assert time.monotonic() < give_up_s, f"the load did not say {word!r}: {self._said()}"
            time.sleep(0.02)

    def result(self) -> Any:
        """Wait for the end; return what came of it."""
        self.wait_for("offered")
        code = self._process.wait(PATIENCE_S + 60)
        assert code == 0, f"the load failed: {self._said()}"
        return json.loads(self._log.read_text().splitlines()[-1])
