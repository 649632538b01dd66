"""Families of models: their files, what of their members has to be equal, and their requests at a gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.core.effects import Answer
from mainspring.gateway.core.validation import BadRequest, check_request
from mainspring.gateway.graphs.checking import GraphError
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.graphs import GraphSpec, graph_fault, read_graph
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.peers import TensorHeader
from mainspring.messages.queries import Chosen
from mainspring.messages.sequencing import Sequencing
from mainspring.messages.tables import ConfigError
from tests.gateway.graphs.test_checking import model
from tests.gateway.graphs.test_run import Cluster

FILE = """
name = "classify"
members = ["small", "up"]
score = [0.7, 0.8]
slo_ms = 50
"""
FAMILY = GraphSpec(name="classify", members=("small", "up"), score=(0.7, 0.8), slo_ms=50.0)
NUMBER = [TensorSpec("a", "float64", ())]
MODELS = {name: model(name, NUMBER, [TensorSpec("y", "float64", ())]) for name in ("up", "small", "other")}


def changed(**changes: Any) -> ModelSpec:
    return msgspec.structs.replace(MODELS["up"], **changes)


def test_a_file_of_members_and_scores_is_a_family() -> None:
    assert read_graph(FILE, "classify.toml") == FAMILY
    assert graph_fault(FAMILY) is None
    with pytest.raises(ConfigError, match="no key 'scores'; did you mean 'score'"):
        read_graph(FILE.replace("score", "scores"), "classify.toml")
    with pytest.raises(ConfigError, match="or members of a family"):
        read_graph('name = "classify"', "classify.toml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": (0.7,)}, "2 members and 1 scores"),
        ({"score": (0.7, -1.0)}, "a score is a number above 0"),
        ({"members": ("up", "up")}, "names a member twice"),
        ({"inputs": ("a",)}, "has members, so it has no inputs"),
        ({"slo_ms": -1.0}, "slo_ms of family 'classify' is -1"),
        ({"name": ""}, "a name has 1 to"),
    ],
)
def test_what_is_wrong_with_a_family_is_said(changes: dict[str, Any], said: str) -> None:
    fault = graph_fault(msgspec.structs.replace(FAMILY, **changes))
    assert fault is not None
    assert said in fault


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"inputs": (TensorSpec("a", "float32", ()),)}, "input 'a' is float32[] and float64[]"),
        ({"inputs": (TensorSpec("b", "float64", ()),)}, "the inputs are b and a"),
        ({"outputs": (TensorSpec("y", "float64", (2,)),)}, "output 'y' is float64[2] and float64[]"),
        ({"sequencing": Sequencing()}, "requests of one of them come in sequences"),
    ],
)
def test_members_whose_interfaces_differ_are_refused_with_the_difference(
    other: dict[str, Any], said: str
) -> None:
    catalog = Catalog(most_rows=8)
    for each in (MODELS["up"], changed(name="small", **other)):
        catalog.model_up(each)
    with pytest.raises(GraphError) as caught:
        catalog.graphs.check(FAMILY)
    assert f"members 'small' and 'up' differ: {said}" in str(caught.value)


def test_a_family_is_a_model_to_clients_and_its_members_are_in_use() -> None:
    catalog = Catalog(most_rows=8)
    catalog.model_up(changed(name="small", batch_sizes=(1, 4)))
    catalog.model_up(MODELS["up"])
    catalog.set_graph("classify", FAMILY)
    signature = catalog.resolve("classify")
    assert [each.name for each in signature.spec.inputs] == ["a"]
    assert [each.name for each in signature.spec.outputs] == ["y"]
    assert signature.best_score == 0.8
    assert catalog.graphs.models_of("classify") == ["small", "up"]
    assert "graph 'classify' has a member 'up'" in catalog.graphs.needs("up")
    missing = Catalog(most_rows=8)
    missing.set_graph("classify", FAMILY)
    with pytest.raises(BadRequest, match="can't be served: model 'small' is not served"):
        missing.resolve("classify")


def asked(at_least: float, name: str = "classify") -> InferRequest:
    return InferRequest(1, name, (TensorHeader("a", "float64", (1,)),), None, at_least=at_least)


def test_what_no_member_is_worth_is_refused_at_once() -> None:
    cluster = Cluster(MODELS, FAMILY)
    resolve = cluster.catalog.resolve
    assert check_request(asked(0.8), [8], resolve, 10**12).at_least == 0.8
    for request, said in (
        (asked(0.9), "at_least is 0.9; it has to be above 0, and 'classify' has answers of up to 0.8"),
        (asked(-1), "at_least is -1"),
        (asked(0.5, "up"), "'up' is none"),
    ):
        with pytest.raises(BadRequest) as caught:
            check_request(request, [8], resolve, 10**12)
        assert caught.value.reason is Reason.BAD_INPUT
        assert said in caught.value.detail


def test_the_controller_is_told_of_the_members_and_the_reply_names_the_chosen() -> None:
    cluster = Cluster(MODELS, FAMILY)
    cluster.submit("classify", a=np.array([1.0, 2.0, 3.0]))
    assert cluster.query is not None
    [step] = cluster.query.steps
    assert (step.model, step.members, step.scores) == ("up", ("up", "small"), (0.8, 0.7))
    assert [piece.rows for piece in cluster.query.pieces] == [2, 1]
    cluster.core.chosen(Chosen(cluster.query.request_id, 0, "small"))
    while cluster.waiting:
        cluster.run(min(cluster.waiting))
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    assert [(each.model, each.rows) for each in answer.timing.steps] == [("small", 3)]
    cluster.over()


@pytest.mark.parametrize(("member", "kept"), [("up", 1), ("small", 0)])
def test_the_cache_keeps_the_best_members_answers_alone(member: str, kept: int) -> None:
    cluster = Cluster(MODELS, FAMILY)
    cluster.cache.switch("classify", True)
    for _ in range(2):
        cluster.submit("classify", a=np.array([1.0]))
        if cluster.waiting:
            assert cluster.query is not None
            cluster.core.chosen(Chosen(cluster.query.request_id, 0, member))
            cluster.run(min(cluster.waiting))
    answers = [each for each in cluster.ended if isinstance(each, Answer)]
    assert [each.timing.cached for each in answers] == [False, bool(kept)]


def test_a_step_of_a_graph_may_name_a_family() -> None:
    steps = [
        {"name": "first", "model": "classify", "inputs": {"a": "image"}},
        {"name": "then", "model": "up", "inputs": {"a": "first.y"}},
    ]
    graph = msgspec.convert(
        {"name": "g", "inputs": ["image"], "steps": steps, "outputs": {"o": "then.y"}}, GraphSpec
    )
    cluster = Cluster(MODELS, FAMILY, graph)
    cluster.submit("g", image=np.array([1.0]))
    assert cluster.query is not None
    assert [step.members for step in cluster.query.steps] == [("up", "small"), ()]
    assert cluster.catalog.graphs.using("small") == ["classify", "g"]
    cluster.core.chosen(Chosen(cluster.query.request_id, 0, "up"))
    cluster.run(min(cluster.waiting))
    cluster.run(min(cluster.waiting))
    [answer] = cluster.ended
    assert isinstance(answer, Answer)
    assert [each.model for each in answer.timing.steps] == ["up", ""]
    cluster.over()
