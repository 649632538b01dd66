from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.artifact.errors import CompileError, NoRows
from mainspring.compiler.reading.normalise import normalise
from mainspring.messages import MOST_TENSORS

MakeModel = Callable[..., onnx.ModelProto]


def test_initializers_that_are_listed_as_inputs_are_no_inputs(make_mlp: MakeModel) -> None:
    model = make_mlp(1)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.dims))
        )
    model.ir_version = 3
    normal = normalise(model)
    assert [value.name for value in normal.graph.input] == ["x"]
    assert normal.ir_version >= 4


def test_the_model_itself_is_not_changed(make_mlp: MakeModel) -> None:
    model = make_mlp(1)
    before = model.SerializeToString(deterministic=True)
    normalise(model)
    assert model.SerializeToString(deterministic=True) == before


def test_constants_become_initializers(make_model: MakeModel) -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(np.full(4, 2, np.float32))),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node(
            "ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.full(1, 3, np.float32))
        ),
        helper.make_node("Sum", ["x", "a", "b", "c"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, {"s": np.array([4], np.int64)})
    normal = normalise(model)
    assert [node.op_type for node in normal.graph.node] == ["Sum"]
    values = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in normal.graph.initializer}
    assert values == {"s": [4], "a": [2] * 4, "b": [1, 2, 3, 4], "c": [3] * 4}


def test_functions_are_inlined(make_model: MakeModel) -> None:
    model = make_model(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")], {"x": ["n", 2]}, {"y": ["n", 2]}
    )
    body = [helper.make_node("Add", ["v", "v"], ["w"])]
    model.functions.append(
        helper.make_function("mine", "Twice", ["v"], ["w"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert [node.op_type for node in normalise(model).graph.node] == ["Add"]


def test_control_flow_is_refused_by_the_name_of_its_node(make_model: MakeModel) -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "b", [], [helper.make_tensor_value_info("z", 1, None)]
    )
    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=branch)
    model = make_model([node], {"x": ["n", 2]}, {"y": ["n", 2]}, {"c": np.array(True)})
    with pytest.raises(CompileError, match=r"node 'choose' \(If\) is control flow"):
        normalise(model)


@pytest.mark.parametrize("operator", ["Loop", "If"])
def test_loops_are_refused_even_inside_functions(make_model: MakeModel, operator: str) -> None:
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "b", [], [value])
    loop = helper.make_node(operator, ["x"], ["y"], name="again", body=body)
    model = make_model(
        [helper.make_node("Mine", ["x"], ["y"], domain="mine")], {"x": ["n", 2]}, {"y": ["n", 2]}
    )
    imports = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("mine", "Mine", ["x"], ["y"], [loop], imports))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(CompileError, match=rf"again.*\({operator}\) is control flow"):
        normalise(model)


def test_rows_do_not_share_what_draws_random_numbers(make_model: MakeModel) -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")
    model = make_model([node], {"x": [1, 2]}, {"y": [1, 2]})
    with pytest.raises(NoRows, match=r"node 'noise' .* draws random numbers"):
        normalise(model)
    assert normalise(model, whole=True)


def test_a_dynamic_dimension_is_refused_with_how_to_fix_it(make_model: MakeModel) -> None:
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", "length"]}, {"y": ["n", "length"]}
    )
    with pytest.raises(
        CompileError, match=r"dimension 1 of input 'x' is dynamic \(length\).*--shape x=1,length"
    ):
        normalise(model)


def test_inputs_without_rows_and_without_numbers_are_refused(make_model: MakeModel) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    with pytest.raises(CompileError, match="input 'x' has no axis for the rows"):
        normalise(make_model([node], {"x": []}, {"y": []}))
    with pytest.raises(
        CompileError, match=r"'x' is tensor\(complex64\); inputs and outputs must be dense.*cast it"
    ):
        normalise(make_model([node], {"x": ["n"]}, {"y": ["n"]}, element=TensorProto.COMPLEX64))


def test_a_model_without_inputs_is_refused(make_model: MakeModel) -> None:
    model = make_model(
        [helper.make_node("Relu", ["a"], ["y"])], {}, {"y": [2]}, {"a": np.zeros(2, np.float32)}
    )
    with pytest.raises(CompileError, match="the model has no input, so it would answer every request alike"):
        normalise(model)


def test_an_output_without_a_type_gets_the_one_that_follows(make_model: MakeModel) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]})
    model.graph.output[0].ClearField("type")
    (output,) = normalise(model).graph.output
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT
    model.graph.node[0].domain = "unknown"
    with pytest.raises(CompileError, match="'y' is of no type, and none follows from the graph"):
        normalise(model)


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_a_request_has_a_bounded_number_of_tensors(make_model: MakeModel, kind: str) -> None:
    many = [f"v{each}" for each in range(MOST_TENSORS + 1)]

    def wide(names: list[str]) -> onnx.ModelProto:
        shapes: dict[str, list[Any]] = {name: ["n", 1] for name in names}
        if kind == "inputs":
            return make_model([helper.make_node("Sum", names, ["y"])], shapes, {"y": ["n", 1]})
        return make_model([helper.make_node("Split", ["x"], names, axis=1)], {"x": ["n", len(names)]}, shapes)

    assert normalise(wide(many[1:]))
    with pytest.raises(CompileError, match=f"the model has 1,001 {kind}, and .* at most 1,000 tensors"):
        normalise(wide(many))


def test_nodes_in_another_order_are_sorted_in_inner_graphs_too(make_model: MakeModel) -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    inner = helper.make_graph(
        [helper.make_node("Relu", ["b"], ["z"]), helper.make_node("Neg", ["a"], ["b"])],
        "inner",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["c"], ["w"], then_branch=inner, else_branch=inner)
    model = make_model([branch, *nodes], {"x": ["n", 4], "c": [1]}, {"y": ["n", 4], "w": ["n", 4]})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    graph = normalise(model, whole=True, symbols=True).graph
    kinds = [node.op_type for node in graph.node if node.op_type in ("If", "Relu", "Neg")]
    assert kinds.index("Neg") < min(kinds.index("If"), kinds.index("Relu"))
    chosen = next(node for node in graph.node if node.op_type == "If")
    assert [node.op_type for node in chosen.attribute[0].g.node] == ["Neg", "Relu"]


def test_functions_that_call_themselves_are_refused(make_model: MakeModel) -> None:
    model = make_model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": ["n"]}, {"y": ["n"]})
    again = helper.make_node("F", ["a"], ["b"], domain="own")
    model.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], [again], [helper.make_opsetid("own", 1)])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(CompileError, match=r"can't be put in the place of their calls: .*recursive"):
        normalise(model)
