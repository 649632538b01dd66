"""JSON in OpenAI's form, and TEI's, to tensors and back."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.texts import TextForm
from mainspring.gateway.http import openai
from mainspring.gateway.http.openai import EmbeddingsRequest, RerankRequest
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec

FORM = TextForm((), TensorSpec("embedding", "float32", (3,)), "", 4, "count")
INPUTS = [
    TensorSpec("input_ids", "int64", (4,)),
    TensorSpec("attention_mask", "int32", (4,)),
    TensorSpec("count", "int64", (1,)),
]
VECTORS = np.array([[3, 4, 0], [0, 0, 2]], np.float32)


def asked(**fields: Any) -> EmbeddingsRequest:
    return msgspec.convert({"model": "m", **fields}, EmbeddingsRequest)


def written(request: EmbeddingsRequest, vectors: np.ndarray[Any, Any], count: int = 0) -> Any:
    steps = openai.embeddings(request, vectors, count)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return json.loads(ended.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])],
)
def test_each_form_of_input_is_taken(given: Any, found: Any) -> None:
    assert openai.given(asked(input=given)) == found


@pytest.mark.parametrize("given", ["", [], ["a", ""], ["a", 1], [[1], "a"], [[1], []], [[1], 2]])
def test_other_forms_are_refused(given: Any) -> None:
    with pytest.raises(BadRequest):
        openai.given(asked(input=given))


def test_tokens_are_filled_to_the_longest_and_told_with_their_number() -> None:
    headers, frames = openai.tokens(FORM, INPUTS, [[7, 8], [9]], truncate=False)
    assert [(each.name, each.dtype, each.shape) for each in headers] == [
        ("input_ids", "int64", (2, 2)),
        ("attention_mask", "int32", (2, 2)),
        ("count", "int64", (2, 1)),
    ]
    assert np.frombuffer(frames[0], np.int64).tolist() == [7, 8, 9, 0]
    assert np.frombuffer(frames[1], np.int32).tolist() == [1, 1, 1, 0]
    assert np.frombuffer(frames[2], np.int64).tolist() == [2, 1]


def test_too_many_tokens_are_refused_or_cut() -> None:
    with pytest.raises(BadRequest, match=r"input\[1\] has 5 tokens, and the model takes 4"):
        openai.tokens(FORM, INPUTS, [[1], [1] * 5], truncate=False)
    headers, _ = openai.tokens(FORM, INPUTS, [[1], [1] * 5], truncate=True)
    assert headers[0].shape == (2, 4)


def test_a_text_longer_than_its_slot_is_refused_or_cut_between_letters() -> None:
    slot = TensorSpec("text", "S4", ())
    with pytest.raises(BadRequest):
        openai.texts(slot, ["abcü"], truncate=False)
    header, frame = openai.texts(slot, ["abcü", "x"], truncate=True)
    assert (header.shape, frame) == ((2,), b"abc\0x\0\0\0")


def test_vectors_have_the_length_1_after_they_are_cut() -> None:
    found = written(asked(input="a"), VECTORS, 5)
    assert found["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert [each["index"] for each in found["data"]] == [0, 1]
    np.testing.assert_allclose(found["data"][0]["embedding"], [0.6, 0.8, 0], rtol=1e-6)
    assert written(asked(input="a", dimensions=1), VECTORS)["data"][0]["embedding"] == [1]
    # Nothing is left of the second: it is no vector of length 1, and not NaN.
    assert written(asked(input="a", dimensions=2), VECTORS)["data"][1]["embedding"] == [0, 0]


def test_base64_has_the_same_numbers() -> None:
    data = written(asked(input="a", encoding_format="base64"), VECTORS)["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(data), "<f4"), [0.6, 0.8, 0], rtol=1e-6)


def test_many_vectors_are_written_in_several_slices_and_in_order() -> None:
    many = np.arange(1, 41, dtype=np.float32)[:, None] * [[1, 0, 0]]
    assert sum(1 for _ in openai.embeddings(asked(input="a"), many, 0)) == 2
    assert [each["index"] for each in written(asked(input="a"), many)["data"]] == [*range(40)]


@pytest.mark.parametrize("wanted", [0, -1, 4])
def test_dimensions_that_no_vector_has_are_refused(wanted: int) -> None:
    with pytest.raises(BadRequest, match="from 1 to 3"):
        openai.check_dimensions(wanted, 3)


def test_texts_are_ranked_by_score() -> None:
    request = RerankRequest("q", ["a", "b"], return_text=True)
    found = json.loads(openai.ranked(request, np.array([[0.0], [2.0]], np.float32)))
    assert [each["index"] for each in found] == [1, 0]
    assert [each["text"] for each in found] == ["b", "a"]
    assert found[1]["score"] == 0.5
    raw = json.loads(openai.ranked(RerankRequest("q", ["a"], raw_scores=True), np.array([3.0])))
    assert raw == [{"index": 0, "score": 3.0}]


@pytest.mark.parametrize(
    ("status", "reason", "kind", "code"),
    [
        (404, Reason.UNKNOWN_MODEL, "invalid_request_error", "model_not_found"),
        (401, Reason.UNAUTHENTICATED, "invalid_request_error", "invalid_api_key"),
        (429, Reason.RATE_LIMITED, "rate_limit_error", "rate_limit_exceeded"),
        (504, Reason.DEADLINE_UNREACHABLE, "server_error", "deadline_unreachable"),
    ],
)
def test_errors_have_the_form_of_openai(status: int, reason: Reason, kind: str, code: str) -> None:
    found = json.loads(openai.error(status, "why", reason.value))["error"]
    assert (found["message"], found["type"], found["code"]) == ("why", kind, code)
    assert found["param"] == ("model" if status == 404 else None)


def test_when_to_come_again_is_said_where_it_is_of_use() -> None:
    assert openai.retry_after_s(400, None) is None
    assert openai.retry_after_s(503, 2_100_000_000) == 3
    assert openai.retry_after_s(504, None) == 1
