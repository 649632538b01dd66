"""Tensors cut out of a message's bytes, against protobuf's own reading."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.grpc import wire
from mainspring.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from mainspring.gateway.grpc.requests import parse
from mainspring.gateway.oip.datatypes import Unfit

CONTENTS = st.lists(st.binary(max_size=300), max_size=4)


def request(contents: list[bytes]) -> bytes:
    message = ModelInferRequest(model_name="model", id="id", raw_input_contents=contents)
    message.inputs.add(name="data", datatype="FP32", shape=[1, 4])
    message.parameters["timeout"].int64_param = 1 << 40
    return bytes(message.SerializeToString())


@given(CONTENTS)
def test_raw_contents_are_cut_out_uncopied(contents: list[bytes]) -> None:
    data = request(contents)
    rest, found = wire.cut(data, wire.RAW_INPUT_CONTENTS)
    assert [bytes(each) for each in found] == contents
    assert all(each.obj is data for each in found)
    assert ModelInferRequest.FromString(rest) == ModelInferRequest.FromString(request([]))


@given(CONTENTS, st.randoms(use_true_random=False))
def test_fields_may_stand_in_any_order(contents: list[bytes], random: Random) -> None:
    parts = [ModelInferRequest(model_name="model").SerializeToString(), ModelInferRequest(id="id")]
    pieces = [(number, wire.field(7, len(each)) + each) for number, each in enumerate(contents)]
    pieces += [(-1, bytes(parts[0])), (-1, bytes(parts[1].SerializeToString())), (-1, b"\x78\x05")]
    random.shuffle(pieces)
    rest, found = wire.cut(b"".join(piece for _, piece in pieces), 7)
    assert [bytes(each) for each in found] == [contents[number] for number, _ in pieces if number >= 0]
    message = ModelInferRequest.FromString(rest)
    assert (message.model_name, message.id, len(message.raw_input_contents)) == ("model", "id", 0)


def bent(contents: list[bytes], place: int, value: int) -> bytes:
    """Return a request one byte of which is another one."""
    data = bytearray(request(contents))
    data[place % len(data)] = value
    return bytes(data)


BENT = st.builds(bent, CONTENTS, st.integers(0, 2_000), st.integers(0, 255))


@given(st.one_of(st.binary(max_size=60), BENT))
def test_what_protobuf_takes_for_a_message_is_cut_as_it_reads_it(data: bytes) -> None:
    try:
        expected = ModelInferRequest.FromString(data)
    except Exception:
        expected = None
    try:
        rest, found = wire.cut(data, wire.RAW_INPUT_CONTENTS)
        message = ModelInferRequest.FromString(rest)
    except Exception:
        # Groups, which proto3 has none of, are not looked into.
        assert expected is None or any(byte & 7 in (3, 4) for byte in data)
        return
    if expected is not None:
        assert [bytes(each) for each in found] == list(expected.raw_input_contents)
        expected.ClearField("raw_input_contents")
        assert message.SerializeToString() == expected.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [b"\x3a\x05abc", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x3a", b"\x0b\x00", b"\x0d\x00"],
)
def test_what_ends_behind_the_message_is_malformed(data: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.cut(data, wire.RAW_INPUT_CONTENTS)


def test_more_fields_than_any_request_has_are_not_looked_at() -> None:
    """An empty input takes two bytes on the wire: to read millions of them would keep everybody waiting."""
    most = b"\x2a\x00" * (wire.MOST_FIELDS - 1) + b"\x3a\x01x"
    assert len(wire.cut(most, wire.RAW_INPUT_CONTENTS)[0]) == 2 * (wire.MOST_FIELDS - 1)
    for more in (b"\x2a\x00", b"\x3a\x00", b"\x78\x01"):
        with pytest.raises(wire.Malformed, match="more than 4,096 fields"):
            wire.cut(more + most, wire.RAW_INPUT_CONTENTS)
        with pytest.raises(Unfit, match="more than 4,096 fields"):
            parse(more * (32 << 20))


@given(CONTENTS)
def test_contents_that_are_pasted_are_read_back(contents: list[bytes]) -> None:
    head = ModelInferResponse(model_name="model", id="id")
    views = [memoryview(each) for each in contents]
    parts = wire.paste(head.SerializeToString(), wire.RAW_OUTPUT_CONTENTS, views)
    message = ModelInferResponse.FromString(b"".join(parts))
    assert (message.model_name, list(message.raw_output_contents)) == ("model", contents)


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 1 << 21])
def test_a_field_of_any_size_has_its_head(size: int) -> None:
    data = wire.field(6, size) + bytes(size)
    assert list(ModelInferResponse.FromString(data).raw_output_contents) == [bytes(size)]


@pytest.mark.parametrize("size", [100, 8_000, 9_000, 700_000])
def test_small_and_large_requests_are_read_alike(size: int) -> None:
    message, raw = parse(request([b"\x01" * size, b"\x02" * 4]))
    assert [bytes(each) for each in raw] == [b"\x01" * size, b"\x02" * 4]
    assert (message.id, message.inputs[0].name) == ("id", "data")
