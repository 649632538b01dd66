"""Inputs that a request leaves out, for which its model has a default. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.gateway.core.validation import Signature
from mainspring.messages.clients import InferRequest
from mainspring.messages.peers import TensorHeader


def completed(
    request: InferRequest, frames: Sequence[Any], signature: Signature
) -> tuple[InferRequest, Sequence[Any]]:
    """Return the request with the defaults of what it leaves out, and their frames.

    A model with defaults has no axis for rows.
    """
    given = {header.name for header in request.inputs}
    missing = [tensor for name, tensor in signature.defaults.items() if name not in given]
    if not missing:
        return request, frames
    headers = [TensorHeader(each.name, each.dtype, each.shape) for each in missing]
    added = [each.default or b"" for each in missing]
    return msgspec.structs.replace(request, inputs=(*request.inputs, *headers)), [*frames, *added]
