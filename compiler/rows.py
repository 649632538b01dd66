"""Nodes besides Reshape where an exporter leaves its batch: Resize, Expand and Concat.

A node is repaired only if the shapes around it prove the number's meaning: the input's first axis is the
batch, and the node keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from mainspring.compiler.contents import array_of

Shape = list[int | str]


class RowRepair:
    """Finds such nodes in a graph and replaces the batch in them by the number of rows at run time."""

    def __init__(self, graph: onnx.GraphProto, known: Mapping[str, Shape], rows: int, batch: str) -> None:
        self._graph = graph
        self._known = known
        self._rows = rows
        self._batch = batch
        self._constants = {tensor.name: tensor for tensor in graph.initializer}

    def run(self) -> dict[str, list[int]]:
        """Repair proven nodes; return their outputs with the dimensions after the batch."""
        done: dict[str, list[int]] = {}
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            before: list[onnx.NodeProto] = []
            if node.op_type == "Resize":
                before = self._resize(node, done)
            elif node.op_type == "Expand":
                self._expand(node, done)
            elif node.op_type == "Concat":
                before = self._concat(node, done)
            nodes += [*before, node]
        if len(nodes) > len(self._graph.node):
            del self._graph.node[:]
            self._graph.node.extend(nodes)
        return done

    def _resize(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> list[onnx.NodeProto]:
        """A Resize to constant sizes of which the first is the batch."""
        row = self._row(node.input[0])
        sizes = self._integers(node.input[3]) if len(node.input) == 4 else None
        plain = not any(attribute.name == "axes" for attribute in node.attribute)
        if row is None or sizes is None or not plain or sizes[:1] != [self._rows]:
            return []
        if len(sizes) != len(row) + 1:
            return []
        node.input[3], before = self._with_rows(node, node.input[0], sizes[1:])
        done[node.output[0]] = sizes[1:]
        return before

    def _expand(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> None:
        """An Expand of a batch to a constant shape of the same rank: a leading 1 keeps the batch."""
        row, shape = self._row(node.input[0]), self._integers(node.input[1])
        if (
            row is None
            or shape is None
            or len(shape) != len(row) + 1
            or shape[0] != self._rows
            or shape[0] == 1
        ):
            return
        node.input[1] = self._add(node, "shape", np.array([1, *shape[1:]], np.int64))
        done[node.output[0]] = [max(pair) for pair in zip(row, shape[1:], strict=True)]

    def _concat(self, node: onnx.NodeProto, done: dict[str, list[int]]) -> list[onnx.NodeProto]:
        """A Concat of batches and constants: a constant's row, if all its rows are equal, is every row's."""
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        batches = [name for name in node.input if self._row(name) is not None]
        constants = [name for name in node.input if name in self._constants]
        if not batches or not constants or len(batches) + len(constants) < len(node.input):
            return []
        rank = len(self._known[batches[0]])
        if axis in (0, -rank):
            return []
        before: list[onnx.NodeProto] = []
        for position, name in enumerate(node.input):
            if name not in self._constants:
                continue
            array = array_of(self._constants[name])
            if (
                array.ndim != rank
                or len(array) != self._rows
                or not np.array_equal(array, array[:1].repeat(len(array), 0))
            ):
                return []
            single = self._add(node, f"row{position}", np.ascontiguousarray(array[:1]))
            shape, nodes = self._with_rows(node, batches[0], list(array.shape[1:]), f"{position}")
            expanded = f"{node.output[0]}:expanded{position}"
            expand = helper.make_node(
                "Expand", [single, shape], [expanded], name=f"{node.name}:expand{position}"
            )
            before += [*nodes, expand]
            node.input[position] = expanded
        parts = [self._row(name) or [] for name in batches]
        parts += [list(self._constants[name].dims)[1:] for name in constants]
        row = list(parts[0])
        row[axis % rank - 1] = sum(part[axis % rank - 1] for part in parts)
        done[node.output[0]] = row
        return before

    def _with_rows(
        self, node: onnx.NodeProto, like: str, rest: list[int], suffix: str = ""
    ) -> tuple[str, list[onnx.NodeProto]]:
        """Return the name of a shape with the first dimension of ``like``, and the nodes that make it."""
        prefix = f"{node.name}:{node.output[0]}:{suffix}"
        first = self._add(node, f"first{suffix}", np.zeros(1, np.int64))
        others = self._add(node, f"rest{suffix}", np.array(rest, np.int64))
        return f"{prefix}whole", [
            helper.make_node("Shape", [like], [f"{prefix}shape"], name=f"{prefix}shape"),
            helper.make_node("Gather", [f"{prefix}shape", first], [f"{prefix}rows"], name=f"{prefix}rows"),
            helper.make_node(
                "Concat", [f"{prefix}rows", others], [f"{prefix}whole"], name=f"{prefix}whole", axis=0
            ),
        ]

    def _add(self, node: onnx.NodeProto, what: str, array: npt.NDArray[np.generic]) -> str:
        name = f"{node.name}:{node.output[0]}:{what}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _row(self, name: str) -> list[int] | None:
        """Return one row's dimensions if the first axis is the batch and the others are known."""
        shape = self._known.get(name)
        if not shape or shape[0] != self._batch:
            return None
        row = [dim for dim in shape[1:] if isinstance(dim, int)]
        return row if len(row) == len(shape) - 1 else None

    def _integers(self, name: str) -> list[int] | None:
        tensor = self._constants.get(name)
        return None if tensor is None else array_of(tensor).astype(np.int64).reshape(-1).tolist()
