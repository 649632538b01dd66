"""Texts in time beside a server that takes requests one by one through the same session, in turns.

A sentence encoder out of a package embeds texts of 5 to 256 tokens, one to a request, on one core. One side
is a cluster whose graph has a tokenizer and the encoder. The other is one thread that reads a request, splits
it into tokens, runs a stock session and answers, and knows no deadline. Both get the same Poisson arrivals.
``python -m mainspring.experiments.bench.embeddings``, which ``make bench-embeddings`` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import onnxruntime
import typer

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.compiler.artifact.python_host import Host
from mainspring.compiler.zoo.catalogue import python_models
from mainspring.experiments.bench import minilm
from mainspring.experiments.bench.foreign import Unavailable
from mainspring.experiments.bench.http_load import Plan, Result, Target
from mainspring.experiments.bench.http_servers import wait_for
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.worker.config import MIB

SHORTEST, LONGEST = 5, 256
SLO_MS = 200.0
LOAD, GAIN = 1.5, 2.0
CORES = sorted(os.sched_getaffinity(0))
"""The cores that there are: a cluster or a server has the last one, its clients have the others."""
NAME = "texts"
_TEXTS = 300
_CONNECTIONS = 64
_PAGES = 32


class OneByOne(asyncio.Protocol):
    """A connection of the server without deadlines."""

    session: onnxruntime.InferenceSession
    predictor: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport: Any = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """Answer a request that is whole."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length:")
        if not found or len(body) < int(head[at + 15 :].split(b"\r\n", 1)[0]):
            return
        self._data = b""
        vector = self.embed(json.loads(body)["input"])
        reply = json.dumps({"data": [{"embedding": vector.tolist()}]}).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(reply), reply))

    @classmethod
    def embed(cls, text: str) -> np.ndarray[Any, Any]:
        """Return the mean of a text's vectors, of the length 1."""
        tokens = cls.predictor.predict({"text": np.array([text.encode()])})
        count = int(tokens["count"][0, 0])
        given = {key: tokens[key][:, :count] for key in ("input_ids", "attention_mask")}
        given["token_type_ids"] = np.zeros_like(given["input_ids"])
        names = {each.name for each in cls.session.get_inputs()}
        outputs = cls.session.run(None, {key: each for key, each in given.items() if key in names})
        mean = np.asarray(outputs[0])[0].mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))


async def serve(port: int) -> None:
    """Answer one request after the other."""
    server = await asyncio.get_running_loop().create_server(OneByOne, "127.0.0.1", port)
    await server.serve_forever()


@contextlib.contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """Have what is started in the block use some cores."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def texts(seed: int = 0) -> list[str]:
    """Return texts of `SHORTEST` to `LONGEST` letters, each of which is a token, all lengths alike often."""
    drawn = np.random.default_rng(seed)
    lengths = drawn.integers(SHORTEST, LONGEST + 1, size=_TEXTS)
    return ["".join(map(chr, drawn.integers(97, 123, size=length))) for length in lengths.tolist()]


@contextlib.contextmanager
def alone(encoder: Path) -> Iterator[Target]:
    """Run the server that takes requests one by one."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", __spec__.name, "--serve", str(port), "--encoder", str(encoder)]
    with on_cores(CORES[-1:]):
        process = subprocess.Popen(command)
    try:
        yield _target(port)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def cluster(folder: Path, encoder: Path) -> Iterator[Target]:
    """Run a cluster with the graph."""
    store, graphs, tokenizer = folder / "store", folder / "graphs", python_models()["tokenize-text"]
    given = [str(encoder), str(tokenizer / "tokenizer.json"), "--name", NAME, "--tokens", str(LONGEST)]
    made = [sys.executable, "-m", "mainspring", "embeddings", *given, "--graphs", str(graphs)]
    subprocess.run([*made, "--store", str(store)], check=True, stdout=subprocess.DEVNULL)
    gateway, controller, http = free_ports(3)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"store": str(store), "graphs": str(graphs), "run_dir": str(folder / "run"), "workers": 1},
        "worker": {"pages": _PAGES, "io_bytes": 16 * MIB},
        "gateway": {"address": f"tcp://127.0.0.1:{gateway}", "http_address": f"http://127.0.0.1:{http}"},
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
    }
    with contextlib.ExitStack() as stack:
        with on_cores(CORES[-1:]):
            stack.enter_context(LocalCluster(make_plan(read_config(tables, "this benchmark")), typer.echo))
        yield _target(http)


def _target(port: int) -> Target:
    bodies = tuple([json.dumps({"model": NAME, "input": each}) for each in texts()])
    target = Target(port, "/v1/embeddings", bodies[0], (("x-mainspring-slo-ms", f"{SLO_MS:g}"),), bodies[1:])
    wait_for(target)
    return target


def put(target: Target, seconds: float, rate: float | None, seed: int = 1) -> Result:
    """Put load on a server, from the other cores; without a rate from one client in a closed loop."""
    connections = 1 if rate is None else _CONNECTIONS
    plan = Plan(
        target=target, seconds=seconds, connections=connections, rate=rate, deadline_ms=SLO_MS, seed=seed
    )
    command = [sys.executable, "-m", "mainspring.experiments.bench.http_load"]
    command.append(msgspec.json.encode(plan).decode())
    with on_cores(CORES[:-1] or CORES):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Result)


def compare(encoder: Path, seconds: float, turns: int) -> list[Figure]:
    """Return the figures of both sides, in turns."""
    found: dict[str, list[float]] = {"cluster": [], "one by one": []}
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        with alone(encoder) as server:
            capacity = put(server, seconds, None).answered / seconds
        for turn in range(turns):
            with alone(encoder) as server:
                found["one by one"].append(_share(put(server, seconds, LOAD * capacity, turn)))
            with cluster(Path(name, str(turn)), encoder) as server:
                found["cluster"].append(_share(put(server, seconds, LOAD * capacity, turn)))
    middle = {side: statistics.median(each) for side, each in found.items()}
    rows = [Figure("capacity of the server that takes one by one", capacity, "texts/s")]
    for side, each in found.items():
        spread = f"{100 * min(each):.1f} to {100 * max(each):.1f} of {turns} turns"
        rows.append(
            Figure(f"{side}: texts in time at {LOAD:g} of that", 100 * middle[side], "%", note=spread)
        )
    ratio = middle["cluster"] / max(middle["one by one"], 1e-3)
    return [*rows, Figure("cluster over one by one", ratio, "x", GAIN, at_least=True)]


def _share(found: Result) -> float:
    return found.in_time / max(1, found.asked)


def main(
    turns: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 3,
    turn_s: Annotated[float, typer.Option(help="Length of a turn.")] = 15.0,
    encoder: Annotated[Path | None, typer.Option(help="ONNX file; by default a package's MiniLM.")] = None,
    serve_port: Annotated[int, typer.Option("--serve", hidden=True)] = 0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    try:
        file = encoder or minilm.model_file()
    except Unavailable as why:
        typer.echo(f"skipped: {why}")
        return
    if not serve_port:
        title = "Texts of 5 to 256 tokens, SLO 200 ms, one core"
        publish("embeddings", title, compare(file, turn_s, turns), output)
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    OneByOne.session = onnxruntime.InferenceSession(file, options)
    OneByOne.predictor = predictor()
    asyncio.run(serve(serve_port))


def predictor() -> Any:
    """Return the tokenizer that the graph has, too."""
    folder = python_models()["tokenize-text"]
    host = Host({"folder": str(folder), "inputs": [], "outputs": []}, mmap(-1, PAGESIZE))
    host.load()
    return host.predictor


if __name__ == "__main__":
    typer.run(main)
