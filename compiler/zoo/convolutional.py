"""Convolutional architectures that the onnx package does not ship: ResNets, MobileNet v2, a digit reader."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.compiler.zoo.architecture import Architecture, Role
from mainspring.compiler.zoo.builder import Builder
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
