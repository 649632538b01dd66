"""A query of a graph: steps begin with the right rows, and the answer is what each row alone would give."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.graphs.checking import Graph, GraphError, check_graph
from mainspring.gateway.graphs.flow import Begin, Flow, FlowError, combined
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.model import ModelSpec, TensorSpec
from tests.gateway.graphs.test_checking import CASCADE, MODELS, READ, model

ONE = TensorSpec("y", "float64", ())
PLAIN = {
    "up": model("up", [TensorSpec("a", "float64", ())], [ONE]),
    "join": model("join", [TensorSpec("a", "float64", ()), TensorSpec("b", "float64", ())], [ONE]),
}


def computed(begin: Begin, graph: Graph) -> np.ndarray[Any, Any]:
    """What the models of `PLAIN` return."""
    if graph.steps[begin.step].spec.model == "up":
        return begin.arrays[0] + 1
    return begin.arrays[0] * 2 - begin.arrays[1]


@st.composite
def graphs(draw: st.DrawFn) -> GraphSpec:
    """Steps that take earlier ones, some under a condition; an output has alternatives."""
    steps: list[StepSpec] = []
    for place in range(draw(st.integers(1, 6))):
        sources = ["image", *(f"{step.name}.y" for step in steps)]
        name = draw(st.sampled_from(["up", "join"]))
        inputs = {each.name: draw(st.sampled_from(sources)) for each in PLAIN[name].inputs}
        when = draw(st.sampled_from(["", "", "{} > 2", "{} % 2 == 0", "not {} > 0"]))
        steps.append(
            StepSpec(
                name=f"s{place}",
                model=name,
                inputs=inputs,
                when=when.format(draw(st.sampled_from(sources[1:] or ["1"]))),
                required=draw(st.booleans()),
            )
        )
    steps.append(StepSpec(name="last", model="up", inputs={"a": "image"}))
    alternatives = (*(f"{draw(st.sampled_from(steps)).name}.y" for _ in range(2)), "last.y")
    return GraphSpec(name="g", inputs=("image",), steps=tuple(steps), outputs={"o": alternatives})


def alone(spec: GraphSpec, value: float, missing: set[str]) -> float:
    """What one row gives, computed the plain way; ``missing``: steps that are not there for any row."""
    known: dict[str, float] = {"image": value}
    for step in spec.steps:
        named = [name for name in known if name in step.when]
        needed = [*step.inputs.values(), *(f"s{each}.y" for each in range(9) if f"s{each}.y" in step.when)]
        if step.name in missing or any(name not in known for name in needed):
            continue
        text = step.when
        for name in named:
            text = text.replace(name, repr(known[name]))
        if text and not eval(text):
            continue
        given_ = [known[step.inputs[each.name]] for each in PLAIN[step.model].inputs]
        known[f"{step.name}.y"] = given_[0] + 1 if step.model == "up" else given_[0] * 2 - given_[1]
    return next(known[source] for source in spec.outputs["o"] if source in known)


@given(st.data(), graphs(), st.lists(st.integers(-3, 6).map(float), min_size=1, max_size=6))
def test_each_row_gets_what_it_would_get_alone(
    data: st.DataObject, spec: GraphSpec, values: list[float]
) -> None:
    graph = check_graph(spec, PLAIN)
    flow = Flow(graph, len(values), [np.array(values)])
    waiting, missing = flow.begin(), set()
    began = []
    while waiting:
        begin = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        began.append(begin.step)
        step = graph.steps[begin.step].spec
        assert all(len(array) == begin.rows for array in begin.arrays)
        if not step.required and data.draw(st.booleans()):
            missing.add(step.name)
            waiting += flow.missed(begin.step)
        else:
            waiting += flow.ended(begin.step, [computed(begin, graph)])
    assert not flow.outstanding
    assert len(began) == len({*began})
    assert {*began} | flow.skipped == {*range(len(graph.steps))}
    (found,) = flow.answer()
    assert found.tolist() == [alone(spec, value, missing) for value in values]


def graph_of(table: dict[str, Any], models: dict[str, ModelSpec] = MODELS) -> Graph:
    return check_graph(msgspec.convert(table, GraphSpec), models)


def test_a_step_of_all_rows_gets_the_very_array() -> None:
    image = np.zeros((2, 3, 8, 8), np.float32)
    flow = Flow(graph_of(CASCADE), 2, [image])
    (fast,) = flow.begin()
    assert fast.arrays[0] is image
    sure, unsure = np.zeros((1, 10), np.float32), np.zeros((1, 10), np.float32)
    sure[0, 4] = 50
    logits = np.concatenate([sure, unsure])
    (slow,) = flow.ended(fast.step, [logits])
    assert slow.rows == 1
    answer = np.ones((1, 10), np.float32)
    assert flow.ended(slow.step, [answer]) == []
    (found,) = flow.answer()
    assert np.array_equal(found, np.concatenate([sure, answer]))


def test_rows_that_take_no_part_cost_nothing() -> None:
    flow = Flow(graph_of(CASCADE), 1, [np.zeros((1, 3, 8, 8), np.float32)])
    (fast,) = flow.begin()
    logits = np.zeros((1, 10), np.float32)
    logits[0, 1] = 50
    assert flow.ended(fast.step, [logits]) == []
    assert not flow.outstanding
    assert flow.answer()[0] is logits


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_lines_of_a_picture_become_rows(count: int) -> None:
    table = READ | {"outputs": {"lines": "crop.lines"}}
    flow = Flow(graph_of(table), 1, [np.zeros((1, 3, 8, 8), np.float32)])
    (find,) = flow.begin()
    (crop,) = flow.ended(find.step, [np.zeros((1, count, 4), np.float32), np.array([count])])
    lines = np.arange(count * 12, dtype=np.float32).reshape(1, count, 3, 4)
    following = flow.ended(crop.step, [lines, np.array([count])])
    if not count:
        assert following == []
    else:
        (read,) = following
        assert read.rows == count
        assert np.array_equal(read.arrays[0], lines[0])
        (word,) = flow.ended(read.step, [np.array([b"a"] * count, "S16")])
        assert word.rows == count
        flow.ended(word.step, [np.ones(count, bool)])
    assert not flow.outstanding


def test_too_many_rows_of_its_own_are_said() -> None:
    flow = Flow(graph_of(READ), 1, [np.zeros((1, 3, 8, 8), np.float32)])
    (find,) = flow.begin()
    (crop,) = flow.ended(find.step, [np.zeros((1, 1, 4), np.float32), np.array([1])])
    with pytest.raises(FlowError, match="step 'read' would have 10001 rows, and may have 10000"):
        flow.ended(crop.step, [np.zeros((1, 10_001, 3, 4), np.float32), np.array([1])])


def test_a_default_stands_for_what_is_missing() -> None:
    steps = [
        {
            "name": "fast",
            "model": "fast",
            "inputs": {"x": "image"},
            "required": False,
            "default": {"logits": -1},
        }
    ]
    flow = Flow(
        graph_of({"name": "g", "inputs": ["image"], "steps": steps, "outputs": {"o": "fast.logits"}}),
        2,
        [np.zeros((2, 3, 8, 8), np.float32)],
    )
    (fast,) = flow.begin()
    assert flow.missed(fast.step) == []
    assert flow.missing == {0}
    assert np.array_equal(flow.answer()[0], np.full((2, 10), -1, np.float32))


def test_members_become_one_answer() -> None:
    a, b, c = np.array([[1, 2.0]]), np.array([[3, 2.0]]), np.array([[3, 5.0]])
    assert combined("mean", [a, b], [1, 3]).tolist() == [[2.5, 2.0]]
    assert combined("majority", [a, b, c], [1, 1, 1]).tolist() == [[3.0, 2.0]]
    assert combined("majority", [a, c], [1, 2]).tolist() == [[3.0, 5.0]]
    assert combined("majority", [a, c], [1, 1]).tolist() == a.tolist()
    assert combined("concat", [a, b], [1, 1]).tolist() == [[1, 2, 3, 2]]
    assert combined("first", [b, a], [1, 1]) is b
    assert (
        combined("majority", [np.array([[b"x"]]), np.array([[b"y"]]), np.array([[b"y"]])], [1, 1, 1]) == b"y"
    )


ENSEMBLE: dict[str, Any] = {
    "name": "all",
    "inputs": ["image"],
    "steps": [
        {"name": "fast", "model": "fast", "inputs": {"x": "image"}},
        {"name": "slow", "model": "slow", "inputs": {"x": "image"}, "weight": 3},
        {"name": "wide", "model": "wide", "inputs": {"x": "image"}},
    ],
    "outputs": {"mean": ["fast.logits", "slow.logits"], "wide": "wide.logits"},
    "combine": "mean",
}
FAST, SLOW, WIDE = ENSEMBLE["steps"]
TWO = ENSEMBLE | {"steps": [FAST, SLOW], "outputs": {"mean": ["fast.logits", "slow.logits"]}}


@pytest.mark.parametrize(("missing", "mean"), [((), 2.5), ((0,), 3.0), ((1,), 1.0)])
def test_an_ensemble_answers_with_the_members_that_are_there(missing: tuple[int, ...], mean: float) -> None:
    flow = Flow(graph_of(TWO), 1, [np.zeros((1, 3, 8, 8), np.float32)])
    for begin in flow.begin():
        if begin.step in missing:
            assert flow.missed(begin.step) == []
        else:
            assert flow.ended(begin.step, [np.full((1, 10), (1.0, 3.0)[begin.step], np.float32)]) == []
    assert np.array_equal(flow.answer()[0], np.full((1, 10), mean, np.float32))


def test_an_ensemble_with_too_few_members_is_said() -> None:
    flow = Flow(graph_of(TWO | {"least": 2}), 1, [np.zeros((1, 3, 8, 8), np.float32)])
    fast, slow = flow.begin()
    flow.ended(fast.step, [np.zeros((1, 10), np.float32)])
    flow.missed(slow.step)
    with pytest.raises(FlowError, match="output 'mean' has 1 of at least 2 members"):
        flow.answer()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"least": 4}, "least is 4; it has to be from 1 to 3"),
        ({"outputs": {"mean": ["fast.logits", "slow.logits"]}}, "step 'wide' of an ensemble is a part of no"),
        ({"outputs": {"a": "slow.logits", "b": ["fast.logits", "wide.logits"]}}, "have to be alike"),
        ({"steps": [FAST | {"when": "True"}, SLOW, WIDE]}, "step 'fast' of an ensemble waits for another"),
        ({"steps": [FAST | {"weight": 0}, SLOW, WIDE]}, "a weight is a number above 0, not 0"),
    ],
)
def test_what_is_no_ensemble_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        graph_of(ENSEMBLE | changes)


def test_members_of_unlike_widths_are_put_behind_one_another() -> None:
    sources = ["fast.logits", "slow.logits", "wide.logits"]
    table = ENSEMBLE | {"combine": "concat", "outputs": {"all": sources}}
    assert graph_of(table).outputs[0][0].shape == (31,)
