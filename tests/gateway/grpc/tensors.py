"""Models that give back what they take, one for each datatype, and tensors for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput, service_pb2

from mainspring.gateway.oip.datatypes import BYTES, DATATYPES
from mainspring.messages.model import ModelSpec, TensorSpec
from tests.gateway.fakes import make_spec

SLOT = "S8"
DTYPES = (*DATATYPES, SLOT)
ROWS, COLUMNS = 2, 3


def echo(dtype: str) -> ModelSpec:
    """Return a model that takes ``data`` and gives it back as ``same``."""
    return msgspec.structs.replace(
        make_spec(f"echo-{dtype}"),
        inputs=(TensorSpec("data", dtype, (COLUMNS,)),),
        outputs=(TensorSpec("same", dtype, (COLUMNS,)),),
    )


def datatype(dtype: str) -> str:
    return DATATYPES.get(dtype, BYTES)


def array(dtype: str) -> NDArray[Any]:
    """Return a tensor with the extremes of its dtype."""
    if dtype == SLOT:
        values = [b"", b"a", b"\0b", b"12345678", "\u00e4\u00f6".encode(), b"\xff\xfe"]
        return np.array(values, object).reshape(ROWS, COLUMNS)
    if dtype == "bool":
        return np.array([[True, False, True], [False, False, True]])
    if dtype == "bfloat16":
        return np.array([[0, 1, -2], [3.5, 1e30, -1e-30]], ml_dtypes.bfloat16)
    if dtype.startswith("float"):
        limits = np.finfo(dtype)
        return np.array([[0, 1.5, -2], [limits.max, limits.min, limits.tiny]], dtype)
    whole = np.iinfo(dtype)
    return np.array([[0, 1, 2], [whole.max, whole.min, 5]], dtype)


def inputs(values: NDArray[Any], kind: str = "FP32") -> list[InferInput]:
    """Return ``data`` as Triton's client takes it."""
    tensor = InferInput("data", list(values.shape), kind)
    tensor.set_data_from_numpy(values)
    return [tensor]


def encoded(model: str, values: NDArray[Any], request_id: str = "", timeout_us: int | None = None) -> bytes:
    """Return a ModelInferRequest with FP32 ``data``."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="data", datatype="FP32", shape=values.shape)
    message.raw_input_contents.append(values.tobytes())
    if timeout_us is not None:
        message.parameters["timeout"].int64_param = timeout_us
    return bytes(message.SerializeToString())
