"""Cases of operators on elements and along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.independence.growing import MOST, Growing, case

UNARY = ["Abs", "Atan", "Ceil", "Erf", "Exp", "HardSwish", "Identity", "LeakyRelu", "Neg", "Relu", "Softplus"]
BINARY = ["Add", "Div", "Max", "Min", "Mul", "Sub", "PRelu", "Sum", "Mean"]
REDUCE = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceProd",
    "ReduceSumSquare",
]


@case
def unary(g: Growing) -> None:
    g.add(g.one_of(UNARY), g.source())


@case
def binary(g: Growing) -> None:
    one = g.source(arranged=0.3)
    g.add(g.one_of(BINARY), one, g.source(of=one, arranged=0.2))


@case
def binary_of_any(g: Growing) -> None:
    one, two = g.source(), g.source()
    g.add(g.one_of(BINARY), one, two)


@case
def binary_alike(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    g.add(g.one_of(BINARY), g.source(of=of), g.source(of=of))


@case
def binary_constant(g: Growing) -> None:
    name = g.source()
    dims = [dim if g.chance(0.7) else 1 for dim in g.dims(name)]
    dims[g.rows(name).axis] = g.one_of([1, 1, 3, 4])
    weight = g.floats(*dims[int(g.random.integers(len(dims))) :])
    g.add(g.one_of(BINARY), *g.random.permutation([name, weight]))


@case
def where(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    test = g.add("Greater", g.source(of=of, arranged=0.3), g.weight(np.float32(0)))
    g.add("Where", test, g.source(of=of, arranged=0.3), g.source(of=of, arranged=0.3))


@case
def softmax(g: Growing) -> None:
    g.opset = g.one_of([12, 17])
    # Unsqueeze and Squeeze have other forms before opset 13.
    name = "x" if g.opset == 12 else g.source()
    if g.opset == 12:
        name = g.add("Transpose", name, perm=[int(axis) for axis in g.random.permutation(3)])
    g.add(g.one_of(["Softmax", "LogSoftmax", "Hardmax"]), name, axis=g.axis(name))


@case
def running(g: Growing) -> None:
    name = g.source()
    axis = g.weight(np.array(g.axis(name), np.int64))
    g.add("CumSum", name, axis, exclusive=int(g.chance()), reverse=int(g.chance()))


@case
def lp_normalization(g: Growing) -> None:
    name = g.source()
    g.add("LpNormalization", name, axis=g.axis(name), p=g.one_of([1, 2]))


@case
def layer_normalization(g: Growing) -> None:
    name = g.source(2, 3, 4)
    axis = g.axis(name)
    dims = g.dims(name)
    scale = dims[axis:]
    if g.chance(0.3):
        scale = [4, *[1] * (len(dims) - 1)][-len(dims) :]
    g.add("LayerNormalization", name, g.floats(*scale), outputs=g.one_of([1, 3]), axis=axis)


@case
def reduce(g: Growing) -> None:
    name = g.source()
    g.opset = g.one_of([17, 18])
    operator = g.one_of([*REDUCE, "ReduceSum"])
    axes = sorted({g.axis(name) % g.rows(name).rank for _ in range(g.one_of([0, 1, 1, 2]))})
    kept: dict[str, Any] = {"keepdims": int(g.chance())}
    if operator == "ReduceSum" or g.opset == 18:
        over = [g.integers(*axes)] if axes else []
        g.add(operator, name, *over, noop_with_empty_axes=int(g.chance()), **kept)
    else:
        if axes:
            kept["axes"] = axes
        g.add(operator, name, **kept)


@case
def arg_reduce(g: Growing) -> None:
    name = g.source()
    axis = {"axis": g.axis(name)} if g.chance(0.8) else {}
    g.add(g.one_of(["ArgMax", "ArgMin"]), name, **axis, keepdims=int(g.chance()))


@case
def top_k(g: Growing) -> None:
    name = g.source()
    g.add("TopK", name, g.integers(1), outputs=2, axis=g.axis(name), largest=int(g.chance()))


@case
def one_hot(g: Growing) -> None:
    name = g.source(of="places")
    rank = g.rows(name).rank
    g.add("OneHot", name, g.integers(MOST), g.weight(np.array([0, 1], np.float32)),
          axis=int(g.random.integers(-rank - 1, rank + 1)))  # fmt: skip


@case
def trilu(g: Growing) -> None:
    g.add("Trilu", g.source(2, 3, 4), upper=int(g.chance()))


@case
def mean_variance(g: Growing) -> None:
    name = g.source(3, 4)
    axes = sorted({g.axis(name) % g.rows(name).rank for _ in range(2)})
    chosen: dict[str, Any] = {"axes": axes} if g.chance(0.8) else {}
    g.add("MeanVarianceNormalization", name, **chosen)


@case
def batch_normalization(g: Growing) -> None:
    name = g.source(2, 3, 4)
    one = [g.weight(np.abs(g.random.standard_normal(g.dims(name)[1])).astype(np.float32)) for _ in range(4)]
    trains = g.chance(0.3)
    g.add("BatchNormalization", name, *one, outputs=3 if trains else 1, training_mode=int(trains))


@case
def reverse_sequence(g: Growing) -> None:
    name = g.source(2, 3)
    first = int(g.chance())
    lengths = g.add("Add", "lengths", g.integers(1)) if g.chance(0.8) else g.integers(1, 2, 3)
    g.add("ReverseSequence", name, lengths, batch_axis=first, time_axis=1 - first)
