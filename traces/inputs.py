"""Random inputs for a workload's requests: made once for each shape, sent again and again.

Models of one signature share their arrays: 4,026 models of 61 varieties need 61 inputs, not 2.4 GB.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import zmq

from mainspring.messages.model import ModelSpec, TensorSpec, array_dtype
from mainspring.messages.peers import TensorHeader

MAX_INTEGER = 100
"""Integers are drawn below this: small enough to be token ids of any vocabulary."""
MAX_BYTES = 4 * 1024**3
"""Memory for all inputs together."""


class InputsError(ValueError):
    """The workload names a model that is not served, or needs of one what it cannot do."""


class Inputs:
    """Headers and ready frames for (model, rows)."""

    def __init__(self, specs: Iterable[ModelSpec], rng: np.random.Generator) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._rng = rng
        self._frames: dict[tuple[str, tuple[int, ...]], zmq.Frame] = {}
        self._ready: dict[tuple[str, int], tuple[tuple[TensorHeader, ...], list[zmq.Frame]]] = {}
        self._bytes = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The models that inputs can be made for."""
        return tuple(self._specs)

    def check(self, models: Iterable[str]) -> None:
        """Raise `InputsError` if one of these models is not served."""
        missing = [model for model in models if model not in self._specs]
        if missing:
            raise InputsError(
                f"the gateway does not serve {len(missing)} of the workload's models: {_few(missing)}; it"
                f" serves {_few(list(self._specs)) or 'none'}"
            )

    def get(
        self, model: str, rows: int, sizes: tuple[int, ...] = ()
    ) -> tuple[tuple[TensorHeader, ...], list[zmq.Frame]]:
        """Return the headers and frames of a request; the frames are shared, and may be sent many times.

        ``sizes`` are of the model's symbols, by default their limits. Raises `InputsError` when all inputs
        together would exceed `MAX_BYTES`.
        """
        ready = self._ready.get((model, rows))
        if ready is None:
            spec = self._specs[model]
            tensors = spec.inputs
            headers = tuple(TensorHeader(t.name, t.dtype, spec.client_shape(t, rows)) for t in tensors)
            ready = self._ready[model, rows] = (headers, [self._frame(tensor, rows) for tensor in tensors])
        return self._smaller(model, rows, sizes, ready[1]) if sizes else ready

    def _smaller(
        self, model: str, rows: int, sizes: tuple[int, ...], largest: list[zmq.Frame]
    ) -> tuple[tuple[TensorHeader, ...], list[zmq.Frame]]:
        """Return a request of these sizes, whose frames are the beginnings of the largest one's."""
        spec = self._specs[model]
        tensors = [tensor.at(sizes) for tensor in spec.inputs]
        headers = tuple(TensorHeader(t.name, t.dtype, spec.client_shape(t, rows)) for t in tensors)
        cut = zip(largest, tensors, strict=True)
        return headers, [zmq.Frame(frame.buffer[: rows * t.row_bytes], copy=False) for frame, t in cut]

    def prepare(self, models: Iterable[str], rows: int = 1) -> None:
        """Make the inputs of these models now, so that none is made while requests are due."""
        for model in models:
            self.get(model, rows)

    def _frame(self, tensor: TensorSpec, rows: int) -> zmq.Frame:
        shape = (rows, *tensor.shape)
        key = (tensor.dtype, shape)
        if key not in self._frames:
            self._bytes += rows * tensor.row_bytes
            if self._bytes > MAX_BYTES:
                raise InputsError(
                    f"the inputs of the workload's models need more than {MAX_BYTES // 1024**3} GiB; replay"
                    " fewer models or requests of fewer rows"
                )
            array = random_tensor(tensor.dtype, shape, self._rng)
            self._frames[key] = zmq.Frame(array.reshape(-1).view(np.uint8), copy=False)
        return self._frames[key]


def random_tensor(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """Return a random tensor: floats normal, integers in ``[0, MAX_INTEGER)``, booleans even, texts numerals.

    Raises `InputsError` for any other dtype.
    """
    kind = array_dtype(dtype)
    if kind.kind == "f" or dtype == "bfloat16":
        return rng.standard_normal(shape, np.float32).astype(kind)
    if kind.kind == "S":
        return rng.integers(0, MAX_INTEGER, shape).astype(kind)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        return rng.integers(0, MAX_INTEGER, shape).astype(kind)
    raise InputsError(f"no random input of dtype {dtype} can be made: it must be float, integer or bool")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
