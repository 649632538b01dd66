"""Made models with open dimensions besides the batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Input = tuple[str, int, Sequence[int | str | None]]


def _weights(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _model(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[Input], element: int = FLOAT, **constants: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lengths() -> onnx.ModelProto:
    """A product at each place of a sequence."""
    return _model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", FLOAT, ["n", "seq", 8])], w=_weights(8, 4)
    )


def images(flat: bool = False) -> onnx.ModelProto:
    """A convolution with strides, flattened or not."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 3], pads=[1, 1, 1, 1])]
    nodes += [helper.make_node("Flatten", ["c"], ["y"]) if flat else helper.make_node("Relu", ["c"], ["y"])]
    return _model(nodes, [("x", FLOAT, ["n", 3, "h", "w"])], w=_weights(4, 3, 3, 3))


def with_class_token() -> onnx.ModelProto:
    """One place more than the sequence has."""
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["token"], axis=1),
        helper.make_node("Concat", ["token", "x"], ["y"], axis=1),
    ]
    return _model(nodes, [("x", FLOAT, ["n", "seq", 8])], first=np.array([0]))


def windows() -> onnx.ModelProto:
    """Means of windows of 256 samples; what has fewer is padded to one window."""
    nodes = [
        helper.make_node("Shape", ["x"], ["samples"], start=1),
        helper.make_node("Sub", ["window", "samples"], ["lacks"]),
        helper.make_node("Max", ["lacks", "zero"], ["more"]),
        helper.make_node("Concat", ["zero", "zero", "zero", "more"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("Unsqueeze", ["padded", "channel"], ["one"]),
        helper.make_node("AveragePool", ["one"], ["means"], kernel_shape=[256], strides=[256]),
        helper.make_node("Squeeze", ["means", "channel"], ["y"]),
    ]
    window, zero, channel = (np.array([number]) for number in (256, 0, 1))
    return _model(nodes, [("x", FLOAT, ["n", "samples"])], window=window, zero=zero, channel=channel)


def last_id() -> onnx.ModelProto:
    """The embedding of the last of some ids, in a table of 40."""
    nodes = [
        helper.make_node("Gather", ["ids", "last"], ["id"], axis=1),
        helper.make_node("Gather", ["table", "id"], ["y"]),
    ]
    return _model(nodes, [("ids", INT64, ["n", "seq"])], last=np.array(-1), table=_weights(40, 8))


def picked() -> onnx.ModelProto:
    """One place of a sequence, by its index."""
    nodes = [helper.make_node("GatherElements", ["x", "place"], ["y"], axis=1)]
    return _model(nodes, [("x", FLOAT, ["n", "seq"]), ("place", INT64, ["n", 1])])


def positions() -> onnx.ModelProto:
    """Embeddings of ids and of 40 positions."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Shape", ["ids"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["places", "zero", "length", "zero"], ["here"]),
        helper.make_node("Add", ["embedded", "here"], ["y"]),
    ]
    arrays = {"table": _weights(50, 8), "places": _weights(40, 8), "zero": np.array([0])}
    return _model(nodes, [("ids", INT64, ["n", "seq"])], **arrays)


def eighths() -> onnx.ModelProto:
    """Eighths of a sequence one after the other, so that its length has to be a multiple of 8."""
    nodes = [helper.make_node("Reshape", ["x", "eighths"], ["y"])]
    return _model(nodes, [("x", FLOAT, ["n", "seq", 3])], eighths=np.array([0, 8, -1]))


def two_inputs() -> onnx.ModelProto:
    """Two inputs whose open dimensions have no names and have to be equal."""
    return _model(
        [helper.make_node("Mul", ["a", "b"], ["y"])],
        [("a", FLOAT, ["n", None, 8]), ("b", FLOAT, ["n", None, 8])],
    )


def whole() -> onnx.ModelProto:
    """The mean over a sequence, without an axis for rows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["m", "mean"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["seq", 8])], w=_weights(8, 4))


def attention() -> onnx.ModelProto:
    """Each place becomes the mean of those that a mask leaves, by weights that a softmax gives."""
    nodes = [
        helper.make_node("Cast", ["mask"], ["m"], to=FLOAT),
        helper.make_node("Sub", ["m", "one"], ["out"]),
        helper.make_node("Mul", ["out", "far"], ["bias"]),
        helper.make_node("Unsqueeze", ["bias", "axis"], ["wide"]),
        helper.make_node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]),
        helper.make_node("Add", ["scores", "wide"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"]),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    inputs: list[Input] = [("x", FLOAT, ["n", "seq", 8]), ("mask", INT64, ["n", "seq"])]
    return _model(nodes, inputs, one=np.float32(1), far=np.float32(1e9), axis=np.array([1]))


def encoder(layers: int = 2, width: int = 32, heads: int = 4, words: int = 40, most: int = 64) -> Any:
    """A text encoder such as MiniLM: ids and a mask to the normed mean of the places that the mask leaves."""
    random = np.random.default_rng(layers)
    nodes: list[onnx.NodeProto] = []
    arrays: dict[str, Any] = {
        **{"zero": np.array([0]), "one": np.float32(1), "far": np.float32(1e9), "half": np.float32(0.5)},
        **{"wide": np.array([1, 2]), "last": np.array([2]), "root": np.float32(2**0.5)},
        **{"scale": np.float32((width // heads) ** -0.5), "split": np.array([0, 0, heads, width // heads])},
        **{"joined": np.array([0, 0, width]), "tiny": np.float32(1e-9)},
    }

    def weight(name: str, *shape: int) -> str:
        arrays[name] = (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def node(kind: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs.split(), [output], output, **attributes))
        return output

    def linear(x: str, name: str, before: int, after: int) -> str:
        node("MatMul", f"{x} {weight(f'{name}.w', before, after)}", f"{name}.product")
        return node("Add", f"{name}.product {weight(f'{name}.b', after)}", name)

    def normed(one: str, other: str, name: str) -> str:
        arrays[f"{name}.g"], arrays[f"{name}.b"] = np.ones(width, np.float32), np.zeros(width, np.float32)
        return node(
            "LayerNormalization", f"{node('Add', f'{one} {other}', f'{name}.sum')} {name}.g {name}.b", name
        )

    node("Cast", "mask", "m", to=FLOAT)
    node("Mul", f"{node('Sub', 'm one', 'out')} far", "less")
    node("Unsqueeze", "less wide", "bias")
    node("Gather", f"{weight('table', words, width)} ids", "embedded")
    node(
        "Slice",
        f"{weight('places', most, width)} zero {node('Shape', 'ids', 'length', start=1, end=2)} zero",
        "here",
    )
    x = normed("embedded", "here", "first")
    for layer in range(layers):
        at = f"layer{layer}"
        parts = [linear(x, f"{at}.{each}", width, width) for each in "qkv"]
        q, k, v = (node("Reshape", f"{each} split", f"{each}.heads") for each in parts)
        q, v = (node("Transpose", each, f"{each}.first", perm=[0, 2, 1, 3]) for each in (q, v))
        k = node("Transpose", k, f"{k}.first", perm=[0, 2, 3, 1])
        scores = node("Mul", f"{node('MatMul', f'{q} {k}', f'{at}.scores')} scale", f"{at}.scaled")
        share = node("Softmax", node("Add", f"{scores} bias", f"{at}.masked"), f"{at}.share", axis=-1)
        mixed = node(
            "Transpose", node("MatMul", f"{share} {v}", f"{at}.mixed"), f"{at}.back", perm=[0, 2, 1, 3]
        )
        x = normed(
            x, linear(node("Reshape", f"{mixed} joined", f"{at}.joined"), f"{at}.o", width, width), f"{at}.n"
        )
        hidden = linear(x, f"{at}.up", width, 4 * width)
        erf = node("Erf", node("Div", f"{hidden} root", f"{at}.d"), f"{at}.erf")
        gelu = node(
            "Mul",
            f"{node('Mul', f'{hidden} half', f'{at}.h')} {node('Add', f'{erf} one', f'{at}.e1')}",
            f"{at}.g",
        )
        x = normed(x, linear(gelu, f"{at}.down", 4 * width, width), f"{at}.out")
    node("Unsqueeze", "m last", "keep")
    node("ReduceSum", f"{node('Mul', f'{x} keep', 'kept')} axis", "total", keepdims=0)
    node("ReduceSum", "keep axis", "count", keepdims=0)
    node("Div", f"total {node('Max', 'count tiny', 'counted')}", "y")
    return _model(
        nodes, [("ids", INT64, ["n", "seq"]), ("mask", INT64, ["n", "seq"])], axis=np.array([1]), **arrays
    )


def sounds() -> onnx.ModelProto:
    """Convolutions over time, the second at each place alone: silence behind a sound changes nothing."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["n", 3, "time"])], w=_weights(8, 3, 5), v=_weights(4, 8, 1))


def cached(total: str) -> onnx.ModelProto:
    """Scores of new places against past and new ones, with a mask of ``total`` places."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["keys"], axis=1),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["keys", "t"], ["scores"]),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["wide"]),
        helper.make_node("Mul", ["scores", "wide"], ["y"]),
    ]
    inputs: list[Input] = [
        ("x", FLOAT, ["n", "seq", 8]),
        ("mask", FLOAT, ["n", total]),
        ("past", FLOAT, ["n", "past", 8]),
    ]
    return _model(nodes, inputs, axis=np.array([2]))


def patches() -> onnx.ModelProto:
    """A token for the class before the patches of an image."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["token"]),
        helper.make_node("Concat", ["token", "f"], ["y"], axis=2),
    ]
    return _model(
        nodes, [("x", FLOAT, ["n", 3, "h", "w"])], w=_weights(5, 3, 4, 4), flat=np.array([0, 5, -1])
    )


def squares() -> onnx.ModelProto:
    """As many places as the square of the length: more than the known forms say."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=1, end=2),
        helper.make_node("Mul", ["s", "s"], ["q"]),
        helper.make_node("ConstantOfShape", ["q"], ["k"]),
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Add", ["k", "m"], ["y"]),
    ]
    return _model(nodes, [("x", FLOAT, ["n", "len"])])


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model to a file; return its path."""
    onnx.save(model, path)
    return path
