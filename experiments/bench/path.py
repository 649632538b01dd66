"""What the serving path adds to a model's own execution time, one request at a time.

Client, gateway, controller and worker are real processes over real sockets; the device is emulated, so the
execution time is known and the rest is the path's. In turns with it run bare relays of the same six hops
(`bench.relay`), so that the ratio of the two holds whatever else the machine does.
``python -m mainspring.experiments.bench.path``, which ``make bench-path`` runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.experiments.bench import relay
from mainspring.experiments.bench.hops import STAGES, split
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.serving import cluster_of, write_profile
from mainspring.experiments.bench.usage import Usage, usage_of_all
from mainspring.messages.clients import InferReply, InferRequest, ToClient
from mainspring.messages.peers import TensorHeader

EXECUTE_MS = 2.0
OUTPUT_KB = 4
SLO_NS = 1_000_000_000
BLOCK = 50
"""Requests of one kind before the next kind's turn."""
WARM_UP = 40
PAUSE_S = 0.002
"""Between an answer and the next request: the path is measured at low load."""
TARGETS_MS = {4.0: (1.0, 3.0), 600.0: (1.6, None)}
"""For each size of input in KB: what the path may add at the median, and at p99."""

Floats = npt.NDArray[np.float64]


class Samples(msgspec.Struct):
    """Samples of one size of input, in milliseconds."""

    relay: list[float] = []
    framed: list[float] = []
    connection: list[float] = []
    client: list[float] = []
    gateway: list[float] = []
    sent_ns: list[int] = []
    received_ns: list[int] = []
    used: dict[str, list[Usage]] = {}
    """By process, for each block of requests that came over the `Connection`."""


class _Driver:
    """Sends requests through the whole path over a `Connection`, as the replayer does."""

    def __init__(self, address: str, tensor: npt.NDArray[np.float32], samples: Samples) -> None:
        self._connection = Connection(address)
        self._connection.open(10)
        self._tensor = tensor
        self._samples = samples
        self._key = 0

    def request(self) -> None:
        """Send one request, wait for its answer, and note both instants."""
        self._key += 1
        header = TensorHeader("data", "float32", self._tensor.shape)
        sent_ns = time.monotonic_ns()
        self._connection.send(InferRequest(self._key, "model", (header,), SLO_NS), [self._tensor])
        reply = self._wait()
        received_ns = time.monotonic_ns()
        if not isinstance(reply, InferReply):
            raise RuntimeError(f"a request failed: {reply}")
        timing = reply.timing
        self._samples.connection.append((received_ns - sent_ns - timing.execute_ns) / 1e6)
        self._samples.gateway.append((timing.total_ns - timing.execute_ns) / 1e6)
        self._samples.sent_ns.append(sent_ns)
        self._samples.received_ns.append(received_ns)

    def _wait(self) -> ToClient:
        while True:
            self._connection.poll(1_000)
            if (received := self._connection.receive()) is not None:
                return received[0]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def measure(input_kb: float, requests: int, run_dir: Path) -> Samples:
    """Return ``requests`` samples of each kind: relay, path, path with the `Client`, in turns."""
    profile = write_profile(
        run_dir / "profiles.csv", input_kb=input_kb, output_kb=OUTPUT_KB, execute_ms=EXECUTE_MS
    )
    samples = Samples()
    with ExitStack() as stack:
        bare = stack.enter_context(relay.running(OUTPUT_KB * 1000))
        framed = stack.enter_context(relay.running(OUTPUT_KB * 1000, framed=True))
        cluster = stack.enter_context(cluster_of(run_dir, profile))
        client = stack.enter_context(Client(cluster.address))
        tensor = np.zeros((1, *client.models()[0].inputs[0].shape), np.float32)
        driver = _Driver(cluster.address, tensor, samples)
        stack.callback(driver.close)
        encoded = tensor.tobytes()
        kinds = (
            lambda: _relay(bare, encoded, samples.relay),
            lambda: _relay(framed, encoded, samples.framed),
            lambda: _client(client, tensor, samples),
            driver.request,
        )
        names = [job.name for job in cluster.plan.jobs]
        for kind in kinds:
            _block(kind, WARM_UP)
        for name in samples.__struct_fields__:
            getattr(samples, name).clear()
        while len(samples.connection) < requests:
            for kind in kinds:
                before = usage_of_all(cluster.supervisor, names)
                _block(kind, BLOCK)
            for name, after in usage_of_all(cluster.supervisor, names).items():
                samples.used.setdefault(name, []).append(after.since(before[name]))
    return samples


def _block(request: Callable[[], None], count: int) -> None:
    for _ in range(count):
        request()
        time.sleep(PAUSE_S)


def _relay(bare: relay.Relay, tensor: bytes, samples: list[float]) -> None:
    began_ns = time.monotonic_ns()
    bare.send(tensor)
    bare.receive()
    samples.append((time.monotonic_ns() - began_ns) / 1e6)


def _client(client: Client, tensor: npt.NDArray[np.float32], samples: Samples) -> None:
    began_ns = time.monotonic_ns()
    timing = client.infer("model", {"data": tensor}, slo_ms=SLO_NS / 1e6).timing
    samples.client.append((time.monotonic_ns() - began_ns - timing.execute_ns) / 1e6)


def figures_of(input_kb: float, samples: Samples, stages: Floats) -> list[Figure]:
    """Return the rows of one size of input; ``stages`` as `hops.split` returns them."""
    median_target, p99_target = TARGETS_MS.get(input_kb, (None, None))
    size = f"{input_kb:g} KB"
    median, p99 = np.percentile(samples.connection, [50, 99])
    relay_median, relay_p99 = np.percentile(samples.relay, [50, 99])
    framed_median, framed_p99 = np.percentile(samples.framed, [50, 99])
    client_median, client_p99 = np.percentile(samples.client, [50, 99])
    gateway_median, gateway_p99 = np.percentile(samples.gateway, [50, 99])
    note = "client, gateway, controller, worker and back, less EXEC"
    rows = [
        Figure(f"{size}: path, median", median, "ms", median_target, note=note),
        Figure(f"{size}: path, p99", p99, "ms", p99_target),
        Figure(f"{size}: bare relay, median", relay_median, "ms", note="six hops, ZeroMQ, TCP, same run"),
        Figure(f"{size}: bare relay, p99", relay_p99, "ms"),
        Figure(f"{size}: framed relay, median", framed_median, "ms", note="six hops, our own connections"),
        Figure(f"{size}: framed relay, p99", framed_p99, "ms"),
        Figure(f"{size}: path / relay, median", median / relay_median, "x"),
        Figure(f"{size}: from the gateway on, median", gateway_median, "ms", note="as Timing reports it"),
        Figure(f"{size}: from the gateway on, p99", gateway_p99, "ms"),
        Figure(f"{size}: with the blocking Client, median", client_median, "ms", note="its own thread too"),
        Figure(f"{size}: with the blocking Client, p99", client_p99, "ms"),
    ]
    for stage, column in zip(STAGES, stages.T, strict=True):
        rows.append(Figure(f"{size}:   {stage}", float(np.median(column)), "ms", note="median"))
    for name, blocks in samples.used.items():
        cpu_us, turns = np.median([(block.cpu_ns / 1e3, block.turns) for block in blocks], axis=0) / BLOCK
        note = f"{turns:.1f} turns on a processor; pauses included"
        rows.append(Figure(f"{size}:   CPU of the {name}", cpu_us, "us", note=note))
    return rows


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each size and kind.")] = 1000,
    input_kb: Annotated[list[float] | None, typer.Option(help="Sizes of a request's input.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what the path adds at the median and at p99 for each size of input, and where it goes."""
    figures = []
    for size in input_kb or list(TARGETS_MS):
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            samples = measure(size, requests, Path(folder))
            stages = split(Path(folder) / "events", samples.sent_ns, samples.received_ns)
        figures += figures_of(size, samples, stages)
    title = f"What the path adds to {EXECUTE_MS:g} ms of EXEC, one request at a time"
    publish("path", title, figures, output)


if __name__ == "__main__":
    typer.run(main)
