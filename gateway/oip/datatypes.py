"""The protocol's datatypes and ours: ``FP32`` is ``float32``, ``BYTES`` is slots of bytes such as ``S64``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec

from mainspring.gateway.core.validation import BadRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec

BYTES = "BYTES"
REQUEST = "[request id: <id_unknown>] "
"""How Triton begins what it says of one request. Its id is not told here."""

_DTYPES = {
    "BOOL": "bool",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
DTYPES: Mapping[str, str] = MappingProxyType(_DTYPES)
"""For each datatype of numbers, what `mainspring.messages.model` calls it."""
DATATYPES: Mapping[str, str] = MappingProxyType({dtype: name for name, dtype in _DTYPES.items()})
"""The same the other way round."""
Datatype = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*DTYPES, BYTES]})]
"""A datatype as it comes: what is none is refused by `dtype_of`, in words."""


class Unfit(BadRequest):
    """What came in the protocol's words can't be made a request: a reason code, and what would be right."""

    def __init__(self, reason: Reason, detail: str, triton: str = "") -> None:
        """``triton``: what Triton says of it; empty if it has no sentence of its own."""
        super().__init__(reason, detail)
        self.triton = triton


class Withheld(Exception):
    """What a request asks for could be done and is switched off, said as Triton does: 503, UNAVAILABLE."""


class Unserved(Exception):
    """The protocol has what a request asks for, and this server has not; the text says what it is."""


def datatype_of(dtype: str) -> str:
    """Return the protocol's name of a dtype that `mainspring.messages.model.is_dtype` knows."""
    return DATATYPES.get(dtype, BYTES)


def dtype_of(model: str, tensor: TensorSpec, datatype: str) -> str:
    """Return the dtype of a tensor that came with ``datatype``; raise `Unfit` if the model takes another."""
    wanted = DATATYPES.get(tensor.dtype, BYTES)
    if datatype != wanted:
        known = "" if datatype in DTYPES or datatype == BYTES else ", which is not a datatype"
        detail = f"input {tensor.name!r} came as {datatype[:40]!r}{known}; model {model!r} takes {wanted}"
        if datatype == BYTES:
            detail += ", and has no slots for BYTES there"
        triton = (
            f"inference input '{tensor.name}' data-type is '{datatype[:40]}', but model '{model}' expects "
        )
        raise Unfit(Reason.BAD_INPUT, detail, f"{REQUEST}{triton}'{wanted}'")
    return tensor.dtype
