"""Time that the serving path adds to a model's own execution, one request at a time.

The path is that of a client on the gateway's host; what it takes over ZeroMQ stands beside it. Client,
gateway, controller and worker are real processes over real sockets; the device is emulated, so the execution
time is known and the rest is the path's. In turns with it run bare relays of the same six hops
(`bench.relay`), so that the ratio of the two holds whatever else the machine does, and a bare chain of three
processes, which does all that a request over HTTP has to have done and decides nothing (`bench.least`). Then
follows what each process pays for a request, by each way (`bench.around`).
``python -m mainspring.experiments.bench.path``, which ``make bench-path`` runs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from mainspring.client.client import Client
from mainspring.experiments.bench import around, least, relay
from mainspring.experiments.bench.around import (
    EXECUTE_MS,
    IN_PLACE,
    LOCAL,
    LOCAL_FRAMES,
    OUTPUT_KB,
    SLO_NS,
    WARM_UP,
    ZEROMQ,
    ConnectionCaller,
    HttpCaller,
    block_of,
    callers_by_connection,
)
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.messages.actions import Infer, Result
from mainspring.messages.events import RequestArrived
from mainspring.telemetry.log import read_log
from tests.emulated_cluster import cluster_of, write_profile

STAGES = (
    "client to gateway to controller",
    "controller: taken in until scheduled",
    "schedule, dispatch, input at the worker, EXEC awake",
    "EXEC around the engine",
    "outputs to gateway to client",
)


def split(events: Path, sent_ns: Sequence[int], received_ns: Sequence[int]) -> Floats:
    """Return milliseconds of shape (requests, len(STAGES)) for the requests of these instants.

    The log may have other requests too, before, between and after. Raises ValueError if the log has no
    arrival, no INFER or no result for one.
    """
    arrivals: list[tuple[int, int]] = []
    infers: dict[int, tuple[int, Infer]] = {}
    results: dict[int, Result] = {}
    for now_ns, entry in read_log(events):
        match entry:
            case RequestArrived():
                arrivals.append((now_ns, entry.request_id))
            case Infer():
                infers.update(dict.fromkeys(entry.request_ids, (now_ns, entry)))
            case Result():
                results[entry.action_id] = entry
    instants = np.array([at for at, _ in arrivals])
    rows = []
    for sent, received in zip(sent_ns, received_ns, strict=True):
        place = int(np.searchsorted(instants, sent))
        if place == len(arrivals) or instants[place] > received:
            raise ValueError(f"{events} has no arrival for the request sent at {sent}")
        arrived_ns, request_id = arrivals[place]
        if request_id not in infers or infers[request_id][1].action_id not in results:
            raise ValueError(f"{events} has no finished INFER for request {request_id}")
        scheduled_ns, infer = infers[request_id]
        result = results[infer.action_id]
        engine_ns = result.end_ns - result.begin_ns - result.device_ns
        edges = (sent, arrived_ns, scheduled_ns, result.begin_ns)
        rows.append([*np.diff(edges), engine_ns, received - result.end_ns])
    return np.array(rows, dtype=float) / 1e6


IMAGE_KB = 602.112
"""Three channels of 224 x 224 floats."""
TARGETS_MS = {4.0: (1.0, 3.0), IMAGE_KB: (1.0, None)}
_JSON_BYTES = 1 << 12
"""More than stands before the tensor in a request's body over HTTP."""
TARGET_RELAYS = 2.0

Floats = npt.NDArray[np.float64]


class Samples(msgspec.Struct):
    """Samples of one size of input, in milliseconds."""

    relay: list[float] = []
    framed: list[float] = []
    chain: list[float] = []
    connection: list[float] = []
    sent: list[float] = []
    """Past ZeroMQ with the tensor sent through the socket."""
    in_place: list[float] = []
    """Past ZeroMQ with the tensor in the client's memory from the start."""
    zeromq: list[float] = []
    client: list[float] = []
    gateway: list[float] = []
    sent_ns: list[int] = []
    received_ns: list[int] = []


def _beside(caller: ConnectionCaller, samples: list[float]) -> None:
    sent_ns = time.monotonic_ns()
    timing = caller.request().timing
    samples.append((time.monotonic_ns() - sent_ns - timing.execute_ns) / 1e6)


def _path(caller: ConnectionCaller, samples: Samples) -> None:
    sent_ns = time.monotonic_ns()
    timing = caller.request().timing
    received_ns = time.monotonic_ns()
    samples.connection.append((received_ns - sent_ns - timing.execute_ns) / 1e6)
    samples.gateway.append((timing.total_ns - timing.execute_ns) / 1e6)
    samples.sent_ns.append(sent_ns)
    samples.received_ns.append(received_ns)


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
        callers = callers_by_connection(cluster.address, tensor)
        chain = stack.enter_context(_bare_chain(tensor))
        for each in callers.values():
            stack.callback(each.close)
        encoded = tensor.tobytes()
        kinds = (
            lambda: _relay(bare, encoded, samples.relay),
            lambda: _relay(framed, encoded, samples.framed),
            lambda: _chain(chain, samples.chain),
            lambda: _client(client, tensor, samples),
            lambda: _beside(callers[ZEROMQ], samples.zeromq),
            lambda: _beside(callers[LOCAL_FRAMES], samples.sent),
            lambda: _beside(callers[IN_PLACE], samples.in_place),
            lambda: _path(callers[LOCAL], samples),
        )
        for kind in kinds:
            block_of(kind, WARM_UP)
        for name in samples.__struct_fields__:
            getattr(samples, name).clear()
        while len(samples.connection) < requests:
            for kind in kinds:
                block_of(kind)
    return samples


def _relay(bare: relay.Relay, tensor: bytes, samples: list[float]) -> None:
    began_ns = time.monotonic_ns()
    bare.send(tensor)
    bare.receive()
    samples.append((time.monotonic_ns() - began_ns) / 1e6)


@contextmanager
def _bare_chain(tensor: npt.NDArray[np.float32]) -> Iterator[HttpCaller]:
    with least.chain(tensor.nbytes + _JSON_BYTES, OUTPUT_KB * 1000, EXECUTE_MS) as (port, _):
        caller = HttpCaller(port, tensor)
        try:
            yield caller
        finally:
            caller.close()


def _chain(caller: HttpCaller, samples: list[float]) -> None:
    began_ns = time.monotonic_ns()
    output = caller.request()
    took_ns = time.monotonic_ns() - began_ns
    samples.append((took_ns - least.SLEPT.unpack_from(output)[0]) / 1e6)


def _client(client: Client, tensor: npt.NDArray[np.float32], samples: Samples) -> None:
    began_ns = time.monotonic_ns()
    timing = client.infer("model", {"data": tensor}, slo_ms=SLO_NS / 1e6).timing
    samples.client.append((time.monotonic_ns() - began_ns - timing.execute_ns) / 1e6)


def figures_of(input_kb: float, samples: Samples, stages: Floats) -> list[Figure]:
    """Return the rows of one size of input; ``stages`` as `hops.split` returns them."""
    median_target, p99_target = TARGETS_MS.get(input_kb, (None, None))
    relay_target = TARGET_RELAYS if input_kb == min(TARGETS_MS) else None
    size = f"{input_kb:.0f} KB"
    median, p99 = np.percentile(samples.connection, [50, 99])
    relay_median, relay_p99 = np.percentile(samples.relay, [50, 99])
    framed_median, framed_p99 = np.percentile(samples.framed, [50, 99])
    chain_median, chain_p99 = np.percentile(samples.chain, [50, 99])
    zeromq_median, zeromq_p99 = np.percentile(samples.zeromq, [50, 99])
    sent_median, in_place_median = np.median(samples.sent), np.median(samples.in_place)
    client_median, client_p99 = np.percentile(samples.client, [50, 99])
    gateway_median, gateway_p99 = np.percentile(samples.gateway, [50, 99])
    note = "client, gateway, controller, worker and back, less EXEC"
    rows = [
        Figure(f"{size}: path, median", median, "ms", median_target, note=note),
        Figure(f"{size}: path, p99", p99, "ms", p99_target),
        Figure(f"{size}: path, tensor sent, median", float(sent_median), "ms", note="through the socket"),
        Figure(f"{size}: path, tensor in place, median", float(in_place_median), "ms", note="never copied"),
        Figure(f"{size}: path over ZeroMQ, median", zeromq_median, "ms"),
        Figure(f"{size}: path over ZeroMQ, p99", zeromq_p99, "ms"),
        Figure(f"{size}: bare relay, median", relay_median, "ms", note="six hops, ZeroMQ, TCP, same run"),
        Figure(f"{size}: bare relay, p99", relay_p99, "ms"),
        Figure(f"{size}: framed relay, median", framed_median, "ms", note="six hops, our own connections"),
        Figure(f"{size}: framed relay, p99", framed_p99, "ms"),
        Figure(f"{size}: bare chain, median", chain_median, "ms", note="over HTTP, less EXEC"),
        Figure(f"{size}: bare chain, p99", chain_p99, "ms"),
        Figure(f"{size}: path / relay, median", median / relay_median, "x"),
        Figure(f"{size}: path / framed relay, median", median / framed_median, "x", relay_target),
        Figure(f"{size}: bare chain / framed relay, median", chain_median / framed_median, "x"),
        Figure(f"{size}: path / bare chain, median", median / chain_median, "x"),
        Figure(f"{size}: from the gateway on, median", gateway_median, "ms", note="as Timing reports it"),
        Figure(f"{size}: from the gateway on, p99", gateway_p99, "ms"),
        Figure(f"{size}: with the blocking Client, median", client_median, "ms", note="its own thread too"),
        Figure(f"{size}: with the blocking Client, p99", client_p99, "ms"),
    ]
    for stage, column in zip(STAGES, stages.T, strict=True):
        rows.append(Figure(f"{size}:   {stage}", float(np.median(column)), "ms", note="median"))
    return rows


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of each size and kind.")] = 1000,
    input_kb: Annotated[list[float] | None, typer.Option(help="Sizes of a request's input.")] = None,
    latency: Annotated[
        bool, typer.Option("--latency/--no-latency", help="Measure what the path adds beside bare relays.")
    ] = True,
    console: Annotated[
        bool, typer.Option("--console", help="Run a console while processor time is counted.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print what the path adds for each size of input, where it goes, and what each process pays for it."""
    figures = []
    for size in input_kb or list(TARGETS_MS):
        if latency:
            with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
                samples = measure(size, requests, Path(folder))
                stages = split(Path(folder) / "events", samples.sent_ns, samples.received_ns)
            figures += figures_of(size, samples, stages)
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            found = around.measure(size, requests, Path(folder), console=console)
        figures += around.figures_of(size, found)
    title = f"What the path adds to {EXECUTE_MS:g} ms of EXEC, one request at a time"
    publish("path", title, figures, output)


if __name__ == "__main__":
    typer.run(main)
