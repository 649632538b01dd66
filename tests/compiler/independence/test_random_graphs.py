"""What the rules call proven gives the same rows alone and beside others, in seeded random graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.independence.walk import why_rows_mix

ROWS = 5
GRAPHS = 60


class Growing:
    """A graph that grows by random nodes on random values."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        # Shapes with 0 for the number of rows.
        self.shapes: dict[str, tuple[int, ...]] = {"x": (0, 4, 6), "z": (0, 6)}

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, operator: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"{operator}_{name}", **attributes))
        self.shapes[name] = shape

    def grow(self) -> None:
        name = str(self.random.choice(list(self.shapes)))
        shape = self.shapes[name]
        kind = str(self.random.choice([each for each in dir(self) if each.startswith("grow_")]))
        getattr(self, kind)(name, shape)

    def grow_elementwise(self, name: str, shape: tuple[int, ...]) -> None:
        self.add(str(self.random.choice(["Relu", "Tanh", "Abs", "Neg"])), [name], shape)

    def grow_sum(self, name: str, shape: tuple[int, ...]) -> None:
        others = [each for each, dims in self.shapes.items() if dims == shape]
        self.add(
            str(self.random.choice(["Add", "Mul", "Max"])), [name, str(self.random.choice(others))], shape
        )

    def grow_weighted(self, name: str, shape: tuple[int, ...]) -> None:
        dims = [1 if dim <= 0 or self.random.random() < 0.3 else dim for dim in shape]
        self.add("Mul", [name, self.weight(self.random.standard_normal(dims).astype(np.float32))], shape)

    def grow_transpose(self, name: str, shape: tuple[int, ...]) -> None:
        order = [int(axis) for axis in self.random.permutation(len(shape))]
        self.add("Transpose", [name], tuple(shape[axis] for axis in order), perm=order)

    def grow_reduce(self, name: str, shape: tuple[int, ...]) -> None:
        axis = int(self.random.integers(len(shape)))
        if len(shape) > 1:
            operator = str(self.random.choice(["ReduceMax", "ReduceMean"]))
            self.add(operator, [name], shape[:axis] + shape[axis + 1 :], axes=[axis], keepdims=0)

    def grow_softmax(self, name: str, shape: tuple[int, ...]) -> None:
        self.add("Softmax", [name], shape, axis=int(self.random.integers(len(shape))))

    def grow_running_sum(self, name: str, shape: tuple[int, ...]) -> None:
        axis = self.weight(np.array(self.random.integers(len(shape)), np.int64))
        self.add("CumSum", [name, axis], shape)

    def grow_matmul(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) > 1 and shape[-1]:
            weight = self.weight(self.random.standard_normal((shape[-1], 3)).astype(np.float32))
            self.add("MatMul", [name, weight], (*shape[:-1], 3))

    def grow_product(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) == 3:
            self.add("Transpose", [name], (shape[0], shape[2], shape[1]), perm=[0, 2, 1])
            turned = list(self.shapes)[-1]
            self.add("MatMul", [name, turned], (shape[0], shape[1], shape[1]))

    def grow_merge(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) == 3 and shape[0] == 0:
            self.add(
                "Reshape", [name, self.weight(np.array([-1, shape[2]], np.int64))], (-shape[1], shape[2])
            )

    def grow_part(self, name: str, shape: tuple[int, ...]) -> None:
        if shape[0] < 0:
            target = self.weight(np.array([-1, -shape[0], *shape[1:]], np.int64))
            self.add("Reshape", [name, target], (0, -shape[0], *shape[1:]))

    def grow_concat(self, name: str, shape: tuple[int, ...]) -> None:
        axis = int(self.random.integers(len(shape)))
        if shape[axis] > 0:
            self.add("Concat", [name, name], (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), axis=axis)

    def grow_counted_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if shape[0] or len(shape) < 2 or not all(dim > 0 for dim in shape[1:]):
            return
        rows, whole = f"{name}_rows{len(self.nodes)}", f"{name}_whole{len(self.nodes)}"
        elements = int(np.prod(shape[1:]))
        self.nodes.append(helper.make_node("Shape", [name], [f"{rows}_all"]))
        first = self.weight(np.array([0], np.int64))
        self.nodes.append(helper.make_node("Gather", [f"{rows}_all", first], [rows]))
        rest = self.weight(np.array([elements], np.int64))
        self.nodes.append(helper.make_node("Concat", [rows, rest], [whole], axis=0))
        self.add("Reshape", [name, whole], (0, elements))

    def grow_scaled_by_all(self, name: str, shape: tuple[int, ...]) -> None:
        self.add("ReduceMax", [name], (1,) * len(shape), keepdims=1)
        self.add("Div", [name, list(self.shapes)[-1]], shape)

    def model(self) -> onnx.ModelProto:
        """Return the model whose outputs are all values with the rows in front."""
        outputs = [name for name, shape in self.shapes.items() if name[0] == "v" and shape[0] == 0]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 6]),
                helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 6]),
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def only(model: onnx.ModelProto, output: onnx.ValueInfoProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.append(output)
    return copy


def rows_of(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    scales = np.array([1, 50, 0.02, 7, 1], np.float32)
    return {
        "x": (random.standard_normal((ROWS, 4, 6)) * scales[:, None, None]).astype(np.float32),
        "z": (random.standard_normal((ROWS, 6)) * scales[:, None]).astype(np.float32),
    }


@pytest.mark.parametrize("first", range(0, GRAPHS, 15))
def test_what_is_proven_gives_the_same_rows_alone_and_beside_others(first: int) -> None:
    proven = refused = 0
    for seed in range(first, first + 15):
        growing = Growing(seed)
        for _ in range(14):
            growing.grow()
        model = growing.model()
        if not model.graph.output:
            continue
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        inputs = rows_of(seed)
        together = session.run(None, inputs)
        alone = [
            session.run(None, {name: array[row : row + 1] for name, array in inputs.items()})
            for row in range(ROWS)
        ]
        for place, output in enumerate(model.graph.output):
            if why_rows_mix(only(model, output)):
                refused += 1
                continue
            proven += 1
            for row in range(ROWS):
                np.testing.assert_allclose(
                    together[place][row],
                    alone[row][place][0],
                    rtol=1e-4,
                    atol=1e-5 * float(np.abs(alone[row][place]).max(initial=1.0)),
                    err_msg=f"seed {seed}, output {output.name}",
                )
    assert proven > refused > 0, "the graphs should show both"
