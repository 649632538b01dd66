"""Architectures that the onnx package does not ship: ResNets, MobileNet v2, a digit reader, BERT encoders."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from mainspring.compiler.zoo.architecture import Architecture, Builder, Role
from mainspring.compiler.zoo.drawn_digits import fit_dense_layers

_MOBILENET_STAGES = (
    # expansion, channels, blocks, stride (Sandler et al. 2018, table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_VOCABULARY = 30522
_POSITIONS = 512
_TOKENS = 128
_MASKED = -10000.0
"""Added to the scores of masked tokens."""


def resnet(name: str, blocks: Sequence[int]) -> Architecture:
    """ResNet of basic blocks for 224 x 224 images (He et al. 2016, table 1): 2,2,2,2 is ResNet-18."""
    builder = Builder(name)
    x = _conv_bn_relu(builder, builder.input("data", (3, 224, 224)), (3, 64), 7, 2)
    x = builder.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return _basic_stages(builder, x, (64, 64, 128, 256, 512), blocks, 1000)


def resnet_small_images(name: str, blocks: int) -> Architecture:
    """ResNet for 32 x 32 images (He et al. 2016, section 4.2): 3 blocks for each stage is ResNet-20."""
    builder = Builder(name)
    x = _conv_bn_relu(builder, builder.input("data", (3, 32, 32)), (3, 16), 3, 1)
    return _basic_stages(builder, x, (16, 16, 32, 64), [blocks] * 3, 10)


def mobilenet(name: str) -> Architecture:
    """MobileNet v2 for 224 x 224 images (Sandler et al. 2018)."""
    builder = Builder(name)
    x = _conv_bn_relu6(builder, builder.input("data", (3, 224, 224)), (3, 32), 3, 2)
    channels = 32
    for expansion, width, blocks, stride in _MOBILENET_STAGES:
        for block in range(blocks):
            x = _inverted_residual(builder, x, (channels, width), expansion, stride if block == 0 else 1)
            channels = width
    x = _conv_bn_relu6(builder, x, (channels, 1280), 1)
    builder.classify(x, 1280, 1000)
    return builder.finish()


def digits(name: str) -> Architecture:
    """Two convolutions and two dense layers for 28 x 28 digits, as tutorials use; it reads drawn digits."""
    builder = Builder(name)
    x = builder.input("data", (1, 28, 28))
    for channels in ((1, 32), (32, 64)):
        x = _conv_bn_relu(builder, x, channels, 3, 1)
        x = builder.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = builder.node("Flatten", [x], axis=1)
    x = builder.node("Relu", [builder.dense(x, 64 * 7 * 7, 128)])
    builder.output(builder.node("Softmax", [builder.dense(x, 128, 10)], axis=-1), "output", [10])
    return builder.finish()._replace(fit=fit_dense_layers)


def _basic_stages(
    builder: Builder, x: str, widths: Sequence[int], blocks: Sequence[int], classes: int
) -> Architecture:
    """Add stages of basic blocks, each after the first at half the size, and the classifier."""
    for stage, count in enumerate(blocks):
        for block in range(count):
            channels = (widths[stage] if block == 0 else widths[stage + 1], widths[stage + 1])
            x = _basic_block(builder, x, channels, 2 if stage and not block else 1)
    builder.classify(x, widths[-1], classes)
    return builder.finish()


def _basic_block(builder: Builder, x: str, channels: tuple[int, int], stride: int) -> str:
    branch = _conv_bn_relu(builder, x, channels, 3, stride)
    branch = builder.conv(branch, (channels[1], channels[1]), 3)
    branch = builder.batch_norm(branch, channels[1], Role.BRANCH_SCALE)
    if stride != 1 or channels[0] != channels[1]:
        x = builder.batch_norm(builder.conv(x, channels, 1, stride), channels[1])
    return builder.node("Relu", [builder.node("Add", [branch, x])])


def _inverted_residual(
    builder: Builder, x: str, channels: tuple[int, int], expansion: int, stride: int
) -> str:
    wide = channels[0] * expansion
    branch = _conv_bn_relu6(builder, x, (channels[0], wide), 1) if expansion > 1 else x
    branch = _conv_bn_relu6(builder, branch, (wide, wide), 3, stride, wide)
    residual = stride == 1 and channels[0] == channels[1]
    scale = Role.BRANCH_SCALE if residual else Role.SCALE
    branch = builder.batch_norm(builder.conv(branch, (wide, channels[1]), 1), channels[1], scale)
    return builder.node("Add", [branch, x]) if residual else branch


def _conv_bn_relu(builder: Builder, x: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
    return builder.node("Relu", [builder.batch_norm(builder.conv(x, channels, kernel, stride), channels[1])])


def _conv_bn_relu6(
    builder: Builder, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1
) -> str:
    x = builder.batch_norm(builder.conv(x, channels, kernel, stride, groups), channels[1])
    return builder.node("Clip", [x, builder.scalar(0.0), builder.scalar(6.0)])


def bert(name: str, layers: int, width: int) -> Architecture:
    """BERT encoder for 128 tokens (Devlin et al. 2019; the small ones: Turc et al. 2019).

    Token ids and a mask go in; the hidden states and the pooled first one come out.
    """
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
    """Return 0 for tokens that are present and a large negative number for others."""
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
