"""A request that leaves out an input with a default."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.gateway.core.catalog import completed
from mainspring.gateway.core.validation import BadRequest, Signature, check_request
from mainspring.messages.clients import InferRequest
from mainspring.messages.model import TensorSpec
from mainspring.messages.peers import TensorHeader
from tests.gateway.fakes import make_spec

SPEC = make_spec("m")


def test_what_a_request_leaves_out_has_its_default() -> None:
    default = TensorSpec("h", "float32", (4,), default=bytes(range(16)))
    spec = msgspec.structs.replace(SPEC, inputs=(TensorSpec("x", "float32", (2, 4)), default), whole=True)
    signature = Signature(spec)
    x, own = TensorHeader("x", "float32", (2, 4)), TensorHeader("h", "float32", (4,))
    request, frames = completed(InferRequest(1, SPEC.name, (x,), None), [b"x" * 32], signature)
    assert request.inputs == (x, own)
    assert frames == [b"x" * 32, bytes(range(16))]
    both = InferRequest(1, SPEC.name, (own, x), None)
    assert completed(both, [b"h" * 16, b"x" * 32], signature) == (both, [b"h" * 16, b"x" * 32])
    request, _ = completed(InferRequest(1, SPEC.name, (own,), None), [b"h" * 16], signature)
    with pytest.raises(BadRequest, match="input 'x' missing"):
        check_request(request, [16], lambda *_: signature, 10**12)
