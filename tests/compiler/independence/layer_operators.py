"""Cases of products of matrices, layers that have the batch in front, and operators of other domains."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.compiler.independence.growing import Growing, case

GLOBAL = ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]
MICROSOFT, ESTIMATORS = "com.microsoft", "ai.onnx.ml"


@case
def matmul(g: Growing) -> None:
    name = g.source(2, 3, 4)
    dims = g.dims(name)
    weight = g.floats(*g.one_of([[dims[-1], 3], [1, dims[-1], 3], [dims[-1]], [4, dims[-1], 3]]))
    if g.chance(0.3):
        g.add("MatMul", g.floats(3, dims[-2]), name)
    else:
        g.add("MatMul", name, weight)


@case
def matmul_of_rows(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    g.add("MatMul", g.source(of=of), g.source(of=of))


@case
def matmul_turned(g: Growing) -> None:
    name = g.source(3, 4)
    order = [*range(g.rows(name).rank)]
    turned = g.add("Transpose", name, perm=[*order[:-2], order[-1], order[-2]])
    g.add("MatMul", *g.random.permutation([name, turned]))


@case
def fused_matmul(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    flags = {flag: int(g.chance()) for flag in ("transA", "transB")}
    stacks = {flag: int(g.chance(0.2)) for flag in ("transBatchA", "transBatchB")}
    g.add("FusedMatMul", g.source(of=of), g.source(of=of), domain=MICROSOFT, **flags, **stacks)


@case
def gemm(g: Growing) -> None:
    name = g.source(2)
    dims = g.dims(name)
    turned = int(g.chance(0.3))
    other = g.floats(dims[0 if turned else 1], 3)
    added = g.one_of([[], [g.floats(3)], [g.floats(1, 3)], [g.floats(3, 1)], ["z"]])
    g.add("Gemm", name, other, *added, transA=turned)


@case
def einsum(g: Growing) -> None:
    one, two = g.source(2, 3), g.source(2, 3)
    letters = "abcd"
    ranks = [g.rows(each).rank for each in (one, two)]
    terms = ["".join(g.random.choice(list(letters), rank, replace=g.chance(0.2))) for rank in ranks]
    used = sorted({*terms[0], *terms[1]})
    result = "".join(g.random.permutation(used)[: int(g.random.integers(1, len(used) + 1))])
    g.add("Einsum", one, two, equation=f"{terms[0]},{terms[1]}->{result}")


@case
def einsum_broadcast(g: Growing) -> None:
    mean = g.add("ReduceMean", "x", axes=[1], keepdims=1)
    result = g.one_of(["bij", "bi", "bji"])
    g.add("Einsum", *g.random.permutation(["y", mean]), equation=f"bij,bij->{result}")


@case
def recurrent(g: Growing) -> None:
    operator, gates = g.one_of([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    name = g.source(3, of="x")
    if g.chance():
        name = g.add("Transpose", "x", perm=[1, 0, 2])
    hidden, size = 3, g.dims(name)[-1]
    both = g.chance(0.3)
    ways = 2 if both else 1
    weights = [g.floats(ways, gates * hidden, size), g.floats(ways, gates * hidden, hidden)]
    more = [""] * 3
    if g.chance():
        more[1] = g.add("Cast", g.add("Add", "lengths", g.integers(1)), to=6)
    if g.chance():
        state = g.add("Slice", "z", g.integers(0), g.integers(hidden), g.integers(1))
        more[2] = g.add("Unsqueeze", state, g.integers(0))
        if both:
            more[2] = g.add("Concat", more[2], more[2], axis=0)
    given = [*weights, *more]
    while not given[-1]:
        given.pop()
    way = "bidirectional" if both else "forward"
    g.add(operator, name, *given, outputs=2, hidden_size=hidden, direction=way)


@case
def convolution(g: Growing) -> None:
    name = g.source(4)
    channels = g.dims(name)[1]
    if g.chance(0.2):
        g.add("ConvTranspose", name, g.floats(channels, 3, 2, 2), strides=[g.one_of([1, 2])] * 2)
        return
    g.add("Conv", name, g.floats(3, channels, 2, 2), auto_pad=g.one_of(["NOTSET", "SAME_UPPER", "VALID"]))


@case
def pool(g: Growing) -> None:
    name = g.source(4)
    operator = g.one_of(["MaxPool", "AveragePool", "LpPool", *GLOBAL])
    if operator.startswith("Global"):
        g.add(operator, name)
        return
    outputs = 2 if operator == "MaxPool" and g.chance(0.3) else 1
    rounded = {} if operator == "LpPool" else {"ceil_mode": int(g.chance())}
    g.add(operator, name, outputs=outputs, kernel_shape=[g.one_of([2, 3]), 2], strides=[g.one_of([1, 2])] * 2,
          pads=[g.one_of([0, 1])] * 4, **rounded)  # fmt: skip


@case
def space(g: Growing) -> None:
    name = g.source(4)
    g.add(g.one_of(["DepthToSpace", "SpaceToDepth"]), name, blocksize=g.one_of([1, 2]))


@case
def depth(g: Growing) -> None:
    name = g.add("Concat", "image", "image", axis=1)
    g.add("DepthToSpace", name, blocksize=2, mode=g.one_of(["DCR", "CRD"]))


@case
def normalized(g: Growing) -> None:
    name = g.source(3, 4)
    channels = g.dims(name)[1]
    if g.chance():
        g.add("InstanceNormalization", name, g.floats(channels), g.floats(channels))
    else:
        g.add("LRN", name, size=3)


@case
def grid_sample(g: Growing) -> None:
    grid = g.add("Transpose", "image", perm=[0, 2, 3, 1])
    g.opset = g.one_of([16, 20])
    mode = g.one_of(["bilinear", "nearest"] if g.opset == 16 else ["linear", "nearest"])
    g.add("GridSample", g.source(4), g.source(4, of=grid, arranged=0.3), mode=mode)


@case
def resize(g: Growing) -> None:
    name = g.source(2, 3, 4)
    value = g.rows(name)
    scales = np.array([g.one_of([1, 1, 2, 0.7, 0.5]) for _ in value.shape], np.float32)
    if g.chance(0.8):
        scales[value.axis] = 1
    places = g.one_of(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    mode = g.one_of(["nearest", "linear", "cubic"])
    g.add("Resize", name, "", g.weight(scales), mode=mode, coordinate_transformation_mode=places)


@case
def resize_to_sizes(g: Growing) -> None:
    name = g.source(2, 3, 4)
    value = g.rows(name)
    parts = [
        g.add("Gather", g.add("Shape", name), g.integers(place)) if place == value.axis
        else g.integers(g.one_of([1, 2, 3, 4, 5]))
        for place in range(value.rank)
    ]  # fmt: skip
    sizes = g.add("Concat", *parts, axis=0)
    g.add("Resize", name, "", "", sizes, mode=g.one_of(["nearest", "linear"]))


@case
def quantise(g: Growing) -> None:
    name = g.source()
    axis = g.axis(name)
    dim = g.dims(name)[axis]
    shape = g.one_of([(), (dim,), (4,)])
    scale, zero = g.weight(np.full(shape, 0.1, np.float32)), g.weight(np.full(shape, 3, np.uint8))
    quantised = g.add("QuantizeLinear", name, scale, zero, axis=axis)
    g.add("DequantizeLinear", quantised, scale, zero, axis=axis)


@case
def integer_product(g: Growing) -> None:
    name = g.source(2, 3)
    quantised = g.add("QuantizeLinear", name, g.weight(np.float32(0.1)), g.weight(np.uint8(3)))
    weight = g.weight(g.random.integers(0, 255, (g.dims(name)[-1], 3)).astype(np.uint8))
    g.add("MatMulInteger", quantised, weight, g.weight(np.uint8(3)))


@case
def added_norm(g: Growing) -> None:
    of = g.one_of(["x", "image"])
    one, two = g.source(2, 3, of=of), g.source(2, 3, of=of)
    operator = g.one_of(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
    g.add(operator, one, two, g.floats(g.dims(one)[-1]), domain=MICROSOFT)


@case
def attention(g: Growing) -> None:
    queries = g.source(3, of="x")
    if g.chance():
        others = [g.source(3, of=name, arranged=0.2) for name in ("x", "y")]
        g.add("MultiHeadAttention", queries, *others, outputs=g.one_of([1, 3]), domain=MICROSOFT, num_heads=2)
        return
    mask = g.one_of([[], [g.add("Cast", "lengths", to=6)]])
    operands = [queries, g.floats(6, 18), g.floats(18), *mask]
    g.add("Attention", *operands, outputs=g.one_of([1, 2]), domain=MICROSOFT, num_heads=2)


@case
def estimators(g: Growing) -> None:
    name = g.source(2)
    count = g.dims(name)[-1]
    kind = g.one_of(["Scaler", "Normalizer", "LinearRegressor", "LinearClassifier", "Binarizer", "Imputer"])
    attributes = {
        "Scaler": {"offset": [0.5] * count, "scale": [2.0] * count},
        "Normalizer": {"norm": g.one_of(["MAX", "L1", "L2"])},
        "LinearRegressor": {"coefficients": [0.5] * 2 * count, "intercepts": [0.0, 1.0], "targets": 2},
        "LinearClassifier": {"coefficients": [0.5] * 2 * count, "intercepts": [0.0, 1.0],
                             "classlabels_ints": [0, 1]},
        "Binarizer": {"threshold": 0.2},
        "Imputer": {"imputed_value_floats": [0.5] * count, "replaced_value_float": 1.0},
    }[kind]  # fmt: skip
    g.add(kind, name, outputs=2 if kind == "LinearClassifier" else 1, domain=ESTIMATORS, **attributes)


@case
def trees(g: Growing) -> None:
    """A tree of one question: is the first feature above 0?"""
    classes = g.one_of([2, 3])
    where: dict[str, Any] = {"nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "class_treeids": [0, 0]}
    g.add(
        "TreeEnsembleClassifier",
        g.source(2),
        outputs=2,
        domain=ESTIMATORS,
        **where,
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_nodeids=[1, 2],
        class_ids=[0, classes - 1],
        class_weights=[0.75, 0.5],
        classlabels_int64s=[*range(classes)],
        post_transform=g.one_of(["NONE", "SOFTMAX", "LOGISTIC"]),
    )


@case
def fused_convolution(g: Growing) -> None:
    name = g.source(4)
    channels = g.dims(name)[1]
    added = ["", g.add("Conv", "image", g.floats(3, 2, 2, 2))] if g.chance(0.3) else []
    g.add("FusedConv", name, g.floats(3, channels, 2, 2), *added, domain=MICROSOFT, activation="Relu")


@case
def extracted(g: Growing) -> None:
    if g.chance():
        data = g.floats(*g.one_of([[4], [1, 4], [1, 2, 4], [3, 4], [2, 3, 4]]))
        chosen = g.source(of=g.one_of(["lengths", "places"]))
        g.add("ArrayFeatureExtractor", data, chosen, domain=ESTIMATORS)
    else:
        g.add("ArrayFeatureExtractor", g.source(2, 3), g.integers(0), domain=ESTIMATORS)


def body(nodes: list[onnx.NodeProto], states: int, outputs: list[str]) -> onnx.GraphProto:
    """Return the body of a Scan of one input; its last input is the slice."""
    names = [*(f"state{index}" for index in range(states)), "slice"]
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )


@case
def distances(g: Growing) -> None:
    """Of each row to each of some points, as skl2onnx writes them."""
    name = g.source(2)
    nodes = [
        helper.make_node("Identity", ["state0"], ["kept"]),
        helper.make_node("Sub", ["state0", "slice"], ["difference"]),
        helper.make_node("ReduceL1", ["difference"], ["distance"], axes=[1], keepdims=0),
    ]
    g.add(
        "Scan",
        name,
        g.floats(5, g.dims(name)[1]),
        outputs=2,
        body=body(nodes, 1, ["kept", "distance"]),
        num_scan_inputs=1,
        scan_output_axes=[g.one_of([0, 1])],
    )


@case
def turns(g: Growing) -> None:
    """A sum that grows from turn to turn, along an axis that may be the rows'."""
    name = g.source(2, 3)
    nodes = [
        helper.make_node("Add", ["state0", "slice"], ["sum"]),
        helper.make_node(g.one_of(["Relu", "Neg", "Identity"]), ["sum"], ["found"]),
    ]
    axis = g.axis(name)
    before = g.add("ReduceSum", name, g.integers(axis), keepdims=0)
    g.add(
        "Scan",
        before,
        name,
        outputs=2,
        body=body(nodes, 1, ["sum", "found"]),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[g.one_of([0, 1])],
    )


@case
def one_turn_a_row(g: Growing) -> None:
    name = g.source(2, 3)
    known = g.rows(name)
    nodes = [
        helper.make_node("Softmax", ["slice"], ["share"], axis=-1),
        helper.make_node("Mul", ["share", g.floats()], ["scaled"]),
        helper.make_node("Identity", ["state0"], ["kept"]),
        helper.make_node("Add", ["scaled", "state0"], ["found"]),
    ]
    g.add(
        "Scan",
        g.floats(1),
        name,
        outputs=2,
        body=body(nodes, 1, ["kept", "found"]),
        num_scan_inputs=1,
        scan_input_axes=[known.axis],
        scan_output_axes=[g.one_of([0, -1])],
    )
