"""Arrays to tensors on the wire and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import zmq
from numpy.typing import ArrayLike, NDArray

from mainspring.client.errors import MainspringError
from mainspring.messages.clients import InferReply, Timing
from mainspring.messages.peers import TensorHeader

_LITTLE_ENDIAN = sys.byteorder == "little"
_NOT_NUMBERS = "OSUMm"
"""numpy's kinds that hold no numbers: objects, bytes, text, dates."""


class InferResult(dict[str, NDArray[Any]]):
    """A request's outputs by name, and beside them ``timing``: where the request's time went.

    The arrays are views of the bytes as they were received and therefore read-only; take ``.copy()`` of
    one to write to it. Rows are along the first axis.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], timing: Timing) -> None:
        super().__init__(outputs)
        self.timing = timing


def to_tensors(
    inputs: Mapping[str, ArrayLike],
) -> tuple[tuple[TensorHeader, ...], list[NDArray[np.uint8]]]:
    """Return headers and frames for a request's inputs.

    Takes arrays and whatever `numpy.asarray` makes one of (lists of floats become float64). What is
    contiguous and little-endian already is not copied. Raises TypeError for anything else.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}; pass a dict from input name to array, like {{'data': x}}"
        )
    headers, frames = [], []
    for name, value in inputs.items():
        if not isinstance(name, str):
            raise TypeError(f"input name {name!r} is a {type(name).__name__}; pass a str")
        array = to_array(name, value)
        headers.append(TensorHeader(name, array.dtype.name, array.shape))
        frames.append(array.reshape(-1).view(np.uint8))
    return tuple(headers), frames


def to_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return ``value`` as a contiguous little-endian array of at least one axis; raise TypeError."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if array.dtype.kind in _NOT_NUMBERS or array.dtype.names is not None:
        raise TypeError(
            f"input {name!r} is a {type(value).__name__} that makes an array of {array.dtype}; "
            "pass a numpy array of numbers"
        )
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE_ENDIAN):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array)


def from_reply(reply: InferReply, frames: list[zmq.Frame]) -> InferResult:
    """Return the outputs as arrays over the frames' own memory, read-only; raise `MainspringError`."""
    try:
        outputs = {
            header.name: _from_frame(header, frame)
            for header, frame in zip(reply.outputs, frames, strict=True)
        }
    except (ValueError, TypeError) as error:
        raise MainspringError(
            f"the gateway's reply can't be read ({error}); is it of this version?"
        ) from None
    return InferResult(outputs, reply.timing)


def _from_frame(header: TensorHeader, frame: zmq.Frame) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(frame.buffer, dtype=np.dtype(header.dtype)).reshape(header.shape)
    if not array.flags.aligned:
        # Small frames lie anywhere in the receive buffer; some libraries take aligned arrays only.
        array = array.copy()
    array.flags.writeable = False
    return array
