"""Models that draw random numbers, as speech synthesis does: compared with known seeds, served without.

Each node that draws gets a seed of its own before the model is tried, so a session that was just opened draws
the numbers that another one did. ONNX Runtime's optimiser keeps the seeds, which so tell what became of which
node. They are taken out of what is stored; a seed that the file has stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from mainspring.compiler.artifact.arrays import Runnable, Sizes
from mainspring.compiler.artifact.manifest import ExecutableInfo
from mainspring.compiler.normalise import all_nodes, draws

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
