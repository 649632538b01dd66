"""Stock ONNX Runtime sessions, as without Mainspring, and the optimiser behind them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from mainspring.compiler.artifact.arrays import as_slots, as_texts, bound_as, memory_at
from mainspring.compiler.artifact.errors import CannotRun, CompileError
from mainspring.compiler.artifact.executable import FATAL_ONLY
from mainspring.compiler.reading.contents import BESIDE_BYTES, Content, Stored, serialise, source_of
from mainspring.compiler.reading.normalise import graphs_of
from mainspring.compiler.reading.operator_libraries import register_used
from mainspring.compiler.reading.replaced_operators import INSTEAD, STACKED
from mainspring.messages.model import array_dtype

Arrays = Sequence[npt.NDArray[np.generic]]

_BFLOAT16 = "tensor(bfloat16)"
_BESIDE = "session.optimized_model_external_initializers_file_name"
_BESIDE_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"
_PACKS_NOTHING = "session.disable_prepacking"
"""Weights are not copied for a session that is only opened."""
_FREES = "memory.enable_memory_arena_shrinkage", "cpu:0"
"""Has a run give its activations' memory back when it ends."""
_LEVELS = onnxruntime.GraphOptimizationLevel


class Session(Protocol):
    """A session of ONNX Runtime, or a stand-in for one."""

    def run(self, arrays: Arrays) -> list[npt.NDArray[np.generic]]:
        """Return the outputs for arrays in the order of the model's inputs; raise `CompileError`."""


class StockSession:
    """An ordinary session on a model, one thread, on the CPU; it keeps no memory between runs."""

    def __init__(self, content: Content, optimised: bool = True) -> None:
        self._session = open_session(content, optimised)
        self._names = [value.name for value in self._session.get_inputs()]
        values = [*self._session.get_inputs(), *self._session.get_outputs()]
        self._halves = any(value.type == _BFLOAT16 for value in values)
        # The model that is compared with it takes as much memory for activations, at another time.
        self._frees = onnxruntime.RunOptions()
        self._frees.add_run_config_entry(*_FREES)

    def run(self, arrays: Arrays) -> list[npt.NDArray[np.generic]]:
        """Run on arrays in the order of the model's inputs; raise `CompileError` if it fails."""
        try:
            given = {
                name: as_texts(array) if array.dtype.kind == "S" else array
                for name, array in zip(self._names, map(np.asarray, arrays), strict=True)
            }
            outputs = self._run_bound(given) if self._halves else self._session.run(None, given, self._frees)
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
            instead = f"; {INSTEAD}" if STACKED in str(error) else ""
            raise CannotRun(
                f"stock ONNX Runtime can't run the model: {_first_line(error)}{instead}"
            ) from error
        found = [np.asarray(output) for output in outputs]
        return [as_slots(output) if output.dtype.kind == "O" else output for output in found]

    def _run_bound(self, given: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run a model with bfloat16 among its inputs and outputs, which only bindings take."""
        binding = self._session.io_binding()
        kept = {name: np.ascontiguousarray(array) for name, array in given.items()}
        for name, array in kept.items():
            element = bound_as(array.dtype.name)
            binding.bind_input(name, "cpu", 0, element, array.shape, array.ctypes.data)
        for value in self._session.get_outputs():
            binding.bind_output(value.name, "cpu")
        self._session.run_with_iobinding(binding, self._frees)
        found = zip(self._session.get_outputs(), binding.get_outputs(), strict=True)
        return [
            memory_at(output.data_ptr(), tuple(output.shape()), array_dtype("bfloat16")).copy()
            if value.type == _BFLOAT16
            else output.numpy()
            for value, output in found
        ]


def open_stock(content: Content) -> StockSession:
    """Return a session on the original, unoptimised if ONNX Runtime can't open it otherwise."""
    try:
        return StockSession(content)
    except CompileError as error:
        with suppress(CompileError):
            return StockSession(content, optimised=False)
        raise error


def open_session(content: Content, optimised: bool = True) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's own session on a model, one thread, on the CPU; raise `CompileError`."""
    options = _options(_LEVELS.ORT_ENABLE_ALL if optimised else _LEVELS.ORT_DISABLE_ALL)
    if not optimised:
        options.add_session_config_entry(_PACKS_NOTHING, "1")
    return _open(content, options)


STEPS = (
    ("all of ONNX Runtime's optimisations", _LEVELS.ORT_ENABLE_ALL),
    ("ONNX Runtime's basic and extended optimisations", _LEVELS.ORT_ENABLE_EXTENDED),
    ("ONNX Runtime's basic optimisations", _LEVELS.ORT_ENABLE_BASIC),
    ("none of ONNX Runtime's optimisations", _LEVELS.ORT_DISABLE_ALL),
)
"""Levels of optimisation, the highest first, each with its description."""


def optimise(content: Content, step: int = 0) -> onnx.ModelProto:
    """Return a serialised model as ONNX Runtime would run it here: fused, folded, in the layout of this CPU.

    ``step`` is one of `STEPS`. Raises `CompileError` for a model that ONNX Runtime can't open.
    """
    return _optimised(content, STEPS[step][1])


def optimise_portably(content: Content, *, values: bool = True) -> onnx.ModelProto:
    """Return a serialised model folded and simplified, in standard operators of any machine.

    Unless ``values``, the large tensors of a large model can't be read. Raises `CompileError` for a model
    that ONNX Runtime can't open.
    """
    return _optimised(content, _LEVELS.ORT_ENABLE_BASIC, values=values)


def _optimised(
    content: Content, level: onnxruntime.GraphOptimizationLevel, *, values: bool = True
) -> onnx.ModelProto:
    options = _options(level)
    options.add_session_config_entry(_PACKS_NOTHING, "1")
    with ExitStack() as stack:
        if isinstance(content, Stored):
            path = content.scratch.new(".onnx")
            beside = path.with_suffix(".bin")
            options.add_session_config_entry(_BESIDE, beside.name)
            options.add_session_config_entry(_BESIDE_LEAST, str(BESIDE_BYTES))
            stack.callback(path.unlink, missing_ok=True)
            if not (values and content.lasts):
                stack.callback(beside.unlink, missing_ok=True)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mainspring-"))
            path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        _open(content, options)
        try:
            lasts = isinstance(content, Stored) and content.lasts
            return onnx.load(path, load_external_data=not lasts)
        except Exception as error:  # onnx and protobuf raise any class for a graph too large to save.
            raise CompileError(f"the optimised model can't be read back: {_first_line(error)}") from error


def _options(level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


def _open(content: Content, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    try:
        register_used(options)
        return onnxruntime.InferenceSession(source_of(content), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
        raise CompileError(f"stock ONNX Runtime refuses the model: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def without_decided_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with constants folded if that removes its control flow, else unchanged."""
    if not any(map(graphs_of, model.graph.node)):
        return model
    try:
        folded = optimise_portably(serialise(model))
    except CompileError:
        return model
    return model if any(map(graphs_of, folded.graph.node)) else folded
