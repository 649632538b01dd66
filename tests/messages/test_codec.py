"""The vocabularies: what is encoded comes back, and nothing from outside raises but `BadMessage`."""

from __future__ import annotations

import contextlib
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.messages import actions, clients, events, metrics, operating, peers, sharding
from mainspring.messages.applications import ApplicationSpec
from mainspring.messages.codec import (
    FROM_CLIENT,
    FROM_GATEWAY,
    FROM_WORKER,
    TO_CLIENT,
    TO_CONTROLLER,
    TO_GATEWAY,
    TO_WORKER,
    BadMessage,
    Codec,
    encode,
)
from mainspring.messages.graphs import GraphSpec, StepSpec
from mainspring.messages.model import Artifact, ModelSpec, Profile, TensorSpec
from mainspring.messages.served import ServedModel
from mainspring.messages.status import ClusterStatus, ModelStatus, WorkerStatus

CODECS: dict[str, tuple[Codec[Any], Any]] = {
    "to the controller": (TO_CONTROLLER, peers.ToController | actions.Result),
    "to a worker": (TO_WORKER, peers.ToWorker | actions.Action),
    "to a gateway": (TO_GATEWAY, peers.ToGateway),
    "inputs": (FROM_GATEWAY, peers.FromGateway),
    "outputs": (FROM_WORKER, peers.FromWorker),
    "from a client": (FROM_CLIENT, clients.FromClient),
    "to a client": (TO_CLIENT, clients.ToClient),
}
MESSAGES = [
    (name, message)
    for name, (_, vocabulary) in CODECS.items()
    for message in (typing.get_args(vocabulary) or (vocabulary,))
]
SPEC = ModelSpec(
    "m",
    "w",
    "e",
    (1, 2),
    5,
    (1, 3),
    (TensorSpec("x", "float32", (3, 4)),),
    (TensorSpec("y", "int64", ()),),
    {"cpu": Profile({1: 2}, 3)},
)

COUNTS = metrics.HistogramCounts((1, 2), -3)
METRICS = metrics.ClusterMetrics(
    (1,),
    (-1, 1),
    (1, 2),
    (metrics.ModelActions("m", "1", COUNTS, COUNTS, COUNTS, COUNTS, 5),),
    (
        metrics.WorkerActions(
            *("w", "cpu", 8, 3, {"exec": 4}, {"INFER ok": 2}, {"exec": COUNTS}, {"exec": COUNTS}),
            (metrics.Reading("mainspring_gpu_throttled", 1.0, "power"),),
        ),
    ),
    *(1, 2, (3,)),
)
"""Drawn, it would be most of the time of these tests."""

st.register_type_strategy(ModelSpec, st.just(SPEC))
st.register_type_strategy(metrics.ClusterMetrics, st.just(METRICS))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


def built(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    hints = typing.get_type_hints(kind)
    fields = {name: st.from_type(hints[name]) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


NESTED = (
    *(Artifact, events.Resident, peers.TensorHeader, clients.Timing, WorkerStatus, ModelStatus),
    *(
        ServedModel,
        sharding.Shard,
        sharding.ShardStatus,
        operating.MoveWorker,
        StepSpec,
        ApplicationSpec,
        GraphSpec,
    ),
)
for nested in NESTED:
    st.register_type_strategy(nested, built(nested))
for whole in (ClusterStatus, sharding.ShardMap):
    st.register_type_strategy(whole, built(whole))


@pytest.mark.parametrize(("name", "kind"), MESSAGES, ids=lambda each: getattr(each, "__name__", each))
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_comes_back_as_it_was(name: str, kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(built(kind))
    assert CODECS[name][0].decode(encode(message)) == message


@pytest.mark.parametrize("name", CODECS)
@given(garbage=st.binary(max_size=200))
def test_garbage_raises_nothing_but_bad_message(name: str, garbage: bytes) -> None:
    with contextlib.suppress(BadMessage):
        CODECS[name][0].decode(garbage)


@pytest.mark.parametrize("name", CODECS)
def test_deep_nesting_and_wrong_fields_are_bad_messages(name: str) -> None:
    codec = CODECS[name][0]
    for bad in (b"", b"\x91" * 100_000, encode(actions.DropWorker("w", "r")) + b"\xc1"):
        with pytest.raises(BadMessage):
            codec.decode(bad)


def test_a_field_of_another_type_is_named() -> None:
    with pytest.raises(BadMessage, match=r"Expected `int`, got `str`.*request_id"):
        TO_CONTROLLER.decode(msgspec.msgpack.encode({"type": "cancel", "request_id": "one"}))


def test_tags_are_unique_in_the_event_stream() -> None:
    stream = typing.get_args(events.Event | actions.Command)
    tags = [kind.__struct_config__.tag for kind in stream]
    assert len(tags) == len(set(tags))


def test_a_spec_adds_its_extents_and_rows_up() -> None:
    assert (SPEC.pages, SPEC.max_rows, SPEC.input_row_bytes, SPEC.output_row_bytes) == (4, 2, 48, 8)
