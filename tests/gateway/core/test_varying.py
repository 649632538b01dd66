"""Outputs whose shape only a run tells: they begin with their sizes, and clients get them in that shape."""

from __future__ import annotations

import struct
from typing import cast

import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.effects import Accepted, Connection, Dispatched
from mainspring.gateway.core.requests import Patience, answer, wrong_outputs
from mainspring.gateway.core.validation import Signature
from mainspring.gateway.oip.metadata import model_metadata
from mainspring.messages.model import FOUND_BYTES, ModelSpec, TensorSpec
from mainspring.messages.peers import Output

NAMES = TensorSpec("n", "int16", (2,))
BOXES = TensorSpec("y", "int64", (2, 24), varies=(1,))


def accepted(order: tuple[int, ...] = (0, 1)) -> Accepted:
    spec = ModelSpec(
        name="m",
        weights_hash="w",
        executable="e",
        batch_sizes=(1,),
        weights_bytes=0,
        extents=(),
        inputs=(TensorSpec("x", "float32", (4, 6)),),
        outputs=(NAMES, BOXES),
        profiles={},
        whole=True,
    )
    return Accepted("m", 1, None, (0,), order, Signature(spec))


def found(size: int, content: bytes) -> bytes:
    return struct.pack("<q", size).ljust(FOUND_BYTES, b"\0") + content


@pytest.mark.parametrize("size", [0, 3, 24])
def test_the_answer_has_the_shape_that_was_found(size: int) -> None:
    content = bytes(range(256))[: 16 * size] if size < 16 else bytes(16 * size)
    frames = (b"abcd", memoryview(found(size, content)))
    assert wrong_outputs(accepted(), frames) is None
    pending = Patience(GatewayConfig()).begin(
        1, 0, Connection("test", b"c"), 1, accepted((1, 0)), (bytes(96),), None
    )
    for given in (
        answer(9, pending, Dispatched(1, "w", 1, False, 5), Output(1, 1, 3), frames),
        answer(9, pending, None, None, tuple([bytes(frame) for frame in frames])),
    ):
        assert [header.shape for header in given.outputs] == [(2, size), (2,)]
        assert [bytes(cast("bytes", frame)) for frame in given.frames] == [content, b"abcd"]


@pytest.mark.parametrize(
    "frame",
    [found(3, bytes(47)), found(25, bytes(400)), found(-1, b""), b"\1"],
    ids=["too short", "beyond its memory", "less than nothing", "without sizes"],
)
def test_outputs_that_contradict_their_sizes_are_wrong(frame: bytes) -> None:
    wrong = wrong_outputs(accepted(), (b"abcd", frame))
    assert wrong is not None
    assert f"{len(frame)}]" in wrong


def test_clients_see_an_open_dimension() -> None:
    metadata = model_metadata("m", accepted().signature.spec, [1])
    assert [each.shape for each in metadata.outputs] == [(2,), (2, -1)]
    assert BOXES.dims == ["2", "<=24"]
