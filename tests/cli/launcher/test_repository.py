"""A whole cluster on a model repository: models come, change and go while requests are served."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from mainspring.cli.configuration.config import read_config
from mainspring.cli.launcher.addresses import free_ports
from mainspring.cli.launcher.process_plan import make_plan
from mainspring.cli.launcher.supervisor import LocalCluster
from mainspring.cli.main import build_app
from mainspring.client.client import Client
from mainspring.client.errors import MainspringError, Unavailable, UnknownModel
from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.repository import ModelRepository, RepositoryError
from mainspring.messages.codes import Reason
from mainspring.messages.repository import IndexEntry, ModelState
from mainspring.messages.sharding import first_map
from mainspring.messages.tables import ConfigError
from mainspring.worker.config import MIB
from tests.repository.nets import COLUMNS, configure, put

ONES = {"x": np.ones((1, COLUMNS), np.float32)}
SLO_MS = 20_000


SQUARE = """
max_batch_size: 16
input { name: "x" dims: [2, 2] reshape { shape: [4] } }
output { name: "y" dims: [2, 2] reshape { shape: [4] } }
dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000000 } }
"""


class Begun(NamedTuple):
    """A site with its cluster and a client."""

    site: Site
    cluster: LocalCluster
    client: Client


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


class Site:
    """A repository's folder, and a cluster on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "repository"
        self.run_dir = folder / "run"
        self.path.mkdir()
        self.said: list[str] = []

    @contextmanager
    def cluster(
        self,
        *,
        compatibility: str = "",
        controllers: int = 1,
        op_libraries: tuple[str, ...] = (),
        **repository: Any,
    ) -> Iterator[tuple[LocalCluster, Client]]:
        gateway, control, http, grpc, *ports = free_ports(4 + controllers)
        self.address = f"tcp://127.0.0.1:{control}"
        self.http = f"http://127.0.0.1:{http}"
        self.grpc = f"127.0.0.1:{grpc}"
        config = read_config(
            {
                "cluster": {
                    **{"run_dir": str(self.run_dir), "ready_timeout_s": 90, "log_level": "INFO"},
                    "workers": controllers,
                    "op_libraries": op_libraries,
                },
                "worker": {"pages": 4, "io_bytes": 16 * MIB},
                "gateway": {
                    "address": f"tcp://127.0.0.1:{gateway}",
                    "http_address": self.http,
                    "grpc_address": f"grpc://{self.grpc}",
                    "compatibility": compatibility,
                },
                "shards": {"controllers": [f"tcp://127.0.0.1:{port}" for port in ports]},
                "repository": {
                    "path": str(self.path),
                    "address": self.address,
                    "poll_interval_ms": 100.0,
                    "settle_ms": 50.0,
                    "vanish_grace_ms": 200.0,
                    "warm_patience_s": 60.0,
                    **repository,
                },
            },
            "the test",
        )
        with LocalCluster(make_plan(config), self.said.append) as cluster, Client(cluster.address) as client:
            yield cluster, client

    def post(self, path: str, **body: Any) -> Any:
        """Ask over HTTP; return the answer, or the status of an error."""
        request = urllib.request.Request(f"{self.http}{path}", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code

    def index(self, model: str = "") -> dict[str, IndexEntry]:
        """Ask the repository as a gateway does; return the entries of one model, or all, by version."""
        entries = asyncio.run(self.control().index())
        return {
            each.version if model else each.name: each
            for each in entries
            if each.name == (model or each.name)
        }

    def states(self, model: str) -> dict[str, ModelState]:
        return {version: entry.state for version, entry in self.index(model).items()}

    def control(self, catalog: Catalog | None = None) -> ModelRepository:
        config = GatewayConfig(repository_address=self.address)
        return ModelRepository(config, catalog or Catalog())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A cluster that began on a repository of a model, of a broken one, and of a broken configuration."""
    site = Site(tmp_path_factory.mktemp("begun"))
    put(site.path, "net", 1, 2.0)
    put(site.path, "broken", 1, b"no model")
    configure(site.path, "odd", "max_batch_size: many")
    put(site.path, "odd", 1, 2.0)
    with site.cluster() as (cluster, client):
        yield Begun(site, cluster, client)


def factor(client: Client, model: str = "net", version: int | None = None) -> float:
    """Ask the model; return what it multiplies by."""
    result = client.infer(model, ONES, slo_ms=SLO_MS, version=version)
    return float(result["y"][0, 0])


def serves(client: Client, wanted: float, model: str = "net") -> bool:
    try:
        return factor(client, model) == wanted
    except (UnknownModel, Unavailable):
        return False


class Callers:
    """A closed loop of clients: what they got, in the order in which it came."""

    def __init__(self, address: str, model: str = "net", clients: int = 2) -> None:
        self.answers: list[float] = []
        self.cold: list[float] = []
        """Answers that had to wait for the model to be loaded."""
        self.errors: list[BaseException] = []
        self._address = address
        self._model = model
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: bool(self.answers or self.errors), "the first answer")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with Client(self._address) as client:
            while not self._stop.is_set():
                try:
                    result = client.infer(self._model, ONES, slo_ms=SLO_MS)
                    self.answers.append(float(result["y"][0, 0]))
                    if result.timing.cold_start:
                        self.cold.append(self.answers[-1])
                except MainspringError as error:
                    self.errors.append(error)
                time.sleep(0.005)


def test_a_cluster_starts_on_an_empty_repository_and_models_come_change_and_go(site: Site) -> None:
    with site.cluster() as (cluster, client):
        assert client.models() == ()
        with pytest.raises(UnknownModel):
            factor(client)
        put(site.path, "net", 1, 3.0)
        wait_for(lambda: serves(client, 3.0), "the first model")
        assert [(spec.name, spec.version) for spec in client.models()] == [("net", 1)]
        with Callers(cluster.address) as callers:
            put(site.path, "net", 2, 4.0)
            wait_for(lambda: serves(client, 4.0), "the second version")
            put(site.path, "net", 2, 5.0)
            wait_for(lambda: serves(client, 5.0), "the second version's new content")
            wait_for(lambda: 5.0 in callers.answers, "the callers to see it")
        assert callers.errors == []
        assert 4.0 not in callers.cold
        assert 5.0 not in callers.cold
        # A thread may write its older answer down behind another's newer one, so only within a switch.
        assert sorted(set(callers.answers)) == [3.0, 4.0, 5.0]
        assert callers.answers[0] == 3.0
        assert callers.answers[-1] == 5.0
        wait_for(lambda: len(client.status().models) == 1, "the old versions to go from the workers")
        shutil.rmtree(site.path / "net")
        wait_for(lambda: client.models() == (), "the model to go")
        wait_for(lambda: client.status().models == (), "its last version to go from the workers")


def test_a_broken_model_says_why_and_harms_nobody(begun: Begun) -> None:
    site, cluster, client = begun
    assert factor(client) == 2.0
    entries = site.index()
    assert entries["broken"].state is ModelState.UNAVAILABLE
    assert "is not an ONNX model" in entries["broken"].reason
    assert "line 1: max_batch_size must be a whole number" in entries["odd"].reason
    assert any("broken" in problem for problem in cluster.supervisor.first_look.state.problems)
    put(site.path, "net", 2, b"worse")
    wait_for(lambda: site.states("net").get("2") is ModelState.UNAVAILABLE, "the broken version's reason")
    put(site.path, "net", 1, b"worse")
    wait_for(lambda: "before its files changed" in site.index("net")["1"].reason, "the reason")
    assert site.states("net")["1"] is ModelState.READY
    assert factor(client) == 2.0
    put(site.path, "broken", 1, 7.0)
    wait_for(lambda: serves(client, 7.0, "broken"), "the mended model")


def test_several_versions_are_served_at_once_and_the_highest_is_the_default(begun: Begun) -> None:
    site, _, client = begun
    configure(site.path, "latest", "version_policy { latest { num_versions: 2 } }")
    configure(site.path, "some", "version_policy { specific { versions: [1, 3] } }")
    for version in (1, 2, 3):
        put(site.path, "latest", version, float(version))
        put(site.path, "some", version, float(version))

    def ready(model: str, *versions: str) -> bool:
        return site.states(model) == dict.fromkeys(versions, ModelState.READY)

    wait_for(lambda: ready("latest", "2", "3") and ready("some", "1", "3"), "the versions of each policy")
    wait_for(
        lambda: serves(client, 3.0, "latest") and serves(client, 3.0, "some"), "the gateway's word of it"
    )
    assert [factor(client, "latest", version) for version in (None, 2, 3)] == [3.0, 2.0, 3.0]
    with pytest.raises(UnknownModel, match="no version 1; it is served in versions 2, 3"):
        factor(client, "latest", 1)
    assert [factor(client, "some", version) for version in (None, 1, 3)] == [3.0, 1.0, 3.0]
    configure(site.path, "latest", "version_policy { all {} }")
    wait_for(lambda: ready("latest", "1", "2", "3"), "all versions to be ready")
    assert factor(client, "latest", 1) == 1.0


def test_loading_by_clients_is_off_unless_it_was_asked_for(begun: Begun) -> None:
    with pytest.raises(RepositoryError, match="--model-control-mode explicit"):
        asyncio.run(begun.site.control().unload("net"))


def test_a_repository_that_is_away_is_said_to_be(site: Site) -> None:
    site.address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(RepositoryError, match="is away") as caught:
        asyncio.run(site.control().index())
    assert caught.value.reason is Reason.CONTROLLER_UNREACHABLE


def test_several_controllers_have_the_models_among_them(site: Site) -> None:
    shards = first_map(["a", "b"])
    first, second = (next(f"net-{n}" for n in range(99) if shards.place(f"net-{n}") == at) for at in (0, 1))
    for name in (first, second):
        put(site.path, name, 1, 2.0)
    with site.cluster(controllers=2) as (cluster, client):
        assert [shard.models for shard in client.status().shards] == [1, 1]
        with Callers(cluster.address, first) as callers, Callers(cluster.address, second) as others:
            put(site.path, second, 2, 3.0)
            wait_for(lambda: serves(client, 3.0, second), "a version in the second shard")
            os.kill(cluster.supervisor.pid("controller-1") or 0, signal.SIGKILL)
            wait_for(lambda: cluster.supervisor.starts("controller-1") == 2, "the restart")
            put(site.path, first, 2, 4.0)
            wait_for(lambda: serves(client, 4.0, first), "a version in the first shard")
            wait_for(lambda: serves(client, 3.0, second), "what is served after the restart")
        assert callers.errors == []
        assert others.errors == []
        wait_for(lambda: [shard.models for shard in client.status().shards] == [1, 1], "old versions to go")
        app, moved = build_app(), client.status().models[0].name
        there = ["--controller", cluster.plan.controller_address]
        arguments = ["balance", *there, "--model", moved, "--to", "1"]
        with pytest.raises(ConfigError, match="is of a model repository"):
            app(arguments, standalone_mode=False)
        shutil.rmtree(site.path / second)
        wait_for(lambda: [spec.name for spec in client.models()] == [first], "a model to go")


@pytest.mark.parametrize("victim", ["repository", "controller", "gateway"])
def test_a_process_may_die_and_models_change_after_it(site: Site, victim: str) -> None:
    put(site.path, "net", 1, 2.0)
    with site.cluster() as (cluster, client):
        with Callers(cluster.address) as callers:
            os.kill(cluster.supervisor.pid(victim) or 0, signal.SIGKILL)
            wait_for(lambda: cluster.supervisor.starts(victim) == 2, "the restart")
            put(site.path, "net", 2, 3.0)
            wait_for(lambda: serves(client, 3.0), "the new version")
        # Whose gateway dies is told so, and no client of another process notices anything.
        kinds = (Unavailable,) if victim == "gateway" else ()
        assert [error for error in callers.errors if not isinstance(error, kinds)] == []
        wait_for(lambda: len(client.status().models) == 1, "the old version to go")


def test_clients_load_and_unload_in_mode_explicit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # This test's own control is told nothing by the controller, so it need not wait for that.
    monkeypatch.setattr("mainspring.gateway.repository.TOLD_NS", 0)
    put(site.path, "net", 1, 2.0)
    put(site.path, "other", 1, 3.0)
    put(site.path, "broken", 1, b"no model")
    with site.cluster(mode="explicit", load_models=["other"]) as (cluster, client):
        control = site.control()

        def run(what: Any) -> Any:
            return asyncio.run(what)

        assert [spec.name for spec in client.models()] == ["other"]
        assert site.index()["net"] == IndexEntry("net", "", ModelState.UNAVAILABLE, "unloaded")
        run(control.load("net"))
        wait_for(lambda: serves(client, 2.0), "the gateway's word of it")
        ready = [each.name for each in run(control.index()) if each.state is ModelState.READY]
        assert ready == ["net", "other"]
        put(site.path, "net", 1, 5.0)
        run(control.load("net"))
        wait_for(lambda: serves(client, 5.0), "the gateway's word of it")
        run(control.unload("other", {"unload_dependents": True}))
        wait_for(lambda: [spec.name for spec in client.models()] == ["net"], "the gateway's word of it")
        for command, reason, says in (
            (control.load("broken"), Reason.BAD_INPUT, "version 1: .*not an ONNX model"),
            (control.load("nothing"), Reason.UNKNOWN_MODEL, "has no model 'nothing'"),
            (control.unload("nothing"), Reason.UNKNOWN_MODEL, "not loaded"),
            (control.load("net", {"config": 1}), Reason.BAD_INPUT, "config is a text"),
            (control.load("net", {"config": "{"}), Reason.BAD_INPUT, "config: it is not JSON"),
            (control.load("net", {"what": "x"}), Reason.BAD_INPUT, "no parameter 'what'"),
            (control.load("net", {"file:1/model.onnx": "?"}), Reason.BAD_INPUT, "in base64"),
            (control.unload("net", {"force": True}), Reason.BAD_INPUT, "no parameter 'force'"),
        ):
            with pytest.raises(RepositoryError, match=says) as caught:
                run(command)
            assert caught.value.reason is reason
        os.kill(cluster.supervisor.pid("repository") or 0, signal.SIGKILL)
        wait_for(lambda: cluster.supervisor.starts("repository") == 2, "the restart")
        wait_for(lambda: _is_ready(site, "net"), "the repository to know what is loaded")
        assert factor(client) == 5.0
        assert site.states("other") == {"": ModelState.UNAVAILABLE}


def _is_ready(site: Site, model: str) -> bool:
    try:
        return ModelState.READY in site.states(model).values()
    except RepositoryError as error:
        if error.reason is not Reason.CONTROLLER_UNREACHABLE:
            raise
        return False


def test_standard_clients_name_versions_and_load_models_over_http(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    put(site.path, "net", 2, 3.0)
    configure(site.path, "net", "version_policy { all {} } max_batch_size: 4")
    put(site.path, "square", 1, 2.0)
    configure(site.path, "square", SQUARE)
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}
    body = {"inputs": [tensor]}
    with site.cluster(mode="explicit"):
        unloaded = {"version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
        assert site.post("/v2/repository/index") == [{"name": n, **unloaded} for n in ("net", "square")]
        assert site.post("/v2/models/net/infer", **body) == 404
        site.post("/v2/repository/models/net/load")
        for path, version, wanted in (("", "2", 3.0), ("/versions/1", "1", 2.0)):
            reply = site.post(f"/v2/models/net{path}/infer", **body)
            assert (reply["model_version"], reply["outputs"][0]["data"]) == (version, [wanted] * 4)
        assert site.post("/v2/models/net/versions/3/infer", **body) == 404
        ready = site.post("/v2/repository/index", ready=True)
        assert [(each["version"], each["state"]) for each in ready] == [("1", "READY"), ("2", "READY")]
        site.post("/v2/repository/models/net/unload")
        assert site.post("/v2/models/net/infer", **body) == 404
        assert site.post("/v2/repository/models/none/load") == 404
        site.post("/v2/repository/models/square/load")
        reply = site.post("/v2/models/square/infer", inputs=[{**tensor, "shape": [1, 2, 2]}])
        assert (reply["outputs"][0]["shape"], reply["outputs"][0]["data"]) == ([1, 2, 2], [2.0] * 4)
        assert reply["parameters"]["deadline_ns_left"] > 0, "it has the SLO of its configuration"


def test_tritons_clients_load_models_with_configurations_of_their_own(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    configure(site.path, "net", "max_batch_size: 8")
    with (
        site.cluster(mode="explicit"),
        tritonclient.http.InferenceServerClient(
            site.http.removeprefix("http://"), network_timeout=60
        ) as http,
        tritonclient.grpc.InferenceServerClient(site.grpc) as grpc,
    ):
        http.load_model("net", config=json.dumps({"max_batch_size": 4, "response_cache": {"enable": True}}))
        config = http.get_model_config("net")
        assert (config["max_batch_size"], config["response_cache"]) == (4, {"enable": True})
        grpc.load_model("net", config=json.dumps({**config, "max_batch_size": 2, "dynamic_batching": {}}))
        assert grpc.get_model_config("net").config.max_batch_size == 2
        wrong = json.dumps({"max_batch_size": 2, "input": [{"name": "x", "dims": [5]}]})
        for client in (http, grpc):
            with pytest.raises(InferenceServerException, match="can't be loaded: version 1: "):
                client.load_model("net", config=wrong)
            assert client.is_model_ready("net")
        assert http.get_model_config("net")["max_batch_size"] == 2
        grpc.load_model("net")
        assert http.get_model_config("net")["max_batch_size"] == 8


def test_tritons_clients_load_models_with_files_of_their_own(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    elsewhere = site.path.parent / "elsewhere"

    def files(factor: float) -> dict[str, bytes]:
        put(elsewhere, "sent", 3, factor)
        return {"file:3/model.onnx": (elsewhere / "sent" / "3" / "model.onnx").read_bytes()}

    with (
        site.cluster(mode="explicit") as (cluster, client),
        tritonclient.http.InferenceServerClient(
            site.http.removeprefix("http://"), network_timeout=60
        ) as http,
        tritonclient.grpc.InferenceServerClient(site.grpc) as grpc,
    ):
        http.load_model("net")
        for name, told, wanted in (("sent", http, 3.0), ("net", grpc, 4.0), ("net", http, 5.0)):
            told.load_model(name, config=json.dumps({"max_batch_size": 4}), files=files(wanted))
            assert factor(client, name) == wanted
            assert http.get_model_config(name)["max_batch_size"] == 4
            assert told.is_model_ready(name, "3")
        grpc.load_model("sent", files={**files(6.0), "file:config.pbtxt": b"max_batch_size: 2"})
        assert (factor(client, "sent"), http.get_model_config("sent")["max_batch_size"]) == (6.0, 2)
        for told in (http, grpc):
            with pytest.raises(InferenceServerException, match=r"version 3: .*is not an ONNX model"):
                told.load_model("sent", config="{}", files={"file:3/model.onnx": b"no model"})
            with pytest.raises(InferenceServerException, match="names no file"):
                told.load_model("sent", config="{}", files={"file:../net/1/model.onnx": b"no model"})
            assert factor(client, "sent") == 6.0
        os.kill(cluster.supervisor.pid("repository") or 0, signal.SIGKILL)
        wait_for(lambda: cluster.supervisor.starts("repository") == 2, "the restart")
        wait_for(lambda: _is_ready(site, "sent") and _is_ready(site, "net"), "what is loaded to be known")
        assert (factor(client, "sent"), factor(client, "net")) == (6.0, 5.0)
        http.load_model("net")
        assert factor(client) == 2.0
        grpc.unload_model("sent")
        assert "sent" not in {spec.name for spec in client.models()}
        with pytest.raises(InferenceServerException, match="has no model 'sent'"):
            http.load_model("sent")


def test_loading_that_is_off_is_unavailable_in_tritons_words(site: Site) -> None:
    put(site.path, "net", 1, 2.0)
    with (
        site.cluster(compatibility="triton"),
        tritonclient.http.InferenceServerClient(site.http[len("http://") :], network_timeout=60) as http,
        tritonclient.grpc.InferenceServerClient(site.grpc) as grpc,
    ):
        for client, status in ((http, "503"), (grpc, "StatusCode.UNAVAILABLE")):
            for change in (client.load_model, client.unload_model):
                with pytest.raises(InferenceServerException, match="explicit model load / unload") as caught:
                    change("net")
                assert caught.value.status() == status
