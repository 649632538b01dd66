"""What gateways beside each other carry: one to four of them before one controller, on emulated devices.

Each gateway has clients of its own in a process of theirs, which send small requests at a fixed rate,
whatever comes back. A machine of two cores can't show four gateways at work at once. So the figure is what
requests cost: the processor time of all gateways, and of the controller, for each request that was answered
by its deadline, at a rate at which nearly all are. Several gateways carry ``count x cost with one / cost with
count`` times what one does.
``python -m mainspring.experiments.bench.scale``, which ``make bench-scale`` runs.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
from mainspring.experiments.bench.serving import cluster_of, write_profile
from mainspring.experiments.bench.usage import usage_of
from mainspring.transport.local import PREFIX as LOCAL

EXECUTE_MS = 0.2
INPUT_KB = 4.0
OUTPUT_KB = 4.0
SLO_MS = 200.0
IN_TIME_TARGET = 0.99
TWO_TARGET = 1.8
WARM_UP_S = 2.0
READY_S = 60.0
SPAWN = multiprocessing.get_context("spawn")
"""A process that has threads, as one that runs a cluster, can't be copied by fork."""


class Sent(NamedTuple):
    """What the clients of one gateway saw."""

    requests: int
    in_time: int


class Spent(NamedTuple):
    """What one number of gateways took."""

    requests: int
    in_time: int
    seconds: float
    gateways_s: float
    """Processor time of all gateways."""
    controller_s: float

    @property
    def gateway_us(self) -> float:
        """Processor time of gateways for each request in time, in us."""
        return self.gateways_s / max(1, self.in_time) * 1e6

    @property
    def controller_us(self) -> float:
        """That of the controller."""
        return self.controller_s / max(1, self.in_time) * 1e6


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


def play(address: str, rate: float, seconds: float, told: Connection) -> None:
    """Send requests at a rate from when ``told`` says so; tell how many were answered in time."""
    with Client(address) as client:
        (spec,) = client.models()
        tensor = np.zeros((1, *spec.inputs[0].shape), np.float32)
        inputs = {spec.inputs[0].name: tensor}
        client.infer(spec.name, inputs, slo_ms=None)
        told.send("ready")
        told.recv()
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


def measure(count: int, rate: float, seconds: float, devices: int, folder: Path) -> Spent:
    """Return what ``count`` gateways took for a ``rate`` of requests a second, which they share."""
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
        (controller, gateway) = (cluster.supervisor.pid(each) for each in ("controller", "gateway"))
        places = [(cluster.address, gateway)]
        places += [stack.enter_context(gateway_of(run_dir, number)) for number in range(1, count)]
        ends, players = [], []
        for address, _ in places:
            ours, theirs = SPAWN.Pipe()
            player = SPAWN.Process(target=play, args=(address, rate / count, seconds, theirs))
            player.start()
            ends.append(ours)
            players.append(player)
        for end in ends:
            if not end.poll(READY_S):
                raise TimeoutError(f"the clients of a gateway were not ready within {READY_S:g} s")
            end.recv()
        gateways = [pid for _, pid in places if pid is not None]
        before = [usage_of(pid).cpu_ns for pid in (controller or 0, *gateways)]
        for end in ends:
            end.send("go")
        found: list[Sent] = [end.recv() for end in ends]
        after = [usage_of(pid).cpu_ns for pid in (controller or 0, *gateways)]
        for player in players:
            player.join()
    spent = [(there - here) / 1e9 for here, there in zip(before, after, strict=True)]
    requests, in_time = (sum(each[place] for each in found) for place in (0, 1))
    return Spent(requests, in_time, seconds, sum(spent[1:]), spent[0])


def main(
    most: Annotated[int, typer.Option(min=2, max=4, help="Gateways beside each other, at most.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second, of all gateways together.")] = 300.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long each number of gateways serves.")] = 10.0,
    devices: Annotated[int, typer.Option(min=1, help="Emulated devices.")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="Turns through all numbers of gateways.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what a request costs with one gateway and with several."""
    spent: dict[int, list[Spent]] = {count: [] for count in range(1, most + 1)}
    for _ in range(turns):
        for count, found in spent.items():
            with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
                found.append(measure(count, rate, seconds, devices, Path(folder)))
    publish("scale", f"Gateways beside each other, {rate:g} requests/s", figures(spent), output)


def figures(spent: dict[int, list[Spent]]) -> list[Figure]:
    """Return what was measured, by the number of gateways; costs are medians over turns."""
    costs = {
        count: (
            float(np.median([each.gateway_us for each in found])),
            float(np.median([each.controller_us for each in found])),
        )
        for count, found in spent.items()
    }
    shown = []
    for count, found in spent.items():
        what = f"{count} gateway{'s' * (count > 1)}"
        share = sum(each.in_time for each in found) / max(1, sum(each.requests for each in found))
        shown.append(Figure(f"{what}: answered in time", share, "", IN_TIME_TARGET, at_least=True))
        shown.append(Figure(f"{what}: gateways' processor time a request", costs[count][0], "us"))
        shown.append(Figure(f"{what}: requests for each core of gateways", 1e6 / costs[count][0], "/s"))
        shown.append(Figure(f"{what}: controller's processor time a request", costs[count][1], "us"))
        if count > 1:
            times = count * costs[1][0] / costs[count][0]
            target = TWO_TARGET if count == 2 else None
            note = "by what a request costs"
            shown.append(
                Figure(f"{what}: times what one carries", times, "x", target, at_least=True, note=note)
            )
    return shown


if __name__ == "__main__":
    typer.run(main)
