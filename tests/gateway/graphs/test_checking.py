"""Graphs: what follows from one that makes sense, and what is wrong with those that do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.graphs.checking import REQUEST, Graph, GraphError, Source, check_graph
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.model import ModelSpec, OpenDim, Symbol, TensorSpec, Term
from mainspring.messages.queries import MOST_STEPS
from mainspring.messages.sequencing import Sequencing

WIDTH = OpenDim(0, (Term(0),))


def model(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **changes: Any) -> ModelSpec:
    return ModelSpec(
        name=name, weights_hash=name, executable=name, batch_sizes=(1, 8), weights_bytes=1, extents=(1,),
        inputs=tuple(inputs), outputs=tuple(outputs), profiles={}, **changes,
    )  # fmt: skip


MODELS = {
    "detector": model(
        "detector",
        [TensorSpec("x", "float32", (3, 8, 8))],
        [TensorSpec("boxes", "float32", (9, 4), varies=(0,)), TensorSpec("count", "int64", ())],
    ),
    "crop": model(
        "crop",
        [TensorSpec("image", "float32", (3, 8, 8)), TensorSpec("boxes", "float32", (20, 4), open=(WIDTH,))],
        [TensorSpec("lines", "float32", (20, 3, 4), varies=(0,)), TensorSpec("count", "int64", ())],
        symbols=(Symbol("n", (20,)),),
    ),
    "recogniser": model("recogniser", [TensorSpec("x", "float32", (3, 4))], [TensorSpec("text", "S16", ())]),
    "words": model("words", [TensorSpec("text", "S16", ())], [TensorSpec("known", "bool", ())]),
    "fast": model("fast", [TensorSpec("x", "float32", (3, 8, 8))], [TensorSpec("logits", "float32", (10,))]),
    "slow": model("slow", [TensorSpec("x", "float32", (3, 8, 8))], [TensorSpec("logits", "float32", (10,))]),
    "wide": model("wide", [TensorSpec("x", "float32", (3, 8, 8))], [TensorSpec("logits", "float32", (11,))]),
    "talk": model(
        "talk",
        [TensorSpec("x", "float32", (1,))],
        [TensorSpec("y", "float32", (1,))],
        sequencing=Sequencing(),
    ),
}
READ = {
    "name": "read_text",
    "inputs": ["image"],
    "steps": [
        {"name": "read", "model": "recogniser", "inputs": {"x": "crop.lines"}, "rows": "own", "when": "True"},
        {"name": "find", "model": "detector", "inputs": {"x": "image"}},
        {"name": "crop", "model": "crop", "inputs": {"image": "image", "boxes": "find.boxes"}},
        {"name": "word", "model": "words", "inputs": {"text": "read.text"}},
    ],
    "outputs": {"boxes": "find.boxes", "lines": "crop.lines"},
}
CASCADE = {
    "name": "cascade",
    "inputs": ["image"],
    "steps": [
        {"name": "fast", "model": "fast", "inputs": {"x": "image"}},
        {
            "name": "slow",
            "model": "slow",
            "inputs": {"x": "image"},
            "when": "max(softmax(fast.logits)) < 0.9",
        },
    ],
    "outputs": {"logits": ["slow.logits", "fast.logits"]},
}


def checked(table: dict[str, Any]) -> Graph:
    return check_graph(msgspec.convert(table, GraphSpec), MODELS)


def test_steps_stand_behind_what_they_wait_for() -> None:
    graph = checked(READ)
    assert [step.spec.name for step in graph.steps] == ["find", "crop", "read", "word"]
    assert [step.after for step in graph.steps] == [(), (0,), (1,), (2,)]
    assert [step.certain for step in graph.steps] == [True, True, False, False]
    assert graph.steps[1].takes == (Source(REQUEST, 0), Source(0, 0))


def test_rows_of_its_own_go_on_to_what_stands_behind() -> None:
    graph = checked(READ)
    assert [step.rows_of for step in graph.steps] == [REQUEST, REQUEST, 2, 2]
    assert graph.steps[2].opened == (True,)
    assert graph.steps[3].opened == (False,)
    assert graph.single


def test_a_cascade_waits_for_what_its_condition_names() -> None:
    graph = checked(CASCADE)
    assert graph.steps[1].after == (0,)
    assert graph.outputs[0][1] == (Source(1, 0), Source(0, 0))
    assert not graph.single
    assert [(each.name, each.dtype, each.shape) for each in graph.inputs] == [("image", "float32", (3, 8, 8))]


STEP = CASCADE["steps"][0]  # type: ignore[index]
OWN = READ["steps"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": []}, "has no steps"),
        ({"outputs": {}}, "has no outputs"),
        ({"inputs": ["image", "more"]}, "input 'more' is taken by no step"),
        ({"steps": [STEP, STEP]}, "step 'fast': another input or step has this name"),
        ({"steps": [STEP | {"name": "a-b"}]}, "step 'a-b': a step's name has letters"),
        ({"steps": [STEP | {"model": "fats"}]}, "there is no model 'fats'; did you mean 'fast'?"),
        ({"steps": [STEP | {"inputs": {"y": "image"}}]}, "has no input 'y'"),
        ({"steps": [STEP | {"inputs": {}}]}, "input 'x' of model 'fast' has no source"),
        ({"steps": [STEP | {"inputs": {"x": "imgae"}}]}, "there is no 'imgae'; did you mean 'image'?"),
        ({"steps": [STEP | {"inputs": {"x": "find.x"}}]}, "there is no step 'find'"),
        ({"steps": [STEP, STEP | {"name": "b", "inputs": {"x": "fast.logit"}}]}, "did you mean 'logits'?"),
        (
            {"steps": [STEP, STEP | {"name": "b", "inputs": {"x": "fast.logits"}}]},
            "fast.logits is float32[10] for each row, and input 'x' of model 'fast' is float32[3, 8, 8]",
        ),
        (
            {"steps": [STEP, {"name": "w", "model": "words", "inputs": {"text": "fast.logits"}}]},
            "it has to be S16",
        ),
        ({"steps": [STEP | {"when": "image.x > 1"}]}, "step 'fast', when: column 1: there is no 'image.x'"),
        ({"steps": [STEP | {"when": "True"}]}, "output 'logits' is lacking where fast.logits did not run"),
        ({"steps": [STEP | {"required": False}]}, "output 'logits' is lacking"),
        ({"steps": [STEP | {"default": {"logits": 0}}]}, "has a default, and needs none"),
        ({"steps": [STEP | {"required": False, "default": {"logit": 0}}]}, "has no output 'logit'"),
        ({"steps": [STEP | {"required": False, "default": {"logits": "a"}}]}, "is of float32, not 'a'"),
        ({"steps": [STEP | {"rows": "own"}]}, "input 'image' of the graph has the request's rows"),
        ({"steps": [STEP], "outputs": {"o": "image"}}, "output 'o' is an input of the graph"),
        ({"steps": [STEP], "outputs": {"o": []}}, "output 'o' has no source"),
        (
            {
                "steps": [STEP, STEP | {"name": "b", "model": "wide"}],
                "outputs": {"o": ["fast.logits", "b.logits"]},
            },
            "alternatives have to be alike",
        ),
        ({"steps": [{"name": "t", "model": "talk", "inputs": {"x": "image"}}]}, "has sequences"),
        (
            {"steps": [STEP | {"name": f"s{each}"} for each in range(MOST_STEPS + 1)]},
            f"has {MOST_STEPS + 1} steps, and may have {MOST_STEPS}",
        ),
        (
            {
                "steps": [
                    STEP | {"name": "a", "when": "b.logits[0] > 1"},
                    STEP | {"name": "b", "when": "a.logits[0] > 1"},
                ]
            },
            "the steps wait for one another: a <- b <- a",
        ),
        ({"steps": [STEP | {"when": "fast.logits[0] > 1"}]}, "wait for one another: fast <- fast"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], says: str) -> None:
    table: dict[str, Any] = {
        "name": "g",
        "inputs": ["image"],
        "steps": [STEP],
        "outputs": {"logits": "fast.logits"},
    }
    with pytest.raises(GraphError) as raised:
        checked(table | changes)
    assert says in str(raised.value)


def test_own_rows_do_not_meet_the_requests() -> None:
    steps = [each for each in READ["steps"] if each["name"] != "word"]  # type: ignore[index]
    mixed = {"name": "mix", "model": "crop", "inputs": {"image": "image", "boxes": "more.boxes"}}
    more = {"name": "more", "model": "detector", "inputs": {"x": "image"}}
    models = MODELS | {
        "pair": model(
            "pair", [TensorSpec("a", "S16", ()), TensorSpec("b", "int64", ())], [TensorSpec("c", "bool", ())]
        )
    }
    pair = {"name": "pair", "model": "pair", "inputs": {"a": "read.text", "b": "find.count"}}
    table = READ | {"steps": [*steps, mixed, more, pair]}
    with pytest.raises(
        GraphError, match=r"takes rows of 'read' beside 'find.count', which has the request's"
    ):
        check_graph(msgspec.convert(table, GraphSpec), models)
    twice = OWN | {"name": "again"}
    meets = {"name": "meets", "model": "both", "inputs": {"a": "read.text", "b": "again.text"}}
    models["both"] = model(
        "both", [TensorSpec("a", "S16", ()), TensorSpec("b", "S16", ())], [TensorSpec("c", "bool", ())]
    )
    with pytest.raises(GraphError, match="takes rows of 'read' and 'again', which need not be as many"):
        check_graph(msgspec.convert(READ | {"steps": [*steps, twice, meets]}, GraphSpec), models)


@given(st.data(), st.integers(1, 8))
def test_any_order_of_steps_is_the_same_graph(data: st.DataObject, count: int) -> None:
    """Each step takes outputs of earlier ones, in whatever order they are written."""
    square = TensorSpec("y", "float32", (2,))
    models = {"m": model("m", [TensorSpec("x", "float32", (2,))], [square])}
    steps = []
    for place in range(count):
        sources = ["image", *(f"s{each}.y" for each in range(place))]
        steps.append(StepSpec(name=f"s{place}", model="m", inputs={"x": data.draw(st.sampled_from(sources))}))
    shuffled = data.draw(st.permutations(steps))
    spec = GraphSpec(name="g", inputs=("image",), steps=tuple(shuffled), outputs={"o": f"s{count - 1}.y"})
    graph = check_graph(spec, models)
    assert sorted(step.spec.name for step in graph.steps) == sorted(each.name for each in steps)
    for place, step in enumerate(graph.steps):
        assert all(each < place for each in step.after)
        expected = {source.partition(".")[0] for source in step.spec.inputs.values()} - {"image"}
        assert {graph.steps[each].spec.name for each in step.after} == expected
