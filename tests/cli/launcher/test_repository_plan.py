"""What a model repository adds to a local cluster's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.configuration.config import Config, read_config, read_tables
from mainspring.cli.launcher.jobs import ControllerJob, GatewayJob, RepositoryJob, WorkerJob
from mainspring.cli.launcher.models import ModelSource
from mainspring.cli.launcher.process_plan import Plan, make_plan
from mainspring.cli.launcher.repository import FirstLook
from mainspring.cli.launcher.up import Ports, cluster_config
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.catalogue import compile_zoo
from mainspring.messages.served import ServedModel
from mainspring.messages.tables import ConfigError
from mainspring.repository.config import RepositoryConfig
from mainspring.repository.served_files import ServedFiles, State
from tests.gateway.test_versions import version_spec


def config(tmp_path: Path, cluster: dict[str, Any] | None = None, **repository: Any) -> Config:
    (tmp_path / "repository").mkdir(exist_ok=True)
    return read_config(
        {
            "cluster": {"run_dir": str(tmp_path / "run"), **(cluster or {})},
            "repository": {"path": str(tmp_path / "repository"), **repository},
        },
        "the test",
    )


def job(plan: Plan, kind: type[Any]) -> Any:
    return next(each for each in plan.jobs if isinstance(each, kind))


def test_an_empty_repository_is_enough_for_a_cluster(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, {}, address="tcp://127.0.0.1:7500"))
    store = str(tmp_path / "run" / "store")
    assert plan.models == 0
    assert plan.stop_order[0] == ("repository",)
    assert job(plan, WorkerJob).worker.store == store
    assert job(plan, GatewayJob).gateway.repository_address == "tcp://127.0.0.1:7500"
    repository = job(plan, RepositoryJob)
    assert (repository.repository.store, repository.repository.own_store) == (store, True)
    assert repository.repository.controller_address == f"unix://{tmp_path}/run/controller.sock"
    assert repository.priority == 0, "it compiles nothing at real-time priority"
    assert repository.nice > 0
    assert job(plan, ControllerJob).models.served() == ([], [])
    assert ("tcp://127.0.0.1:7500", "choose another with [repository] address") in plan.listening


def test_a_store_beside_a_repository_is_served_without_the_repositorys_artifacts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    list(compile_zoo(["digits"], Store(store), 1, 0, (1,)))
    artifact = store / "models" / "net@1-0123456789ab"
    artifact.mkdir()
    (artifact / "manifest.json").write_bytes((store / "models" / "digits" / "manifest.json").read_bytes())
    plan = make_plan(config(tmp_path, {"store": str(store)}))
    assert plan.models == 1
    repository = job(plan, RepositoryJob).repository
    assert (repository.store, repository.own_store) == (str(store), False)


def test_a_repository_that_is_given_as_a_store_is_told_from_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "models" / "net" / "1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="it is a model repository: serve it with --model-repository"):
        make_plan(config(tmp_path, {"store": str(tmp_path / "models")}, path=""))
    (tmp_path / "models" / "net" / "1").rmdir()
    with pytest.raises(ConfigError, match="holds no model; `mainspring zoo`"):
        make_plan(config(tmp_path, {"store": str(tmp_path / "models")}, path=""))


@pytest.mark.parametrize(
    ("cluster", "repository", "says"),
    [
        ({}, {"path": __file__}, "is a file; a repository is a folder"),
        ({}, {"path": "nowhere"}, "the model repository nowhere is not a folder; make it"),
        ({"profiles": "p.csv", "engine": "emulated"}, {}, "--model-repository or --profiles"),
        ({}, {"address": "tcp://127.0.0.1:7400"}, "listened on twice"),
    ],
)
def test_what_can_not_be_is_refused(
    tmp_path: Path, cluster: dict[str, Any], repository: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_plan(config(tmp_path, cluster, **repository))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"mode": "sometimes"}, "mode is 'sometimes'; it is one of none, poll, explicit"),
        ({"load_models": ["net"]}, "load_models are for the mode explicit"),
        ({"poll_interval_ms": 0}, "poll_interval_ms is 0"),
        ({"store": "s"}, r"store is not set here: set \[cluster\] store"),
    ],
)
def test_values_that_can_not_work_are_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config({"repository": table}, "the test")


def test_paths_and_ports(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('[repository]\npath = "models"\n')
    assert read_tables(file)["repository"]["path"] == str(tmp_path / "models")
    file.write_text('[repository]\npath = ""\n')
    assert read_tables(file)["repository"]["path"] == ""
    found = cluster_config(file, {"repository": {"mode": "explicit"}}, Ports(gateway=7000))
    assert found.gateway.address == "tcp://127.0.0.1:7000"
    assert (found.controller.address, found.repository.address) == ("", ""), "sockets in the run folder"
    assert found.repository.mode == "explicit"


def test_a_cluster_begins_without_what_a_former_one_served_and_waits_for_a_look(
    tmp_path: Path,
) -> None:
    state_dir = tmp_path / "run" / "repository"
    files = ServedFiles(state_dir)
    spec = version_spec("net", 1)
    files.write(ServedModel("net", {1: spec.name}), [spec])
    files.write_state(State(settled=True, models=1))
    source = ModelSource(store=str(tmp_path / "store"), state_dir=str(state_dir))
    assert source.served() == ([spec], [ServedModel("net", {1: spec.name})])
    look = FirstLook(
        RepositoryConfig(path=str(tmp_path), store=str(tmp_path / "store"), state_dir=str(state_dir))
    )
    look.prepare()
    assert not look.done()
    assert source.served() == ([], [])
    assert source.specs() == []
    ServedFiles(state_dir).write_state(State(settled=True, models=2))
    assert look.done()
    assert look.state.models == 2
    assert FirstLook(RepositoryConfig()).done()
