"""Binding addresses to a session's inputs and outputs, at little more than the cost of the call itself.

ONNX Runtime's Python wrapper makes a new object for the device at each call: that is half of what binding a
model's weights costs, and a part of every INFER. The wrapped object takes one device for all calls. It is no
public name, so where it is not what it is in ONNX Runtime 1.31 the wrapper is used.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnxruntime

Shape = tuple[int, ...]


class Binding:
    """Which addresses one session's inputs and outputs have on the CPU."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.io = session.io_binding()
        """What ``run_with_iobinding`` takes."""
        self._device = _device()
        self._inner = getattr(self.io, "_iobinding", None) if self._device is not None else None

    def input(self, name: str, dtype: np.dtype[np.generic], shape: Shape, address: int) -> None:
        """Read this input at ``address`` from now on."""
        if self._inner is None:
            self.io.bind_input(name, "cpu", 0, dtype, shape, address)
        else:
            self._inner.bind_input(name, self._device, dtype, shape, address)

    def output(self, name: str, dtype: np.dtype[np.generic], shape: Shape, address: int) -> None:
        """Write this output to ``address`` from now on."""
        if self._inner is None:
            self.io.bind_output(name, "cpu", 0, dtype, shape, address)
        else:
            self._inner.bind_output(name, self._device, dtype, shape, address)


@functools.cache
def _device() -> Any:
    """Return the CPU as ONNX Runtime's own code knows it, or None where that can't be had."""
    try:
        from onnxruntime.capi import _pybind_state as native

        return native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
    except (ImportError, AttributeError, TypeError):
        return None
