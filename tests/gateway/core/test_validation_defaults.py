"""A request that leaves out an input with a default."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.gateway.core.catalog import completed
from mainspring.gateway.core.validation import BadRequest, Signature, check_request
from mainspring.gateway.oip.triton_texts import of_request
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
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


def test_tritons_words_count_what_the_client_sent_and_what_it_may_leave_out() -> None:
    default = TensorSpec("h", "float32", (4,), default=bytes(range(16)))
    spec = msgspec.structs.replace(SPEC, inputs=(TensorSpec("x", "float32", (2, 4)), default), whole=True)
    error = BadRequest(Reason.BAD_INPUT, "ours")
    said = of_request(error, InferRequest(1, SPEC.name, (), None), [], Signature(spec))
    assert "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'" in said
    assert "Got input(s) [], but missing required input(s) ['x']" in said
    short = TensorHeader("x", "float32", (2, -4))
    asked = InferRequest(1, SPEC.name, (short,), None)
    assert of_request(error, asked, [0], Signature(spec)) == "ours"
