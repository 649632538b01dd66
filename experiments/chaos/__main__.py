"""Live proof: a cluster at half load under faults by a seed (``make chaos``).

Two controllers of which one leads, two gateways and three emulated workers, as real processes. Clients know
both gateways, each behind a proxy that can be cut or stalled. No request may be lost, answered twice, or end
after its deadline plus a grace.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import GatewayUnreachable, MainspringError, TimedOut
from mainspring.experiments.bench.gateways_killed import Replies
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.chaos import faults
from mainspring.experiments.chaos.faults import Fault, Request
from mainspring.experiments.chaos.proxy import Proxy
from tests.emulated_cluster import cluster_of, write_profile

EXECUTE_MS = 4.0
WORKERS = 3
MODELS = 6
RATE = 0.5 * WORKERS * 1e3 / EXECUTE_MS
"""Requests a second: half of what the workers do one by one."""
GRACE_S = 0.5
"""Time after its deadline by which each request has its reply."""
DISK_MIB = 64
SLICE_S = 0.02


class Faults:
    """Carries faults out on the processes of a cluster."""

    def __init__(self, cluster: LocalCluster, proxies: dict[str, Proxy], disk: Path | None) -> None:
        self._cluster, self._proxies, self._disk = cluster, proxies, disk

    def carry_out(self, fault: Fault, over: threading.Event) -> None:
        """Begin a fault, wait until its time is over, and end it."""
        match fault.kind:
            case faults.KILL:
                self._signal(fault.process, signal.SIGKILL)
            case faults.STOP:
                with self._stopped(fault.process):
                    over.wait(fault.lasts_s)
            case faults.SLOW:
                end_s = time.monotonic() + fault.lasts_s
                while time.monotonic() < end_s and not over.is_set():
                    with self._stopped(fault.process):
                        time.sleep(SLICE_S)
                    time.sleep(SLICE_S)
            case faults.CUT:
                self._proxies[fault.process].cut()
            case faults.STALL:
                self._proxies[fault.process].stall()
                over.wait(fault.lasts_s)
                self._proxies[fault.process].flow()
            case faults.FULL:
                self._fill(fault.lasts_s, over)

    @contextmanager
    def _stopped(self, process: str) -> Iterator[None]:
        pid = self._signal(process, signal.SIGSTOP)
        try:
            yield
        finally:
            # Whoever was killed meanwhile has another process id.
            with suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, signal.SIGCONT)

    def _signal(self, process: str, number: int) -> int | None:
        pid = self._cluster.supervisor.pid(process)
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)
        return pid

    def _fill(self, lasts_s: float, over: threading.Event) -> None:
        assert self._disk is not None
        filler = self._disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        over.wait(lasts_s)
        filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Yield a file system of `DISK_MIB` in a folder; None where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


class Load:
    """Requests at a steady rate, each for one of the models in turn, and what became of them."""

    def __init__(self, client: Client, rate: float, slo_s: float) -> None:
        self._client, self._rate, self._slo_s = client, rate, slo_s
        self._sent: list[tuple[float, Future[Any], list[float]]] = []
        self.began_s = 0.0

    def offer(self, seconds: float) -> None:
        """Submit requests for so many seconds."""
        specs = self._client.models()
        inputs = [{each.name: np.zeros((1, *each.shape), np.float32) for each in s.inputs} for s in specs]
        self.began_s = time.monotonic()
        for number in range(round(self._rate * seconds)):
            due_s = self.began_s + number / self._rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            at = number % len(specs)
            sent_s, ended = time.monotonic(), list[float]()
            future = self._client.submit(specs[at].name, inputs[at], slo_ms=1e3 * self._slo_s)
            future.add_done_callback(lambda _, ended=ended: ended.append(time.monotonic()))  # type: ignore[misc]
            self._sent.append((sent_s, future, ended))

    def ended(self) -> list[Request]:
        """Wait for all replies, at most for twice the SLO and the grace, and return what became of each."""
        give_up_s = time.monotonic() + 2 * self._slo_s + GRACE_S
        found = []
        for sent_s, future, ended in self._sent:
            reason = _reason(future, max(0.0, give_up_s - time.monotonic()))
            took_s = ended[0] - sent_s if ended and not reason else None
            if reason != faults.LOST and ended and ended[0] - sent_s > self._slo_s + GRACE_S:
                reason, took_s = "after its grace", None
            found.append(Request(sent_s - self.began_s, took_s, reason))
        return found


def _reason(future: Future[Any], patience_s: float) -> str:
    """Return why a request has no outputs; empty if it has."""
    try:
        error = future.exception(patience_s)
    except TimeoutError:
        return faults.LOST
    if error is None:
        return ""
    if isinstance(error, GatewayUnreachable | TimedOut):
        return faults.LOST
    return str(error.reason) if isinstance(error, MainspringError) else repr(error)


def run(drawn: list[Fault], load: Load, machine: Faults, seconds: float) -> list[Request]:
    """Offer the load while the faults are carried out; return what became of the requests."""
    over = threading.Event()

    def play() -> None:
        began_s = time.monotonic()
        for fault in drawn:
            if over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
                return
            typer.echo(f"  {fault.at_s:6.1f} s: {fault}")
            machine.carry_out(fault, over)

    playing = threading.Thread(target=play)
    playing.start()
    try:
        load.offer(seconds)
    finally:
        over.set()
        playing.join()
    return load.ended()


def report(drawn: list[Fault], requests: list[Request], slo_s: float, end_s: float) -> None:
    """Print what callers noticed of each fault."""
    table = Table("at", "fault", "offered", "in time", "recovered after")
    for each in faults.effects(drawn, requests, slo_s, end_s):
        share = f"{100 * each.in_time / each.offered:.1f} %" if each.offered else "-"
        back = "not before the next" if each.recovered_s is None else f"{each.recovered_s:.1f} s"
        table.add_row(f"{each.fault.at_s:.0f} s", str(each.fault), str(each.offered), share, back)
    Console().print(table)


def figures(requests: list[Request], twice: int, slo_s: float, drawn: int) -> list[Figure]:
    """Return what became of all requests."""
    reasons = Counter(each.reason for each in requests if each.reason)
    in_time = sum(each.took_s is not None and each.took_s <= slo_s for each in requests)
    refused = sum(
        count for reason, count in reasons.items() if reason not in (faults.LOST, "after its grace")
    )
    told = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common(6))
    return [
        Figure("offered", len(requests), "requests", note=f"{drawn} faults"),
        Figure("in time", 100 * in_time / max(1, len(requests)), "%"),
        Figure("lost", reasons[faults.LOST], "requests", target=0),
        Figure("answered twice", twice, "requests", target=0),
        Figure("after deadline and grace", reasons["after its grace"], "requests", target=0),
        Figure("refused", refused, "requests", note=told),
    ]


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="Length of the load.")] = 10,
    every: Annotated[float, typer.Option(min=2, help="Seconds between faults, about.")] = 15,
    seed: Annotated[int | None, typer.Option(help="Draws the faults; by default another each time.")] = None,
    slo_ms: Annotated[float, typer.Option(min=1, help="Time to each request's deadline.")] = 2_000,
    only: Annotated[
        list[str] | None, typer.Option(help="A kind of fault; may be repeated. All by default.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Carry out faults on a cluster at half load; exit 1 if a request was lost, came twice, or too late."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    unknown = set(only or ()) - set(faults.WHAT)
    if unknown:
        raise typer.BadParameter(
            f"{unknown.pop()!r} is none of {', '.join(faults.WHAT)}", param_hint="--only"
        )
    typer.echo(f"seed {seed}: --seed {seed} draws these faults again")
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name, ExitStack() as stack:
        folder = Path(name)
        disk = stack.enter_context(small_disk(folder / "disk"))
        profile = write_profile(folder / "model.csv", input_kb=4, output_kb=4, execute_ms=EXECUTE_MS)
        cluster = stack.enter_context(cluster_of((disk or folder) / "run", profile, TABLES))
        proxies = _proxies(stack, cluster)
        client = stack.enter_context(
            Client(tuple(f"tcp://127.0.0.1:{port}" for port in proxies), connect_timeout_s=30)
        )
        replies = Replies(client._channel)  # type: ignore[arg-type]
        by_process = dict(zip((job.name for job in cluster.plan.gateways), proxies.values(), strict=True))
        kinds = [kind for kind in only or faults.WHAT if kind != faults.FULL or disk is not None]
        drawn = faults.draw(seed, 60 * minutes, every, _processes(cluster), kinds)
        load = Load(client, RATE, slo_ms / 1e3)
        requests = run(drawn, load, Faults(cluster, by_process, disk), 60 * minutes)
        twice = sum(count > 1 for count in replies.times.values())
    report(drawn, requests, slo_ms / 1e3, 60 * minutes)
    rows = figures(requests, twice, slo_ms / 1e3, len(drawn))
    publish("chaos", f"{RATE:.0f} requests/s, SLO {slo_ms:.0f} ms, seed {seed}", rows, output)
    if any(row.met is False for row in rows):
        raise typer.Exit(1)


TABLES: dict[str, dict[str, Any]] = {
    "cluster": {"gateways": 2, "controllers": 2, "workers": WORKERS, "copies": MODELS},
    "worker": {"pages": 4 * MODELS, "spin_us": 0},
    "gateway": {"keyless_loopback": True},
}


def _proxies(stack: ExitStack, cluster: LocalCluster) -> dict[int, Proxy]:
    """Begin a proxy for each gateway; return them by their ports."""
    found = {}
    for address, port in zip(cluster.addresses, free_ports(len(cluster.addresses)), strict=True):
        host, _, at = address.removeprefix("tcp://").rpartition(":")
        found[port] = Proxy("127.0.0.1", port, lambda goal=(host, int(at)): goal)  # type: ignore[misc]
        stack.callback(found[port].close)
    return found


def _processes(cluster: LocalCluster) -> dict[str, list[str]]:
    """Return the names of the processes of each role."""
    names = [job.name for job in cluster.plan.jobs]
    return {
        role: [name for name in names if name.startswith(role)]
        for role in ("controller", "gateway", "worker")
    }


if __name__ == "__main__":
    typer.run(main)
