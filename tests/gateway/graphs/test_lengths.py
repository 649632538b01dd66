"""Rows of unlike length in one step, and the sizes that steps are expected to have."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.gateway.core.effects import Answer
from mainspring.gateway.graphs.checking import GraphError, check_graph
from mainspring.gateway.graphs.lengths import alike
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec, OpenDim, Symbol, TensorSpec, Term
from mainspring.messages.peers import Dispatch, Output
from tests.gateway.graphs.test_checking import model
from tests.gateway.graphs.test_run import MS, Cluster

SEQUENCE = OpenDim(0, (Term(0),))
COUNT = TensorSpec("count", "int64", (1,))
MODELS: dict[str, ModelSpec] = {
    "tokenizer": model(
        "tokenizer", [TensorSpec("text", "S32", ())], [TensorSpec("ids", "int64", (32,)), COUNT]
    ),
    "encoder": model(
        "encoder",
        [TensorSpec("ids", "int64", (32,), open=(SEQUENCE,))],
        [TensorSpec("vector", "float32", (2,))],
        symbols=(Symbol("sequence", (4, 16, 32)),),
    ),
}
EMBED: dict[str, Any] = {
    "name": "embed",
    "inputs": ["text"],
    "steps": [
        {"name": "split", "model": "tokenizer", "inputs": {"text": "text"}},
        {"name": "encode", "model": "encoder", "inputs": {"ids": "split.ids"}, "length": "split.count"},
    ],
    "outputs": {"vector": "encode.vector"},
}


class Encoders(Cluster):
    """Workers that split texts into characters, and sum these beside the length that they were given."""

    def __init__(self, *tables: dict[str, Any]) -> None:
        super().__init__(MODELS, *[msgspec.convert(each, GraphSpec) for each in tables])
        self.lengths: list[int] = []

    def work(self) -> Answer:
        """Run all pieces, the last first; return the answer."""
        while self.waiting:
            request_id = max(self.waiting)
            name, _ = self.waiting.pop(request_id)
            self.actions += 1
            self.core.dispatched(MS, Dispatch(self.actions, "w", (request_id,), (False,), 2))
            self.take()
            found = self.split() if name == "tokenizer" else self.encode()
            frames = tuple([each.tobytes() for each in found])
            self.core.outputs(2 * MS, Output(self.actions, request_id, len(frames)), frames)
            self.take()
        [answer] = self.ended
        assert isinstance(answer, Answer), answer
        return answer

    def split(self) -> list[np.ndarray[Any, Any]]:
        texts = np.frombuffer(self.frames[0], "S32")
        ids = np.zeros((len(texts), 32), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = [*text]
        return [ids, np.array([[len(text)] for text in texts])]

    def encode(self) -> list[np.ndarray[Any, Any]]:
        found = next(piece for piece in self.core._table.pending.values())
        sizes = {each.accepted.sizes for each in found.pieces if each.frames == self.frames}
        [(size,)] = sizes
        ids = np.frombuffer(self.frames[0], np.int64).reshape(-1, size)
        self.lengths += [size] * len(ids)
        return [np.stack([ids.sum(axis=1), (ids > 0).sum(axis=1)], axis=1).astype(np.float32)]


@given(st.lists(st.text("abc", min_size=1, max_size=32), min_size=1, max_size=9))
def test_each_row_gets_what_it_would_get_alone_and_runs_at_about_its_length(texts: list[str]) -> None:
    cluster = Encoders(EMBED)
    cluster.submit("embed", text=np.array(texts, "S32"))
    answer = cluster.work()
    found = np.frombuffer(answer.frames[0], np.float32).reshape(-1, 2)  # type: ignore[call-overload]
    assert found.tolist() == [[sum(map(ord, text)), len(text)] for text in texts]
    for size, length in zip(sorted(cluster.lengths), sorted(map(len, texts)), strict=True):
        assert length <= size <= length + 8
    cluster.over()


def test_pieces_that_begin_with_the_query_are_told_with_their_own_sizes() -> None:
    tokens = {
        **EMBED,
        "inputs": ["ids", "n"],
        "steps": [{"name": "encode", "model": "encoder", "inputs": {"ids": "ids"}, "length": "n"}],
    }
    cluster = Encoders(tokens)
    ids = np.zeros((3, 30), np.int64)
    ids[:, :2] = 1
    cluster.submit("embed", ids=ids, n=np.array([[30], [2], [3]]))
    assert cluster.query is not None
    assert sorted((piece.rows, piece.sizes) for piece in cluster.query.pieces) == [(1, (30,)), (2, (3,))]
    found = np.frombuffer(cluster.work().frames[0], np.float32)  # type: ignore[call-overload]
    assert found.tolist() == [2, 2] * 3


def test_the_controller_is_told_which_sizes_a_later_step_is_likely_to_have() -> None:
    cluster = Encoders(EMBED)
    said = []
    for text in ("a" * 5, "a" * 5, "a" * 20):
        cluster.submit("embed", text=np.array([text], "S32"))
        assert cluster.query is not None
        said.append(cluster.query.steps[1].sizes)
        cluster.work()
        cluster.ended.clear()
    # The least before anything ran; then those of the bucket that so many bytes are in.
    assert said == [(4,), (16,), (32,)]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 16))
def test_rows_that_run_together_are_of_like_length_and_each_runs_once(values: list[int], most: int) -> None:
    lengths = np.array(values)
    together = list(alike(lengths, most))
    assert sorted(np.concatenate(together).tolist()) == list(range(len(values)))
    for rows in together:
        assert len(rows) <= most
        shortest, longest = int(lengths[rows].min()), int(lengths[rows][-1])
        assert longest == lengths[rows].max()
        assert longest - shortest <= max(8, shortest // 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": "split.ids"}, "split.ids is int64[32], not one whole number for each row"),
        ({"length": "split.amount"}, "step 'split' has no output 'amount'"),
        ({"length": "split.count", "model": "tokenizer", "inputs": {"text": "text"}}, "one open dimension"),
    ],
)
def test_a_length_that_can_not_be_is_refused(change: dict[str, Any], said: str) -> None:
    table = {**EMBED, "steps": [EMBED["steps"][0], {**EMBED["steps"][1], **change}]}
    with pytest.raises(GraphError, match=r".*") as error:
        check_graph(msgspec.convert(table, GraphSpec), MODELS)
    assert said in str(error.value)
