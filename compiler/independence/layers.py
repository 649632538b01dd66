"""Layers, and estimators of ai.onnx.ml, that have the batch as their first axis by definition."""

from __future__ import annotations

from dataclasses import replace

import onnx

from mainspring.compiler.independence.moves import reshaped
from mainspring.compiler.independence.step import (
    Batch,
    Constant,
    Dim,
    NotProven,
    Rows,
    Rule,
    Step,
    Value,
    axis_of,
    product,
    rows_at,
)

_STANDARD_OPSET = 12

_PLACE = "has the batch where channels or places belong"


def batch_first(step: Step) -> Rows:
    """Return the first input, which has to have the batch as its first axis."""
    source = step.rows()
    if source.axis != 0:
        raise NotProven(_PLACE)
    return source


def layer(*others: int) -> Rule:
    """Return the rule of a layer on its first input; inputs ``others`` may have the batch first too."""

    def rule(step: Step) -> list[Value]:
        source = batch_first(step)
        step.only_rows_in(0, *others)
        for index in others:
            value = step.given(index) if step.has(index) else None
            if value is None:
                continue
            if not isinstance(value, Rows) or value.axis != 0 or not value.same_slices(source):
                raise NotProven("has an input without the batch in front")
        if step.attribute("channels_last", 0):
            return [rows_at((None,) * source.rank, 0, source)] * len(step.node.output)
        return step.placed(*[0] * len(step.node.output), ranks=[source.rank] * len(step.node.output))[:1]

    return rule


def pool(step: Step) -> list[Value]:
    """AveragePool, LpPool and MaxPool."""
    found = layer()(step)[0]
    if not step.attribute("ceil_mode", 0) or not isinstance(found, Rows):
        return [found]
    source, spatial = step.rows(), step.rows().rank - 2
    strides, pads = step.attribute("strides", [1] * spatial), step.attribute("pads", [0] * 2 * spatial)
    dims = list(found.shape)
    for index in range(spatial):
        before, after = source.shape[2 + index], dims[2 + index]
        # ONNX's rules count a window that would begin behind the end; ONNX Runtime leaves it out.
        if (
            not isinstance(before, int)
            or not isinstance(after, int)
            or step.attribute("auto_pad", "NOTSET") != "NOTSET"
            or (after - 1) * strides[index] >= before + pads[index]
        ):
            dims[2 + index] = None
    return [rows_at(tuple(dims), 0, source)]


def max_pool(step: Step) -> list[Value]:
    """MaxPool, whose second output has places counted over the whole batch."""
    if sum(bool(name) for name in step.node.output) > 1:
        raise NotProven("counts places over the whole batch")
    return [*pool(step), *[Constant()] * (len(step.node.output) - 1)]


def blocked_pool(step: Step) -> list[Value]:
    """A pool of channels in blocks."""
    return [_as_standard(step, step.node.op_type, 1)]


def blocked_upsample(step: Step) -> list[Value]:
    """Upsample of channels in blocks."""
    source = batch_first(step)
    step.only_rows_in(0)
    return [rows_at((None,) * source.rank, 0, source)] * len(step.node.output)


def fused(step: Step) -> list[Value]:
    """FusedConv: a Conv, a sum that has the batch, and an activation."""
    source = batch_first(step)
    step.only_rows_in(0, 3)
    if step.has(3) and not isinstance(step.given(3), Constant):
        other = step.rows(3)
        if other.axis != 0 or not other.same_slices(source):
            raise NotProven("has an input without the batch in front")
    if step.node.op_type.startswith("Nhwc"):
        return [rows_at((None,) * source.rank, 0, source)]
    return [_as_standard(step, "Conv", 2, "activation", "activation_params")]


def _as_standard(step: Step, operator: str, inputs: int, *without: str) -> Rows:
    """Return the output of ONNX's own operator with the same first inputs and attributes but ``without``."""
    plain = onnx.NodeProto(op_type=operator, input=step.node.input[:inputs], output=step.node.output[:1])
    plain.attribute.extend(each for each in step.node.attribute if each.name not in without)
    known = pool(Step(plain, step.inputs[:inputs], _STANDARD_OPSET))[0]
    assert isinstance(known, Rows)
    return known


def reorder(step: Step) -> list[Value]:
    """ReorderInput and ReorderOutput: channels in blocks, and back."""
    source = batch_first(step)
    shape: list[Dim] = [None] * source.rank
    if not step.attribute("channels_last", 0):
        # Channels are padded to whole blocks, and cut again.
        shape = [*source.shape]
        shape[1] = step.attribute("channels")
    return [rows_at(tuple(shape), 0, source)]


def same_shape(step: Step) -> list[Value]:
    """A normalisation of each row, with the batch in front."""
    source = batch_first(step)
    step.only_rows_in(0)
    return [source] * len(step.node.output)


def resize(step: Step) -> list[Value]:
    """Resize and Upsample along axes other than the batch."""
    source = step.rows()
    step.only_rows_in(0, 3)
    axes = [axis_of(axis, source.rank) for axis in step.attribute("axes", range(source.rank))]
    if source.axis in axes and step.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise NotProven("crops the batch")
    if step.attribute("mode", "nearest") != "nearest" and (source.axis != 0 or source.rank < 4):
        # Of fewer axes, ONNX Runtime interpolates along the first too: at a scale of 1 with a weight of 0,
        # but 0 times an infinity of the next row is NaN.
        raise NotProven("interpolates between rows")
    if step.node.op_type == "Resize" and step.has(3):
        return [_to_sizes(step, source, axes)]
    place = 1 if step.node.op_type == "Upsample" or step.opset < 11 else 2
    scales = step.attribute("scales") or step.numbers(place)
    if scales is None:
        raise NotProven("has scales that aren't known")
    known = dict(zip(axes, map(float, scales), strict=True))
    if known.get(source.axis, 1.0) != 1.0:
        raise NotProven("resizes the batch")
    dims = [_scaled(dim, known.get(axis, 1.0)) for axis, dim in enumerate(source.shape)]
    return [rows_at(tuple(dims), source.axis, source)]


def _scaled(dim: Dim, scale: float) -> Dim:
    """Return a dimension times a scale; None if 32-bit and 64-bit floats may round it differently."""
    if not isinstance(dim, int):
        return None
    found = dim * scale
    exact = found == round(found)
    return int(found) if exact or abs(found - round(found)) > 1e-5 * max(1.0, found) else None


def _to_sizes(step: Step, source: Rows, axes: list[int]) -> Rows:
    sizes = step.numbers(3)
    if sizes is None:
        raise NotProven("has sizes that aren't known")
    keeps_ratio = step.attribute("keep_aspect_ratio_policy", "stretch") != "stretch"
    if keeps_ratio and source.axis in axes:
        # One scale applies to all axes, the batch included.
        raise NotProven("resizes the batch with the other axes")
    dims = list(source.shape)
    for axis, size in zip(axes, list(sizes), strict=True):
        if axis == source.axis and size != source.dim:
            raise NotProven("gives the batch a fixed size")
        if axis != source.axis and isinstance(size, Batch):
            raise NotProven("makes the size of a row depend on the number of rows")
        if axis != source.axis:
            # Where the ratio is kept, sizes are only bounds.
            dims[axis] = None if keeps_ratio else int(size)
    return rows_at(tuple(dims), source.axis, source)


def concat_pairs(step: Step) -> list[Value]:
    """QLinearConcat: a scale and a zero point, then a tensor with its own for each part."""
    places = [*range(2, len(step.inputs), 3)]
    step.only_rows_in(*places)
    first = step.rows(2)
    axis = axis_of(step.attribute("axis", 1), first.rank)
    parts = [step.rows(place) for place in places]
    if axis == first.axis or any(
        part.axis != first.axis or part.rank != first.rank or not part.same_slices(first) for part in parts
    ):
        raise NotProven("puts several into one along the batch")
    sizes = [part.shape[axis] for part in parts]
    dims = list(first.shape)
    known = [size for size in sizes if isinstance(size, int)]
    dims[axis] = sum(known) if len(known) == len(sizes) else None
    return [rows_at(tuple(dims), first.axis, first)]


def embedding(step: Step) -> list[Value]:
    """EmbedLayerNormalization: token ids to vectors."""
    source = batch_first(step)
    step.only_rows_in(0, 1, 7, 8)
    for index in (1, 7, 8):
        value = step.given(index) if step.has(index) else None
        if isinstance(value, Rows) and (value.axis != 0 or not value.same_slices(source)):
            raise NotProven(_PLACE)
    ranks = (3, 1, 3)
    return [rows_at((None,) * rank, 0, source) for rank in ranks[: len(step.node.output)]]


def added_norm(step: Step) -> list[Value]:
    """SkipLayerNormalization: a sum, normalised over the last axis."""
    source, other = step.rows(0), step.given(1)
    step.only_rows_in(0, 1)
    if source.axis == source.rank - 1:
        raise NotProven("normalises over the batch")
    if (
        not isinstance(other, Rows)
        or (other.axis, other.rank) != (source.axis, source.rank)
        or not other.same_slices(source)
    ):
        raise NotProven("combines different rows, for its operands have the batch on different axes")
    return [source, *[rows_at((None,) * source.rank, source.axis, source)] * (len(step.node.output) - 1)]


def estimator(*ranks: int) -> Rule:
    """Return the rule of an estimator of ai.onnx.ml: one example for each row, outputs of these ranks."""

    def rule(step: Step) -> list[Value]:
        source = batch_first(step)
        step.only_rows_in(0)
        if source.rank != 2:
            raise NotProven("takes its input for a single example")
        targets = _scores(step) if len(ranks) > 1 else step.attribute("n_targets")
        return [rows_at((None, *[targets] * (rank - 1)), 0, source) for rank in ranks]

    return rule


def _scores(step: Step) -> int | None:
    """Return how many scores a classifier gives for each row; None if that isn't known."""
    names = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
    labels = max(len(step.attribute(name) or ()) for name in names)
    match step.node.op_type:
        case "LinearClassifier":
            # With one line for two classes the other's score follows.
            lines = len(step.attribute("intercepts") or ())
            return 2 if (lines, labels) == (1, 2) else lines or None
        case "SVMClassifier":
            return (labels or None) if step.attribute("prob_a") else None
    return labels or None


def table_row(step: Step) -> list[Value]:
    """Scaler, Normalizer and their like: each example alone, of the same shape."""
    source = batch_first(step)
    if source.rank != 2:
        raise NotProven("takes its input for a single example")
    return [source]


def features(step: Step) -> list[Value]:
    """FeatureVectorizer: the columns of several tables, concatenated."""
    parts = [step.rows(index) for index in range(len(step.inputs))]
    if any(part.axis != 0 or part.rank != 2 or not part.same_slices(parts[0]) for part in parts):
        raise NotProven("takes an input for a single example")
    return [rows_at((None, None), 0, parts[0])]


def columns(step: Step) -> list[Value]:
    """ArrayFeatureExtractor: parts of the last axis, or entries of constant lists by rows of indices."""
    data, chosen = step.given(0), step.given(1)
    if isinstance(data, Constant) and isinstance(chosen, Rows) and data.shape is not None:
        # Entries for each row, such as its class, beside each other in each list.
        each = product(tuple(dim for axis, dim in enumerate(chosen.shape) if axis != chosen.axis))
        if each is None:
            raise NotProven("picks for a number of places that isn't known")
        found = reshaped(chosen, [1, chosen.dim * each])
        lists = data.shape[:-1] or (1,)
        return [replace(found, shape=(*lists, found.dim), axis=len(lists))]
    source = step.rows()
    step.only_rows_in(0)
    if source.rank < 2 or source.axis == source.rank - 1 or not isinstance(chosen, Constant):
        raise NotProven("picks along the batch")
    number = None if chosen.shape is None else product(chosen.shape)
    return [rows_at((*source.shape[:-1], number), source.axis, source)]


def one_hot_encoder(step: Step) -> list[Value]:
    """OneHotEncoder of ai.onnx.ml: one more axis."""
    source = step.rows()
    categories = step.attribute("cats_int64s") or step.attribute("cats_strings") or ()
    return [rows_at((*source.shape, len(categories) or None), source.axis, source)]
