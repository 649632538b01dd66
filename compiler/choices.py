"""Single integers of a request that decide which branch of a model runs, as a sampling rate does.

Branches may run at unlike sizes, so a model is tried with each number that its graph compares such an input
with, where it does not run with others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.normalise import all_nodes
from mainspring.compiler.samples import PASSED_ON
from mainspring.messages.model import TensorSpec, array_dtype

Arrays = list[npt.NDArray[np.generic]]
Run = Callable[[Arrays], Arrays]

_AROUND = {
    "Equal": (0,),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), (-1, 0, 1)),
}
"""Numbers beside a constant that have answers of their own, relative to it, by comparison."""
_MOST_WAYS = 15


class Choices:
    """The values that single integers may need to have for a model to run."""

    def __init__(self, inputs: Sequence[TensorSpec], numbers: Mapping[str, Sequence[int]]) -> None:
        """``numbers`` are those that inputs are compared with, by name; only single elements count."""
        known = [
            [None, *numbers.get(spec.name, ())]
            if math.prod(spec.shape) == 1 and array_dtype(spec.dtype).kind in "biu"
            else [None]
            for spec in inputs
        ]
        found = (
            {index: number for index, number in enumerate(each) if number is not None}
            for each in itertools.product(*known)
        )
        self.ways = tuple(itertools.islice((way for way in found if way), _MOST_WAYS))
        """Numbers by the input's index."""

    def first(self, run: Run, arrays: Arrays) -> Arrays:
        """Return the outputs for these inputs, or else for the first numbers with which the model runs.

        Raises what ``run`` raises for the inputs themselves, a `CompileError`, if it runs with none.
        """
        try:
            return run(arrays)
        except CompileError:
            for way in self.ways:
                if self._runs(run, arrays, way):
                    return run(_put(arrays, way))
            raise

    def spread(self, run: Run, arrays: Arrays) -> Arrays:
        """Return the rows with each of the numbers with which the model runs, in turns."""
        if not self.ways:
            return arrays
        single = [array[:1] for array in arrays]
        running = [way for way in ({}, *self.ways) if self._runs(run, single, way)] or [{}]
        rows = [
            _put([array[row : row + 1] for array in arrays], running[row % len(running)])
            for row in range(len(arrays[0]))
        ]
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    @staticmethod
    def _runs(run: Run, arrays: Arrays, way: Mapping[int, int]) -> bool:
        try:
            run(_put(arrays, way))
        except CompileError:
            return False
        return True


def compared_numbers(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the whole numbers that inputs are compared with, by name; 0 and 1 if one decides by itself."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list(all_nodes(graph))
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, dict[int, None]] = {}
    for node in nodes:
        known = [origin[name] for name in node.input if name in origin]
        if not known:
            continue
        if node.op_type in PASSED_ON and node.input[0] in origin:
            origin.update((name, known[0]) for name in node.output)
        elif node.op_type == "If":
            found.setdefault(known[0], {}).update({0: None, 1: None})
        elif node.op_type in _AROUND and len(known) == 1:
            for number in _numbers(constants, node):
                near = {number + step: None for step in _AROUND[node.op_type]}
                found.setdefault(known[0], {}).update(near)
    return {name: [*numbers] for name, numbers in found.items()}


def _numbers(constants: Mapping[str, onnx.TensorProto], node: onnx.NodeProto) -> list[int]:
    """Return the one number that a comparison is with; none if it is not known or not whole."""
    tensors = [constants[name] for name in node.input if name in constants]
    if not tensors or math.prod(tensors[0].dims) != 1 or tensors[0].data_type == onnx.TensorProto.STRING:
        return []
    number = float(numpy_helper.to_array(tensors[0]).reshape(-1)[0])
    return [int(number)] if number.is_integer() else []


def _put(arrays: Arrays, way: Mapping[int, int]) -> Arrays:
    return [np.full_like(array, way[index]) if index in way else array for index, array in enumerate(arrays)]
