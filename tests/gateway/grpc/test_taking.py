"""What a message says beside its tensors is remembered, and means the same as when it was first read."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns
from typing import Any

import msgspec
import numpy as np
import pytest

from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.grpc import requests
from mainspring.gateway.grpc.access import Caller
from mainspring.gateway.grpc.messages import ModelInferRequest
from mainspring.gateway.grpc.peers import Peers
from mainspring.gateway.grpc.shared_memory import SharedMemory
from mainspring.gateway.grpc.taking import MOST_KNOWN, Said, Taken, Taking, understand
from mainspring.messages.codes import Reason
from mainspring.messages.served import ServedModel
from tests.gateway.fakes import make_spec
from tests.gateway.grpc.tensors import COLUMNS, ROWS, SLOT, array, datatype, echo, encoded
from tests.gateway.test_services import Bench, bench, served

OPTIONS = ServedModel("double", {})
X = np.arange(4, dtype=np.float32).reshape(1, 4)

__all__ = ["bench"]


def said(data: bytes, signature: Signature) -> Said:
    return understand(*requests.parse(data), signature, OPTIONS)[0]


def test_a_message_says_the_same_only_while_its_model_is_what_it_was() -> None:
    signature = Signature(make_spec("double"))
    known = said(encoded("double", X), signature)
    assert known.uncopied
    assert known.fits(signature, msgspec.structs.replace(OPTIONS), [b""])
    assert not known.fits(Signature(make_spec("double")), OPTIONS, [b""])
    assert not known.fits(signature, msgspec.structs.replace(OPTIONS, labels={"sum": ("a",)}), [b""])
    assert not known.fits(signature, OPTIONS, [])
    assert not known.fits(signature, OPTIONS, [b"", b""])


def _in_fields() -> Any:
    message = ModelInferRequest(model_name="echo-float32")
    tensor = message.inputs.add(name="data", datatype="FP32", shape=[ROWS, COLUMNS])
    tensor.contents.fp32_contents.extend([1.0] * ROWS * COLUMNS)
    return message


def _in_region() -> Any:
    message = ModelInferRequest(model_name="echo-float32")
    tensor = message.inputs.add(name="data", datatype="FP32", shape=[ROWS, COLUMNS])
    tensor.parameters["shared_memory_region"].string_param = "region"
    tensor.parameters["shared_memory_byte_size"].int64_param = ROWS * COLUMNS * 4
    return message


def _as_text() -> Any:
    message = ModelInferRequest(model_name=f"echo-{SLOT}")
    message.inputs.add(name="data", datatype=datatype(SLOT), shape=[ROWS, COLUMNS])
    elements = [len(each).to_bytes(4, "little") + each for each in array(SLOT).ravel()]
    message.raw_input_contents.append(b"".join(elements))
    return message


def _to_region() -> Any:
    message = ModelInferRequest.FromString(encoded("echo-float32", array("float32")))
    output = message.outputs.add(name="same")
    output.parameters["shared_memory_region"].string_param = "region"
    output.parameters["shared_memory_byte_size"].int64_param = ROWS * COLUMNS * 4
    return message


@pytest.mark.parametrize(
    ("message", "dtype"),
    [(_in_fields(), "float32"), (_in_region(), "float32"), (_as_text(), SLOT), (_to_region(), "float32")],
)
def test_tensors_that_are_not_as_they_came_are_looked_at_each_time(message: Any, dtype: str) -> None:
    assert not said(message.SerializeToString(), Signature(echo(dtype))).uncopied


class Context:
    """What `Caller` asks of a call."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = tuple(metadata.items())

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None


@pytest.fixture
def taking(bench: Bench) -> Iterator[tuple[Taking, Peers]]:
    with served(bench) as (calls, _, _):
        config = calls.driver.config
        budget = config.max_answer_bytes_per_connection
        yield (
            Taking(calls, config, SharedMemory(calls)),
            Peers(calls.connection, calls.answers, budget, set[str]().add),
        )


def _take(taking: tuple[Taking, Peers], data: bytes, **metadata: str) -> tuple[bool, Taken]:
    """Return whether a message was known, and the request that it makes."""
    call = taking[1].call("ipv4:127.0.0.1:1")
    read = taking[0].read(data)
    try:
        return read.said is not None, taking[0].take(read, monotonic_ns(), Caller(Context(**metadata)), call)
    finally:
        call.end()


def test_a_second_message_is_known_whatever_its_tensors(taking: tuple[Taking, Peers]) -> None:
    known, first = _take(taking, encoded("double", X, "a"))
    assert not known
    known, second = _take(taking, encoded("double", X + 1, "a"))
    assert known
    assert second.asked == first.asked
    assert bytes(second.frames[0]) == (X + 1).tobytes()
    assert second.request.key != first.request.key
    known, other = _take(taking, encoded("double", X, "b"))
    assert not known
    assert other.asked.id == "b"


def test_what_a_call_says_beside_its_message_counts_each_time(taking: tuple[Taking, Peers]) -> None:
    data = encoded("double", X)
    for slo_ms in (1e9, 2e9):
        metadata = {"x-mainspring-slo-ms": str(slo_ms), "traceparent": f"span-{slo_ms}"}
        _, taken = _take(taking, data, **metadata)
        assert taken.request.slo_ns is not None
        assert slo_ms - 3.6e8 < taken.request.slo_ns / 1e6 <= slo_ms
        assert taken.request.traceparent == metadata["traceparent"]


def test_a_known_message_with_too_few_tensors_is_refused(taking: tuple[Taking, Peers]) -> None:
    data = encoded("double", X)
    _take(taking, data)
    message = ModelInferRequest.FromString(data)
    message.ClearField("raw_input_contents")
    with pytest.raises(BadRequest, match="no elements") as caught:
        _take(taking, message.SerializeToString())
    assert caught.value.reason is Reason.BAD_INPUT


def test_what_is_remembered_is_bounded(taking: tuple[Taking, Peers]) -> None:
    long = encoded("double", X, "x" * 2_000)
    assert [_take(taking, long)[0] for _ in range(2)] == [False, False]
    _take(taking, encoded("double", X, "first"))
    for number in range(MOST_KNOWN):
        _take(taking, encoded("double", X, str(number)))
    assert not _take(taking, encoded("double", X, "first"))[0]
