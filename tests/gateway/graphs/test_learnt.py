"""Applications as graphs: which members are asked, what stands in for one that is missing, what can't be."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.gateway.graphs.checking import Graph, GraphError, check_graph
from mainspring.gateway.graphs.flow import Flow
from mainspring.gateway.graphs.learnt import answering, as_graph, steps_of
from mainspring.messages.applications import ApplicationSpec
from mainspring.messages.model import ModelSpec, TensorSpec


def model(name: str, output: TensorSpec, *inputs: TensorSpec) -> ModelSpec:
    given = inputs or (TensorSpec("data", "float32", (4,)),)
    return ModelSpec(
        name=name, weights_hash="", executable="", batch_sizes=(4,), weights_bytes=0, extents=(),
        inputs=given, outputs=(output,), profiles={},
    )  # fmt: skip


SCORES = TensorSpec("scores", "float32", (3,))
SPEC = ApplicationSpec(name="digits", members=("svm", "cnn:2"), output="scores")


def graph_of(spec: ApplicationSpec = SPEC, output: TensorSpec = SCORES) -> Graph:
    models = {member: model(member, output) for member in spec.members}
    return answering(spec, check_graph(as_graph(spec, models), models))


def test_the_steps_have_the_members_names_whatever_these_are() -> None:
    spec = ApplicationSpec(name="a", members=("svm", "cnn:2", "2-d", "2_d", "ünder"), output="y")
    assert steps_of(spec) == {
        "svm": "svm", "cnn": "cnn:2", "_2_d": "2-d", "_2_d_": "2_d", "_nder": "ünder"
    }  # fmt: skip


def test_a_member_may_be_called_as_an_input() -> None:
    data = TensorSpec("svm", "float32", (4,))
    models = {"svm": model("svm", SCORES, data), "cnn:2": model("cnn", SCORES, data)}
    graph = check_graph(as_graph(SPEC, models), models)
    assert [(each.spec.name, each.spec.model) for each in graph.steps] == [("svm_", "svm"), ("cnn", "cnn:2")]


def test_inputs_are_the_members_union_and_outputs_the_applications() -> None:
    data, size = TensorSpec("data", "float32", (4,)), TensorSpec("size", "int64", (1,))
    models = {"svm": model("svm", SCORES, data), "cnn:2": model("cnn", SCORES, size, data)}
    graph = answering(SPEC, check_graph(as_graph(SPEC, models), models))
    assert [each.name for each in graph.inputs] == ["data", "size"]
    assert [(each.name, each.dtype, each.shape) for each, _ in graph.outputs] == [
        ("prediction", "int64", ()), ("confidence", "float32", ()), ("scores", "float32", (3,))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "output", "said"),
    [
        ("scores", TensorSpec("scores", "int64", (3,)), "it has to be as many floats as there are classes"),
        ("scores", TensorSpec("scores", "float32", (3, 2)), "it has to be as many floats as"),
        ("label", TensorSpec("scores", "int64", (3,)), "of kind 'label' it has to be one label"),
        ("value", TensorSpec("scores", "S8", (1,)), "of kind 'value' it has to be a number"),
        ("scores", TensorSpec("other", "float32", (3,)), "member 'svm' has no output 'scores': it has other"),
    ],
)
def test_members_of_another_kind_are_refused(kind: str, output: TensorSpec, said: str) -> None:
    spec = ApplicationSpec(name="a", members=("svm",), output="scores", kind=kind, span=1.0)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=said):
        graph_of(spec, output)


def test_members_with_unlike_outputs_are_refused() -> None:
    models = {"svm": model("svm", SCORES), "cnn:2": model("cnn", TensorSpec("scores", "float32", (4,)))}
    with pytest.raises(GraphError, match=r"svm.scores is float32\[3\] and cnn.scores is float32\[4\]"):
        check_graph(as_graph(SPEC, models), models)


def test_a_member_that_is_left_out_has_no_rows_and_is_not_missing() -> None:
    graph = graph_of()
    flow = Flow(graph, 2, [np.ones((2, 4), np.float32)])
    flow.leave_out([1])
    assert [each.step for each in flow.begin()] == [0]
    assert flow.lacking(0), "the other one was not asked"
    flow.ended(0, [np.eye(3, dtype=np.float32)[:2]])
    sources = graph.outputs[0][1]
    assert flow.output_of(sources[0]) is not None
    assert flow.output_of(sources[1]) is None
    assert (flow.missing, flow.outstanding) == (set(), set())
