"""Tensors whose elements came as numbers in a message's fields, instead of as raw bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.gateway.grpc.messages import Message
from mainspring.gateway.oip.datatypes import BYTES, DTYPES, Unfit
from mainspring.messages.codes import Reason

FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Field of InferTensorContents that holds a datatype's elements; FP16 and BF16 have none."""

_WIDE = {"INT8": np.int32, "INT16": np.int32, "UINT8": np.uint32, "UINT16": np.uint32}
"""Dtypes in the fields of datatypes that are narrower than what protobuf has."""


def listed(tensor: Message) -> Sequence[bytes]:
    """Return the elements of an InferInputTensor of BYTES; raise `Unfit` if they stand in another field."""
    found: Sequence[bytes] = _field(tensor)
    return found


def packed(tensor: Message, count: int) -> bytes:
    """Return the ``count`` elements of an InferInputTensor of numbers as raw contents would have them.

    Raises `Unfit` if their number differs, if they stand in another datatype's field or do not fit theirs.
    """
    datatype, elements = tensor.datatype, _field(tensor)
    if len(elements) != count:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {tensor.name!r} has {len(elements):,} elements; its shape makes {count:,}",
        )
    array = np.array(elements, _WIDE.get(datatype) or DTYPES[datatype])
    return array.tobytes() if datatype not in _WIDE else _narrow(tensor.name, datatype, array)


def _field(tensor: Message) -> Any:
    name, datatype = tensor.name, tensor.datatype
    given = [field.name for field, _ in tensor.contents.ListFields()]
    wanted = FIELDS.get(datatype)
    if wanted is None:
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} came as contents, and {datatype} has no field there: send its bytes in "
            "raw_input_contents",
        )
    if given not in ([wanted], []):
        raise Unfit(
            Reason.BAD_INPUT,
            f"input {name!r} came in {' and '.join(given)}; elements of {datatype} stand in {wanted}",
        )
    return getattr(tensor.contents, wanted)


def _narrow(name: str, datatype: str, array: NDArray[Any]) -> bytes:
    limits = np.iinfo(DTYPES[datatype])
    wrong = np.flatnonzero((array < limits.min) | (array > limits.max))
    if wrong.size:
        raise Unfit(
            Reason.BAD_INPUT,
            f"element {wrong[0]} of input {name!r} is {array[wrong[0]]}; {datatype} goes from {limits.min} "
            f"to {limits.max}",
        )
    return array.astype(DTYPES[datatype]).tobytes()
