"""BERT encoders (Devlin et al. 2019; the small ones: Turc et al. 2019), for 128 tokens."""

from __future__ import annotations

import math

from onnx import TensorProto

from mainspring.compiler.zoo.architecture import Architecture, Role
from mainspring.compiler.zoo.builder import Builder

_VOCABULARY = 30522
_POSITIONS = 512
_TOKENS = 128
_MASKED = -10000.0
"""Added to the scores of tokens that are not there."""


def bert(name: str, layers: int, width: int) -> Architecture:
    """Return an encoder: token ids and a mask in, the hidden states and the pooled first one out."""
    builder = Builder(name)
    ids = builder.input("input_ids", (_TOKENS,), TensorProto.INT64)
    mask = builder.input("attention_mask", (_TOKENS,), TensorProto.INT64)
    x = _embed(builder, ids, width)
    bias = _mask_bias(builder, mask)
    for _ in range(layers):
        x = builder.layer_norm(builder.node("Add", [x, _attention(builder, x, bias, width)]), width)
        x = builder.layer_norm(builder.node("Add", [x, _feed_forward(builder, x, width)]), width)
    first = builder.node("Gather", [x, builder.constant(0)], axis=1)
    first = builder.node("Reshape", [first, builder.constant(-1, width)])
    pooled = builder.node("Tanh", [builder.dense(first, width, width, Role.LINEAR_KERNEL)])
    builder.output(x, "hidden", (_TOKENS, width))
    builder.output(pooled, "pooled", (width,))
    return builder.finish()


def _embed(builder: Builder, ids: str, width: int) -> str:
    words = builder.node("Gather", [builder.weight((_VOCABULARY, width), Role.EMBEDDING), ids])
    table = builder.weight((_POSITIONS, width), Role.EMBEDDING)
    positions = builder.node("Slice", [table, *(builder.constant(value) for value in (0, _TOKENS, 0))])
    return builder.layer_norm(builder.node("Add", [words, positions]), width)


def _mask_bias(builder: Builder, mask: str) -> str:
    """Return 0 for tokens that are there and a large negative number for others."""
    present = builder.node("Cast", [mask], to=TensorProto.FLOAT)
    present = builder.node("Unsqueeze", [present, builder.constant(1, 2)])
    absent = builder.node("Sub", [builder.scalar(1.0), present])
    return builder.node("Mul", [absent, builder.scalar(_MASKED)])


def _attention(builder: Builder, x: str, bias: str, width: int) -> str:
    """Multi-head attention with heads of 64, as all of the BERTs have them."""
    heads, head = width // 64, 64
    query, key, value = (
        builder.node("Reshape", [builder.dense(x, width, width, Role.LINEAR_KERNEL), shape])
        for shape in [builder.constant(0, 0, heads, head)] * 3
    )
    query = builder.node("Transpose", [query], perm=[0, 2, 1, 3])
    key = builder.node("Transpose", [key], perm=[0, 2, 3, 1])
    value = builder.node("Transpose", [value], perm=[0, 2, 1, 3])
    scores = builder.node("MatMul", [query, key])
    scores = builder.node("Div", [scores, builder.scalar(math.sqrt(head))])
    weights = builder.node("Softmax", [builder.node("Add", [scores, bias])], axis=-1)
    mixed = builder.node("Transpose", [builder.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
    mixed = builder.node("Reshape", [mixed, builder.constant(0, 0, width)])
    return builder.dense(mixed, width, width, Role.LINEAR_KERNEL)


def _feed_forward(builder: Builder, x: str, width: int) -> str:
    wide = builder.node("Gelu", [builder.dense(x, width, 4 * width, Role.LINEAR_KERNEL)])
    return builder.dense(wide, 4 * width, width)
