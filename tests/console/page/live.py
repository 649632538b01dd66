"""A live cluster of emulated devices with a console, a load that can be turned on and off, and a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.transport.tokens import token_sha256
from tests.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PROFILES = f"""{",".join(COLUMNS)}
small,4,4,20,2,2,3,4,6,9
large,4,4,120,150,20,30,40,60,90
"""
"""Models of 2 and of 8 pages. A large one takes 150 ms to load and 20 ms to run."""
COPIES = 8
WORKERS = 2
PAGES = 24
TOKEN = "ms_of_an_operator_in_a_test"


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for a state; fail with what was waited for."""
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, f"within {PATIENCE_S:.0f} s {what} did not come about"
        time.sleep(0.05)


class Site:
    """The cluster under test and what a test does to it."""

    def __init__(self, cluster: LocalCluster, client: Client, folder: Path, http: str) -> None:
        self.cluster = cluster
        self.client = client
        self.events = folder / "run" / "events"
        self.url = cluster.plan.console_address
        self.http = http
        self._folder = folder
        self._load: subprocess.Popen[bytes] | None = None

    def load(self) -> None:
        """Send requests for every model, of which a part can't be served in time."""
        if self._load is not None:
            return
        command = [str(Path(sys.executable).with_name("mainspring")), "replay", "--workload", "poisson"]
        limits = ["--rate", "60", "--duration", "600s", "--slo", "120ms"]
        place = ["--address", self.cluster.address, "--output", str(self._folder / "replay")]
        self._load = subprocess.Popen([*command, *limits, *place], stdout=subprocess.DEVNULL)
        wait_until(lambda: self.api("cluster")["last_10s"]["offered_rps"] > 20, "a load of 20 requests/s")

    def quiet(self) -> None:
        """Stop the load; return when the cluster is idle, and the console has heard of it."""
        if self._load is not None:
            self._load.kill()
            self._load.wait()
            self._load = None

        def idle() -> bool:
            cluster = self.api("cluster")
            return cluster["queued"] == 0 and all(one["outstanding"] == 0 for one in cluster["workers"])

        wait_until(idle, "an idle cluster")

    def api(self, path: str) -> Any:
        """Return what the console's API tells scripts."""
        with urllib.request.urlopen(f"{self.url}/api/{path}", timeout=PATIENCE_S) as reply:
            return json.load(reply)["data"]

    def answers(self) -> bool:
        """Return whether the console serves already."""
        try:
            self.api("cluster")
        except URLError:
            return False
        return True


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Run the cluster; yield it with some models resident."""
    profiles = folder / "profiles.csv"
    profiles.write_text(PROFILES)
    tokens = folder / "tokens.toml"
    allowed = f'sha256 = "{token_sha256(TOKEN)}"\nmodels = ["*"]\nadmin = true\n'
    tokens.write_text(f'[[token]]\nname = "ann"\n{allowed}')
    gateway, controller, console, http = (f"127.0.0.1:{port}" for port in free_ports(4))
    tables: dict[str, Any] = {
        "cluster": {
            "engine": "emulated",
            "profiles": str(profiles),
            "copies": COPIES,
            "workers": WORKERS,
            "run_dir": str(folder / "run"),
            "ready_timeout_s": 60.0,
            "console": True,
        },
        "worker": {"pages": PAGES},
        "gateway": {"address": f"tcp://{gateway}", "http_address": f"http://{http}"},
        "controller": {"address": f"tcp://{controller}"},
        "console": {"address": f"http://{console}", "token_file": str(tokens)},
    }
    plan = make_plan(read_config(tables, "the test"))
    with LocalCluster(plan, lambda _: None) as cluster, Client(cluster.address) as client:
        site = Site(cluster, client, folder, f"http://{http}")
        wait_until(site.answers, "a console that answers")
        try:
            yield site
        finally:
            site.quiet()
