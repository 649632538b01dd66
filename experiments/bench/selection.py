"""Cost of applications that learn: the policies alone, a gateway that serves them, feedback, Python models.

A gateway's processor time is counted by the kernel while one client keeps `IN_FLIGHT` requests going, in
turns for a plain model, an application of one member and one of eight, over emulated devices; the budgets are
ratios of one run. Feedback goes to answers of four members, in messages of one row and of `MESSAGE_ROWS`.
``python -m mainspring.experiments.bench.selection``, which ``make bench-selection`` runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.connection import Connection
from mainspring.compiler.artifact.profiles import COLUMNS
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.python_models.compiling import compile_folder
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import usage_of_all
from mainspring.messages.applications import ApplicationSpec
from mainspring.messages.clients import InferReply, InferRequest
from mainspring.messages.learning import Observe, Observed
from mainspring.messages.peers import TensorHeader
from mainspring.selection.application import Application
from tests.emulated_cluster import BATCH_SIZES, cluster_of

LINEAR = "mainspring.experiments.bench.linear"
"""The benchmark of `linear`, which is run as well."""
MEMBERS = tuple(f"member-{number}" for number in range(1, 9))
CLASSES = 10
PIXELS = 64
IN_FLIGHT = 8
MESSAGE_ROWS = 32
EXECUTE_MS = 0.05
SLO_NS = 5_000_000_000
PLAIN, ONE, EIGHT, FOUR = "member-1", "one", "eight", "four"
COMBINE_US = {"exp4": 50.0, "exp3": 20.0}
ONE_MOST, EIGHT_MOST = 1.15, 0.75
PYTHON_MS = 0.15
OBSERVED_MOST = {MESSAGE_ROWS: 11_000.0, 1: 4_000.0}
NO_OP = """
import numpy as np

class Predictor:
    def __init__(self, folder):
        self.scores = np.zeros((16, 10), np.float32)

    def predict(self, inputs):
        return {"scores": self.scores[: len(inputs["pixels"])]}
"""
NO_OP_TOML = """
rows = "independent"
batch_sizes = [1, 16]
memory_mb = 256
inputs = [{ name = "pixels", dtype = "float32", shape = [64] }]
outputs = [{ name = "scores", dtype = "float32", shape = [10] }]
"""


def policies(requests: int) -> list[Figure]:
    """Return what a policy takes for a request of eight members, of one row, while feedback comes."""
    generator = np.random.default_rng(0)
    outputs = {member: generator.random((1, CLASSES), np.float32) for member in MEMBERS}
    inputs, found = {"data": np.zeros((1, PIXELS), np.float32)}, []
    for policy, budget in COMBINE_US.items():
        app = Application(ApplicationSpec(name="app", members=MEMBERS, output="output", policy=policy))
        taken, learnt = [], []
        for _ in range(requests):
            begin_ns = time.perf_counter_ns()
            chosen = app.select(begin_ns, inputs, generator)
            reply = app.combine(begin_ns, inputs, chosen, {member: outputs[member] for member in chosen})
            end_ns = time.perf_counter_ns()
            app.observe(begin_ns, reply.query_id, np.zeros(1, np.int64))
            taken.append(end_ns - begin_ns)
            learnt.append(time.perf_counter_ns() - end_ns)
        p50, p99 = np.percentile(taken, (50, 99)) / 1e3
        found.append(
            Figure(f"{policy}: select and combine of 8", p50, "us", budget, note=f"p99 {p99:.0f} us")
        )
        found.append(Figure(f"{policy}: observe of 8", float(np.median(learnt)) / 1e3, "us"))
    return found


class Asking:
    """Keeps `IN_FLIGHT` messages going over one connection."""

    def __init__(self, address: str) -> None:
        self._connection = Connection(address, local=False)
        self._connection.open(10)
        self._key = 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def run(self, count: int, send: Callable[[Connection, int], None], reply: type[Any]) -> list[Any]:
        """Send so many messages, each as ``send`` does under a key; return the replies.

        Raises RuntimeError if one is of another type than ``reply``.
        """
        sent, replies = 0, list[Any]()
        while len(replies) < count:
            while sent < count and sent - len(replies) < IN_FLIGHT:
                self._key += 1
                send(self._connection, self._key)
                sent += 1
            self._connection.poll(1_000)
            while (received := self._connection.receive()) is not None:
                if not isinstance(received[0], reply):
                    raise RuntimeError(f"failed: {received[0]}")
                replies.append(received[0])
        return replies

    def infer(self, model: str, count: int, rows: int = 1) -> list[InferReply]:
        """Ask a model so often for rows of zeros."""
        tensor = np.zeros((rows, PIXELS), np.float32)
        header = TensorHeader("data", "float32", tensor.shape)
        return self.run(
            count,
            lambda to, key: to.send(InferRequest(key, model, (header,), SLO_NS), [tensor]),
            InferReply,
        )

    def observe(self, application: str, ids: Sequence[int], rows: int) -> None:
        """Say for each of these answers that all of its rows are of class 0."""
        left, truth = iter(ids), (0,) * rows
        self.run(
            len(ids), lambda to, key: to.send(Observe(key, application, next(left), truth), []), Observed
        )


def served(requests: int, rounds: int) -> list[Figure]:
    """Return a gateway's processor time of requests and of feedback."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name, ExitStack() as stack:
        folder = Path(name)
        cluster = stack.enter_context(
            cluster_of(folder / "run", _profiles(folder), {"worker": {"pages": 16}})
        )
        with Client(cluster.address) as client:
            for application, members in ((ONE, 1), (FOUR, 4), (EIGHT, 8)):
                client.add_graph(_text(application, MEMBERS[:members]))
        asking = Asking(cluster.address)
        stack.callback(asking.close)
        spent: dict[str, list[float]] = {PLAIN: [], ONE: [], EIGHT: []}
        for model in spent:
            asking.infer(model, requests // 4)
        for turn in range(rounds):
            for model in [*spent][:: 1 if turn % 2 else -1]:
                before = usage_of_all(cluster.supervisor, ["gateway"])["gateway"]
                asking.infer(model, requests)
                used = usage_of_all(cluster.supervisor, ["gateway"])["gateway"].since(before)
                spent[model].append(used.cpu_ns / requests / 1e3)
        figures = [*_ratios(spent)]
        for rows, least in OBSERVED_MOST.items():
            figures += _observed(cluster, asking, rows, least, requests // (4 if rows > 1 else 1), rounds)
    return figures


def _ratios(spent: dict[str, list[float]]) -> list[Figure]:
    plain, one, eight = (np.array(spent[each]) for each in (PLAIN, ONE, EIGHT))
    return [
        *(
            Figure(f"gateway's processor time, {what}", float(np.median(us)), "us", note="each request")
            for what, us in (("plain", plain), ("one member", one), ("eight members", eight))
        ),
        Figure("one member / plain", float(np.median(one / plain)), "x", ONE_MOST),
        Figure("eight members / eight plain", float(np.median(eight / plain)) / 8, "x", EIGHT_MOST),
    ]


def _observed(
    cluster: LocalCluster, asking: Asking, rows: int, least: float, answers: int, rounds: int
) -> list[Figure]:
    """Return rows of feedback a second, as the client sees them and as the gateway's processor could."""
    seen, could = [], []
    for _ in range(rounds):
        told = [reply.timing.learnt for reply in asking.infer(FOUR, answers, rows)]
        ids = [each.query_id for each in told if each is not None]
        before, begin = usage_of_all(cluster.supervisor, ["gateway"])["gateway"], time.monotonic()
        asking.observe(FOUR, ids, rows)
        seen.append(rows * len(ids) / (time.monotonic() - begin))
        used = usage_of_all(cluster.supervisor, ["gateway"])["gateway"].since(before)
        could.append(rows * len(ids) / (used.cpu_ns / 1e9))
    what = f"observations, {rows} in a message"
    note = f"{np.median(could):,.0f} a second of the gateway's processor time"
    return [Figure(what, float(np.median(seen)), "1/s", least, at_least=True, note=note)]


def _profiles(folder: Path) -> Path:
    kb, output_kb = PIXELS * 4 / 1000, CLASSES * 4 / 1000
    times = [EXECUTE_MS] * len(BATCH_SIZES)
    rows = [",".join(map(str, (member, kb, output_kb, 16, 3, *times))) for member in MEMBERS]
    path = folder / "profiles.csv"
    path.write_text("\n".join((",".join(COLUMNS), *rows)) + "\n")
    return path


def _text(name: str, members: Sequence[str]) -> str:
    return f'name = "{name}"\nmembers = {list(members)}\noutput = "output"\nslo_ms = 5000\n'


def python_model() -> list[Figure]:
    """Return what a Python model that does nothing takes for a batch, as the compiler measures it."""
    with tempfile.TemporaryDirectory(prefix="mainspring-") as name:
        folder = Path(name, "no-op")
        folder.mkdir()
        (folder / "model.py").write_text(NO_OP)
        (folder / "model.toml").write_text(NO_OP_TOML)
        compiled = compile_folder(folder, "no-op", Store(Path(name, "store")))
    times_ms = {size: each / 1e6 for size, each in compiled.manifest.spec().profiles["cpu"].infer_ns.items()}
    return [
        Figure(
            "a Python model that does nothing", times_ms[1], "ms", PYTHON_MS, note=f"16: {times_ms[16]:.3f}"
        )
    ]


def main(
    requests: Annotated[int, typer.Option(min=8, help="Of each kind in each turn.")] = 2_000,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each kind.")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = OUTPUT,
) -> None:
    """Measure and print the figures."""
    figures = [*policies(requests), *python_model(), *served(requests, rounds)]
    publish("selection", "Applications that learn", figures, output)
    subprocess.run([sys.executable, "-m", LINEAR, "--output", str(output)], check=True)


if __name__ == "__main__":
    typer.run(main)
