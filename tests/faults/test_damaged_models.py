"""One damaged file of a store costs its model and no other, and a file that is mended brings it back."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError
from mainspring.compiler.artifact.manifest import Source
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.codes import Reason
from mainspring.worker.config import MIB
from tests.patience import PATIENCE_S

SLO_MS = 10_000
WHOLE, VICTIM = "whole", "victim"


class Damage(NamedTuple):
    """A file of a model, and what becomes of it."""

    kind: str
    alter: Callable[[bytes], bytes]
    architecture: str = "digits"
    """Of the model: all models of one architecture share its executable."""


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    whole = bytearray(data)
    whole[len(whole) // 2] ^= 1
    return bytes(whole)


DAMAGES = (
    Damage("manifest", truncated),
    Damage("weights", truncated),
    Damage("weights", flipped),
    Damage("graph", flipped, "resnet56"),
    Damage("facts", truncated, "bert-tiny"),
)


def compile_one(
    store: Path, seed: int, name: str = VICTIM, sizes: tuple[int, ...] = (2,), architecture: str = "digits"
) -> None:
    source = Source("zoo", architecture, seed=seed)
    compile_model(build(architecture, seed), name, Store(store), sizes, source, quick=True)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two models that share no file."""
    store = tmp_path_factory.mktemp("compiled") / "store"
    compile_one(store, 1, WHOLE, (1,), "resnet20")
    compile_one(store, 2)
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
            "worker": {"pages": 8, "io_bytes": 16 * MIB, "realtime": False, **worker},
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


def serves(ask: Callable[[Client, str], Reason | str], client: Client, model: str) -> bool:
    return not isinstance(ask(client, model), Reason)


def file_of(store: Path, kind: str, model: str = VICTIM) -> Path:
    """A model's file of a kind."""
    manifest = Store(store).manifest(model)
    return {
        "manifest": store / "models" / model / "manifest.json",
        "weights": store / "weights" / f"{manifest.weights_hash}.bin",
        "graph": store / "executables" / manifest.executable / "graph.onnx",
        "facts": store / "executables" / manifest.executable / "info.json",
    }[kind]


def test_a_damaged_file_costs_one_model_until_it_is_mended(store: Path) -> None:
    victims = {f"{VICTIM}-{number}": damage for number, damage in enumerate(DAMAGES)}
    for seed, (name, damage) in enumerate(victims.items(), 10):
        compile_one(store, seed, name, (1,), damage.architecture)
    ask = asking(store)
    paths = {name: file_of(store, damage.kind, name) for name, damage in victims.items()}
    right = {name: path.read_bytes() for name, path in paths.items()}
    for name, damage in victims.items():
        paths[name].write_bytes(damage.alter(right[name]))
    with served(store) as (cluster, client):
        said = cluster.supervisor.faults
        assert len(said) == len(victims)
        for seed, (name, damage) in enumerate(victims.items(), 10):
            (fault,) = [each for each in said if f"model {name} is not served" in each]
            assert str(paths[name]) in fault
            remedy = f"`mainspring zoo {damage.architecture} --seed {seed} --store {store}"
            assert remedy in fault or damage.kind == "manifest"
            refused = Reason.MODEL_NOT_READY if damage.kind == "manifest" else Reason.NO_WORKER
            assert ask(client, name) == refused
        assert cluster.supervisor.served == 2
        assert not isinstance(ask(client, WHOLE), Reason)
        for name, path in paths.items():
            path.write_bytes(right[name])
        for name in victims:
            wait_for(partial(serves, ask, client, name), f"{name} to be served again")
        assert not client.status().left_out
        assert {cluster.supervisor.starts(name) for name in ("controller", "worker-0")} == {1}


def test_the_command_that_the_message_names_brings_a_model_back(store: Path) -> None:
    """Also if it makes other files, as when a release compiles otherwise."""
    other = "other"
    compile_one(store, 3, other, (1,))
    ask = asking(store)
    for name in (VICTIM, other):
        file_of(store, "weights", name).unlink()
    with served(store) as (_, client):
        assert {ask(client, name) for name in (VICTIM, other)} == {Reason.NO_WORKER}
        compile_one(store, 2)
        compile_one(store, 5, other, (1, 2))
        for name in (VICTIM, other):
            wait_for(partial(serves, ask, client, name), f"{name} to be served again")
        (spec,) = [spec for spec in client.models() if spec.name == other]
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
    compile_one(store, 3, "gone", (1,))
    with served(store) as (cluster, client):
        expected = {name: ask(client, name) for name in (WHOLE, VICTIM)}
        client.remove_model("gone")
        store.rename(away)
        restart_controller(cluster)
        wait_for(lambda: {name: ask(client, name) for name in expected} == expected, "what it held")
        away.rename(store)
        assert {spec.name for spec in client.models()} == {WHOLE, VICTIM}
        assert cluster.supervisor.starts("controller") == 2
