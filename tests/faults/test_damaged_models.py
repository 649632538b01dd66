"""One damaged file of a store costs its model and no other, and a file that is mended brings it back."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.local import LocalCluster
from mainspring.cli.launcher.plan import make_plan
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.codes import Reason
from tests.patience import PATIENCE_S

SLO_MS = 10_000
WHOLE, VICTIM = "whole", "victim"


def compile_victim(store: Path) -> None:
    compile_model(build("digits", 2), VICTIM, Store(store), (2,), Source("zoo", "digits", seed=2), quick=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two models that share no file."""
    store = tmp_path_factory.mktemp("compiled") / "store"
    compile_model(
        build("resnet20", 1), WHOLE, Store(store), (1,), Source("zoo", "resnet20", seed=1), quick=True
    )
    compile_victim(store)
    return store


@pytest.fixture
def store(compiled: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(compiled, tmp_path / "store"))


@contextmanager
def served(store: Path, **worker: int) -> Iterator[tuple[LocalCluster, Client]]:
    gateway, controller = free_ports(2)
    config = read_config(
        {
            "cluster": {"store": str(store), "run_dir": str(store.parent / "run"), "ready_timeout_s": 90},
            "worker": {"pages": 8, "realtime": False, **worker},
            "gateway": {"address": f"tcp://127.0.0.1:{gateway}"},
            "controller": {"address": f"tcp://127.0.0.1:{controller}"},
        },
        "the test",
    )
    with (
        LocalCluster(make_plan(config), lambda _: None) as cluster,
        Client(cluster.address, connect_timeout_s=PATIENCE_S) as client,
    ):
        yield cluster, client


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain for {what}"
        time.sleep(0.05)


def asking(store: Path) -> Callable[[Client, str], Reason | str]:
    """Return what asks for an inference: it returns why there was none, or the outputs as text."""
    specs = {manifest.name: manifest.spec() for manifest in Store(store).manifests()}
    inputs = {
        name: {each.name: np.ones((1, *each.shape), each.dtype) for each in spec.inputs}
        for name, spec in specs.items()
    }

    def ask(client: Client, model: str) -> Reason | str:
        try:
            result = client.infer(model, inputs[model], slo_ms=SLO_MS)
        except MainspringError as error:
            return error.reason or Reason.TIMED_OUT
        return str(
            {name: result[name].tolist() for name in sorted(each.name for each in specs[model].outputs)}
        )

    return ask


def file_of(store: Path, kind: str) -> Path:
    """The victim's file of a kind."""
    manifest = Store(store).manifest(VICTIM)
    return {
        "manifest": store / "models" / VICTIM / "manifest.json",
        "weights": store / "weights" / f"{manifest.weights_hash}.bin",
        "graph": store / "executables" / manifest.executable / "graph.onnx",
        "facts": store / "executables" / manifest.executable / "info.json",
    }[kind]


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    whole = bytearray(data)
    whole[len(whole) // 2] ^= 1
    return bytes(whole)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("manifest", truncated),
        ("weights", truncated),
        ("weights", flipped),
        ("graph", flipped),
        ("facts", truncated),
    ],
)
def test_a_damaged_file_costs_one_model_until_it_is_mended(
    store: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    ask, path = asking(store), file_of(store, kind)
    right = path.read_bytes()
    path.write_bytes(damage(right))
    with served(store) as (cluster, client):
        (fault,) = cluster.supervisor.faults
        assert f"model {VICTIM} is not served" in fault
        assert str(path) in fault
        assert f"`mainspring zoo digits --seed 2 --store {store}" in fault or kind == "manifest"
        assert cluster.supervisor.served == 1
        assert not isinstance(ask(client, WHOLE), Reason)
        assert ask(client, VICTIM) == (Reason.UNKNOWN_MODEL if kind == "manifest" else Reason.NO_WORKER)
        path.write_bytes(right)
        wait_for(lambda: not isinstance(ask(client, VICTIM), Reason), "the model to be served again")
        assert not client.status().left_out
        assert {cluster.supervisor.starts(name) for name in ("controller", "worker-0")} == {1}


def test_the_command_that_the_message_names_brings_a_model_back(store: Path) -> None:
    ask, path = asking(store), file_of(store, "weights")
    path.unlink()
    with served(store) as (_, client):
        assert ask(client, VICTIM) is Reason.NO_WORKER
        compile_victim(store)
        wait_for(lambda: not isinstance(ask(client, VICTIM), Reason), "the model to be served again")


def test_a_model_that_is_compiled_otherwise_is_served_as_it_is_now(store: Path) -> None:
    """The command may make other files, as when a release compiles otherwise."""
    ask, path = asking(store), file_of(store, "weights")
    path.unlink()
    with served(store) as (_, client):
        assert ask(client, VICTIM) is Reason.NO_WORKER
        other = Source("zoo", "digits", seed=5)
        compile_model(build("digits", 5), VICTIM, Store(store), (1, 2), other, quick=True)
        wait_for(lambda: not isinstance(ask(client, VICTIM), Reason), "the model to be served again")
        (spec,) = [spec for spec in client.models() if spec.name == VICTIM]
        assert spec.batch_sizes == (1, 2)


def test_weights_that_are_altered_while_serving_are_mended(store: Path) -> None:
    """The model was prepared, and has to be prepared again: the worker has the damaged file open."""
    ask, path = asking(store), file_of(store, "weights")
    right = path.read_bytes()
    with served(store, pages=1) as (_, client):
        expected = ask(client, VICTIM)
        assert not isinstance(expected, Reason)
        assert not isinstance(ask(client, WHOLE), Reason), "which takes the one page"
        path.write_bytes(flipped(right))
        wait_for(lambda: ask(client, VICTIM) is Reason.NO_WORKER, "the model to be given up")
        assert not isinstance(ask(client, WHOLE), Reason)
        aside = path.with_name("aside")
        aside.write_bytes(right)
        aside.replace(path)
        wait_for(lambda: ask(client, VICTIM) == expected, "the model to be served again")


def restart_controller(cluster: LocalCluster) -> None:
    starts = cluster.supervisor.starts("controller")
    os.kill(cluster.supervisor.pid("controller") or 0, signal.SIGKILL)
    wait_for(lambda: cluster.supervisor.starts("controller") > starts, "the controller's restart")


def test_a_model_that_was_removed_stays_so_when_the_controller_dies(store: Path) -> None:
    ask = asking(store)
    with served(store) as (cluster, client):
        client.remove_model(VICTIM)
        restart_controller(cluster)
        wait_for(lambda: not isinstance(ask(client, WHOLE), Reason), "the other model to be served")
        assert ask(client, VICTIM) is Reason.UNKNOWN_MODEL
        client.add_model(Store(store).manifest(VICTIM).spec())
        wait_for(lambda: not isinstance(ask(client, VICTIM), Reason), "the model to be served again")
        restart_controller(cluster)
        wait_for(lambda: not isinstance(ask(client, VICTIM), Reason), "the model to be served still")


def test_a_controller_begins_again_without_the_store(store: Path) -> None:
    """From what workers hold; models come back with the store, but not what was removed."""
    ask, away = asking(store), store.with_name("away")
    compile_model(build("digits", 3), "gone", Store(store), (1,), Source("zoo", "digits", seed=3), quick=True)
    with served(store) as (cluster, client):
        expected = {name: ask(client, name) for name in (WHOLE, VICTIM)}
        client.remove_model("gone")
        store.rename(away)
        restart_controller(cluster)
        wait_for(lambda: {name: ask(client, name) for name in expected} == expected, "what it held")
        away.rename(store)
        assert {spec.name for spec in client.models()} == {WHOLE, VICTIM}
        assert cluster.supervisor.starts("controller") == 2
