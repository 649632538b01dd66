"""Cases of operators that move elements, or pick some."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.compiler.independence.growing import MOST, Growing, case


@case
def reshape(g: Growing) -> None:
    name = g.source()
    dims = g.dims(name)
    elements = int(np.prod(dims))
    parts = [g.one_of([0, 1, 2, 3, 4, 6]) for _ in range(g.one_of([0, 1, 2]))]
    parts.insert(int(g.random.integers(len(parts) + 1)), -1)
    if g.chance(0.2):
        parts = [g.one_of([elements, -1]), g.one_of([1, 2, -1])]
    g.add("Reshape", name, g.integers(*parts), allowzero=int(g.chance(0.1)))


@case
def reshape_counted(g: Growing) -> None:
    """To a shape with the number of rows in it, once or twice, multiplied or divided."""
    name = g.source()
    parts = []
    for _ in range(g.one_of([1, 1, 2])):
        count = g.add("Gather", g.add("Shape", name), g.integers(g.rows(name).axis))
        kind = g.one_of(["plain", "plain", "Mul", "Div", "float", "bool", "wrapped"])
        if kind in ("Mul", "Div"):
            count = g.add(kind, count, g.integers(g.one_of([2, 4])))
        elif kind == "float":
            real = g.add("Cast", count, to=TensorProto.FLOAT)
            count = g.add("Cast", g.add("Mul", real, g.weight(np.float32(2))), to=TensorProto.INT64)
        elif kind == "bool":
            count = g.add("Cast", g.add("Cast", count, to=TensorProto.BOOL), to=TensorProto.INT64)
        elif kind == "wrapped":
            small = g.add("Cast", g.add("Mul", count, g.integers(64)), to=TensorProto.INT8)
            count = g.add("Cast", small, to=TensorProto.INT64)
        parts.append(count)
    parts += [g.integers(g.one_of([1, 2, 4, 6, 24])) for _ in range(g.one_of([0, 1]))]
    parts.insert(g.one_of([0, len(parts)]), g.integers(-1))
    shape = g.add("Concat", *parts, axis=0)
    if g.chance(0.8):
        g.add("Reshape", name, shape)
    else:
        g.add("Expand", name, shape)


@case
def sliced_by_count(g: Growing) -> None:
    """A slice up to a number that follows from the number of rows."""
    name = g.source()
    value = g.rows(name)
    count = g.add("Gather", g.add("Shape", name), g.integers(value.axis))
    kind = g.one_of(["plain", "bool", "one", "Sub", "Mul"])
    if kind == "bool":
        count = g.add("Cast", g.add("Cast", count, to=TensorProto.BOOL), to=TensorProto.INT64)
    elif kind != "plain":
        operator = "Sub" if kind == "Sub" else "Div" if kind == "one" else "Mul"
        count = g.add(operator, count, count if kind == "one" else g.integers(1))
    part = g.add("Slice", name, g.integers(0), count, g.integers(value.axis))
    g.add("Sub", name, part)


@case
def flatten(g: Growing) -> None:
    name = g.source()
    rank = g.rows(name).rank
    g.add("Flatten", name, axis=int(g.random.integers(-rank, rank + 1)))


@case
def squeeze(g: Growing) -> None:
    name = g.source()
    g.add("Squeeze", name, *([g.integers(g.axis(name))] if g.chance() else []))


@case
def expand(g: Growing) -> None:
    name = g.source()
    dims = [g.one_of([1, dim]) for dim in g.dims(name)]
    dims[g.rows(name).axis] = g.one_of([1, 1, 4])
    g.add("Expand", name, g.integers(*[2] * g.one_of([0, 1]), *dims))


@case
def tile(g: Growing) -> None:
    name = g.source()
    g.add("Tile", name, g.integers(*(g.one_of([1, 1, 2]) for _ in g.dims(name))))


@case
def concat(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    names = [g.source(of=of, arranged=0.3) for _ in range(2)]
    if g.chance(0.3):
        names.append(g.floats(*g.dims(names[0])))
    g.add("Concat", *names, axis=g.axis(names[0]))


@case
def split(g: Growing) -> None:
    name = g.source()
    axis = g.axis(name)
    dim = g.dims(name)[axis]
    sizes = [g.integers(1, dim - 1)] if dim > 1 and g.chance() else []
    g.add("Split", name, *sizes, outputs=2, axis=axis)


@case
def slice_any(g: Growing) -> None:
    name = g.source()
    axis = g.axis(name)
    begin, end, step = g.one_of(
        [(0, 1, 1), (0, 2**40, 1), (-1, -(2**40), -1), (1, -1, 1), (0, -1, 1), (-2, 2**40, 1), (0, 2**40, 2),
         (2**40, -(2**62), -1)])  # fmt: skip
    g.add("Slice", name, *(g.integers(each) for each in (begin, end, axis, step)))


@case
def pad(g: Growing) -> None:
    name = g.source()
    rank = g.rows(name).rank
    pads = [g.one_of([0, 0, 1]) for _ in range(2 * rank)]
    if g.chance(0.7):
        pads[g.rows(name).axis] = pads[g.rows(name).axis + rank] = 0
    g.add("Pad", name, g.integers(*pads), mode=g.one_of(["constant", "edge"]))


@case
def gather(g: Growing) -> None:
    if g.chance():
        data = g.floats(*[MOST] * g.one_of([1, 2, 3]))
        g.add("Gather", data, g.source(of="places"), axis=0)
        return
    name = g.source()
    shape = g.one_of([(), (1,), (2, 2)])
    g.add("Gather", name, g.weight(g.random.integers(0, 1, shape)), axis=g.axis(name))


@case
def gather_by_rows(g: Growing) -> None:
    name = g.source()
    g.add("Gather", name, g.source(of="places"), axis=g.axis(name))


@case
def gather_elements(g: Growing) -> None:
    name = g.source(3, of="x")
    indices = g.source(3, of="places")
    g.add("GatherElements", name, indices, axis=g.axis(name))


@case
def scatter_elements(g: Growing) -> None:
    name, axis = g.source(3, of="x"), int(g.random.integers(-3, 3))
    updates = g.add("Slice", "y", g.integers(0), g.integers(2), g.integers(2))
    g.add("ScatterElements", name, g.source(3, of="places", arranged=0.2), updates, axis=axis)


@case
def scatter_nd(g: Growing) -> None:
    name = g.source(2, 3)
    dims = g.dims(name)
    depth = int(g.random.integers(1, len(dims) + 1))
    count = g.one_of([1, 2])
    indices = np.stack([g.random.integers(0, dim, count) for dim in dims[:depth]], axis=-1)
    shape = [count, *dims[depth:]]
    of = g.source(len(shape)) if g.chance(0.6) else g.floats(*shape)
    if g.chance(0.4) and depth < len(dims):
        # The updates are made of the rows, so that they fit.
        of = g.add("Gather", name, g.integers(*[0] * count), axis=0)
    g.add("ScatterND", name, g.weight(indices), of)


@case
def scatter_nd_own(g: Growing) -> None:
    """Updates of a row at the same places in each row, as an assignment to a slice is exported."""
    orders = [[1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 1, 2]]
    order = g.one_of(orders)
    turned = g.add("Transpose", "x", perm=order)
    value = g.add("Transpose", "y", perm=order if g.chance(0.7) else g.one_of(orders))
    updates = g.add("Slice", value, g.integers(0), g.integers(2), g.integers(0))
    depth = 1 if order[-1] == 0 else g.one_of([1, 2])
    others = 6 if order[1] == 2 else 4
    indices = [[0], [2]] if depth == 1 else [[[row, each] for each in range(others)] for row in (0, 2)]
    g.add("ScatterND", turned, g.weight(np.array(indices)), updates)


@case
def gather_nd(g: Growing) -> None:
    kept = g.one_of([0, 0, 1, 2])
    if g.chance(0.4):
        data = g.floats(*[MOST] * g.one_of([2, 3]))
        g.add("GatherND", data, g.source(of="places"), batch_dims=kept)
    elif g.chance():
        g.add("GatherND", g.source(of="x"), g.source(of="places"), batch_dims=kept)
    else:
        name = g.source(2, 3)
        shape = (2, int(g.random.integers(1, g.rows(name).rank + 1)))
        g.add("GatherND", name, g.weight(np.zeros(shape, np.int64)), batch_dims=kept)


@case
def identity_after_order(g: Growing) -> None:
    name = g.source()
    g.add(g.one_of(["NonZero", "DynamicQuantizeLinear"]), name, outputs=1)
