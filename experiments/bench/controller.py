"""Cost of a request to the controller: its processor time by thread and part, its turns and its system calls.

The models and devices of `controller_peers`, which is a gateway and twelve workers over real connections in
another process; the controller runs as `mainspring up` runs it, with its event log, and a console is
connected. In turns with it run a controller without a console, and one without log and console: what they
take less is what these cost. Beside them stand a controller that decides nothing (`controller_bare`), and the
scheduler alone, playing the same load in virtual time.
``python -m mainspring.experiments.bench.controller``, which ``make bench-controller`` runs.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import CONSOLE_NICE
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import Usage, calls_of, usage_of, usage_of_threads
from mainspring.experiments.scheduler_cost import described
from mainspring.experiments.scheduler_cost import measure as cost_of
from mainspring.experiments.scheduler_load import Setting

MODELS = Setting().models
_MODULE = "mainspring.experiments.bench"


def controller(folder: Path | None, address: str, models: int = MODELS) -> AbstractContextManager[int]:
    """Run a controller of the models, with its event log unless there is no folder; yield its process id."""
    return _served("controller_served", address, str(models), *([] if folder is None else [str(folder)]))


def bare_controller(address: str) -> AbstractContextManager[int]:
    """Run a controller that decides nothing; yield its process id."""
    return _served("controller_bare", address)


@contextlib.contextmanager
def _served(module: str, *arguments: str) -> Iterator[int]:
    command = [sys.executable, "-m", f"{_MODULE}.{module}", *arguments]
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
    command = [sys.executable, "-m", f"{_MODULE}.controller_peers"]
    command += [address, str(rate), str(seconds), str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the fleet did not come up; its words are above")
            yield process
        finally:
            process.terminate()


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


TARGET_US = 60.0
BEGIN_S = 4.0
CALLS_S = 1.0
CALLS_NAMED = 6
WHOLE, LOGGED, BARE = "log and console", "log, no console", "neither log nor console"
UNDECIDED = "nothing decided"
"""The connections and messages alone."""
LEAST_US = 0.05
"""A thread that takes less for a request has no row."""


class Stretch(msgspec.Struct, frozen=True):
    """Some seconds of one controller."""

    requests: float
    threads: dict[str, Usage]
    kernel_share: float
    fleet: Usage
    console: Usage
    calls: dict[str, int]
    """System calls of a further `CALLS_S`, by name; empty where they were not counted."""
    came: str

    def us(self, usage: Usage) -> float:
        """Return microseconds of processor time for a request."""
        return usage.cpu_ns / 1e3 / self.requests

    @property
    def used(self) -> Usage:
        """Usage of all the controller's threads together."""
        total = Usage()
        for usage in self.threads.values():
            total = total.plus(usage)
        return total


@contextlib.contextmanager
def _console_at(address: str) -> Iterator[int]:
    with console(address) as process:
        os.setpriority(os.PRIO_PROCESS, process.pid, CONSOLE_NICE)
        yield process.pid


def stretch(
    kind: str,
    rate: float,
    seconds: float,
    models: int = MODELS,
    *,
    begin_s: float = BEGIN_S,
    calls: bool = False,
) -> Stretch:
    """Run a controller of one kind under load, and return what it took after the first ``begin_s``."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    length_s = begin_s + seconds + (2 * CALLS_S if calls else 0.0) + 0.5
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind == UNDECIDED:
            pid = stack.enter_context(bare_controller(address))
        else:
            pid = stack.enter_context(controller(None if kind == BARE else folder, address, models))
        process = stack.enter_context(fleet(address, rate, length_s, models))
        seen = stack.enter_context(_console_at(address)) if kind == WHOLE else None
        time.sleep(begin_s)
        before, ticks_before, began = usage_of_threads(pid), _ticks(pid), time.monotonic()
        others_before = usage_of(process.pid), usage_of(seen) if seen else Usage()
        time.sleep(seconds)
        after, ticks_after = usage_of_threads(pid), _ticks(pid)
        requests = rate * (time.monotonic() - began)
        others = usage_of(process.pid), usage_of(seen) if seen else Usage()
        named: dict[str, int] = {}
        if calls:
            with calls_of({kind: pid}) as counted:
                time.sleep(CALLS_S)
            named = counted.get(kind, {})
        assert process.stdout is not None
        came = process.stdout.readline().strip()
    user, system = (now - then for now, then in zip(ticks_after, ticks_before, strict=True))
    return Stretch(
        requests=requests,
        threads={name: usage.since(before.get(name, Usage())) for name, usage in after.items()},
        kernel_share=system / max(1, user + system),
        fleet=others[0].since(others_before[0]),
        console=others[1].since(others_before[1]),
        calls=named,
        came=came,
    )


def _ticks(pid: int) -> tuple[int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def figures_of(found: Mapping[str, Sequence[Stretch]], alone_us: float, rate: float) -> list[Figure]:
    """Return the rows; ``alone_us`` is what the scheduler alone takes for a request."""
    whole = found[WHOLE]

    def middle(kind: str, of: Callable[[Stretch], float]) -> float:
        return statistics.median(of(each) for each in found[kind])

    total_us = {kind: middle(kind, lambda each: each.us(each.used)) for kind in found}
    bound_us = total_us[UNDECIDED] + alone_us
    spread = sorted(each.us(each.used) for each in whole)
    note = f"{spread[0]:.1f} to {spread[-1]:.1f}; {whole[-1].came}"
    rows = [Figure(f"for a request, {WHOLE}", total_us[WHOLE], "us", TARGET_US, note=note)]
    for name in whole[-1].threads:
        us = middle(WHOLE, lambda each, name=name: each.us(each.threads.get(name, Usage())))  # type: ignore[misc]
        if us >= LEAST_US:
            rows.append(Figure(f"  thread {name}", us, "us"))
    kernel = middle(WHOLE, lambda each: each.kernel_share)
    turns = middle(WHOLE, lambda each: each.used.wakeups / each.requests)
    rows += [
        Figure("  of it, in the kernel", kernel * total_us[WHOLE], "us", note=f"{100 * kernel:.0f} %"),
        Figure("  wake-ups", turns, "", note=f"{rate:,.0f} requests/s"),
    ]
    calls = [each for each in whole if each.calls]
    for each in calls:
        count = rate * CALLS_S
        most = ", ".join(f"{name} {n / count:.2f}" for name, n in list(each.calls.items())[:CALLS_NAMED])
        rows.append(Figure("  system calls", sum(each.calls.values()) / count, "", note=most))
    rows += [
        Figure("for a request, log, no console", total_us[LOGGED], "us"),
        Figure("for a request, neither log nor console", total_us[BARE], "us"),
        Figure("  the console's feed", total_us[WHOLE] - total_us[LOGGED], "us", note="the difference"),
        Figure("  the event log", total_us[LOGGED] - total_us[BARE], "us", note="the difference"),
        Figure("the scheduler alone", alone_us, "us", note=f"virtual time, {described()}"),
        Figure(
            "connections and messages alone",
            total_us[UNDECIDED],
            "us",
            note="a controller that decides nothing",
        ),
        Figure("the two together", bound_us, "us", note="at least, with this scheduler"),
        Figure("controller / the two together", total_us[WHOLE] / bound_us, "x"),
        Figure("the console's own", middle(WHOLE, lambda each: each.us(each.console)), "us"),
        Figure("gateway and workers, synthetic", middle(WHOLE, lambda each: each.us(each.fleet)), "us"),
    ]
    return rows


def main(
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 5_000.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each kind of controller.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each turn.")] = 4.0,
    begin: Annotated[float, typer.Option(min=0.5, help="Seconds of load before that.")] = BEGIN_S,
    models: Annotated[int, typer.Option(min=61, help="Models; from some 1,500 on not all fit.")] = MODELS,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a request costs the controller, and what of it are log, console and scheduler."""
    found: dict[str, list[Stretch]] = {WHOLE: [], LOGGED: [], BARE: [], UNDECIDED: []}
    for number in range(rounds):
        for kind, stretches in found.items():
            stretches.append(
                stretch(
                    *(kind, rate, seconds, models),
                    begin_s=begin,
                    calls=kind == WHOLE and number == rounds - 1,
                )
            )
            typer.echo(f"  {kind}: {stretches[-1].us(stretches[-1].used):.1f} us; {stretches[-1].came}")
    alone = cost_of(Setting(models=models, rate=rate, seconds=begin + seconds), 2)
    rows = figures_of(found, alone.request_us_mean, rate)
    title = f"The controller's processor time, {models:,} models on 12 devices, {rate:,.0f} requests/s"
    publish("controller", title, rows, output)


if __name__ == "__main__":
    typer.run(main)
