"""Binding by ONNX Runtime's own object and by its wrapper comes to the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mainspring.compiler.artifact import binding
from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.zoo.copies import compile_zoo


@pytest.mark.parametrize("native", [True, False])
def test_a_bound_model_computes_the_same_either_way(
    tmp_path: Path, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    manifest = next(compile_zoo(["digits"], store, batch_sizes=(1, 2))).manifest
    weights = np.fromfile(store.weights_path(manifest), np.uint8)
    executable = open_executable(store, manifest)
    rows = np.random.default_rng(0).standard_normal((2, *manifest.inputs[0].shape), np.float32)

    def outputs() -> np.ndarray:
        bound = executable.bind(manifest.tensors, lambda offset: int(weights.ctypes.data) + offset)
        return bound.run_arrays(2, [rows])[0]

    expected = outputs()
    if not native:
        monkeypatch.setattr(binding, "_device", lambda: None)
    found = outputs()
    assert found.any()
    np.testing.assert_array_equal(found, expected)
