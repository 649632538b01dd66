"""Pictures of digits drawn with a pen, and a classifier fitted to them.

The zoo's weights are random. A model whose answers mean something needs weights that were learned, and no
data set can be expected where a model is built. So the digits are drawn here: each is a few strokes, tilted,
scaled, moved, and drawn with pens of different widths. Random convolutions followed by one fitted layer read
such pictures well, and fitting that layer is one solution of linear equations.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

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
