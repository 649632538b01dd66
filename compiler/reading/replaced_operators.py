"""Replaces what can't be served: locales that are not installed, maps, sequences, unseeded random numbers.

* StringNormalizer without a locale: ONNX's default, en_US.UTF-8, is not installed everywhere; ``C.UTF-8`` is
  part of the C library and has the same upper and lower case for the letters of all languages.
* ZipMap, with which converters of scikit-learn's classifiers end: its output is a map for each row, its input
  the same scores as one tensor. No protocol has maps.
* An output that is a sequence of tensors becomes one tensor with an axis in front.
* Each node that draws numbers gets a seed before the model is tried, so two fresh sessions draw the same. The
  optimiser keeps seeds, which so tell what became of which node. None is stored; a seed of the file stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from mainspring.compiler.artifact.arrays import Runnable, Sizes
from mainspring.compiler.artifact.manifest import ExecutableInfo
from mainspring.compiler.reading.normalise import all_nodes, draws, rename

LOCALE = "C.UTF-8"


def give_locale(graph: onnx.GraphProto) -> list[str]:
    """Give the locale to each StringNormalizer without one; return the names of these nodes."""
    given = []
    for node in all_nodes(graph):
        if _lacks_locale(node):
            kept = [each for each in node.attribute if each.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])
            given.append(node.name or node.output[0])
    return given


def with_locales(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with a locale wherever it needs one, and the names of the nodes that were given it.

    ``model`` itself is returned, unchanged, if it has no such node.
    """
    if not any(map(_lacks_locale, all_nodes(model.graph))):
        return model, []
    found = onnx.ModelProto()
    found.CopyFrom(model)
    return found, give_locale(found.graph)


def _lacks_locale(node: onnx.NodeProto) -> bool:
    return node.op_type == "StringNormalizer" and not any(
        each.name == "locale" and each.s for each in node.attribute
    )


_DOMAIN = "ai.onnx.ml"


def without_maps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the scores in the place of ZipMaps' outputs, under their names.

    ``model`` itself is returned, unchanged, if it has none.
    """
    maps = {node.output[0]: node for node in model.graph.node if _is_zipmap(node)}
    outputs = {value.name for value in model.graph.output}
    # What another node reads, as in a sequence operator, stays a sequence.
    read = {name for node in model.graph.node for name in node.input}
    opened = {name: node for name, node in maps.items() if name in outputs and name not in read}
    if not opened:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    for node in graph.node:
        if _is_zipmap(node) and node.output[0] in opened:
            score, name = node.input[0], node.output[0]
            node.CopyFrom(
                helper.make_node("Identity", [score], [name], name=node.name or f"scores of {name}")
            )
    for value in graph.output:
        if value.name in opened:
            value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None))
    return found


def _is_zipmap(node: onnx.NodeProto) -> bool:
    return node.op_type == "ZipMap" and node.domain == _DOMAIN


STACKED = "the elements of "
"""Prefix of the names of the nodes that stack a sequence."""

INSTEAD = (
    "a sequence is served as one tensor with an axis in front for its elements, so these need one shape, and "
    "there has to be one: give each an output of its own (Split instead of SplitToSequence), or pad them"
)


def without_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its sequences of tensors stacked, under their names.

    ``model`` itself is returned, unchanged, if it has none.
    """
    stacked = [
        value.name
        for value in model.graph.output
        if value.type.sequence_type.elem_type.WhichOneof("value") == "tensor_type"
    ]
    if not stacked:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    inside = {name: f"{name}:elements" for name in stacked}
    rename(graph, inside)
    for value in graph.output:
        if value.name in inside:
            element = value.type.sequence_type.elem_type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, element, None))
    del graph.value_info[:]
    graph.node.extend(
        helper.make_node(
            "ConcatFromSequence", [inside[name]], [name], name=f"{STACKED}{name}", axis=0, new_axis=1
        )
        for name in stacked
    )
    return found


_SEED = "seed"

_FIRST = 7_340_033
"""The first of the seeds that are given: numbers that no file has by chance, and that floats hold exactly."""

_MOST = 1_000_000


def draws_numbers(model: onnx.ModelProto) -> bool:
    """Say whether a node of the model, or of a function or graph inside it, draws random numbers."""
    return bool(_drawing(model))


def with_seeds(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a seed for each node that draws random numbers and has none."""
    seeded = onnx.ModelProto()
    seeded.CopyFrom(model)
    for index, node in enumerate(_drawing(seeded)):
        if not any(attribute.name == _SEED for attribute in node.attribute):
            node.attribute.append(helper.make_attribute(_SEED, float(_FIRST + index % _MOST)))
    return seeded


def without_seeds(graph: bytes, info: ExecutableInfo) -> tuple[bytes, ExecutableInfo]:
    """Return an executable's graph without the seeds that `with_seeds` gave, and what is said of it then."""
    model = onnx.load_from_string(graph)
    for node in _drawing(model):
        kept = [each for each in node.attribute if not _is_given(each)]
        del node.attribute[:]
        node.attribute.extend(kept)
    content = bytes(model.SerializeToString(deterministic=True))
    return content, msgspec.structs.replace(info, executable=hashlib.sha256(content).hexdigest())


class FromTheBeginning:
    """A model that is opened for each run, so that every run draws the same numbers."""

    def __init__(self, opened: Callable[[], Runnable]) -> None:
        """``opened`` opens it once more."""
        self._opened = opened

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run as `Runnable.run` does."""
        self._opened().run(batch_size, inputs, outputs, sizes)

    def run_arrays(
        self, batch_size: int, arrays: Sequence[npt.NDArray[np.generic]], sizes: Sizes = ()
    ) -> list[npt.NDArray[np.generic]]:
        """Run as `Runnable.run_arrays` does."""
        return self._opened().run_arrays(batch_size, arrays, sizes)


def _drawing(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    inside = [node for function in model.functions for node in function.node]
    return [node for node in (*all_nodes(model.graph), *inside) if draws(node)]


def _is_given(attribute: onnx.AttributeProto) -> bool:
    return attribute.name == _SEED and _FIRST <= attribute.f < _FIRST + _MOST
