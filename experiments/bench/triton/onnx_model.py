"""The model as Triton's Python backend runs it: ONNX Runtime, on one core, batches as they come.

Copied into Triton's model repository as ``model.py``; only there can it be imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # type: ignore[import-not-found]


class TritonPythonModel:
    """The class that the backend looks for in the file."""

    def initialize(self, arguments: dict[str, Any]) -> None:
        """Open the model, which lies beside this file."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        folder = Path(arguments["model_repository"]) / arguments["model_version"]
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._output = self._session.get_outputs()[0].name

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch, and give each its rows; Triton batches those of equal shapes."""
        tensors = {name: [_tensor(each, name) for each in requests] for name in self._inputs}
        batch = {name: np.concatenate(each) for name, each in tensors.items()}
        (found,) = self._session.run([self._output], batch)
        responses, start = [], 0
        for tensor in tensors[self._inputs[0]]:
            rows = found[start : start + len(tensor)]
            start += len(tensor)
            responses.append(triton.InferenceResponse([triton.Tensor(self._output, rows)]))
        return responses


def _tensor(request: Any, name: str) -> Any:
    return triton.get_input_tensor_by_name(request, name).as_numpy()
