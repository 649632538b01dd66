"""Operators that move elements without computing on them: the batch axis moves along."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mainspring.compiler.artifact.manifest import MOST_ROWS
from mainspring.compiler.independence.step import (
    ANY_ROW,
    Batch,
    Constant,
    Counted,
    Dim,
    NotProven,
    Rows,
    Shape,
    Step,
    Value,
    axis_of,
    product,
    rows_at,
)

_APART = "takes rows apart, or puts several into one slice"
_ALONG = "picks or moves along the batch"


def reshape(step: Step) -> list[Value]:
    """Reshape: elements keep their order, so rows stay whole if the batch is an axis afterwards."""
    source = step.rows()
    zero_is_zero = bool(step.attribute("allowzero", 0))
    dims: list[Dim] = [*(step.attribute("shape", []) if step.opset < 5 else step.dims(1))]
    if not zero_is_zero:
        if any(dim == 0 and place >= source.rank for place, dim in enumerate(dims)):
            raise NotProven("has a shape that can't be")
        dims = [source.shape[place] if dim == 0 else dim for place, dim in enumerate(dims)]
    return [reshaped(source, dims)]


def reshaped(source: Rows, dims: Sequence[Dim]) -> Rows:
    """Return ``source`` with the same elements in other dimensions; -1 stands for a dimension to be found."""
    before = product(source.shape[: source.axis])
    after = product(source.shape[source.axis + 1 :])
    if any(isinstance(dim, Batch) for dim in dims[1:]) and sum(isinstance(dim, Batch) for dim in dims) > 1:
        raise NotProven("has a shape with the number of rows in it twice")
    if dims and before == 1 == source.outer and dims[0] == Batch(source.inner):
        # The first axis stays, for any other axes.
        rest = [dim if isinstance(dim, int) and dim >= 0 else None for dim in dims[1:]]
        if after is not None and rest.count(None) == 1:
            known = math.prod(dim for dim in rest if dim is not None)
            rest[rest.index(None)] = after // known if known and not after % known else None
        return Rows((source.dim, *rest), 0, 1, source.inner)
    if before is None or after is None or any(dim is None for dim in dims):
        raise NotProven("has a shape that can't be followed, since dimensions of its input aren't known")
    return _located(_completed(dims, before * source.outer * source.inner * after), source, before, after)


def _completed(dims: Sequence[Dim], elements: int) -> list[int | Batch]:
    """Return the dimensions with the number in place of -1; ``elements`` are those of one row."""
    plain = [dim for dim in dims if isinstance(dim, int) and dim != -1]
    multiples = [dim for dim in dims if isinstance(dim, Batch)]
    each = math.prod(plain) * math.prod(dim.times for dim in multiples)
    if -1 in dims and each and not elements % each and len(multiples) <= 1:
        found: int | Batch = elements // each if multiples else Batch(elements // each)
        return [found if dim == -1 else dim for dim in dims if dim is not None]
    if len(multiples) == 1 and each == elements:
        return [dim for dim in dims if dim is not None]
    raise NotProven("has a shape that doesn't grow with the rows, or not with them alone")


def _located(dims: list[int | Batch], source: Rows, before: int, after: int) -> Rows:
    """Return where the batch is among the new dimensions."""
    axis = next(place for place, dim in enumerate(dims) if isinstance(dim, Batch))
    ahead, behind = before * source.outer, source.inner * after
    first, last = product(tuple(dims[:axis])), product(tuple(dims[axis + 1 :]))
    if not first or not last or ahead % first or behind % last:
        raise NotProven(_APART)
    return Rows(tuple(dims), axis, ahead // first, behind // last)


def flatten(step: Step) -> list[Value]:
    """Flatten: a Reshape to two axes."""
    source = step.rows()
    axis = axis_of(step.attribute("axis", 1), source.rank)
    if source.axis < axis:
        ahead, behind = _grown(source.shape[:axis]), product(source.shape[axis:])
        return [reshaped(source, [ahead, -1 if behind is None else behind])]
    ahead, behind_rows = product(source.shape[:axis]), _grown(source.shape[axis:])
    if ahead is None or behind_rows is None:
        raise NotProven("flattens dimensions that aren't known")
    return [reshaped(source, [ahead, behind_rows])]


def _grown(shape: Shape) -> Dim:
    """Return the product of dimensions of which one is the batch."""
    rest = product(tuple(dim for dim in shape if not isinstance(dim, Batch)))
    batch = next(dim for dim in shape if isinstance(dim, Batch))
    return None if rest is None else Batch(batch.times * rest)


def transpose(step: Step) -> list[Value]:
    """Transpose."""
    source = step.rows()
    order = step.attribute("perm") or [*range(source.rank)][::-1]
    return [rows_at(tuple(source.shape[axis] for axis in order), [*order].index(source.axis), source)]


def squeeze(step: Step) -> list[Value]:
    """Squeeze of named axes; without names, a batch of one row would lose its axis too."""
    source, axes = step.rows(), step.integers(1, "axes")
    if axes is None:
        raise NotProven("takes away the batch axis where there is one row")
    gone = {axis_of(axis, source.rank) for axis in axes}
    if source.axis in gone:
        raise NotProven("takes away the batch axis")
    shape = tuple(dim for axis, dim in enumerate(source.shape) if axis not in gone)
    return [rows_at(shape, source.axis - sum(axis < source.axis for axis in gone), source)]


def unsqueeze(step: Step) -> list[Value]:
    """Unsqueeze."""
    source, axes = step.rows(), step.integers(1, "axes") or []
    rank = source.rank + len(axes)
    new = {axis_of(axis, rank) for axis in axes}
    kept = [axis for axis in range(rank) if axis not in new]
    shape: list[Dim] = [1] * rank
    for old, axis in enumerate(kept):
        shape[axis] = source.shape[old]
    return [rows_at(tuple(shape), kept[source.axis], source)]


def expand(step: Step) -> list[Value]:
    """Expand: the batch stays, or a constant is given to each row."""
    value, wanted = step.given(0), step.dims(1)
    if isinstance(value, Constant):
        return [_given_to_rows(value, wanted)]
    source = step.rows()
    rank = max(source.rank, len(wanted))
    place = rank - source.rank + source.axis
    dims: list[Dim] = [*(1,) * (rank - source.rank), *source.shape]
    for back, dim in enumerate(reversed(wanted), 1):
        axis = rank - back
        if axis == place:
            if dim not in (1, source.dim):
                raise NotProven("gives the batch a fixed size")
        elif isinstance(dim, Batch):
            raise NotProven("repeats rows for each row")
        elif dim != 1:
            dims[axis] = dim
    return [rows_at(tuple(dims), place, source)]


def _given_to_rows(value: Constant, wanted: Sequence[Dim]) -> Value:
    """Return a constant that was expanded to a shape with the batch in it."""
    batches = [axis for axis, dim in enumerate(wanted) if isinstance(dim, Batch)]
    if value.shape is None:
        raise NotProven("expands a constant of unknown shape")
    if not batches:
        rank = max(len(value.shape), len(wanted))
        pairs = [((1,) * (rank - len(each)) + each) for each in (value.shape, tuple(wanted))]
        return Constant(tuple(own if dim == 1 else dim for own, dim in zip(*pairs, strict=True)))
    axis = batches[0]
    own = axis - len(wanted) + len(value.shape)
    if len(batches) > 1 or len(value.shape) > len(wanted) or (own >= 0 and value.shape[own] != 1):
        raise NotProven("gives rows values that depend on their places")
    dims: Shape = (1,) * (len(wanted) - len(value.shape)) + value.shape
    found = tuple(each if dim == 1 else dim for dim, each in zip(wanted, dims, strict=True))
    batch = wanted[axis]
    assert isinstance(batch, Batch)
    return Rows(found, axis, 1, batch.times)


def constant_of_shape(step: Step) -> list[Value]:
    """ConstantOfShape with the batch in its shape: the same for each row."""
    wanted = step.dims(0)
    return [_given_to_rows(Constant((1,) * len(wanted)), wanted)]


def tile(step: Step) -> list[Value]:
    """Tile: repeats within a row, or a constant for each row."""
    value, repeats = step.given(0), step.dims(1)
    if isinstance(value, Constant):
        shape = value.shape
        if shape is None or len(repeats) != len(shape) or product(shape) is None:
            raise NotProven("tiles a constant of unknown shape")
        pairs = [(dim, repeat) for dim, repeat in zip(shape, repeats, strict=True) if isinstance(dim, int)]
        if any(isinstance(repeat, Batch) and dim != 1 for dim, repeat in pairs):
            raise NotProven("gives rows values that depend on their places")
        return [_given_to_rows(Constant((1,) * len(pairs)), tuple(repeat * dim for dim, repeat in pairs))]
    source = step.rows()
    if any(isinstance(repeat, Batch) for repeat in repeats) or repeats[source.axis] != 1:
        raise NotProven("repeats the batch")
    dims = [
        dim * repeat if isinstance(dim, int) and isinstance(repeat, int) else None
        for dim, repeat in zip(source.shape, repeats, strict=True)
    ]
    return [rows_at(tuple(dims), source.axis, source)]


def concat(step: Step) -> list[Value]:
    """Concat along any axis except the batch, of values that all have the batch."""
    parts = [value for value in step.inputs if value is not None]
    first = next((value for value in parts if isinstance(value, Rows)), None)
    if first is None:
        raise NotProven("puts constants together along the batch")
    axis = axis_of(step.attribute("axis", 1), first.rank)
    if axis == first.axis:
        raise NotProven("puts several into one along the batch")
    sizes: list[Dim] = []
    for part in parts:
        if not isinstance(part, Rows):
            raise NotProven("puts a constant of a fixed number of rows beside the batch")
        if (part.axis, part.rank) != (first.axis, first.rank) or not part.same_slices(first):
            raise NotProven("combines different rows, for its inputs have the batch on different axes")
        sizes.append(part.shape[axis])
    dims = list(first.shape)
    known = [size for size in sizes if isinstance(size, int)]
    dims[axis] = sum(known) if len(known) == len(sizes) else None
    return [rows_at(tuple(dims), first.axis, first)]


def split(step: Step) -> list[Value]:
    """Split along any axis except the batch."""
    source = step.rows()
    if axis_of(step.attribute("axis", 0), source.rank) == source.axis:
        raise NotProven("splits the batch")
    step.only_rows_in(0)
    return step.placed(*[source.axis] * len(step.node.output), ranks=[source.rank] * len(step.node.output))


def slice_(step: Step) -> list[Value]:
    """Slice along axes other than the batch; or along the batch, if it stays whole."""
    source = step.rows()
    if step.opset < 10:
        starts, ends = step.attribute("starts"), step.attribute("ends")
        axes, steps = step.attribute("axes"), None
    else:
        starts, ends = step.dims(1), step.dims(2)
        axes, steps = step.integers(3), step.integers(4)
    places = [axis_of(axis, source.rank) for axis in (axes or range(len(starts)))]
    for index, axis in enumerate(places):
        end, begin = ends[index], starts[index]
        if axis != source.axis:
            if isinstance(begin, Batch) or isinstance(end, Batch):
                raise NotProven("makes the size of a row depend on the number of rows")
            continue
        whole = end == source.dim if isinstance(end, Batch) else end >= MOST_ROWS * source.dim.times
        if isinstance(begin, Batch) or int(begin) != 0 or not whole or (steps and steps[index] != 1):
            raise NotProven(_ALONG)
    return step.placed(source.axis, ranks=[source.rank])


def pad(step: Step) -> list[Value]:
    """Pad along axes other than the batch."""
    source = step.rows()
    pads = step.attribute("pads") or step.attribute("paddings") or step.integers(1)
    axes = [axis_of(axis, source.rank) for axis in step.integers(3) or range(source.rank)]
    if pads is None or len(pads) != 2 * len(axes):
        raise NotProven("has pads that aren't known")
    step.only_rows_in(0)
    if any(pads[index] or pads[index + len(axes)] for index, axis in enumerate(axes) if axis == source.axis):
        raise NotProven("pads the batch")
    return step.placed(source.axis, ranks=[source.rank])


def gather(step: Step) -> list[Value]:
    """Gather of a constant by rows of indices, or of rows along another axis by constant indices."""
    data, indices = step.given(0), step.given(1)
    if isinstance(data, Counted) or isinstance(indices, Counted):
        raise NotProven("picks by the number of rows")
    if isinstance(indices, Rows):
        if not isinstance(data, Constant) or data.shape is None:
            raise NotProven(ANY_ROW)
        axis = axis_of(step.attribute("axis", 0), len(data.shape))
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        return [rows_at(shape, axis + indices.axis, indices)]
    source = step.rows()
    axis = axis_of(step.attribute("axis", 0), source.rank)
    if axis == source.axis:
        raise NotProven(_ALONG)
    if not isinstance(indices, Constant) or indices.shape is None:
        raise NotProven("picks by indices of unknown shape")
    shape = (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])
    moved = 0 if source.axis < axis else len(indices.shape) - 1
    return [rows_at(shape, source.axis + moved, source)]


def gather_elements(step: Step) -> list[Value]:
    """GatherElements within each row."""
    source, indices = step.rows(0), step.rows(1)
    axis = axis_of(step.attribute("axis", 0), source.rank)
    if axis == source.axis:
        raise NotProven(ANY_ROW)
    if indices.axis != source.axis or not indices.same_slices(source):
        raise NotProven(_ALONG)
    return [indices]


def scatter_elements(step: Step) -> list[Value]:
    """ScatterElements within each row."""
    source, indices, updates = step.rows(0), step.rows(1), step.rows(2)
    axis = axis_of(step.attribute("axis", 0), source.rank)
    if axis == source.axis:
        raise NotProven(ANY_ROW)
    for each in (indices, updates):
        if each.axis != source.axis or not each.same_slices(source):
            raise NotProven(_ALONG)
    return [source]


def gather_nd(step: Step) -> list[Value]:
    """GatherND of a constant by rows of indices, or of each row by constant indices or its own."""
    data, indices = step.given(0), step.given(1)
    kept = step.attribute("batch_dims", 0)
    if isinstance(data, Constant) and isinstance(indices, Rows) and not kept:
        depth = indices.shape[-1]
        if data.shape is None or not isinstance(depth, int) or indices.axis == indices.rank - 1:
            raise NotProven(_ALONG)
        return [rows_at((*indices.shape[:-1], *data.shape[depth:]), indices.axis, indices)]
    source = step.rows()
    if (
        isinstance(indices, Rows)
        and indices.axis == source.axis < kept
        and indices.same_slices(source)
        and isinstance(indices.shape[-1], int)
    ):
        shape = (*indices.shape[:-1], *source.shape[kept + indices.shape[-1] :])
        return [rows_at(shape, source.axis, source)]
    if isinstance(indices, Constant) and indices.shape and isinstance(indices.shape[-1], int) and not kept:
        depth = indices.shape[-1]
        if source.axis >= depth:
            shape = (*indices.shape[:-1], *source.shape[depth:])
            return [rows_at(shape, len(indices.shape) - 1 + source.axis - depth, source)]
    raise NotProven(ANY_ROW if isinstance(indices, Rows) and source.axis >= kept else _ALONG)


def scatter_nd(step: Step) -> list[Value]:
    """ScatterND of rows to constant places that lie in each row."""
    source, indices, updates = step.rows(0), step.given(1), step.rows(2)
    if isinstance(indices, Rows):
        raise NotProven(ANY_ROW)
    depth = indices.shape[-1] if isinstance(indices, Constant) and indices.shape else None
    if not isinstance(indices, Constant) or not indices.shape or not isinstance(depth, int):
        raise NotProven("writes to places that aren't known")
    place = len(indices.shape) - 1 + source.axis - depth
    if source.axis < depth or updates.axis != place or not updates.same_slices(source):
        raise NotProven(_ALONG)
    return [source]
