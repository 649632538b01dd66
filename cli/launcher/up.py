"""The verb ``mainspring up``: configuration, plan, supervisor, signals."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from mainspring.cli.configuration.config import MOST, Config, Tables, merged, read_config, read_tables
from mainspring.cli.configuration.fitting import with_limits
from mainspring.cli.configuration.groups import of_plan, own_workers
from mainspring.cli.doctor.machine import with_gpus
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.gateways import also_serves
from mainspring.cli.launcher.process_plan import Plan, make_plan
from mainspring.cli.launcher.running import Running
from mainspring.cli.launcher.signals import stop_on_signals
from mainspring.cli.launcher.supervisor import Supervisor
from mainspring.cli.launcher.worker_jobs import placement_of
from mainspring.cli.output import SERVING_PATIENCE_S, keep_saying
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.descriptors import shortage
from mainspring.messages.tables import ConfigError
from mainspring.native import CORE, PATH, Core, State, Use, how_to_compile
from mainspring.worker.limits import read_limits

DEFAULT_FILE = Path("mainspring.toml")
DEFAULT_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
"""Ports of what a local cluster serves beside ZeroMQ by default, on this machine only."""
CONSOLE_PORT = 8003
"""Port of its console by default, on this machine only."""
OFF = "off"
TOLD_FAULTS = 8
"""The most models that are not served and are named at the start."""


class Ports(msgspec.Struct, frozen=True):
    """The command line's ports; None for what it does not say."""

    gateway: int | None = None
    """ZeroMQ's. 0: any, and any for what else is not set."""
    http: str | None = None
    """A port, 0 for any, or `OFF`; so are the others."""
    grpc: str | None = None
    metrics: str | None = None
    console: str | None = None


def run_up(
    path: Path | None,
    flags: Tables,
    ports: Ports,
    ray: str | None = None,
    devices: Path | None = None,
) -> None:
    """Run a cluster in the foreground until SIGINT or SIGTERM, then drain it.

    Its processes are this machine's, or actors of the Ray cluster at ``ray``: an address, or ``local``.
    ``devices`` is a plan whose groups of devices it has.

    Prints a line that begins with ``ready`` and names the gateway's address once every worker has prepared
    every model that it can, and below it where else it serves; all else, such as which it can't, goes to
    stderr. A second signal ends everything at once. Raises SystemExit if Ctrl-C came before it served.
    """
    keep_saying(patience_s=SERVING_PATIENCE_S)
    progress = Progress()
    progress.briefly("reading the configuration and checking the models")
    try:
        config = cluster_config(path, flags, ports, devices)
        running = _running(config, ray, progress)
        plan = running.plan
    finally:
        progress.clear()
    stop = Stop(progress, plan)
    heard = stop_on_signals(stop, signal.SIGINT, signal.SIGTERM, second_exit_code=130)
    warn = _to_say(config, here=ray is None)

    served = False

    def ready() -> None:
        nonlocal served
        served = True
        look = running.first_look.state
        for problem in (*look.problems, *running.faults[:TOLD_FAULTS], *warn):
            progress.say(problem)
        if len(running.faults) > TOLD_FAULTS:
            progress.say(f"{len(running.faults) - TOLD_FAULTS} more models: mainspring status")
        if not look.settled:
            progress.say(f"not all of the model repository is served yet: {look.waits_for}")
        progress.clear()
        print("\n".join(announcement(plan, running.served + look.models)), flush=True)

    try:
        running.run(stop, ready)
    finally:
        progress.clear()
    if not served and signal.SIGINT in heard:
        raise SystemExit(128 + signal.SIGINT)


def _running(config: Config, ray: str | None, progress: Progress) -> Running:
    """Return the cluster of a configuration, here or on Ray."""
    if ray is None:
        return Supervisor(make_plan(config), progress.say, progress)
    if config.cluster.devices:
        raise ConfigError(
            "groups of [[devices]] are emulated on this machine: leave them out with --ray, whose nodes have "
            "devices of their own"
        )
    from mainspring.cli.launcher.on_ray import cluster_on_ray

    progress.briefly("connecting to Ray")
    return cluster_on_ray(config, ray, progress.say, progress)


class Stop(threading.Event):
    """The command to stop, which says at once that it was heard."""

    def __init__(self, progress: Progress, plan: Plan) -> None:
        super().__init__()
        self._progress = progress
        self._limit_s = plan.cluster.stop_timeout_s

    def set(self) -> None:
        """Stop the cluster; called by the handler of a signal."""
        heard = self.is_set()
        super().set()
        if not heard:
            self._progress.say(
                f"stopping: requests in flight have {self._limit_s:g} s; a second signal ends it at once"
            )


def announcement(plan: Plan, models: int) -> list[str]:
    """Return the lines that say that a cluster can serve: the first begins with ``ready`` and the address."""
    workers = plan.cluster.workers
    devices = "1 worker" if workers == 1 else f"{workers} workers"
    serves = "1 model" if models == 1 else f"{models} models"
    others = [*plan.also_serves, *([("console", plan.console_address)] if plan.console_address else [])]
    lines = [f"ready {plan.gateway_address} serves {serves} on {devices}"]
    lines += [f"  {name:8} {address}" for name, address in others]
    for job in plan.gateways[1:]:
        also = [job.gateway.address, *(address for _, address in also_serves(job.gateway))]
        lines.append(f"  {job.name:8} {', '.join(also)}")
    if len(plan.shards) > 1:
        lines.append(f"  {'shards':8} {len(plan.shards)} controllers: mainspring status, mainspring balance")
    return lines


def remedies(cores: Sequence[tuple[Core, State]], gateway: GatewayConfig) -> list[str]:
    """Return the lines about cores that run as Python although that was not asked for, in one line, and of a
    limit of open files that leaves too few clients."""
    slow = [(core, state) for core, state in cores if state.use in (Use.MISSING, Use.STALE)]
    said = [f"not all is compiled: {state.detail}" for _, state in cores if state.use is Use.PARTLY]
    if slow:
        costs = " and ".join(f"{core.purpose} at {core.cost}" for core, _ in slow)
        said.append(f"this runs as Python: {costs}; to compile it: {how_to_compile(slow[0][1])}")
    few = shortage(gateway)
    return [*said, few] if few else said


def _to_say(config: Config, *, here: bool) -> list[str]:
    """Return the lines about this machine at the start; ``here`` if it is where the cluster runs."""
    said = remedies([(core, core.state()) for core in (CORE, PATH)], config.gateway)
    return [*said, *bounds(config)] if here else said


def bounds(config: Config) -> list[str]:
    """Return the lines about this machine's limits, and of workers without a core of their own."""
    limits, workers = read_limits(), config.cluster.workers
    said = limits.sentences()
    emulated = config.cluster.engine == "emulated"
    if limits.cores is not None and limits.cores < workers + 1 and not emulated:
        told = "1 worker" if workers == 1 else f"{workers} workers"
        said[0] += f": {told} and the rest want {workers + 1}, and wait for each other beyond that"
    sharing = "" if emulated or not config.worker.realtime else placement_of(config).sharing()
    return [*said, sharing] if sharing else said


def cluster_config(path: Path | None, flags: Tables, ports: Ports, devices: Path | None = None) -> Config:
    """Return the configuration of a file (by default ``mainspring.toml`` here, if there is one) and flags,
    with the groups of devices of a plan if one is given.

    Raises `ConfigError`.
    """
    if path is None and DEFAULT_FILE.exists():
        path = DEFAULT_FILE
    tables = read_tables(path) if path is not None else {}
    if devices is not None:
        flags = with_plan(tables, flags, devices)
    overrides = merged(merged(flags, {"gateway": _told(ports)}), _told_console(ports.console))
    for one, other in (("store", "profiles"), ("profiles", "store")):
        # A flag replaces the other source of models that the file may name.
        if one in flags.get("cluster", {}) and other not in flags["cluster"]:
            tables.get("cluster", {}).pop(other, None)
    if ports.gateway is not None:
        address = f"tcp://127.0.0.1:{ports.gateway}"
        overrides["gateway"] = {**overrides.get("gateway", {}), "address": address}
    served = merged(_defaults(any_port=ports.gateway == 0), merged(tables, overrides))
    fitted = with_limits(with_gpus(_with_ports(served)), read_limits())
    return read_config(fitted, str(path) if path is not None else "the command line")


def with_plan(tables: Tables, flags: Tables, devices: Path) -> dict[str, dict[str, Any]]:
    """Return flags with a plan's groups of emulated devices and, if neither file nor flags name any models,
    its table of profiles; raise `ConfigError` for a file that is not a plan."""
    groups, profiles = of_plan(devices)
    found: dict[str, Any] = {"devices": groups, "engine": "emulated"}
    named = {**tables.get("cluster", {}), **flags.get("cluster", {})}
    if profiles is not None and not named.keys() & {"store", "profiles"}:
        found["profiles"] = profiles
    own = own_workers(devices)
    return merged({"cluster": found, **({"scheduler": {"own_workers": own}} if own else {})}, flags)


def _defaults(*, any_port: bool) -> dict[str, dict[str, Any]]:
    """Return what a cluster of `mainspring up` is unless it is configured otherwise."""
    names = list(DEFAULT_PORTS)
    *ports, console = [0] * (len(names) + 1) if any_port else [*DEFAULT_PORTS.values(), CONSOLE_PORT]
    return {
        "gateway": {f"{name}_address": _address(name, port) for name, port in zip(names, ports, strict=True)},
        "cluster": {"console": True},
        "console": {"address": _address("console", console)},
    }


def _with_ports(tables: Tables) -> Tables:
    """Return tables with free ports in the place of 0 where clients are served, for they are told which."""
    any_port = [
        (table, key, address.rpartition(":")[0])
        for table in ("gateway", "console")
        for key, address in tables.get(table, {}).items()
        if key.endswith("address") and isinstance(address, str) and address.endswith((":0", ":*"))
    ]
    gateways = tables.get("cluster", {}).get("gateways", 1)
    # What can't be is refused as the configuration is read.
    able = isinstance(gateways, int) and gateways <= MOST["gateways"]
    ports = free_ports(len(any_port), gateways if able else 1)
    for (table, key, host), port in zip(any_port, ports, strict=True):
        tables = merged(tables, {table: {key: f"{host}:{port}"}})
    return tables


def _told(ports: Ports) -> dict[str, str]:
    """Return the addresses that the command line sets."""
    told = {}
    for name in DEFAULT_PORTS:
        text = getattr(ports, name)
        if text is not None:
            told[f"{name}_address"] = _told_address(name, text)
    return told


def _told_console(text: str | None) -> dict[str, dict[str, Any]]:
    """Return what the command line says of the console."""
    address = "" if text is None else _told_address("console", text)
    if address:
        return {"cluster": {"console": True}, "console": {"address": address}}
    return {} if text is None else {"cluster": {"console": False}}


def _told_address(name: str, text: str) -> str:
    """Return the address that a port on the command line means, an empty one for `OFF`."""
    if text == OFF:
        return ""
    if not text.isdecimal() or int(text) > 65535:
        raise ConfigError(f"--{name}-port is {text!r}; give a port, 0 for any free one, or {OFF}")
    return _address(name, int(text))


def _address(name: str, port: int) -> str:
    return f"{'grpc' if name == 'grpc' else 'http'}://127.0.0.1:{port}"


_NUMBERS = re.compile(r"\d[\d,.]*")


class Progress:
    """Shows the step that a start has come to; call it as often as is convenient."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._rewrites = self._file.isatty()
        self._shown = ""
        self._open = False

    def __call__(self, step: str) -> None:
        """Show a step unless it is shown; in a file, of steps that differ in their numbers the first."""
        if step == self._shown:
            return
        before, self._shown = self._shown, step
        if self._rewrites:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._file.write(f"\r\x1b[K{f'mainspring: {step} ...'[:width]}")
            self._open = True
        elif _NUMBERS.sub("", step) != _NUMBERS.sub("", before):
            self._file.write(f"mainspring: {step} ...\n")
        self._file.flush()

    def briefly(self, step: str) -> None:
        """Show a step on a terminal alone."""
        if self._rewrites:
            self(step)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(f"mainspring: {text}", file=self._file, flush=True)

    def clear(self) -> None:
        """Remove the step from a terminal."""
        if self._open:
            self._file.write("\r\x1b[K")
            self._file.flush()
        self._open = False
        self._shown = ""
