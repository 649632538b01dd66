"""What consoles cost the controller: its processor time and the time until it decides, with 0, 1 and 10.

4,026 models on 12 devices that only exist as peers of the controller (`console_fleet`), 3,000 requests a
second; controller, sockets and records are real. The three numbers of observers take turns, several times, so
that what the machine does meanwhile strikes all alike; every figure is a median over the rounds. Once more
with a console as operators run it, and with ten observers that are frozen.
``python -m mainspring.experiments.bench.console``, which ``make bench-console`` runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of
from mainspring.experiments.scheduler_load import Setting
from mainspring.messages import PROTOCOL_VERSION
from mainspring.messages.codec import TO_GATEWAY, encode
from mainspring.messages.ids import request_id
from mainspring.messages.peers import Arrival, GatewayHello, Ping, Pong, Rejected, Welcome
from tests.blocking import Client

MODELS = Setting().models
COUNTS = (0, 1, 10)
PROBE_S = 0.005
"""Between two requests of which only the controller's decision is awaited."""
UNKNOWN = "no such model"
PRIORITY = 10
CONSOLE_S = 6.0
"""For a console to start and to get its picture."""
SETTLE_S = 1.5
"""After their number changed, until observers have their picture and are measured."""
_MODULE = "mainspring.experiments.bench"


class Phase(msgspec.Struct, frozen=True):
    """Some seconds with so many observers."""

    observers: int
    controller_cpu: float
    """Processors that the controller kept busy."""
    decided_us: list[float]
    """From a request that can't be served to its rejection: how long one waits for the controller."""
    bytes_per_s: float
    """To each observer."""
    picture_s: float
    """Longest time from an observer's hello to the end of its picture."""


class Probe:
    """A gateway whose requests are for a model that is not there: they ask for nothing but a decision."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, b"probe", role="gateway")
        self._client.send([encode(GatewayHello(PROTOCOL_VERSION, "probe"))])
        self._sequence = 0
        self._number = 0
        while not self._number:
            self._next()

    def hurry(self) -> None:
        """Wait for no other program, where that is allowed: what is measured is the controller."""
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))

    def run(self, seconds: float) -> list[float]:
        """Return how long each decision took, in microseconds."""
        taken, until = [], time.monotonic() + seconds
        due = time.monotonic()
        while (due := due + PROBE_S) < until:
            while (left := due - time.monotonic()) > 0:
                if self._client.poll(left * 1e3):
                    self._next()
            self._sequence += 1
            id_ = request_id(self._number, self._sequence)
            began_ns = time.monotonic_ns()
            self._client.send([encode(Arrival(id_, UNKNOWN, 1, None))])
            while self._next() != id_:
                pass
            taken.append((time.monotonic_ns() - began_ns) / 1e3)
        return taken

    def _next(self) -> int | None:
        """Take the next message in; return the request that it rejects."""
        match TO_GATEWAY.decode(self._client.receive()[0]):
            case Ping(sequence=sequence, sent_ns=sent_ns):
                now_ns = time.monotonic_ns()
                self._client.send([encode(Pong(sequence, sent_ns, now_ns, now_ns))])
            case Welcome(number=number):
                self._number = number
            case Rejected(request_id=request_id):
                return request_id
        return None


class Sinks:
    """Observers in a process of their own."""

    def __init__(self, address: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{_MODULE}.console_sinks", address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def become(self, count: int) -> tuple[int, float]:
        """Be so many from now on; return the bytes since the last call, and the longest time to a picture."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        received, picture_s = self.process.stdout.readline().split()
        return int(received), float(picture_s)


@contextlib.contextmanager
def controller(folder: Path | None, address: str, models: int = MODELS) -> Iterator[int]:
    """Run a controller of the models, with its event log unless there is no folder; yield its process id."""
    command = [sys.executable, "-m", f"{_MODULE}.console_controller", address, str(models)]
    command += [] if folder is None else [str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def bare_controller(address: str) -> Iterator[int]:
    """Run a controller that decides nothing; yield its process id."""
    command = [sys.executable, "-m", f"{_MODULE}.controller_bare", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def fleet(address: str, rate: float, seconds: float, models: int = MODELS) -> Iterator[subprocess.Popen[str]]:
    """Play the load; yield its process once the workers have joined: its last line says what came of it."""
    command = [sys.executable, "-m", f"{_MODULE}.console_fleet"]
    command += [address, str(rate), str(seconds), str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the fleet did not come up; its words are above")
            yield process
        finally:
            process.terminate()


def measure(pid: int, probe: Probe, sinks: Sinks, count: int, seconds: float) -> Phase:
    """Return what some seconds with so many observers are like."""
    sinks.become(count)
    probe.run(SETTLE_S)
    _, picture_s = sinks.become(count)
    before, began = usage_of(pid), time.monotonic()
    decided_us = probe.run(seconds)
    took_s = time.monotonic() - began
    used = usage_of(pid).since(before)
    received, _ = sinks.become(count)
    share = received / took_s / count if count else 0.0
    return Phase(count, used.cpu_ns / 1e9 / took_s, decided_us, share, picture_s)


def resident_mib(pid: int) -> float:
    """Return a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def frozen(pid: int, probe: Probe, sinks: Sinks, seconds: float) -> tuple[float, list[float]]:
    """Freeze ten observers for a while; return the most that the controller grew by in MiB, and decisions."""
    sinks.become(10)
    probe.run(SETTLE_S)
    before, most, decided_us = resident_mib(pid), 0.0, []
    sinks.process.send_signal(signal.SIGSTOP)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            decided_us += probe.run(0.5)
            most = max(most, resident_mib(pid) - before)
    finally:
        sinks.process.send_signal(signal.SIGCONT)
    return most, decided_us


@contextlib.contextmanager
def console(address: str) -> Iterator[subprocess.Popen[str]]:
    """Run a console of the controller at an address."""
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "mainspring", "console", "--controller", address]
    command += ["--address", f"http://127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def with_console(pid: int, address: str, probe: Probe, seconds: float) -> tuple[float, float]:
    """Run a console; return the processors that the controller and it kept busy."""
    with console(address) as process:
        probe.run(CONSOLE_S)
        before, own_before, began = usage_of(pid), usage_of(process.pid), time.monotonic()
        probe.run(seconds)
        took_ns = (time.monotonic() - began) * 1e9
        used, own = usage_of(pid).since(before), usage_of(process.pid).since(own_before)
        return used.cpu_ns / took_ns, own.cpu_ns / took_ns


def rounds_of(pid: int, probe: Probe, sinks: Sinks, rounds: int, seconds: float) -> list[dict[int, Phase]]:
    """Return rounds in which each number of observers had its turn, in an order that changes."""
    found = []
    for number in range(rounds):
        order = COUNTS[number % len(COUNTS) :] + COUNTS[: number % len(COUNTS)]
        found.append({count: measure(pid, probe, sinks, count, seconds) for count in order})
    return found


def figures(rounds: list[dict[int, Phase]]) -> list[Figure]:
    """Return what the rounds show; each ratio is the median of the rounds' own."""

    def ratio(name: str, count: int, of: Callable[[Phase], float]) -> Figure:
        ratios = [of(each[count]) / of(each[0]) for each in rounds]
        note = f"rounds {min(ratios):.3f} to {max(ratios):.3f}"
        return Figure(f"{name}, {count} to 0 observers", statistics.median(ratios), "x", note=note)

    def middle(name: str, unit: str, count: int, of: Callable[[Phase], float]) -> Figure:
        return Figure(
            f"{name}, {count} observers", statistics.median(of(each[count]) for each in rounds), unit
        )

    found = [
        middle("controller's CPU", "processors", count, lambda each: each.controller_cpu) for count in COUNTS
    ]
    found += [ratio("controller's CPU", count, lambda each: each.controller_cpu) for count in COUNTS[1:]]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        of = functools.partial(decided, share)
        found += [middle(f"decision {name}", "us", count, of) for count in COUNTS]
        found += [ratio(f"decision {name}", count, of) for count in COUNTS[1:]]
    found.append(middle("to each observer", "bytes/s", 10, lambda each: each.bytes_per_s))
    found += [
        middle("until a whole picture", "s", count, lambda each: each.picture_s) for count in COUNTS[1:]
    ]
    return found


def decided(share: float, phase: Phase) -> float:
    """Return a quantile of the time to a decision, in microseconds."""
    ordered = sorted(phase.decided_us)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 3_000.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each number of observers.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each turn.")] = 1.5,
    output: Annotated[Path, typer.Option(help="Folder for the figures.")] = OUTPUT,
) -> None:
    """Measure what consoles cost the controller."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    length = 2 * (SETTLE_S + seconds) * (len(COUNTS) * rounds + 4) + 20
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pid = stack.enter_context(controller(folder, address))
        stack.enter_context(fleet(address, rate, length))
        probe, sinks = Probe(address), Sinks(address)
        stack.callback(sinks.process.kill)
        probe.hurry()
        found = figures(rounds_of(pid, probe, sinks, rounds, seconds))
        grown_mib, decided_us = frozen(pid, probe, sinks, 10.0)
        cpu, own_cpu = with_console(pid, address, probe, 2 * seconds)
    calm = Phase(10, 0.0, decided_us, 0.0, 0.0)
    found += [
        Figure("controller grows by, 10 frozen for 10 s", grown_mib, "MiB", target=64.0),
        Figure("decision p50 meanwhile", decided(0.5, calm), "us"),
        Figure("controller's CPU with a console", cpu, "processors"),
        Figure("the console's own", own_cpu, "processors"),
    ]
    publish("console", f"What consoles cost at {rate:,.0f} r/s", found, output)


if __name__ == "__main__":
    typer.run(main)
