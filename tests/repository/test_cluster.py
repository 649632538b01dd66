"""What several controllers tell a repository: each speaks of its own models."""

from __future__ import annotations

import msgspec

from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown, ModelUp, Served
from mainspring.messages.served import ServedModel
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus
from mainspring.repository.builds import Cluster, Preparation
from tests.repository.world import spec


def version(model: str, number: int) -> ModelSpec:
    return msgspec.structs.replace(spec(f"{model}-{number}"), served_as=model)


def told() -> Cluster:
    """Return two shards with a model each, which both have told all."""
    cluster = Cluster(2)
    for shard, model in enumerate(("a", "b")):
        cluster.welcomed(shard)
        cluster.heard(ModelUp(version(model, 1)), shard)
        cluster.heard(Served(ServedModel(model, {1: f"{model}-1"})), shard)
        cluster.complete(shard)
    return cluster


def test_all_is_known_once_every_controller_has_told_it() -> None:
    cluster = Cluster(2)
    cluster.complete(1)
    assert not cluster.known
    assert (cluster.knows(0), cluster.knows(1)) == (False, True)
    cluster.complete(0)
    assert cluster.known
    cluster.lost(1)
    assert not cluster.known


def test_a_controller_that_begins_again_takes_nothing_of_the_others() -> None:
    cluster = told()
    assert [cluster.shard_of(name) for name in ("a-1", "b-1", "c-1")] == [0, 1, None]
    cluster.welcomed(0)
    assert (list(cluster.models), list(cluster.served)) == (["b-1"], ["b"])
    assert cluster.models_of("a") == []
    assert cluster.shard_of("a-1") is None
    cluster.heard(ModelUp(version("a", 2)), 0)
    assert cluster.models_of("a") == ["a-2"]


def test_what_goes_in_one_shard_goes_there_alone() -> None:
    cluster = told()
    cluster.heard(ModelDown("a-1", drain=False), 1)
    cluster.heard(Served(ServedModel("a", {})), 1)
    assert sorted(cluster.models) == ["a-1", "b-1"]
    assert sorted(cluster.served) == ["a", "b"]
    cluster.heard(ModelDown("a-1", drain=True), 0)
    assert (list(cluster.models), list(cluster.retiring)) == (["b-1"], ["a-1"])
    assert cluster.shard_of("a-1") == 0, "it is there until it is gone"
    cluster.heard(ModelDown("a-1"), 0)
    assert (cluster.retiring, cluster.shard_of("a-1")) == ({}, None)


def test_workers_and_progress_are_each_shards_own() -> None:
    cluster = told()

    def status(workers: int, pages: int, *models: ModelStatus) -> ClusterStatus:
        names = [f"w{number}" for number in range(workers)]
        return ClusterStatus(
            "p",
            tuple(WorkerStatus(name, "cpu", pages, pages, 0, 0, 0, 0, ()) for name in names),
            models,
            0,
            {},
        )

    cluster.status(status(1, 9, ModelStatus("a-1", 1, ("w0",), (), 0)), 0)
    cluster.status(status(3, 5, ModelStatus("b-1", 1, ("w0",), ("w0",), 0)), 1)
    assert (cluster.workers, cluster.pages) == (4, 5)
    assert cluster.preparation("a-1") == Preparation(1, 0, 1, "")
    assert cluster.preparation("a-1").everywhere
    assert cluster.preparation("b-1") == Preparation(1, 0, 3, "")
    assert cluster.is_resident("b-1")
    cluster.status(status(1, 9), 0)
    assert cluster.preparation("a-1") == Preparation(0, 0, 1, "")
    assert cluster.is_resident("b-1")
    cluster.status(status(0, 0), 1)
    assert (cluster.workers, cluster.pages) == (1, 9), "a shard without workers says nothing of their size"
