"""Cases of operators on quantised values, and of the newer operators of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.independence.growing import MOST, Growing, case

MICROSOFT, ESTIMATORS = "com.microsoft", "ai.onnx.ml"


def quantised(g: Growing, name: str) -> list[str]:
    """Return the value quantised, its scale and its zero point."""
    scale, zero = g.weight(np.float32(0.05)), g.weight(np.uint8(g.one_of([0, 3, 128])))
    return [g.add("QuantizeLinear", name, scale, zero), scale, zero]


def integers(g: Growing, *shape: int) -> list[str]:
    """Return quantised weights, their scale and their zero point."""
    weight = g.weight(g.random.integers(0, 255, shape).astype(np.uint8))
    return [weight, g.weight(np.float32(0.1)), g.weight(np.uint8(100))]


def result(g: Growing) -> list[str]:
    """Return scale and zero point of an output."""
    return [g.weight(np.float32(0.2)), g.weight(np.uint8(7))]


@case
def quantised_product(g: Growing) -> None:
    name = g.source(2, 3)
    operands = [*quantised(g, name), *integers(g, g.dims(name)[-1], 3)]
    kind = g.one_of(["QLinearMatMul", "MatMulIntegerToFloat", "QGemm"])
    if kind == "QLinearMatMul":
        g.add(kind, *operands, *result(g))
    elif kind == "QGemm":
        g.add(kind, *operands, "", *result(g), domain=MICROSOFT, transA=int(g.chance(0.2)))
    else:
        order = [operands[place] for place in (0, 3, 1, 4, 2, 5)]
        g.add(kind, *order, domain=MICROSOFT)


@case
def quantised_layer(g: Growing) -> None:
    name = g.source(4)
    channels, source = g.dims(name)[1], quantised(g, name)
    kind = g.one_of(["QLinearConv", "ConvInteger", "QLinearAveragePool", "QLinearGlobalAveragePool"])
    if kind == "QLinearConv":
        g.add(kind, *source, *integers(g, 3, channels, 2, 2), *result(g))
    elif kind == "ConvInteger":
        g.add(kind, source[0], integers(g, 3, channels, 2, 2)[0], source[2])
    elif kind == "QLinearAveragePool":
        g.add(kind, *source, *result(g), domain=MICROSOFT, kernel_shape=[2, 2])
    else:
        g.add(kind, *source, *result(g), domain=MICROSOFT, channels_last=0)


@case
def quantised_elements(g: Growing) -> None:
    one = g.source(arranged=0.3)
    kind = g.one_of(["QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"])
    if kind in ("QLinearSigmoid", "QLinearLeakyRelu"):
        g.add(kind, *quantised(g, one), *result(g), domain=MICROSOFT)
    elif g.chance(0.6):
        other = g.source(of=g.one_of([one, "x", "z"]), arranged=0.2)
        g.add(kind, *quantised(g, one), *quantised(g, other), *result(g), domain=MICROSOFT)
    else:
        dims = [g.one_of([1, dim]) for dim in g.dims(one)]
        g.add(kind, *quantised(g, one), *integers(g, *dims), *result(g), domain=MICROSOFT)


@case
def quantised_axis(g: Growing) -> None:
    name = g.source()
    if g.chance():
        axis, opset = g.axis(name), g.one_of([12, 13])
        g.add("QLinearSoftmax", *quantised(g, name), *result(g), domain=MICROSOFT, axis=axis, opset=opset)
    else:
        other = g.source(of="x", arranged=0.2)
        parts = [*quantised(g, name), *quantised(g, other)]
        g.add("QLinearConcat", *result(g), *parts, domain=MICROSOFT, axis=g.axis(name))


@case
def packed_product(g: Growing) -> None:
    name = g.source(2, 3)
    size, block = g.dims(name)[-1], 16
    weight = g.weight(g.random.integers(0, 255, (3, 1, block // 2)).astype(np.uint8))
    scales = g.floats(3)
    g.add("MatMulNBits", name, weight, scales, domain=MICROSOFT, K=size, N=3, bits=4, block_size=block)


@case
def gelu(g: Growing) -> None:
    name = g.source()
    kind = g.one_of(["BiasGelu", "FastGelu", "QuickGelu", "Gelu"])
    added = [g.floats(g.dims(name)[-1])] if kind == "BiasGelu" or (kind == "FastGelu" and g.chance()) else []
    g.add(kind, name, *added, domain=MICROSOFT)


@case
def standard_attention(g: Growing) -> None:
    g.opset = 23
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": int(g.chance(0.3))}
    names = [g.source(3, of=of, arranged=0.15) for of in ("x", "y", "x")]
    mask: list[str] = []
    if g.chance():
        mask = [g.floats(*g.one_of([[4, 4], [1, 4, 4], [2, 4, 4], [1, 1, 4, 4], [4, 1, 4, 4]]))]
    g.add("Attention", *names, *mask, outputs=g.one_of([1, 3]), **heads)


@case
def newer_normalization(g: Growing) -> None:
    name = g.source(3, 4)
    dims = g.dims(name)
    if g.chance():
        g.opset = 21
        groups = g.one_of([1, 2])
        g.add("GroupNormalization", name, g.floats(dims[1]), g.floats(dims[1]), num_groups=groups)
        return
    g.opset = 23
    axis = g.axis(name)
    g.add("RMSNormalization", name, g.floats(*dims[axis:]), axis=axis)


@case
def embedding(g: Growing) -> None:
    ids = g.add("Cast", g.add("Gather", "places", g.integers(0), axis=2), to=6)
    ids = g.add("Reshape", ids, g.integers(-1, 4))
    segments = g.one_of([ids, g.add("Transpose", ids, perm=[0, 1])])
    tables = [g.floats(MOST, 6), g.floats(MOST, 6), g.floats(MOST, 6), g.floats(6), g.floats(6)]
    mask = [ids] if g.chance() else []
    g.add("EmbedLayerNormalization", ids, segments, *tables, *mask, outputs=2, domain=MICROSOFT)


@case
def machines(g: Growing) -> None:
    """Estimators of scikit-learn besides trees and lines."""
    name = g.source(2)
    count = g.dims(name)[-1]
    kind = g.one_of(["SVMRegressor", "TreeEnsembleRegressor", "FeatureVectorizer"])
    if kind == "FeatureVectorizer":
        other = g.source(2, of="z", arranged=0.2)
        sizes = [count, g.dims(other)[-1]]
        g.add(kind, name, other, domain=ESTIMATORS, inputdimensions=sizes)
    elif kind == "SVMRegressor":
        vectors = [float(each) for each in g.random.standard_normal(3 * count)]
        kernel: dict[str, Any] = {
            "kernel_type": g.one_of(["RBF", "LINEAR"]),
            "kernel_params": [0.5, 0.0, 3.0],
            "rho": [0.1],
        }
        learnt: dict[str, Any] = {
            "n_supports": 3,
            "support_vectors": vectors,
            "coefficients": [0.2, -0.4, 0.1],
        }
        g.add(kind, name, domain=ESTIMATORS, **kernel, **learnt)
    else:
        targets = g.one_of([1, 2])
        question: dict[str, Any] = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2]}
        leaves: dict[str, Any] = {"target_treeids": [0, 0], "target_nodeids": [1, 2]}
        g.add(kind, name, domain=ESTIMATORS, **question, **leaves, nodes_featureids=[0, 0, 0],
              nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[0.0, 0.0, 0.0], n_targets=targets,
              nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_ids=[0, targets - 1],
              target_weights=[0.75, 0.5])  # fmt: skip


@case
def deformed(g: Growing) -> None:
    g.opset = 19
    offsets = g.add("Conv", "image", g.floats(8, 2, 2, 2))
    g.add("DeformConv", g.source(4, arranged=0.2), g.floats(3, 2, 2, 2), offsets, kernel_shape=[2, 2])
