"""Two gateways, one of which is killed every 30 s under load: what a client of both loses, or gets twice.

``python -m mainspring.experiments.bench.gateways_killed``, which ``make bench-failover`` runs. A request is
lost if it ends without outputs for want of a gateway or of an answer; it is answered twice if a second reply
for it reaches the client.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import GatewayUnreachable, TimedOut
from mainspring.client.failover import Gateways
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.clients import ErrorReply, InferReply
from tests.emulated_cluster import cluster_of, write_profile

EXECUTE_MS = 2.0
LOOK_S = 0.01


class Replies:
    """Counts the replies that reach a client, by request."""

    def __init__(self, gateways: Gateways) -> None:
        self.times: Counter[int] = Counter()
        for member in gateways._members:
            self._watch(member._connection)

    def _watch(self, connection: Any) -> None:
        receive = connection.receive

        def counted() -> Any:
            received = receive()
            if received is not None and isinstance(received[0], InferReply | ErrorReply):
                self.times[received[0].key] += 1
            return received

        connection.receive = counted


def kill_in_turn(cluster: LocalCluster, gateways: Gateways, every_s: float, stop: threading.Event) -> int:
    """Kill the gateway in use every so often, once the other one is there; return how often."""
    kills = 0
    while not stop.wait(every_s):
        while not all(member.welcome is not None for member in gateways._members):
            if stop.wait(LOOK_S):
                return kills
        name = cluster.plan.gateways[gateways._at].name
        os.kill(cluster.supervisor.pid(name) or 0, signal.SIGKILL)
        kills += 1
        typer.echo(f"  killed {name}")
    return kills


def offer(
    client: Client, rate: float, seconds: float, slo_ms: float
) -> tuple[list[Future[Any]], list[float]]:
    """Submit requests at a rate; return them, and the instants at which outputs came, when all have ended."""
    (spec, *_) = client.models()
    inputs = {each.name: np.zeros((1, *each.shape), np.float32) for each in spec.inputs}
    ends: list[float] = []

    def ended(future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            ends.append(time.monotonic())

    futures, began = [], time.monotonic()
    for number in range(round(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        futures.append(client.submit(spec.name, inputs, slo_ms=slo_ms))
        futures[-1].add_done_callback(ended)
    for future in futures:
        future.exception()
    return futures, ends


def figures_of(futures: list[Future[Any]], ends: list[float], replies: Replies, kills: int) -> list[Figure]:
    """Return what became of the requests."""
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    lost = [error for error in errors if isinstance(error, GatewayUnreachable | TimedOut)]
    again = sum(future.sendings > 0 for future in futures)  # type: ignore[attr-defined]
    late = sum(future.exception() is None and future.result().timing.late for future in futures)
    return [
        Figure("offered", len(futures), "requests", note=f"{kills} kills"),
        Figure("lost", len(lost), "requests", target=0),
        Figure("answered twice", sum(count > 1 for count in replies.times.values()), "requests", target=0),
        Figure("refused", len(errors) - len(lost), "requests"),
        Figure("late by the caller's clock", late, "requests"),
        Figure("sent again", again, "requests"),
        Figure("longest time without an answer", 1e3 * max(b - a for a, b in pairwise(sorted(ends))), "ms"),
    ]


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Length of the load.")] = 300,
    every: Annotated[float, typer.Option(min=1, help="Seconds between kills.")] = 30,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 300,
    slo_ms: Annotated[float, typer.Option(min=1, help="Time to each request's deadline.")] = 2_000,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Kill the gateway in use again and again while requests come; print what was lost, or came twice."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        profile = write_profile(Path(folder) / "model.csv", input_kb=4, output_kb=4, execute_ms=EXECUTE_MS)
        tables = {"cluster": {"gateways": 2, "workers": 2, "copies": 2}, "worker": {"spin_us": 0}}
        with (
            cluster_of(Path(folder) / "run", profile, tables) as cluster,
            Client(cluster.addresses, connect_timeout_s=30) as client,
        ):
            gateways = client._channel
            assert isinstance(gateways, Gateways)
            replies, stop, kills = Replies(gateways), threading.Event(), list[int]()
            killing = threading.Thread(
                target=lambda: kills.append(kill_in_turn(cluster, gateways, every, stop))
            )
            killing.start()
            try:
                futures, ends = offer(client, rate, seconds, slo_ms)
            finally:
                stop.set()
                killing.join()
            rows = figures_of(futures, ends, replies, kills[0])
    publish("failover-gateways", f"2 gateways, {rate:.0f} requests/s, SLO {slo_ms:.0f} ms", rows, output)
    if rows[1].value or rows[2].value:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
