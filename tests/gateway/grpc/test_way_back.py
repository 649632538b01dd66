"""What answers take to a gRPC client comes off the deadlines of its next requests."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from mainspring.messages.delays import Back
from tests.gateway.fakes import wait_until
from tests.gateway.grpc.conftest import Fake
from tests.gateway.grpc.tensors import encoded
from tests.patience import PATIENCE_S

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
X = np.arange(4, dtype=np.float32).reshape(1, 4)
SLO_US = 60_000_000


def test_what_a_streams_answers_take_is_learnt(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[bytes] = []
    took = Back.took

    def slow(back: Back, way: bytes, size_bytes: int, took_ns: int, now_ns: int) -> None:
        assert took_ns >= 0
        learnt.append(way)
        took(back, way, size_bytes, took_ns + SLO_US * 1000, now_ns)

    monkeypatch.setattr(Back, "took", slow)
    asked: queue.Queue[bytes | None] = queue.Queue()
    said: Iterator[bytes] = iter(asked.get, None)
    answers = iter(fake.channel.stream_stream(STREAM)(said, timeout=PATIENCE_S))

    def ask(model: str) -> str:
        asked.put(encoded(model, X, timeout_us=SLO_US))
        answer = service_pb2.ModelStreamInferResponse.FromString(next(answers))
        return str(answer.error_message)

    assert ask("reject"), "refused"
    assert not learnt, "a refusal says nothing of outputs"
    assert not ask("double")
    wait_until(lambda: len(learnt) == 1)
    before_ns = fake.cluster.arrivals[-1].left_ns or 0
    assert before_ns > SLO_US * 1000 * 3 // 4
    assert not ask("double")
    assert (fake.cluster.arrivals[-1].left_ns or 0) <= SLO_US * 1000 * 3 // 4, "the most that is kept for it"
    wait_until(lambda: len(learnt) == 2)
    assert len(set(learnt)) == 1, "one connection"
    asked.put(None)
    with pytest.raises(StopIteration):
        next(answers)


def test_calls_one_after_the_other_and_streams_learn_for_each_other(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt: list[bytes] = []
    monkeypatch.setattr(Back, "took", lambda _back, way, *_: learnt.append(way))
    call = fake.channel.stream_stream(STREAM)(iter([encoded("double", X)]), timeout=PATIENCE_S)
    assert len(list(call)) == 1
    wait_until(lambda: learnt)
    assert fake.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(encoded("double", X))
    wait_until(lambda: len(learnt) == 2)
    assert learnt[0] == learnt[1]
