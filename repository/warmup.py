"""A model's ``model_warmup``: rows that it takes, with which the compiler compares it.

Triton sends them before it serves a model. Here each worker warms a model up by itself, and these rows take
the place of those that the compiler makes up.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.repository.reading import DATA_TYPES, ConfigFault, Fields

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "warmup"
"""Name of the folder, in the model's, of the files with data."""
MOST_BYTES = 64 << 20
"""Most bytes of one file."""
_MOST_SIZE = 1 << 30


class WarmupInput(msgspec.Struct, frozen=True):
    """A row of one input."""

    name: str
    data_type: str
    """Type of the elements: one of `DATA_TYPES`' names for numpy, or ``string``."""
    dims: tuple[int, ...]
    """Dimensions as the client gives them, without the batch where requests have one."""
    file: str = ""
    """Name of a file in the model's folder for these; empty: zeros, or empty texts."""
    sha256: str = ""
    """Hash of the file's content; empty until it is read."""


def read_warmup(fields: Fields) -> tuple[WarmupInput, ...]:
    """Return what the file says; raise `ConfigFault`."""
    found = []
    for sample in fields.messages("model_warmup"):
        for entry in sample.messages("inputs"):
            value, name = entry.message("value"), entry.text("key", "")
            if value is None or not name:
                raise ConfigFault(f"{entry.where}: an input of model_warmup has a key, its name, and a value")
            kind = value.word("data_type", "")
            if kind not in DATA_TYPES:
                raise ConfigFault(f"{value.place('data_type')}: data_type is {kind!r}; one is TYPE_FP32")
            file = value.text("input_data_file", "")
            if "/" in file or file in {".", ".."}:
                raise ConfigFault(f"{value.place('input_data_file')}: {file!r} is not the name of a file")
            if file or value.flag("zero_data"):
                dims = value.numbers("dims", 1, _MOST_SIZE)
                found.append(WarmupInput(name, DATA_TYPES[kind], dims, file))
    return tuple(found)


def samples_of(rows: Sequence[WarmupInput], folder: Path) -> dict[str, Any]:
    """Return rows by input, those of one shape behind each other; ``folder`` is the model's.

    Raises `ConfigFault` for a file that can't be used.
    """
    import numpy as np

    found: dict[str, list[Any]] = {}
    for row in rows:
        array = _array(row, folder / FOLDER / row.file)
        others = found.setdefault(row.name, [])
        if not others or others[0].shape == array.shape:
            others.append(array)
    # One row may be a whole request: without an axis in front it is taken for what has its rank.
    return {name: arrays[0] if len(arrays) == 1 else np.stack(arrays) for name, arrays in found.items()}


def _array(row: WarmupInput, path: Path) -> Any:
    import numpy as np

    from mainspring.messages.model import array_dtype

    text = row.data_type == "string"
    if not row.file:
        return np.zeros(row.dims, "S1" if text else array_dtype(row.data_type))
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigFault(f"input_data_file {row.file!r} has more than {MOST_BYTES:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigFault(f"input_data_file {path} can't be read: {error.strerror}") from None
    if row.sha256 and hashlib.sha256(data).hexdigest() != row.sha256:
        raise ConfigFault(f"input_data_file {row.file!r} was changed meanwhile")
    try:
        if text:
            return np.array(_texts(data), dtype=bytes).reshape(row.dims)
        return np.frombuffer(data, array_dtype(row.data_type)).reshape(row.dims)
    except ValueError:
        raise ConfigFault(
            f"input_data_file {row.file!r} does not hold {math.prod(row.dims)} elements of {row.data_type}, "
            "as its dims say (texts: each behind its length, 4 bytes)"
        ) from None


def _texts(data: bytes) -> list[bytes]:
    found, begin = [], 0
    while begin < len(data):
        length = int.from_bytes(data[begin : begin + 4], "little")
        if begin + 4 + length > len(data):
            raise ValueError
        found.append(data[begin + 4 : begin + 4 + length])
        begin += 4 + length
    return found
