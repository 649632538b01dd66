"""Graphs that take texts in the forms of OpenAI and of TEI: what such a graph has to look like. Pure.

A graph that embeds takes a text in each row, which one step, its tokenizer, makes tokens of; or it takes
tokens. Where it takes a text, `behind_tokenizer` is the same graph for clients that bring tokens.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from mainspring.gateway.graphs.checking import REQUEST, Graph, GraphError
from mainspring.messages.graphs import GraphSpec
from mainspring.messages.model import TensorSpec, slot_bytes

TOKENS: Final = " (from tokens)"
"""Behind a graph's name: the graph without its tokenizer."""
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"


class TextForm(NamedTuple):
    """What a graph that serves texts takes and gives."""

    texts: tuple[TensorSpec, ...]
    """The text that is embedded, or the query and the text that are compared; empty for tokens."""
    result: TensorSpec
    """The vector of each row, or its score."""
    counted: str
    """The output with the number of a row's tokens; empty if it has none."""
    most_tokens: int
    """Most tokens that are looked at; 0 if nothing says it."""
    length: str
    """The input with the length of each row, where it takes tokens; empty if it has none."""


def text_form(graph: Graph) -> TextForm:
    """Return the form of a graph that serves texts; raise `GraphError` for one that can't."""
    spec = graph.spec
    if graph.single:
        raise GraphError(
            f'serves = "{spec.serves}": a step has rows = "own", so that it takes one text alone'
        )
    texts = tuple([each for each in graph.inputs if slot_bytes(each.dtype) is not None])
    length = _length_input(graph)
    if spec.serves == "rerank":
        if [each.name for each in texts] != ["query", "text"] or len(graph.inputs) != 2:
            raise GraphError('serves = "rerank": its inputs have to be texts, ["query", "text"]')
    elif texts:
        if len(graph.inputs) != 1:
            raise GraphError('serves = "embeddings": beside the text it may take nothing')
    elif wrong := [each for each in spec.inputs if each not in (IDS, MASK, TYPES, length)]:
        raise GraphError(
            f'serves = "embeddings": its input has to be one text, or {IDS}, {MASK}, {TYPES} and a length, '
            f"not {wrong[0]!r}"
        )
    if any(each.shape for each in texts):
        raise GraphError(f'serves = "{spec.serves}": input {texts[0].name!r} has several texts in each row')
    outputs = [tensor for tensor, _ in graph.outputs]
    results = [each for each in outputs if each.dtype == "float32"]
    counts = [each for each in outputs if each.dtype.startswith("int") and each.row_bytes <= 8]
    if len(results) != 1 or len(results) + len(counts) != len(outputs) or len(counts) > 1:
        raise GraphError(
            f'serves = "{spec.serves}": its outputs have to be one of float32 for each row, and if it has a '
            "tokenizer one whole number, the tokens of it"
        )
    result, wide = results[0], spec.serves == "embeddings"
    if result.open or result.varies or len(result.shape) > 1 or (not wide and result.row_bytes != 4):
        what = "a vector of one length" if wide else "one score"
        raise GraphError(f'serves = "{spec.serves}": output {result.name!r} has to be {what} for each row')
    if wide and texts and not counts:
        raise GraphError(
            'serves = "embeddings": the tokens of each text have to be an output, such as '
            'tokens = "tokenize.count"'
        )
    return TextForm(texts, result, counts[0].name if counts else "", _most_tokens(graph), length)


def behind_tokenizer(spec: GraphSpec) -> GraphSpec:
    """Return a graph that takes a text as one that takes what its tokenizer makes of it.

    Raises `GraphError` for a graph in which nothing takes an input.
    """
    first = next((step for step in spec.steps if {*spec.inputs} & {*step.inputs.values()}), None)
    if first is None:
        raise GraphError("no step takes an input of the graph")
    inside = f"{first.name}."
    steps, given = [], dict[str, None]()

    def source(text: str) -> str:
        if not text.startswith(inside):
            return text
        name = text.removeprefix(inside)
        given[name] = None
        return name

    for step in spec.steps:
        if step is not first:
            inputs = {name: source(text) for name, text in step.inputs.items()}
            steps.append(msgspec.structs.replace(step, inputs=inputs, length=source(step.length)))
    outputs = {name: spec.sources(name) for name in spec.outputs}
    kept = {name: texts for name, texts in outputs.items() if not texts[0].startswith(inside)}
    return msgspec.structs.replace(
        spec, name=f"{spec.name}{TOKENS}", inputs=tuple(given), steps=tuple(steps), outputs=kept
    )


def _length_input(graph: Graph) -> str:
    """Return the input of a graph that is a length; empty if none is."""
    found = [step.length for step in graph.steps if step.length is not None]
    names = [graph.spec.inputs[each.tensor] for each in found if each.step == REQUEST]
    return names[0] if names else ""


def _most_tokens(graph: Graph) -> int:
    """Return the most tokens that the encoder is given: those of the narrowest of its open inputs."""
    found = []
    for step in graph.steps:
        for tensor, source in zip(step.model.inputs, step.takes, strict=True):
            at_request = source.step == REQUEST
            given = graph.inputs if at_request else graph.steps[source.step].model.outputs
            found += [
                given[source.tensor].shape[dim.axis] for dim in tensor.open if tensor.name in (IDS, MASK)
            ]
    return min(found, default=0)
