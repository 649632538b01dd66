"""Architectures that the onnx package does not ship: ResNets, MobileNet v2, BERT encoders, a digit reader.

An architecture is a graph and plans of its weights, which a seed makes into a model. The plans keep
activations finite and the outputs of different seeds and inputs different: He's initialisation, normalisation
statistics near those of normalised data, residual branches scaled down so that deep sums don't explode. The
digit reader's weights are not random: random convolutions followed by one fitted layer read pictures that are
drawn here, each of a few strokes, tilted, scaled, moved, drawn with pens of different widths.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
_IR_VERSION = 9


class Role(StrEnum):
    """A weight's use, which decides its random numbers."""

    KERNEL = "kernel"
    """Weight of a convolution or a dense layer: normal, with He's deviation."""
    LINEAR_KERNEL = "linear_kernel"
    """Weight like a KERNEL for an input that was not rectified: without He's factor of two."""
    BIAS = "bias"
    SCALE = "scale"
    """A factor near one."""
    BRANCH_SCALE = "branch_scale"
    """A factor at the end of a residual branch."""
    VARIANCE = "variance"
    EMBEDDING = "embedding"


class Plan(NamedTuple):
    """One weight to be drawn."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int = 1
    """Elements that one output of a KERNEL sums up."""


class Architecture(NamedTuple):
    """A graph whose float weights are missing, and how to draw them."""

    model: onnx.ModelProto
    plans: tuple[Plan, ...]
    fit: Callable[[onnx.ModelProto], None] | None = None
    """Changes drawn weights so that the model's answers are meaningful; None where they are noise."""


def instantiate(architecture: Architecture, random: np.random.Generator) -> onnx.ModelProto:
    """Return a model of the architecture with weights drawn from ``random``, in the order of the plans."""
    model = onnx.ModelProto()
    model.CopyFrom(architecture.model)
    for plan in architecture.plans:
        model.graph.initializer.append(numpy_helper.from_array(_draw(plan, random), plan.name))
    if architecture.fit is not None:
        architecture.fit(model)
    return model


def _draw(plan: Plan, random: np.random.Generator) -> npt.NDArray[np.float32]:
    values = random.standard_normal(plan.shape, np.float32)
    match plan.role:
        case Role.KERNEL:
            values *= np.float32(math.sqrt(2 / plan.fan_in))
        case Role.LINEAR_KERNEL:
            values *= np.float32(math.sqrt(1 / plan.fan_in))
        case Role.BIAS:
            values *= np.float32(0.05)
        case Role.EMBEDDING:
            values *= np.float32(0.5)
        case Role.SCALE | Role.BRANCH_SCALE:
            values = (1 + values * np.float32(0.1)) * np.float32(1 if plan.role is Role.SCALE else 0.3)
        case Role.VARIANCE:
            values = 1 + np.abs(values) * np.float32(0.2)
    return values.astype(np.float32, copy=False)


class Builder:
    """A graph that grows. Methods take and return names of values; rows are the first axis of all of them."""

    def __init__(self, name: str) -> None:
        self._graph = onnx.GraphProto(name=name)
        self._plans: list[Plan] = []

    def input(self, name: str, shape: Sequence[int], element: int = TensorProto.FLOAT) -> str:
        """Add an input of this shape for one row."""
        self._graph.input.append(helper.make_tensor_value_info(name, element, ["batch", *shape]))
        return name

    def output(self, value: str, name: str, shape: Sequence[int]) -> None:
        """Add ``value`` as the output ``name``."""
        self._graph.node.append(helper.make_node("Identity", [value], [name], name=f"output_{name}"))
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]))

    def node(self, operator: str, inputs: Sequence[str], **attributes: int | float | Sequence[int]) -> str:
        """Add a node with one output; return the output."""
        name = f"{operator}_{len(self._graph.node)}"
        node = helper.make_node(operator, inputs, [f"{name}:0"], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._graph.node.append(node)
        return f"{name}:0"

    def constant(self, *values: int) -> str:
        """Add a vector of integers: a shape, axes."""
        name = f"constant_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def scalar(self, value: float) -> str:
        """Add a number that belongs to the architecture, not to the weights."""
        name = f"scalar_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def weight(self, shape: Sequence[int], role: Role, fan_in: int = 1) -> str:
        """Plan a weight; return its name."""
        name = f"{role}_{len(self._plans)}"
        self._plans.append(Plan(name, tuple(shape), role, fan_in))
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1) -> str:
        """Convolve (in, out) channels without a bias, padded so that stride 1 keeps the size."""
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        weight = self.weight(shape, Role.KERNEL, math.prod(shape[1:]))
        pad = kernel // 2
        return self.node(
            "Conv", [x, weight], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups
        )

    def batch_norm(self, x: str, channels: int, scale: Role = Role.SCALE) -> str:
        """Normalise by stored statistics."""
        roles = (scale, Role.BIAS, Role.BIAS, Role.VARIANCE)
        return self.node("BatchNormalization", [x, *(self.weight([channels], role) for role in roles)])

    def layer_norm(self, x: str, width: int) -> str:
        """Normalise each vector by its own statistics."""
        weights = [self.weight([width], Role.SCALE), self.weight([width], Role.BIAS)]
        return self.node("LayerNormalization", [x, *weights], axis=-1, epsilon=1e-12)

    def dense(self, x: str, width: int, units: int, role: Role = Role.KERNEL) -> str:
        """Multiply by a matrix and add a bias; any number of axes."""
        product = self.node("MatMul", [x, self.weight([width, units], role, width)])
        return self.node("Add", [product, self.weight([units], Role.BIAS)])

    def classify(self, x: str, width: int, classes: int) -> None:
        """Average over the image, and add the output: the probability of each class."""
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        self.output(self.node("Softmax", [self.dense(pooled, width, classes)], axis=-1), "output", [classes])

    def finish(self) -> Architecture:
        """Return the architecture."""
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(self._graph, opset_imports=opset, ir_version=_IR_VERSION)
        return Architecture(model, tuple(self._plans))


SIZE = 28
"""Pixels of a picture's side."""

CLASSES = 10

_PICTURES = 600

_RIDGE = 0.01
"""Weight of the penalty on large weights, relative to the mean square of a picture's features."""

_CONFIDENCE = 10.0
"""Difference in logits between the right class and the others that the fit aims at."""

_Points = list[tuple[float, float]]


def _arc(centre: tuple[float, float], radii: tuple[float, float], degrees: tuple[float, float]) -> _Points:
    """Return points along an ellipse; 0 degrees is to the right, 90 is down."""
    angles = np.radians(np.linspace(*degrees, 14))
    return [(centre[0] + radii[0] * math.cos(a), centre[1] + radii[1] * math.sin(a)) for a in angles]


_STROKES: tuple[list[_Points], ...] = (
    [_arc((0, 0), (0.55, 1), (0, 360))],
    [[(-0.3, -0.65), (0.05, -1), (0.05, 1)]],
    [[*_arc((0, -0.5), (0.5, 0.5), (-170, 30)), (-0.55, 1), (0.6, 1)]],
    [[*_arc((0, -0.5), (0.5, 0.5), (-150, 90))], [*_arc((0, 0.5), (0.55, 0.5), (-90, 150))]],
    [[(0.25, 1), (0.25, -1), (-0.6, 0.4), (0.65, 0.4)]],
    [[(0.5, -1), (-0.45, -1), (-0.45, -0.1), *_arc((-0.02, 0.4), (0.52, 0.6), (-110, 140))]],
    [[(0.35, -1), *_arc((0, 0.45), (0.5, 0.55), (-170, 190))]],
    [[(-0.55, -1), (0.55, -1), (-0.15, 1)]],
    [[*_arc((0, -0.5), (0.45, 0.5), (90, 450))], [*_arc((0, 0.5), (0.52, 0.5), (-90, 270))]],
    [[*_arc((0, -0.45), (0.5, 0.55), (10, 370)), (0.35, 1)]],
)
"""The strokes of each digit as points (x, y) between -1 and 1, y downwards."""


def draw(digit: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a picture of ``digit`` as drawn by hand: [28, 28], 0 where it is blank, 1 under the pen."""
    angle, slant = random.normal(0, 0.12), random.normal(0, 0.12)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    scale = random.uniform([6, 8], [9.5, 11.5])
    centre = SIZE / 2 - 0.5 + random.uniform(-1.5, 1.5, 2)
    pen = random.uniform(1.0, 2.4)
    strokes = [np.array(stroke) + random.normal(0, 0.04, (len(stroke), 2)) for stroke in _STROKES[digit]]
    lean = np.array([[1, 0], [slant, 1]]) @ turn.T * scale
    lines = np.concatenate([np.stack([s[:-1], s[1:]], axis=1) for s in strokes]) @ lean + centre
    return np.clip(pen - _distance(lines) + 0.5, 0, 1).astype(np.float32)


def fit_dense_layers(model: onnx.ModelProto) -> None:
    """Replace weights of the last two dense layers, so that ``model`` reads drawn digits.

    ``model`` takes pictures [batch, 1, 28, 28] and ends with MatMul, Add, Relu, MatMul, Add and Softmax over
    the ten classes; their weights are initializers. A linear classifier of the first MatMul's inputs is
    fitted by ridge regression. Two hidden units carry each class's logit through the Relu, one for its
    positive and one for its negative part; the other hidden units keep their random weights and have no
    effect.
    """
    first, last = [node for node in model.graph.node if node.op_type == "MatMul"][-2:]
    biases = [node.input[1] for node in model.graph.node if node.op_type == "Add"][-2:]
    pictures, labels = _examples()
    features = _values(model, first.input[0], pictures).astype(np.float64)
    targets = (np.eye(CLASSES)[labels] - 1 / CLASSES) * _CONFIDENCE
    kernel = features @ features.T
    penalty = _RIDGE * np.trace(kernel) / len(kernel)
    logits = features.T @ np.linalg.solve(kernel + penalty * np.eye(len(kernel)), targets)
    units = np.concatenate([logits, -logits], axis=1)
    _write(model, first.input[1], units)
    _write(model, biases[0], np.zeros(2 * CLASSES))
    sums = np.zeros((_initializer(model, last.input[1]).dims[0], CLASSES))
    sums[: 2 * CLASSES] = np.concatenate([np.eye(CLASSES), -np.eye(CLASSES)])
    _write(model, last.input[1], sums)
    _write(model, biases[1], np.zeros(CLASSES))


@functools.cache
def _examples() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the pictures that models are fitted to, [picture, 1, 28, 28], and their labels."""
    random = np.random.default_rng(0)
    labels = np.arange(_PICTURES) % CLASSES
    return np.stack([draw(int(digit), random) for digit in labels])[:, np.newaxis], labels


def _distance(lines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return each pixel's distance [28, 28] from the nearest of ``lines`` [line, end, (x, y)]."""
    pixels = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE)), axis=-1).reshape(-1, 1, 2)
    begin, along = lines[:, 0], lines[:, 1] - lines[:, 0]
    length = np.maximum((along**2).sum(axis=-1), 1e-9)
    share = np.clip(((pixels - begin) * along).sum(axis=-1) / length, 0, 1)
    apart = pixels - begin - share[..., np.newaxis] * along
    distance: npt.NDArray[np.float64] = np.sqrt((apart**2).sum(axis=-1)).min(axis=1)
    return distance.reshape(SIZE, SIZE)


def _values(model: onnx.ModelProto, name: str, pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the value ``name`` inside ``model`` for these pictures: [picture, feature]."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.output[:]
    part.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    # One thread always adds in the same order, so a seed always makes the same model.
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(part.SerializeToString(), options, ["CPUExecutionProvider"])
    values: npt.NDArray[np.float32] = session.run([name], {model.graph.input[0].name: pictures})[0]
    return values


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    return found


def _write(model: onnx.ModelProto, name: str, values: npt.NDArray[np.float64]) -> None:
    """Write ``values`` over the first columns of the initializer ``name``."""
    tensor = _initializer(model, name)
    whole = numpy_helper.to_array(tensor).copy()
    whole[..., : values.shape[-1]] = values
    tensor.CopyFrom(numpy_helper.from_array(whole, name))


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
