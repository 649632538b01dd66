"""OpenAI's form of embeddings and TEI's of reranking: JSON to texts and tokens, and vectors to JSON.

Nothing is sent here; `mainspring.gateway.http.texts` does.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.gateway.core.validation import BadRequest
from mainspring.gateway.graphs.texts import MASK, TYPES, TextForm
from mainspring.gateway.oip import datatypes, json_data
from mainspring.gateway.oip.steps import Steps
from mainspring.messages.codes import Reason
from mainspring.messages.model import TensorSpec, slot_bytes
from mainspring.messages.peers import TensorHeader

Array = npt.NDArray[Any]
ROOT: Final = b"/v1/"
"""Paths below have errors in OpenAI's form."""
_SLICE_ROWS: Final = 16
"""Vectors that are written in one slice of the loop's time."""
_ENCODER = msgspec.json.Encoder()
_LATE = (Reason.DEADLINE_UNREACHABLE, Reason.DEADLINE_PASSED, Reason.TIMED_OUT)
_CODES = {
    Reason.UNKNOWN_MODEL: "model_not_found",
    Reason.MODEL_REMOVED: "model_not_found",
    Reason.UNAUTHENTICATED: "invalid_api_key",
    Reason.RATE_LIMITED: "rate_limit_exceeded",
    Reason.OVER_SHARE: "rate_limit_exceeded",
}


class EmbeddingsRequest(msgspec.Struct):
    """The body of ``POST /v1/embeddings``. Other fields, such as ``user``, say nothing here."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    timeout: float | None = None
    """Seconds in which the answer is of use: ours."""
    truncate: bool = False
    """Whether texts with too many tokens are cut instead of refused: ours, as TEI has it."""


class RerankRequest(msgspec.Struct):
    """The body of ``POST /rerank``."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool = False
    model: str = ""
    """Ours: the graph, where several rerank."""
    timeout: float | None = None
    """Ours: as `EmbeddingsRequest.timeout`."""


def bad(detail: str, reason: Reason = Reason.BAD_INPUT) -> BadRequest:
    """Return what a request is refused with."""
    return BadRequest(reason, detail)


def given(request: EmbeddingsRequest) -> list[str] | list[list[int]]:
    """Return the texts of a request, or its lists of tokens; raise `BadRequest` for neither."""
    found = request.input
    if isinstance(found, str):
        found = [found]
    kinds = {type(each) for each in found}
    if kinds == {str}:
        if empty := [at for at, each in enumerate(found) if not each]:
            raise bad(f"input[{empty[0]}] is an empty text")
        return found  # type: ignore[return-value]
    lists: Any = [found] if kinds == {int} else found
    if kinds not in ({int}, {list}) or not all(lists):
        raise bad(
            "input is a text, a list of texts, a list of tokens, or a list of such lists; none is empty"
        )
    return lists  # type: ignore[no-any-return]


def texts(tensor: TensorSpec, values: Sequence[str], *, truncate: bool) -> tuple[TensorHeader, bytes]:
    """Return an input of texts; raise `BadRequest` for one that is longer than its slot."""
    slot = slot_bytes(tensor.dtype) or 0
    encoded = [each.encode(errors="replace") for each in values]
    if truncate:
        encoded = [each if len(each) <= slot else _cut(each, slot) for each in encoded]
    header = TensorHeader(tensor.name, tensor.dtype, (len(values),))
    return header, bytes(datatypes.to_slots(tensor.name, encoded, slot))


def _cut(text: bytes, count: int) -> bytes:
    return text[:count].decode(errors="ignore").encode()


def tokens(
    form: TextForm, inputs: Sequence[TensorSpec], rows: Sequence[Sequence[int]], *, truncate: bool
) -> tuple[list[TensorHeader], list[bytes]]:
    """Return the inputs of a graph that takes tokens; raise `BadRequest` for too many of them."""
    most = form.most_tokens
    for at, row in enumerate(rows):
        if most and len(row) > most and not truncate:
            raise too_long(at, len(row), most)
    cut = [row[:most] if most else row for row in rows]
    longest = max(map(len, cut))
    ids, mask = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.int64)
    try:
        for at, row in enumerate(cut):
            ids[at, : len(row)], mask[at, : len(row)] = row, 1
    except OverflowError:
        raise bad("a token is a number below 2 ** 63") from None
    if not form.length and len({*map(len, cut)}) > 1 and MASK not in [each.name for each in inputs]:
        raise bad(f"the graph has no {MASK}, so that all inputs of a request need as many tokens")
    known = {MASK: mask, TYPES: np.zeros_like(ids), form.length: mask.sum(axis=1, keepdims=True)}
    headers, frames = [], []
    for tensor in inputs:
        array = known.get(tensor.name, ids).astype(tensor.dtype)
        headers.append(TensorHeader(tensor.name, tensor.dtype, array.shape))
        frames.append(array.tobytes())
    return headers, frames


def too_long(at: int, count: int, most: int) -> BadRequest:
    """Return the refusal of an input with too many tokens."""
    return bad(
        f"input[{at}] has {count} tokens, and the model takes {most}: send less, or truncate: true to have "
        "it cut"
    )


def check_dimensions(wanted: int | None, width: int) -> None:
    """Raise `BadRequest` for a number of dimensions that no embedding has."""
    if wanted is not None and not 1 <= wanted <= width:
        raise bad(f"dimensions is {wanted}; it is from 1 to {width}")


def embeddings(request: EmbeddingsRequest, vectors: Array, count: int) -> Steps[bytes]:
    """Return the body of an answer: vectors of the length 1, cut to the dimensions that were asked for."""
    parts = []
    for at in range(0, len(vectors), _SLICE_ROWS):
        if at:
            yield
        for row, vector in enumerate(unit(vectors[at : at + _SLICE_ROWS, : request.dimensions]), at):
            if request.encoding_format == "base64":
                data = b'"%s"' % base64.b64encode(vector.astype("<f4").tobytes())
            else:
                data = json_data.encoded(vector.tobytes(), "float32")
            parts.append(b'{"object":"embedding","index":%d,"embedding":%s}' % (row, data))
    return b'{"object":"list","data":[%s],"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        *(b",".join(parts), _ENCODER.encode(request.model), count, count),
    )


def unit(vectors: Array) -> Array:
    """Return vectors of the length 1."""
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    found: Array = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return found


def ranked(request: RerankRequest, scores: Array) -> bytes:
    """Return the body of an answer: the texts' indices and scores, the highest first."""
    values = scores.reshape(-1).astype(np.float64)
    if not request.raw_scores:
        values = 1 / (1 + np.exp(-values))
    found: list[dict[str, Any]] = []
    for index in np.argsort(-values, kind="stable").tolist():
        found.append({"index": index, "score": float(values[index])})
        if request.return_text:
            found[-1]["text"] = request.texts[index]
    return _ENCODER.encode(found)


def model(name: str) -> dict[str, Any]:
    """Return a model as OpenAI lists it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "mainspring"}


def status_of(reason: Reason, status: int) -> int:
    """Return the status that OpenAI's clients expect: 504 for what is late, else the usual one."""
    return 504 if reason in _LATE else status


def error(status: int, detail: str, reason: str = "") -> bytes:
    """Return the body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    code = next((code for each, code in _CODES.items() if each.value == reason), reason or None)
    param = "model" if code == "model_not_found" else None
    return _ENCODER.encode({"error": {"message": detail, "type": kind, "param": param, "code": code}})


def retry_after_s(status: int, again_ns: int | None) -> int | None:
    """Return after how many seconds to come again; None if it is of no use."""
    if status not in (429, 503, 504):
        return None
    return 1 if again_ns is None else max(1, -(-again_ns // 1_000_000_000))
