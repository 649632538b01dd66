"""Copies of a tensor by gateway and worker of one host, the kernel's included, over each protocol.

`moves.c` is loaded into both before all else and counts what the functions of the C library are asked to
copy: ``memcpy`` and ``memmove``, and what is read from sockets and written to them. A request with a large
input and a small output counts the copies of an input, one with a small input and a large output those of
an output: the bytes of all copies of 2 KB and more, for each request, divided by the tensor's. What the
client copies is not in it. Beside gRPC stands a server that only receives (`grpc_bare`): what its library
copies, the gateway can't avoid. ``python -m mainspring.experiments.bench.moves``, which ``make bench-copies``
runs; it needs a C compiler."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import grpc
import numpy as np
import numpy.typing as npt
import typer

from mainspring.cli.launcher.addresses import free_ports
from mainspring.experiments.bench.around import HttpCaller, callers_by_connection
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.gateway.grpc.messages import INFERENCE, ModelInferRequest, ModelInferResponse
from tests.emulated_cluster import cluster_of, write_profile

SOURCE = Path(__file__).with_name("moves.c")
COUNTS = struct.Struct("3q")
WARM_UP = 30
REQUESTS = 20
SMALL_KB = 0.4
TARGETS = {"HTTP: copies of an input": 2.0, "gRPC: copies of an input": 3.0}
BARE = "gRPC's library alone"
ROUNDING = 0.3


class Moves(NamedTuple):
    """Bytes that were copied."""

    user: int
    """Within the process."""
    read: int
    written: int

    def since(self, before: Moves) -> Moves:
        """Return what was added."""
        return Moves(*[now - then for now, then in zip(self, before, strict=True)])


class Caller(Protocol):
    """Sends the same request again and again."""

    def request(self) -> object:
        """Send it and wait for its answer."""

    def close(self) -> None:
        """Close the connection."""


class GrpcCaller:
    """Sends one request over gRPC again and again, with its tensor as raw contents."""

    def __init__(self, port: int, tensor: npt.NDArray[np.float32]) -> None:
        request = ModelInferRequest(model_name="model", raw_input_contents=[tensor.tobytes()])
        request.inputs.add(name="data", datatype="FP32", shape=tensor.shape)
        self._request = request.SerializeToString()
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{port}",
            [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        self._infer = self._channel.unary_unary(f"/{INFERENCE}/ModelInfer")

    def request(self) -> None:
        """Send the request and wait for its answer; raises `grpc.RpcError` if it fails."""
        answer = ModelInferResponse.FromString(self._infer(self._request, timeout=10))
        if not answer.raw_output_contents:
            raise RuntimeError(f"an answer without outputs came: {answer}")

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


@contextmanager
def bare_grpc() -> Iterator[tuple[int, int]]:
    """Run a gRPC server that only receives; yield its port and process."""
    (port,) = free_ports(1)
    command = (sys.executable, "-m", "mainspring.experiments.bench.grpc_bare", str(port))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the bare gRPC server ended before it listened")
            yield port, process.pid
        finally:
            process.kill()


@contextmanager
def counted(folder: Path) -> Iterator[None]:
    """Have processes that are started meanwhile count; raise RuntimeError without a C compiler."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("there is no C compiler: install one, such as gcc")
    library = folder / "moves.so"
    options = ("-O2", "-fno-builtin", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl")
    subprocess.run((compiler, *options), check=True)
    before = {name: os.environ.get(name) for name in ("LD_PRELOAD", "MAINSPRING_MOVES")}
    os.environ.update(LD_PRELOAD=str(library), MAINSPRING_MOVES=str(folder))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(
    input_kb: float, output_kb: float, run_dir: Path, *, slab: bool = True
) -> dict[str, dict[str, Moves]]:
    """Return the bytes that `REQUESTS` requests had copied, by protocol and process; maybe without slabs."""
    profile = write_profile(run_dir / "profiles.csv", input_kb=input_kb, output_kb=output_kb, execute_ms=0.1)
    http, rpc = free_ports(2)
    slabs = {} if slab else {"slab_bytes": 0}
    served = {"http_address": f"http://127.0.0.1:{http}", "grpc_address": f"grpc://127.0.0.1:{rpc}"}
    tables: dict[str, dict[str, Any]] = {"gateway": {**served, **slabs}, "worker": slabs}
    tensor = np.zeros((1, round(input_kb * 250)), np.float32)
    found: dict[str, dict[str, Moves]] = {}
    with ExitStack() as stack:
        with counted(run_dir):
            cluster = stack.enter_context(cluster_of(run_dir, profile, tables))
            bare_port, bare = stack.enter_context(bare_grpc())
        callers: dict[str, Caller] = {
            **callers_by_connection(cluster.address, tensor),
            "HTTP": HttpCaller(http, tensor),
            "gRPC": GrpcCaller(rpc, tensor),
            BARE: GrpcCaller(bare_port, tensor),
        }
        served_by = {name: run_dir / str(cluster.supervisor.pid(name)) for name in ("gateway", "worker-0")}
        for name, caller in callers.items():
            stack.callback(caller.close)
            files = served_by if name != BARE else {"server": run_dir / str(bare)}
            _repeat(caller.request, WARM_UP)
            before = {process: _read(path) for process, path in files.items()}
            _repeat(caller.request, REQUESTS)
            found[name] = {process: _read(path).since(before[process]) for process, path in files.items()}
    return found


def _repeat(request: Callable[[], object], count: int) -> None:
    for _ in range(count):
        request()


def _read(path: Path) -> Moves:
    return Moves(*COUNTS.unpack(path.read_bytes()))


def figures_of(what: str, size: float, found: dict[str, dict[str, Moves]]) -> list[Figure]:
    """Return a row for each protocol: the copies of an input or output of ``size`` bytes."""
    figures = []
    for protocol, processes in found.items():
        if protocol == BARE and what != "input":
            continue
        name = f"{protocol}: copies of an {what}"
        shares = {
            process: [moved / REQUESTS / size for moved in moves] for process, moves in processes.items()
        }
        note = "; ".join(
            f"{process}: {read:.1f} read, {user:.1f} inside, {written:.1f} written"
            for process, (user, read, written) in shares.items()
        )
        target = TARGETS.get(name)
        total = sum(map(sum, shares.values()))
        figures.append(
            Figure(name, round(total, 2), "", None if target is None else target + ROUNDING, note=note)
        )
    return figures


def main(
    size_kb: Annotated[float, typer.Option(min=64, help="Size of the tensor.")] = 600,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Print how often gateway and worker copy an input and an output, over each protocol."""
    figures = []
    for what, sizes in (("input", (size_kb, SMALL_KB)), ("output", (SMALL_KB, size_kb))):
        with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
            figures += figures_of(what, size_kb * 1000, measure(*sizes, Path(folder)))
    publish("copies", f"Copies of {size_kb:g} KB by gateway and worker of one host", figures, output)


if __name__ == "__main__":
    typer.run(main)
