"""Graphs that serve texts: which can, what is wrong with others, and what is left without a tokenizer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.gateway.graphs.checking import GraphError, check_graph
from mainspring.gateway.graphs.texts import TextForm, behind_tokenizer, text_form
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import ModelSpec, OpenDim, Symbol, TensorSpec, Term
from tests.gateway.graphs.test_checking import model

SEQUENCE = OpenDim(0, (Term(0),))
IDS = [TensorSpec(name, "int64", (16,)) for name in ("input_ids", "attention_mask")]
OPEN = [TensorSpec(each.name, "int64", (64,), open=(SEQUENCE,)) for each in IDS]
LENGTH = (Symbol("sequence", (8, 64)),)
MODELS: dict[str, ModelSpec] = {
    "tokenizer": model(
        "tokenizer", [TensorSpec("text", "S32", ())], [*IDS, TensorSpec("count", "int64", (1,))]
    ),
    "encoder": model("encoder", OPEN, [TensorSpec("vector", "float32", (4,))], symbols=LENGTH),
    "pairs": model(
        "pairs",
        [TensorSpec("a", "S32", ()), TensorSpec("b", "S32", ())],
        [TensorSpec("score", "float32", (1,)), TensorSpec("vector", "float32", (4,))],
    ),
}
EMBED: dict[str, Any] = {
    "name": "embed",
    "serves": "embeddings",
    "inputs": ["text"],
    "steps": [
        {"name": "split", "model": "tokenizer", "inputs": {"text": "text"}},
        {
            "name": "encode",
            "model": "encoder",
            "inputs": {"input_ids": "split.input_ids", "attention_mask": "split.attention_mask"},
            "length": "split.count",
        },
    ],
    "outputs": {"embedding": "encode.vector", "tokens": "split.count"},
}
RANK: dict[str, Any] = {
    "name": "rank",
    "serves": "rerank",
    "inputs": ["query", "text"],
    "steps": [{"name": "compare", "model": "pairs", "inputs": {"a": "query", "b": "text"}}],
    "outputs": {"score": "compare.score"},
}


def form(table: dict[str, Any]) -> TextForm:
    return text_form(check_graph(msgspec.convert(table, GraphSpec), MODELS))


def test_what_a_graph_takes_and_gives_is_found() -> None:
    found = form(EMBED)
    assert [each.name for each in found.texts] == ["text"]
    # The tokenizer gives 16, of the 64 that the encoder takes.
    assert (found.result.name, found.counted, found.most_tokens, found.length) == (
        "embedding",
        "tokens",
        16,
        "",
    )
    assert [each.name for each in form(RANK).texts] == ["query", "text"]


def test_behind_its_tokenizer_a_graph_takes_tokens() -> None:
    spec = behind_tokenizer(msgspec.convert(EMBED, GraphSpec))
    assert spec.inputs == ("input_ids", "attention_mask", "count")
    assert [step.name for step in spec.steps] == ["encode"]
    assert [*spec.outputs] == ["embedding"]
    found = text_form(check_graph(spec, MODELS))
    assert (found.texts, found.counted, found.most_tokens, found.length) == ((), "", 64, "count")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({**EMBED, "outputs": {"embedding": "encode.vector"}}, 'such as tokens = "tokenize.count"'),
        ({**EMBED, "outputs": {"tokens": "split.count"}}, "one of float32 for each row"),
        ({**EMBED, "outputs": {**EMBED["outputs"], "ids": "split.input_ids"}}, "one of float32 for each row"),
        ({**RANK, "serves": "embeddings"}, "beside the text it may take nothing"),
        ({**EMBED, "serves": "rerank"}, 'have to be texts, ["query", "text"]'),
        ({**RANK, "outputs": {"score": "compare.vector"}}, "has to be one score for each row"),
    ],
)
def test_a_graph_that_can_not_serve_texts_is_refused_with_what_is_wrong(
    table: dict[str, Any], said: str
) -> None:
    with pytest.raises(GraphError) as error:
        form(table)
    assert said in str(error.value)
