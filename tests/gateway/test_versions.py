"""What a model's name stands for: plain models, versions of a repository's, and models that depart."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mainspring.client.client import Client
from mainspring.gateway.core.catalog import LOOK_NS, Catalog, DrainingModels
from mainspring.gateway.core.validation import BadRequest
from mainspring.messages import peers
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import ModelSpec
from mainspring.messages.peers import ModelDown
from mainspring.messages.served import ServedModel
from tests.gateway.fakes import fake_cluster, gateway, make_spec, wait_until


def version_spec(name: str, version: int, content: str = "aa") -> ModelSpec:
    return msgspec.structs.replace(
        make_spec(f"{name}@{version}-{content}"), served_as=name, version=version, weights_hash=content * 32
    )


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.model_up(make_spec("plain"))
    for version in (1, 2, 10):
        catalog.model_up(version_spec("net", version))
    catalog.serve(ServedModel("net", {1: "net@1-aa", 10: "net@10-aa"}, slo_ns=7))
    return catalog


def refusal(catalog: Catalog, name: str, version: int | None = None) -> str:
    with pytest.raises(BadRequest) as caught:
        catalog.resolve(name, version)
    assert caught.value.reason is Reason.UNKNOWN_MODEL
    return caught.value.detail


def test_the_default_is_the_highest_version_that_is_served(catalog: Catalog) -> None:
    assert catalog.resolve("net").spec.name == "net@10-aa"
    assert catalog.resolve("net", 1).spec.name == "net@1-aa"
    assert catalog.versions("net") == (1, 10)
    assert catalog.options("net").slo_ns == 7


def test_a_version_that_is_known_but_not_served_is_refused_with_those_that_are(catalog: Catalog) -> None:
    assert "no version 2; it is served in versions 1, 10" in refusal(catalog, "net", 2)
    assert "no version 3; it is served in version 1" in refusal(catalog, "plain", 3)
    assert catalog.resolve("plain", 1) is catalog.resolve("plain")


def test_the_schedulers_names_are_not_for_clients(catalog: Catalog) -> None:
    assert "not served" in refusal(catalog, "net@2-aa")
    assert catalog.names() == ["net", "plain"]
    assert [(spec.name, spec.version) for spec in catalog.models()] == [("net", 10), ("plain", 1)]
    assert catalog.versions("net@1-aa") == catalog.versions("nothing") == ()


def test_a_table_is_replaced_whole_and_an_empty_one_ends_the_model(catalog: Catalog) -> None:
    catalog.serve(ServedModel("net", {2: "net@2-aa"}))
    assert catalog.versions("net") == (2,)
    assert catalog.options("net").slo_ns is None
    catalog.serve(ServedModel("net", {}))
    assert "did you mean" not in refusal(catalog, "net", 2)
    assert catalog.names() == ["plain"]


def test_a_version_whose_model_is_gone_gives_way_to_the_others(catalog: Catalog) -> None:
    catalog.model_down("net@10-aa")
    assert catalog.resolve("net").spec.version == 1
    catalog.model_down("net@1-aa")
    assert "not served" in refusal(catalog, "net")
    assert catalog.versions("net") == ()
    assert [spec.name for spec in catalog.models()] == ["plain"]


def test_what_a_new_controller_does_not_confirm_is_forgotten(catalog: Catalog) -> None:
    catalog.serve(ServedModel("gone", {2: "net@2-aa"}))
    catalog.begin_session()
    for version in (1, 10):
        catalog.model_up(version_spec("net", version))
    catalog.serve(ServedModel("net", {1: "net@1-aa"}))
    catalog.told_all(0)
    due_ns = catalog.next_wakeup_ns()
    assert due_ns is not None
    assert catalog.versions("gone") == (2,)
    catalog.tick(due_ns)
    assert catalog.names() == ["net"]
    assert catalog.versions("net") == (1,)


def test_a_model_is_drained_once_nothing_is_in_flight_for_it() -> None:
    held = {"a", "b"}
    draining = DrainingModels(held.__contains__)
    assert draining.next_wakeup_ns() is None
    for name in ("a", "b", "c"):
        draining.model_down(5, ModelDown(name, drain=True))
    assert draining.next_wakeup_ns() == 5
    assert draining.tick(5) == ["c"]
    held.discard("b")
    assert draining.tick(6) == []
    assert draining.tick(5 + LOOK_NS) == ["b"]
    draining.keep("a")
    held.clear()
    assert draining.tick(10**12) == []
    assert draining.next_wakeup_ns() is None


def test_draining_ends_with_the_controller_or_when_the_model_is_gone() -> None:
    draining = DrainingModels(lambda _: False)
    draining.model_down(0, ModelDown("a", drain=True))
    draining.controller_lost()
    assert draining.tick(10**9) == []
    draining.model_down(0, ModelDown("a", drain=True))
    draining.model_down(0, ModelDown("a"))
    assert draining.tick(10**9) == []


@pytest.mark.parametrize(("asked", "gets"), [(0, 2), (1, 1), (2, 2), (3, 3), (4, 2), (1000, 2), (-1, -1)])
def test_a_model_s_priorities_are_for_requests_that_say_none_or_too_low_a_one(
    catalog: Catalog, asked: int, gets: int
) -> None:
    catalog.serve(ServedModel("net", {1: "net@1-aa"}, priority_levels=3, default_priority=2))
    assert catalog.prioritised(InferRequest(1, "net", (), None, priority=asked)).priority == gets
    assert catalog.prioritised(InferRequest(1, "plain", (), None, priority=asked)).priority == asked
    catalog.serve(ServedModel("net", {1: "net@1-aa"}))
    assert catalog.prioritised(InferRequest(1, "net", (), None, priority=asked)).priority == asked


def test_a_model_s_default_priority_reaches_the_controller() -> None:
    tensor = np.ones((1, 4), np.float32)
    with fake_cluster() as cluster, gateway(cluster.address) as address, Client(address) as client:
        wait_until(lambda: cluster.hellos)
        client.infer("double", {"data": tensor})
        served = ServedModel("double", {1: "double"}, priority_levels=5, default_priority=4)
        cluster.tell(peers.Served(served))

        def prioritised() -> bool:
            client.infer("double", {"data": tensor})
            return cluster.arrivals[-1].priority == 4

        wait_until(prioritised)
        for priority in (2, 9):
            client.infer("double", {"data": tensor}, priority=priority)
        assert [arrival.priority for arrival in cluster.arrivals[-2:]] == [2, 4]
