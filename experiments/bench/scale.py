"""Throughput of gateways beside each other: one to four of them before one controller, on emulated devices.

Each gateway has clients of its own in a process of theirs, which send small requests at a fixed rate,
whatever comes back. A machine of two cores can't show four gateways at full load at once. So the figure is
what a request costs: processor time of the gateways, by ``/proc``, for each request answered by its deadline.
Each gateway that takes part has the same rate, so that it does the same work beside others as alone; several
then carry ``count x cost with one / cost with count`` times what one does, for each core spent.

All gateways run all the time, and stretches of different numbers take turns, first in one order and then in
the other; gateways take turns at being the one. What else the machine does so hits all numbers alike, and
each turn has a ratio of its own, of which the median and its confidence interval are told.
``python -m mainspring.experiments.bench.scale``, which ``make bench-scale`` runs.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from mainspring.cli.launcher.addresses import CONTROLLER_SOCKET, free_ports
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of
from mainspring.transport.local import PREFIX as LOCAL
from tests.emulated_cluster import cluster_of, write_profile

EXECUTE_MS = 0.2
INPUT_KB = 4.0
OUTPUT_KB = 4.0
SLO_MS = 200.0
IN_TIME_TARGET = 0.99
TWO_TARGET = 1.8
WARM_UP_S = 1.0
IDLE_S = 2.0
READY_S = 60.0
SPAWN = multiprocessing.get_context("spawn")
"""A process that has threads, as one that runs a cluster, can't be copied by fork."""


class Sent(NamedTuple):
    """Results of the clients of one gateway."""

    requests: int
    in_time: int


class Spent(NamedTuple):
    """Cost of one stretch with one number of gateways."""

    requests: int
    in_time: int
    gateways_s: float
    """Processor time of the gateways that had requests."""
    controller_s: float

    @property
    def gateway_us(self) -> float:
        """Processor time of gateways for each request in time, in us."""
        return self.gateways_s / max(1, self.in_time) * 1e6

    @property
    def controller_us(self) -> float:
        """Processor time of the controller."""
        return self.controller_s / max(1, self.in_time) * 1e6


def play(address: str, told: Connection) -> None:
    """Send requests at the rate and for the seconds that ``told`` says, and tell what came; until None."""
    with Client(address) as client:
        (spec,) = client.models()
        inputs = {spec.inputs[0].name: np.zeros((1, *spec.inputs[0].shape), np.float32)}
        client.infer(spec.name, inputs, slo_ms=None)
        told.send("ready")
        while (stretch := told.recv()) is not None:
            rate, seconds = stretch
            began_s, futures = time.monotonic(), []
            for number in range(round(rate * seconds)):
                time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
                futures.append(client.submit(spec.name, inputs, slo_ms=SLO_MS))
            in_time = 0
            for future in futures:
                try:
                    in_time += future.result(READY_S).timing.elapsed_ns <= SLO_MS * 1e6
                except MainspringError:
                    continue
            told.send(Sent(len(futures), in_time))


class Gateway(NamedTuple):
    """A gateway's process, and the process of its clients."""

    pid: int
    clients: Connection


class Stage:
    """A controller, devices, and as many gateways as there are at most."""

    def __init__(self, controller: int, gateways: Sequence[Gateway]) -> None:
        self._controller, self._gateways = controller, gateways

    def measure(self, count: int, first: int, rate: float, seconds: float) -> Spent:
        """Return what ``count`` gateways take at ``rate`` each, from the one with number ``first`` on."""
        most = len(self._gateways)
        playing = [self._gateways[(first + place) % most] for place in range(count)]
        before = self._cpu_s(playing)
        for each in playing:
            each.clients.send((rate, seconds))
        found: list[Sent] = [each.clients.recv() for each in playing]
        spent = [after - former for former, after in zip(before, self._cpu_s(playing), strict=True)]
        requests, in_time = (sum(each[place] for each in found) for place in (0, 1))
        return Spent(requests, in_time, sum(spent[1:]), spent[0])

    def idle(self, seconds: float) -> float:
        """Return the processor time that a gateway without requests takes of a second."""
        before = self._cpu_s(self._gateways)
        time.sleep(seconds)
        return (sum(self._cpu_s(self._gateways)[1:]) - sum(before[1:])) / seconds / len(self._gateways)

    def _cpu_s(self, gateways: Sequence[Gateway]) -> list[float]:
        pids = (self._controller, *(each.pid for each in gateways))
        return [usage_of(pid).cpu_ns / 1e9 for pid in pids]


@contextmanager
def stage_of(most: int, devices: int, folder: Path) -> Iterator[Stage]:
    """Run a cluster with this number of gateways, and the clients of each."""
    profile = write_profile(
        folder / "profiles.csv", input_kb=INPUT_KB, output_kb=OUTPUT_KB, execute_ms=EXECUTE_MS
    )
    run_dir = folder / "run"
    tables: dict[str, dict[str, object]] = {
        "cluster": {"workers": devices},
        "worker": {"realtime": False},
        "controller": {"address": f"{LOCAL}{run_dir}/{CONTROLLER_SOCKET}"},
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
        (controller, gateway) = (cluster.supervisor.pid(each) or 0 for each in ("controller", "gateway"))
        places = [(cluster.address, gateway)]
        places += [stack.enter_context(gateway_of(run_dir, number)) for number in range(1, most)]
        ends = [stack.enter_context(clients_of(address)) for address, _ in places]
        for end in ends:
            if not end.poll(READY_S):
                raise TimeoutError(f"the clients of a gateway were not ready within {READY_S:g} s")
            end.recv()
        yield Stage(controller, [Gateway(pid, end) for (_, pid), end in zip(places, ends, strict=True)])


@contextmanager
def gateway_of(run_dir: Path, number: int) -> Iterator[tuple[str, int]]:
    """Run one more gateway of a run folder's controller; yield its address and its process's id."""
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mainspring", "gateway", "--name", f"gateway-{number}"]
    process = subprocess.Popen([*command, "--address", address, "--controller", str(run_dir)])
    try:
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def clients_of(address: str) -> Iterator[Connection]:
    """Run a process with a gateway's clients; yield the end that says what to send."""
    ours, theirs = SPAWN.Pipe()
    player = SPAWN.Process(target=play, args=(address, theirs), daemon=True)
    player.start()
    try:
        yield ours
        ours.send(None)
        player.join(READY_S)
    finally:
        player.kill()


def main(
    most: Annotated[int, typer.Option(min=2, max=4, help="Gateways beside each other, at most.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second of each gateway.")] = 150.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long a stretch takes.")] = 1.0,
    devices: Annotated[int, typer.Option(min=1, help="Emulated devices.")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="Turns through all numbers of gateways.")] = 25,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a request costs with one gateway and with several."""
    counts = range(1, most + 1)
    spent: dict[int, list[Spent]] = {count: [] for count in counts}
    with (
        tempfile.TemporaryDirectory(prefix="mainspring-") as folder,
        stage_of(most, devices, Path(folder)) as stage,
    ):
        stage.measure(most, 0, rate, WARM_UP_S)
        idle_s = stage.idle(IDLE_S)
        for turn in range(turns):
            for count in counts if turn % 2 else reversed(counts):
                spent[count].append(stage.measure(count, turn, rate, seconds))
    title = f"Gateways beside each other, {rate:g} requests/s each"
    idle = Figure("a gateway without requests: processor time", idle_s * 1e3, "ms/s")
    publish("scale", title, [*figures(spent), idle], output)


def figures(spent: dict[int, list[Spent]]) -> list[Figure]:
    """Return what was measured, by the number of gateways; costs are medians over turns."""
    shown = []
    for count, found in spent.items():
        what = f"{count} gateway{'s' * (count > 1)}"
        share = sum(each.in_time for each in found) / max(1, sum(each.requests for each in found))
        cost_us = float(np.median([each.gateway_us for each in found]))
        shown.append(Figure(f"{what}: answered in time", share, "", IN_TIME_TARGET, at_least=True))
        shown.append(Figure(f"{what}: gateways' processor time a request", cost_us, "us"))
        shown.append(Figure(f"{what}: requests for each core of gateways", 1e6 / cost_us, "/s"))
        controller_us = float(np.median([each.controller_us for each in found]))
        shown.append(Figure(f"{what}: controller's processor time a request", controller_us, "us"))
        if count > 1:
            times, low, high = carried(count, spent[1], found)
            note = f"95 % sure: {low:.2f} to {high:.2f}, of {len(found)} turns"
            target = TWO_TARGET if count == 2 else None
            shown.append(
                Figure(f"{what}: times what one carries", times, "x", target, at_least=True, note=note)
            )
    return shown


def carried(count: int, one: Sequence[Spent], several: Sequence[Spent]) -> tuple[float, float, float]:
    """Return how many times what one gateway carries ``count`` do, for each core spent.

    The median of the turns' ratios, and between what it is with a probability of 95 %, by resampling.
    """
    ratios = np.array(
        [count * alone.gateway_us / beside.gateway_us for alone, beside in zip(one, several, strict=True)]
    )
    again = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(again, axis=1), (2.5, 97.5))
    return float(np.median(ratios)), float(low), float(high)


if __name__ == "__main__":
    typer.run(main)
