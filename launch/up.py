"""What ``mainspring up`` does: configuration, plan, supervisor, signals."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from mainspring.launch.addresses import free_ports
from mainspring.launch.config import Config, Tables, merged, read_config, read_tables
from mainspring.launch.plan import make_plan
from mainspring.launch.signals import stop_on_signals
from mainspring.launch.supervisor import Supervisor

DEFAULT_FILE = Path("mainspring.toml")


def run_up(path: Path | None, flags: Tables, port: int | None) -> None:
    """Run a local cluster in the foreground until SIGINT or SIGTERM, then drain it.

    Prints one line that begins with ``ready`` and names the gateway's address once every worker has
    prepared every model; all else goes to stderr. A second signal ends everything at once.
    """
    plan = make_plan(cluster_config(path, flags, port))
    supervisor = Supervisor(plan, _say)
    stop = threading.Event()
    stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, second_exit_code=130)

    def ready() -> None:
        devices = "1 worker" if plan.cluster.workers == 1 else f"{plan.cluster.workers} workers"
        models = "1 model" if plan.models == 1 else f"{plan.models} models"
        print(f"ready {plan.gateway_address} serves {models} on {devices}", flush=True)

    supervisor.run(stop, ready)


def cluster_config(path: Path | None, flags: Tables, port: int | None) -> Config:
    """Return the configuration of a file (by default ``mainspring.toml`` here, if there is one) and flags.

    ``port`` is the gateway's, and the controller takes the next one; 0 takes any two.
    """
    if path is None and DEFAULT_FILE.exists():
        path = DEFAULT_FILE
    tables = read_tables(path) if path is not None else {}
    overrides = merged(flags, _ports(port))
    for one, other in (("store", "profiles"), ("profiles", "store")):
        # A flag replaces the other source of models that the file may name.
        if one in flags.get("cluster", {}) and other not in flags["cluster"]:
            tables.get("cluster", {}).pop(other, None)
    return read_config(merged(tables, overrides), str(path) if path is not None else "the command line")


def _ports(port: int | None) -> dict[str, dict[str, Any]]:
    if port is None:
        return {}
    gateway, controller = free_ports(2) if port == 0 else (port, port + 1)
    return {
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }


def _say(text: str) -> None:
    print(f"mainspring: {text}", file=sys.stderr, flush=True)
