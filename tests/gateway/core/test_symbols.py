"""Requests for models whose dimensions are open: their sizes, and what is refused."""

from __future__ import annotations

import json

import msgspec
import pytest

from mainspring.gateway.core.cache import PredictionCache
from mainspring.gateway.core.effects import Accepted
from mainspring.gateway.core.requests import wrong_outputs
from mainspring.gateway.core.validation import BadRequest, Signature, check_request, rows_of
from mainspring.gateway.memory import answer_bytes
from mainspring.gateway.oip.metadata import model_metadata
from mainspring.gateway.oip.model_config import model_config
from mainspring.messages.clients import InferRequest
from mainspring.messages.model import ModelSpec, OpenDim, Product, Profile, Symbol, TensorSpec, Term
from mainspring.messages.peers import TensorHeader

SEQ, WIDTH = OpenDim(0, (Term(0),)), OpenDim(1, (Term(1),))
HALF = OpenDim(0, (Term(0, 1, 1, 2),), 3)
"""Three times half the length, rounded up."""


def open_model(whole: bool = False) -> ModelSpec:
    return ModelSpec(
        name="m",
        weights_hash="w",
        executable="e",
        batch_sizes=(1,) if whole else (1, 4),
        weights_bytes=0,
        extents=(),
        inputs=(
            TensorSpec("ids", "int64", (128,), (SEQ,)),
            TensorSpec("pixels", "float32", (128, 64, 3), (SEQ, WIDTH)),
        ),
        outputs=(TensorSpec("y", "float32", (192, 5), (HALF,)),),
        profiles={},
        whole=whole,
        symbols=(Symbol("seq", (16, 128), 2), Symbol("width", (8, 64))),
    )


def check(*shapes: tuple[int, ...], whole: bool = False) -> Accepted:
    signature = Signature(open_model(whole))
    headers = (TensorHeader("ids", "int64", shapes[0]), TensorHeader("pixels", "float32", shapes[1]))
    sizes = [8, 4]
    for place, shape in enumerate(shapes):
        for size in shape:
            sizes[place] *= size
    return check_request(InferRequest(1, "m", headers, None, None), sizes, lambda *_: signature, 10**9)


def test_a_requests_sizes_are_those_of_its_shapes() -> None:
    accepted = check((2, 7), (2, 7, 9, 3))
    assert (accepted.rows, accepted.sizes) == (2, (7, 9))
    assert wrong_outputs(accepted, (bytes(2 * 12 * 5 * 4),)) is None
    assert wrong_outputs(accepted, (bytes(2 * 192 * 5 * 4),)) is not None


def test_a_model_without_rows_has_sizes_too() -> None:
    accepted = check((7,), (7, 9, 3), whole=True)
    assert (accepted.rows, accepted.sizes) == (1, (7, 9))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((2, 7), (2, 8, 9, 3)), "seq is 8 in input 'pixels' and 7 in input 'ids'"),
        (((2, 129), (2, 129, 9, 3)), "seq is 129; the model takes seq from 2 to 128, width from 1 to 64"),
        (((2, 1), (2, 1, 9, 3)), "seq is 1; the model takes seq from 2"),
        (((2, 7), (2, 7, 0, 3)), "width is 0"),
        (((2,), (2, 7, 9, 3)), "takes [rows, seq]"),
        (((2, 7), (2, 7, 9)), "[2, 7, 9]; model 'm' takes [rows, 7, 9, 3]"),
        (((2, 7), (3, 7, 9, 3)), "3 rows"),
        (((5, 7), (5, 7, 9, 3)), "5 rows are more"),
    ],
)
def test_other_shapes_are_refused_with_what_is_right(shapes: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check(*shapes)
    assert said in refused.value.detail


def cached_model() -> ModelSpec:
    """A model with a mask of as many places as past and new ones together."""
    total = OpenDim(0, (Term(0),), others=(Product((Term(1),)),))
    return msgspec.structs.replace(
        open_model(),
        inputs=(
            TensorSpec("ids", "int64", (128,), (SEQ,)),
            TensorSpec("mask", "int64", (192,), (total,)),
            TensorSpec("past", "int64", (64,), (OpenDim(0, (Term(1),)),)),
        ),
        symbols=(Symbol("seq", (16, 128), 2), Symbol("past", (8, 64))),
    )


def ask_cached(seq: int, total: int, past: int) -> Accepted:
    signature = Signature(cached_model())
    shapes = {"ids": (2, seq), "mask": (2, total), "past": (2, past)}
    headers = tuple(TensorHeader(name, "int64", shape) for name, shape in shapes.items())
    request = InferRequest(1, "m", headers, None, None)
    return check_request(request, [16 * each for each in (seq, total, past)], lambda *_: signature, 10**9)


def test_a_dimension_that_follows_from_others_is_checked() -> None:
    assert ask_cached(7, 12, 5).sizes == (7, 5)
    with pytest.raises(BadRequest) as refused:
        ask_cached(7, 13, 5)
    said = "dimension 1 of input 'mask' is 13; it has to be seq + past, which is 12 with seq 7 and past 5"
    assert refused.value.detail == said


def test_rows_of_an_input_that_follows_from_others() -> None:
    signature = Signature(cached_model())
    mask = signature.spec.inputs[1]
    assert rows_of(signature, mask, (3, 12)) == 3
    assert rows_of(signature, mask, (3, 193)) == rows_of(signature, mask, (3, 0)) == 0


def test_rows_of_an_input_alone() -> None:
    signature = Signature(open_model())
    pixels = signature.spec.inputs[1]
    assert rows_of(signature, pixels, (3, 7, 9, 3)) == 3
    for shape in ((3, 129, 9, 3), (3, 7, 9, 4), (5, 7, 9, 3), (3, 7, 9)):
        assert rows_of(signature, pixels, shape) == 0


def test_an_answers_bytes_follow_from_the_sizes() -> None:
    signature = Signature(open_model())
    headers = (TensorHeader("ids", "int64", (2, 7)), TensorHeader("pixels", "float32", (2, 7, 9, 3)))
    assert answer_bytes(signature, headers, text=False) == 2 * 12 * 5 * 4
    assert answer_bytes(signature, headers[:1], text=False) == 2 * 192 * 5 * 4


def test_clients_see_open_dimensions_and_their_limits() -> None:
    metadata = model_metadata("m", open_model(), (1,))
    assert [each.shape for each in metadata.inputs] == [(-1, -1), (-1, -1, -1, 3)]
    assert metadata.outputs[0].shape == (-1, -1, 5)
    config = model_config("m", open_model())
    assert config["input"][1]["dims"] == [-1, -1, 3]
    assert config["parameters"]["mainspring_sizes.seq"] == {"string_value": "2 to 128"}


def test_clients_see_how_long_sizes_take() -> None:
    profile = Profile({1: 8_000_000}, 1, {"16": {1: 1_500_000, 2: 2_000_000}, "128": {1: 8_000_000}})
    shown = model_config("m", msgspec.structs.replace(open_model(), profiles={"cpu": profile}))["parameters"]
    curve = json.loads(shown["mainspring_infer_ms.cpu"]["string_value"])
    assert curve == {"16": {"1": 1.5, "2": 2.0}, "128": {"1": 8.0}}


def test_equal_bytes_of_other_sizes_are_other_inputs() -> None:
    cache = PredictionCache(1 << 20, ["*"])
    signature = Signature(open_model())
    found = {
        cache.digest(Accepted("m", 1, None, (0,), (0,), signature, sizes=sizes), [bytes(96)])
        for sizes in ((4, 6), (6, 4), (4, 6))
    }
    assert len(found) == 2
