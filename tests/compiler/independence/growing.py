"""Small random graphs: the batch arranged in any way, then an operator with random attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.independence.step import Rows, Value
from mainspring.compiler.independence.walk import follow

INPUTS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x": (TensorProto.FLOAT, (4, 6)),
    "y": (TensorProto.FLOAT, (4, 6)),
    "z": (TensorProto.FLOAT, (6,)),
    "image": (TensorProto.FLOAT, (2, 4, 4)),
    "places": (TensorProto.INT64, (4, 2)),
    "lengths": (TensorProto.INT64, ()),
}
"""Element type and dimensions of a row of each input; integers are below `MOST`."""
MOST = 4
Case = Callable[["Growing"], object]
CASES: dict[str, Case] = {}
"""Each adds one node with random attributes and operands to a graph; `LookupError` if it has none for it."""

_REARRANGED = ("transpose", "merge", "part", "unsqueeze", "slice")


def case(function: Case) -> Case:
    """Register a case by its name."""
    CASES[function.__name__] = function
    return function


class Growing:
    """A graph of one seed."""

    def __init__(self, seed: int, opset: int = 17) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def one_of(self, choices: Any) -> Any:
        """Return one of them."""
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, probability: float = 0.5) -> bool:
        """Return True as often as ``probability`` says."""
        return bool(self.random.random() < probability)

    def floats(self, *shape: int) -> str:
        """Return random weights of this shape."""
        return self.weight(self.random.standard_normal(shape).astype(np.float32))

    def integers(self, *items: int) -> str:
        """Return these numbers as a list."""
        return self.weight(np.array(items, np.int64))

    def weight(self, array: Any) -> str:
        """Return the name of a new initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; return its first output's name."""
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, names, name, **attributes))
        return names[0]

    def known(self) -> dict[str, Value]:
        """Return what the rules say of each value."""
        return follow(self.model())

    def rows(self, name: str) -> Rows:
        """Return what is known of a value with rows; LookupError if it is not proven."""
        value = self.known()[name]
        if not isinstance(value, Rows) or any(dim is None for dim in value.shape):
            raise LookupError(name)
        return value

    def source(self, *ranks: int, arranged: float = 0.6, of: str = "") -> str:
        """Return a value with rows of one of these ranks, whose batch axis may have been moved and merged."""
        for _ in range(20):
            name = of or str(self.one_of(["x", "y", "z", "image"]))
            while self.chance(arranged):
                name = getattr(self, f"_{self.one_of(_REARRANGED)}")(name)
            if not ranks or self.rows(name).rank in ranks:
                return name
        raise LookupError("no value of this rank")

    def axis(self, name: str) -> int:
        """Return a random axis of a value, counted from the front or the back."""
        rank = self.rows(name).rank
        return int(self.random.integers(-rank, rank))

    def dims(self, name: str) -> list[int]:
        """Return a value's dimensions, with 1 for the batch."""
        return [dim if isinstance(dim, int) else 1 for dim in self.rows(name).shape]

    def _transpose(self, name: str) -> str:
        order = self.random.permutation(self.rows(name).rank)
        return self.add("Transpose", name, perm=[int(axis) for axis in order])

    def _merge(self, name: str) -> str:
        dims = self.dims(name)
        axis = self.rows(name).axis
        if axis and self.chance():
            return self.add("Reshape", name, self.integers(*dims[: axis - 1], -1, *dims[axis + 1 :]))
        if axis == len(dims) - 1:
            return name
        return self.add("Reshape", name, self.integers(*dims[:axis], -1, *dims[axis + 2 :]))

    def _part(self, name: str) -> str:
        value = self.rows(name)
        dims = self.dims(name)
        if value.inner > 1 and self.chance():
            return self.add(
                "Reshape", name, self.integers(*dims[: value.axis], -1, value.inner, *dims[value.axis + 1 :])
            )
        if value.outer > 1:
            return self.add(
                "Reshape", name, self.integers(*dims[: value.axis], value.outer, -1, *dims[value.axis + 1 :])
            )
        whole = self.add("Concat", self._count(name, value.axis), self.integers(-1), axis=0)
        return self.add("Reshape", name, whole)

    def _count(self, name: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", name), self.integers(axis))

    def _unsqueeze(self, name: str) -> str:
        rank = self.rows(name).rank
        return self.add("Unsqueeze", name, self.integers(int(self.random.integers(-rank - 1, rank + 1))))

    def _slice(self, name: str) -> str:
        axis = self.axis(name)
        bounds = self.one_of([(0, 2**62), (0, 3), (1, 4), (0, 4)])
        return self.add("Slice", name, *(self.integers(bound) for bound in bounds), self.integers(axis))

    def model(self, outputs: list[str] | None = None) -> onnx.ModelProto:
        """Return the model with these outputs."""
        graph = helper.make_graph(
            self.nodes,
            "random",
            [
                helper.make_tensor_value_info(name, element, ["batch", *row])
                for name, (element, row) in INPUTS.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs or []],
            self.weights,
        )
        domains = {"": self.opset, "com.microsoft": 1, "ai.onnx.ml": 3}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def pool_of_rows(seed: int, rows: int) -> dict[str, NDArray[Any]]:
    """Return rows of unlike scales, of which the last two hold infinities and NaN."""
    random = np.random.default_rng(seed)
    scales = np.resize(np.array([1, 50, 0.02, 7], np.float32), rows)
    pool: dict[str, NDArray[Any]] = {}
    for name, (element, row) in INPUTS.items():
        if element == TensorProto.INT64:
            pool[name] = random.integers(0, MOST, (rows, *row))
            continue
        values = random.standard_normal((rows, *row)) * scales.reshape(-1, *[1] * len(row))
        values[-1] = np.where(random.random(row) < 0.3, np.nan, 1e30)
        values[-2] = np.where(random.random(row) < 0.3, np.inf, -3e38)
        pool[name] = values.astype(np.float32)
    return pool
