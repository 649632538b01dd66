"""The highest values of an output instead of the output: Triton's classification extension. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.steps import SLICE_VALUES, Steps
from mainspring.messages.codes import Reason
from mainspring.messages.model import slot_bytes

MOST_CLASSES = 4_096
"""Most classes that may be asked for of one row that has more values: to order more takes long."""
_SLICE_CLASSES = 1_024
"""Classes that are written in one slice, which takes half a millisecond."""


def check_classes(signature: Signature, output: str, count: int) -> None:
    """Raise `Unfit` unless ``count`` is a number of classes that an output may be asked for; 0 is none."""
    if count < 0:
        raise Unfit(
            Reason.BAD_OUTPUT, f"output {output!r} has classification {count}; it is a number of classes"
        )
    index = signature.outputs.get(output)
    if not count or index is None:
        return
    if slot_bytes(signature.spec.outputs[index].dtype) is not None:
        raise Unfit(
            Reason.BAD_OUTPUT,
            f"output {output!r} has classification {count:,}, and its values are BYTES, of which none is the "
            "highest: ask for the tensor",
            "class result not available for output due to unsupported type 'BYTES'",
        )
    if count <= MOST_CLASSES:
        return
    values = math.prod(signature.spec.outputs[index].shape)
    if values > MOST_CLASSES:
        raise Unfit(
            Reason.BAD_OUTPUT,
            f"output {output!r} has classification {count:,}; of its {values:,} values at most the highest "
            f"{MOST_CLASSES:,} are named: ask for the tensor",
        )


def rows_of(values: NDArray[Any], rows_axis: int, *, whole: bool) -> NDArray[Any]:
    """Return an output's values with the rows in front, where clients have them elsewhere or nowhere."""
    if whole:
        return values.reshape(1, -1)
    return np.moveaxis(values, rows_axis, 0) if rows_axis else values


def classify(rows: NDArray[Any], count: int, labels: Sequence[str] = ()) -> Steps[list[list[bytes]]]:
    """Return for each row its ``count`` highest values, the highest first, each as ``value:index``.

    ``rows`` has any shape behind its first axis; a row of fewer values gives all of them. Of equal values
    the first comes first. Floats are written with six decimals, as Triton does. ``labels`` are names by
    index: what has one is written as ``value:index:label``.
    """
    flat = rows.reshape(len(rows), -1)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    text = "{:.6f}:{}" if flat.dtype.kind == "f" else "{}:{}"
    columns = flat.shape[1]
    count = min(count, columns)
    at_once = max(1, min(SLICE_VALUES // max(columns, 1), _SLICE_CLASSES // max(count, 1)))
    found: list[list[bytes]] = []
    for start in range(0, len(flat), at_once):
        if start:
            yield
        some = flat[start : start + at_once]
        for row, order in zip(some, _order(some, count), strict=True):
            named: list[bytes] = []
            for at in range(0, count, _SLICE_CLASSES):
                if at:
                    yield
                indices = order[at : at + _SLICE_CLASSES]
                pairs = zip(row[indices].tolist(), indices.tolist(), strict=True)
                named += [
                    f"{text.format(value, index)}{_label(labels, index)}".encode() for value, index in pairs
                ]
            found.append(named)
    return found


def _label(labels: Sequence[str], index: int) -> str:
    """Return what follows an index, nothing for one without a label."""
    return f":{labels[index]}" if index < len(labels) and labels[index] else ""


def _order(rows: NDArray[Any], count: int) -> list[NDArray[np.intp]]:
    """Return for each row the indices of its ``count`` highest values in their order."""
    keys = -rows if rows.dtype.kind == "f" else ~rows
    if rows.shape[1] <= SLICE_VALUES or count == rows.shape[1]:
        return list(np.argsort(keys, axis=1, kind="stable")[:, :count])
    return [_least(key, count) for key in keys]


def _least(key: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the indices of the ``count`` least of many values in their order; order no others."""
    last = np.partition(key, count - 1)[count - 1]
    if key.dtype.kind != "f" or not np.isnan(last):
        below, equal = np.flatnonzero(key < last), np.flatnonzero(key == last)
    else:
        # NaN comes behind all numbers.
        nothing = np.isnan(key)
        below, equal = np.flatnonzero(~nothing), np.flatnonzero(nothing)
    ordered = below[np.argsort(key[below], kind="stable")]
    return np.concatenate((ordered, equal[: count - len(ordered)]))
