"""A cluster of real processes whose two workers name different targets, as unlike hosts do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import NoWorker
from mainspring.compiler.artifact.manifest import TVM, Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.artifact.target import instruction_set
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.program.compiled import Target
from mainspring.compiler.zoo import build
from mainspring.messages.actions import Infer, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.status import ModelStatus
from mainspring.telemetry.log import read_log
from tests.patience import PATIENCE_S
from tests.worker.engines.zoo import check_outputs, random_inputs

pytest.importorskip("tvm")

LOW = f"{instruction_set().rpartition('-')[0]}-baseline"
SIZES = (1, 2)
SLO_MS = 20_000


def compile_digits(store: Store, name: str, target: Target) -> str:
    """Compile a small model for a target; return the target's name."""
    source = Source("zoo", "digits", seed=0)
    compiled = compile_model(build("digits", 0), name, store, SIZES, source, quick=True, target=target)
    return compiled.manifest.target


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store with a model for both workers, and one for the first alone."""
    made = Store(tmp_path_factory.mktemp("unlike") / "store")
    assert compile_digits(made, "both", Target()) == f"onnxruntime-{instruction_set()}"
    assert compile_digits(made, "both", Target(engine=TVM, beside=True)).startswith("tvm-")
    compile_digits(made, "one", Target())
    assert [name.partition("-")[0] for name in made.names()] == ["both", "both@tvm", "one"]
    return made


@pytest.fixture
def cluster(store: Store, tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a cluster of one worker, of ONNX Runtime, with a page for one model at a time."""
    (gateway,) = free_ports(1)
    config = read_config(
        {
            "cluster": {"store": str(store.root), "run_dir": str(tmp_path / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 1, "realtime": False},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
        },
        "the test",
    )
    with LocalCluster(make_plan(config), lambda _: None) as local:
        yield local


@contextmanager
def joined(store: Store, run_dir: Path, *options: str) -> Iterator[None]:
    """Have another worker, of TVM, join the cluster of a run folder for the block."""
    command = [sys.executable, "-m", "mainspring", "worker", "--name", "other", "--engine", "tvm"]
    command += ["--store", str(store.root), "--controller", str(run_dir), "--no-realtime", *options]
    other = subprocess.Popen(command)
    try:
        yield
    finally:
        other.terminate()
        other.wait(PATIENCE_S)


def claims_little(folder: Path) -> Path:
    """Write a configuration in which a worker claims less than its processor has."""
    path = folder / "mainspring.toml"
    path.write_text(f'[worker]\ninstruction_set = "{LOW}"\n')
    return path


def await_state(client: Client, name: str, holds: Callable[[ModelStatus], object]) -> ModelStatus:
    """Return a model's state once it is so; fail after `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        (state,) = [each for each in client.status().models if each.name == name]
        if holds(state):
            return state
        assert time.monotonic() < deadline_s, state
        time.sleep(0.05)


def check_answers(client: Client, *names: str) -> None:
    """Fail unless models answer as stock ONNX Runtime does."""
    stock = onnxruntime.InferenceSession(build("digits", 0).SerializeToString())
    for name in names:
        inputs = random_inputs(client.models()[name], 1, np.random.default_rng(0))
        check_outputs(stock, inputs, dict(client.infer(name, inputs, slo_ms=SLO_MS)))


def test_each_worker_runs_its_own_artifact_and_says_what_it_lacks(
    cluster: LocalCluster, store: Store, tmp_path: Path
) -> None:
    with Client(cluster.address) as client:
        check_answers(client, "both", "one")
        with joined(store, tmp_path / "run", "--pages", "8"):
            both = await_state(client, "both", lambda state: len(state.prepared_on) == 2)
            one = await_state(client, "one", lambda state: state.prepared_on and state.failed_on)
            assert both.failed_on == ()
            assert one.failed_on[0].startswith("other: one was compiled for onnxruntime-")
            targets = {worker.worker: worker.targets for worker in client.status().workers}
            assert all(each.startswith("tvm-") for each in targets["other"][:-1])
            assert targets["other"][-1] == "python-any"
            assert targets["worker-0"] == (f"onnxruntime-{instruction_set()}", "python-any")
            # Without an answer of the first worker, the other one serves alone.
            os.kill(cluster.supervisor.pid("worker-0") or 0, signal.SIGSTOP)
            await_state(client, "both", lambda state: state.prepared_on == ("other",))
            check_answers(client, "both")
            os.kill(cluster.supervisor.pid("worker-0") or 0, signal.SIGCONT)
            await_state(client, "both", lambda state: len(state.prepared_on) == 2)
    entries = [entry for _, entry in read_log(tmp_path / "run" / "events")]
    prepared = {(e.worker, e.model.name): e.model.target for e in entries if isinstance(e, Prepare)}
    assert prepared["other", "both"].startswith("tvm-")
    assert prepared["worker-0", "both"].startswith("onnxruntime-")
    ended = {entry.action_id: entry.status for entry in entries if isinstance(entry, Result)}
    ran = {(e.worker, e.model) for e in entries if isinstance(e, Infer) and ended[e.action_id] is Status.OK}
    assert ran == {("worker-0", "both"), ("worker-0", "one"), ("other", "both")}


def test_what_no_worker_can_run_is_refused_with_the_reason(
    cluster: LocalCluster, store: Store, tmp_path: Path
) -> None:
    with (
        Client(cluster.address) as client,
        joined(store, tmp_path / "run", "--config", str(claims_little(tmp_path))),
    ):
        client.remove_model("both")
        (tvm,) = [spec for spec in store.specs() if spec.target.startswith("tvm-")]
        client.add_model(msgspec.structs.replace(tvm, name="high", stored_as=tvm.name))
        await_state(client, "high", lambda state: len(state.failed_on) == 2)
        inputs = random_inputs(client.models()["high"], 1, np.random.default_rng(0))
        with pytest.raises(NoWorker, match=r"no worker could run model 'high'.*was compiled for tvm-"):
            client.infer("high", inputs, slo_ms=SLO_MS)
