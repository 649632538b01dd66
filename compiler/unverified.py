"""A model that is served on the operator's word: its outputs' shapes, and estimates of how long it takes.

Compile runs a model on samples. Where none runs, ``--unverified`` has it compiled without a run: outputs have
the shapes that ONNX's inference finds in the graph, and durations are estimated from the work that it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.choosing.opinion import read
from mainspring.compiler.reading.contents import Content, serialise
from mainspring.compiler.reading.normalise import infer_shapes, numpy_dtype
from mainspring.compiler.reading.stock import StockSession, optimise_portably
from mainspring.compiler.reference import Prepared, Reference
from mainspring.compiler.sizes.sample_forms import Samples
from mainspring.compiler.sizes.symbols import Sizes
from mainspring.compiler.sizes.work import Counter, without_weights
from mainspring.messages.model import TEXT_BYTES, TensorSpec, array_dtype

Arrays = list[npt.NDArray[np.generic]]
Dims = tuple[int | None, ...]

_NS_PER_WORK = 0.05
"""Estimated duration of one multiplication with addition: twice what a core of today takes."""
_LEAST_NS = 200_000
_UNCOUNTED_NS = 10_000_000
"""Estimated duration of a run whose work can't be counted."""
_MOST_AXES = 32
_UNCOUNTED_BYTES = 64 << 20
"""Memory for its activations."""


class Inferred:
    """Stands in for a session of stock ONNX Runtime: it gives zeros, in the shapes that the graph tells."""

    def __init__(self, model: onnx.ModelProto, text_bytes: int) -> None:
        """``model`` is the original, as ONNX Runtime would run it; texts have slots of ``text_bytes``."""
        self._skeleton = without_weights(model)
        for value, told in zip(self._skeleton.graph.output, model.graph.output, strict=True):
            value.CopyFrom(told)
        self._inputs = len(model.graph.input)
        self._dtypes = [array_dtype(numpy_dtype(value, text_bytes)) for value in model.graph.output]
        self._open = any(
            not dim.HasField("dim_value")
            for value in model.graph.input
            for dim in value.type.tensor_type.shape.dim
        )
        self._known: dict[tuple[tuple[int, ...], ...], list[Dims]] = {}

    def run(self, arrays: Sequence[npt.NDArray[np.generic]]) -> Arrays:
        """Return zeros for inputs of these shapes, of size 1 along axes that the graph says nothing of.

        Raises `CompileError` for shapes that the graph contradicts, and for an output without any.
        """
        shapes = self.shapes([array.shape for array in arrays])
        return [
            np.zeros([1 if size is None else size for size in dims], dtype)
            for dims, dtype in zip(shapes, self._dtypes, strict=True)
        ]

    def shapes(self, given: Sequence[tuple[int, ...]]) -> list[Dims]:
        """Return the outputs' shapes for the inputs'; None where a size is not known before a run."""
        key = tuple(given)
        if key not in self._known:
            self._known[key] = self._inferred(key)
        return self._known[key]

    def _inferred(self, given: Sequence[tuple[int, ...]]) -> list[Dims]:
        fixed = onnx.ModelProto()
        fixed.CopyFrom(self._skeleton)
        named: dict[str, int] = {}
        for value, shape in zip(fixed.graph.input[: self._inputs], given, strict=True):
            dims = value.type.tensor_type.shape.dim
            named |= {dim.dim_param: size for dim, size in zip(dims, shape, strict=True) if dim.dim_param}
            for dim, size in zip(dims, shape, strict=True):
                dim.dim_value = size
        for value in fixed.graph.output:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in named:
                    dim.dim_value = named[dim.dim_param]
        found = self._outputs(fixed)
        if any(dims is None or None in dims for dims in found):
            with suppress(CompileError):
                found = self._outputs(optimise_portably(serialise(fixed)))
        for value, dims in zip(fixed.graph.output, found, strict=True):
            if dims is None:
                raise CompileError(
                    f"without a run nothing says how many axes output {value.name!r} has: give a sample that "
                    "the model takes with `--sample FILE.npz`, or declare the output's shape in the graph"
                )
        return [dims for dims in found if dims is not None]

    def _outputs(self, model: onnx.ModelProto) -> list[Dims | None]:
        try:
            inferred = infer_shapes(model, data_prop=True, strict=self._open)
        except Exception as error:  # The onnx library raises any class for graphs that it can't follow.
            raise CompileError(f"its shapes can't be inferred: {error}") from error
        return [_dims(value) for value in inferred.graph.output]


def _zero(value: onnx.ValueInfoProto, text_bytes: int) -> npt.NDArray[np.generic]:
    """Return a sample of one element, which is repeated."""
    axes = len(value.type.tensor_type.shape.dim)
    return np.zeros((1,) * axes, array_dtype(numpy_dtype(value, text_bytes)))


def _dims(value: onnx.ValueInfoProto) -> Dims | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or len(kind.shape.dim) > _MOST_AXES:
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in kind.shape.dim
    )


class Unverified(Prepared):
    """A model ready to be optimised that runs on no sample, so that there is nothing to compare it with."""

    verified = False

    def __init__(
        self,
        original: onnx.ModelProto,
        *,
        most: Mapping[str, int] | None = None,
        text_bytes: int = TEXT_BYTES,
    ) -> None:
        """Prepare ``original`` to be served whole; see `Prepared`. Raises `CompileError`."""
        super().__init__(original, 1, whole=True, most=most, text_bytes=text_bytes)

    def _open_original(
        self,
        content: Content,
        fixed: int | None,
        model: onnx.ModelProto,
        rows: int,
        most: Mapping[str, int],
        samples: Samples,
    ) -> tuple[onnx.ModelProto, StockSession]:
        session = StockSession(content, optimised=False)
        self._inferred = Inferred(read(content), self._text_bytes)
        self._counter = Counter(model)
        self.reference = Reference(self._inferred, fixed, whole=True)
        zeros = {each.name: _zero(each, self._text_bytes) for each in model.graph.input}
        return self._sample(model, rows, most, {**zeros, **samples}), session

    def _check_conversion(self, original: onnx.ModelProto, session: StockSession, rows: int) -> None:
        """Accept a conversion to another opset, which nothing can be compared with either."""

    def _whole_outputs(self, outputs: Sequence[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
        """Return the outputs' specifications; what the graph says nothing of varies."""
        told = self._inferred.shapes([array.shape[1:] for array in self.rows])
        runs = [[tuple(size or few for size in dims) for dims in told] for few in (1, 2)]
        return self._shapes_out.whole(outputs, runs, self.shapes[0])

    def infer_ns(self, sizes: Sizes) -> int:
        """Return an estimate of how long a run may take at these sizes of the symbols."""
        counted = self._counter.at(self._found.fixed_at(sizes))
        return _UNCOUNTED_NS if counted is None else _LEAST_NS + round(counted.work * _NS_PER_WORK)

    def workspace_bytes(self) -> int:
        """Return an estimate of the memory for activations at the symbols' limits."""
        counted = self._counter.at(self._found.fixed_at(tuple(each.limit for each in self.symbols)))
        return _UNCOUNTED_BYTES if counted is None else round(counted.live_bytes)
