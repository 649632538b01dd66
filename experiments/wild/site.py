"""The cluster that serves the files: a model repository without any configuration, one worker."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.experiments.wild.asking import Client
from mainspring.experiments.wild.files import WildFile
from mainspring.messages.actions import Infer, Result
from mainspring.messages.codes import Status
from mainspring.repository.recipe import model_and_version
from mainspring.telemetry.log import read_log

RUN = "run"
"""The folder of the cluster's files."""
PAGES = 64
COMPILE_S = 900.0


class Site(NamedTuple):
    """A running cluster."""

    cluster: LocalCluster
    http: str
    grpc: str
    run_dir: Path

    def client(self) -> Client:
        """Return a client for the thread that calls this."""
        return Client(self.http, self.grpc)


@contextmanager
def site(folder: Path, say: Any) -> Iterator[Site]:
    """Run a cluster on the repository ``folder/models``, whose models are served when that is asked for."""
    run_dir = folder / RUN
    shutil.rmtree(run_dir, ignore_errors=True)
    (folder / "models").mkdir(parents=True, exist_ok=True)
    gateway, controller, http, grpc, control = free_ports(5)
    tables: dict[str, dict[str, Any]] = {
        "cluster": {"run_dir": str(run_dir)},
        "gateway": {
            "address": f"tcp://127.0.0.1:{gateway}",
            "http_address": f"http://127.0.0.1:{http}",
            "grpc_address": f"grpc://127.0.0.1:{grpc}",
            "repository_timeout_ms": COMPILE_S * 1e3,
        },
        "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        "worker": {"pages": PAGES},
        "repository": {
            "path": str(folder / "models"),
            "mode": "explicit",
            "settle_ms": 1.0,
            "compile_timeout_s": COMPILE_S,
            "address": f"tcp://127.0.0.1:{control}",
        },
    }
    with LocalCluster(make_plan(read_config(tables, "this experiment")), say) as cluster:
        yield Site(cluster, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", run_dir)


def lay(file: WildFile, repository: Path) -> None:
    """Put the file into a repository as version 1 of a model, with its external data beside it."""
    version = repository / file.name / "1"
    shutil.rmtree(version.parent, ignore_errors=True)
    version.mkdir(parents=True)
    shutil.copyfile(file.path, version / "model.onnx")
    for data in file.beside:
        shutil.copyfile(data, version / data.name)


class Predicted(NamedTuple):
    """How well a model's INFERs were predicted."""

    error_p99_ms: float
    """The 99th percentile of the absolute difference between duration and prediction."""
    error_p99_part: float
    """The same over the median duration."""
    spread: float
    """The 99th percentile of the durations over their median, the worst of the batch sizes."""


def predictions(run_dir: Path) -> dict[str, Predicted]:
    """Return how well INFERs were predicted, by model, from the event log of a cluster that has stopped."""
    sent: dict[int, Infer] = {}
    errors: defaultdict[str, list[int]] = defaultdict(list)
    durations: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for _, entry in read_log(run_dir / "events"):
        if isinstance(entry, Infer):
            sent[entry.action_id] = entry
        elif isinstance(entry, Result) and entry.action_id in sent:
            infer = sent.pop(entry.action_id)
            if entry.status is Status.OK:
                taken_ns = entry.end_ns - entry.begin_ns
                model, _ = model_and_version(infer.model)
                errors[model].append(abs(taken_ns - infer.predicted_duration_ns))
                durations[model][infer.batch_size].append(taken_ns)
    return {model: _predicted(errors[model], [*durations[model].values()]) for model in errors}


def _predicted(errors_ns: list[int], durations_ns: list[list[int]]) -> Predicted:
    error_ns = float(np.percentile(errors_ns, 99))
    median_ns = float(np.median(np.concatenate(durations_ns)))
    spreads = [np.percentile(each, 99) / max(1.0, float(np.median(each))) for each in durations_ns]
    return Predicted(error_ns / 1e6, error_ns / max(1.0, median_ns), float(max(spreads)))
