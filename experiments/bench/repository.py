"""A model repository of thousands of small models: what it costs to start, to stand still and to change.

Real processes: a worker that runs the models, a controller, a gateway and the repository's process, which is
what is measured. ``python -m mainspring.experiments.bench.repository``, which ``make bench-repository`` runs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.repository import NAME
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.bench.report import OUTPUT, Figure, publish
from mainspring.experiments.bench.usage import Usage, usage_of

COLUMNS = 64
_OPSET, _IR = 17, 8


def net(factor: float, architecture: int = 0) -> onnx.ModelProto:
    """Return a model whose output ``y`` is its input ``x`` times a factor; its weights are a matrix."""
    last = f"h{architecture}"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h0"])]
    nodes += [helper.make_node("Relu", [f"h{step}"], [f"h{step + 1}"]) for step in range(architecture)]
    nodes.append(helper.make_node("Add", [last, "b"], ["y"]))
    shape: list[str | int | None] = ["batch", COLUMNS]
    graph = helper.make_graph(
        nodes,
        f"architecture{architecture}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.eye(COLUMNS, dtype=np.float32) * np.float32(factor), "w"),
            numpy_helper.from_array(np.zeros(COLUMNS, np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def name_of(number: int) -> str:
    """Return the name of a model."""
    return f"net{number:05d}"


def put(repository: Path, model: str, content: onnx.ModelProto, version: int = 1) -> None:
    """Put a version into a repository, aside first and then in one step."""
    folder = repository / model / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    aside = repository / f".{model}-{version}"
    aside.write_bytes(content.SerializeToString())
    aside.rename(folder / "model.onnx")


def fill(repository: Path, models: int, architectures: int) -> None:
    """Put ``models`` models into a repository, each with a factor of its own: its number and one."""
    for number in range(models):
        put(repository, name_of(number), net(number + 1.0, number % architectures))


ONES = {"x": np.ones((1, COLUMNS), np.float32)}
_CHANGE_S = 300.0
_POLL_S = 0.02
_MIB = 1 << 20


class Site:
    """A repository's folder and the clusters that serve it, one after the other."""

    def __init__(self, folder: Path, models: int, poll_ms: float, settle_ms: float) -> None:
        self.path = folder / "models"
        self.run_dir = folder / "run"
        self.models = models
        self._repository = {"path": str(self.path), "poll_interval_ms": poll_ms, "settle_ms": settle_ms}

    @contextmanager
    def cluster(self) -> Iterator[tuple[LocalCluster, Client, float]]:
        """Run a cluster; yield it, a client, and the seconds until all models were served."""
        gateway, controller, control = free_ports(3)
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"run_dir": str(self.run_dir), "ready_timeout_s": 3_600.0, "event_log": False},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
            "worker": {"pages": 16},
            "repository": {**self._repository, "address": f"tcp://127.0.0.1:{control}"},
        }
        began = time.monotonic()
        with LocalCluster(make_plan(read_config(tables, "this benchmark")), typer.echo) as cluster:
            took_s = time.monotonic() - began
            served = cluster.supervisor.first_look.state
            if served.models != self.models:
                raise RuntimeError(f"{served.models} of {self.models} are served: {served}")
            with Client(cluster.address) as client:
                yield cluster, client, took_s

    def change(self, client: Client, number: int, factor: float) -> float:
        """Give a model another content; return the seconds until it is what answers."""
        name = name_of(number)
        put(self.path, name, net(factor))
        began = time.monotonic()
        while time.monotonic() - began < _CHANGE_S:
            try:
                if client.infer(name, ONES, slo_ms=10_000)["y"][0, 0] == factor:
                    return time.monotonic() - began
            except MainspringError:
                # A model that is new is not known yet.
                pass
            time.sleep(_POLL_S)
        raise RuntimeError(f"the change of {name} is not served after {_CHANGE_S:g} s")

    def remove(self, client: Client, number: int) -> float:
        """Take a model away; return the seconds until it is served no more."""
        name = name_of(number)
        shutil.rmtree(self.path / name)
        began = time.monotonic()
        while any(spec.public_name == name for spec in client.models()):
            if time.monotonic() - began > _CHANGE_S:
                raise RuntimeError(f"{name} is served though it is gone since {_CHANGE_S:g} s")
            time.sleep(_POLL_S)
        return time.monotonic() - began


def idle(cluster: LocalCluster, seconds: float) -> Usage:
    """Return what the repository's process used of the processors while nothing changed."""
    pid = cluster.supervisor.pid(NAME)
    assert pid is not None
    before = usage_of(pid)
    time.sleep(seconds)
    return usage_of(pid).since(before)


def resident_bytes(cluster: LocalCluster) -> int:
    """Return the memory of the repository's process."""
    text = Path(f"/proc/{cluster.supervisor.pid(NAME)}/status").read_text(encoding="ascii")
    (line,) = [line for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def executables(site: Site) -> int:
    """Return how many executables the repository's store holds."""
    return len(list((Store(site.run_dir / "store").root / "executables").iterdir()))


def measure(site: Site, architectures: int, changes: int, idle_s: float, poll_ms: float) -> list[Figure]:
    """Fill the repository, serve it twice, and return the figures."""
    fill(site.path, site.models, architectures)
    count = site.models
    with site.cluster() as (cluster, client, first_s):
        typer.echo(f"{count} models are served after {first_s:.1f} s")
        changed = [site.change(client, number, 0.5 + number) for number in range(changes)]
        added = [site.change(client, count + number, 0.5) for number in range(changes)]
        removed = [site.remove(client, count + number) for number in range(changes)]
        # Its status questions end with the last model that is prepared.
        time.sleep(2 * poll_ms / 1e3)
        used = idle(cluster, idle_s)
        memory = resident_bytes(cluster)
    with site.cluster() as (cluster, _, again_s):
        anew = resident_bytes(cluster)
    share = 100 * used.cpu_ns / 1e9 / idle_s
    made = f"{executables(site)} executables of {architectures} architectures"
    return [
        Figure(f"{count} models: from the start until all are served", first_s, "s", note=made),
        Figure("the same, a model", first_s * 1e3 / count, "ms"),
        Figure("started again: until all are served", again_s, "s", note="nothing is compiled"),
        Figure(
            "memory of the repository's process", memory / _MIB, "MiB", note=f"{anew / _MIB:.0f} restarted"
        ),
        Figure("nothing changes: its share of one core", share, "%", note=f"a look every {poll_ms:g} ms"),
        Figure("the same, a look at one model", share * poll_ms * 10 / count, "us"),
        _median("one model changes: until it is served", changed),
        _median("one model is added: until it is served", added),
        _median("one model goes: until it is served no more", removed),
    ]


def _median(name: str, seconds: list[float]) -> Figure:
    spread = f"{min(seconds):.2f} to {max(seconds):.2f} s of {len(seconds)}"
    return Figure(name, statistics.median(seconds), "s", note=spread)


def main(
    models: Annotated[int, typer.Option(min=1, help="Models in the repository.")] = 2_000,
    architectures: Annotated[int, typer.Option(min=1, help="Architectures that they share.")] = 4,
    changes: Annotated[int, typer.Option(min=1, help="Changes, additions and removals, each.")] = 5,
    idle_s: Annotated[float, typer.Option(help="How long to watch it do nothing.")] = 10.0,
    poll_ms: Annotated[float, typer.Option(help="Between two looks at the folder.")] = 2_000.0,
    settle_ms: Annotated[float, typer.Option(help="How long files must be left alone.")] = 1_000.0,
    output: Annotated[Path, typer.Option(help="Folder for repository.json.")] = OUTPUT,
) -> None:
    """Measure, print the figures, and write them down."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), models, poll_ms, settle_ms)
        figures = measure(site, architectures, changes, idle_s, poll_ms)
    publish("repository", f"A model repository of {models:,} models", figures, output)


if __name__ == "__main__":
    typer.run(main)
