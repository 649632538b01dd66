"""Fully connected layers in the layout of blocked convolutions, so that their weights need no packing.

ONNX Runtime multiplies by a matrix in an order of its own. A stock session packs a constant matrix into it
when it opens the model. Weights here are inputs of the graph (`split`), which it packs again in each run: for
a layer of 2,048 x 8,192 and two rows that takes twice as long as the product. Its convolutions, though, take
weights in a layout that a caller can lay them out in, blocks of channels, and a fully connected layer is a
convolution over one point, each row being a pixel. So layers become such convolutions where that is expected
to be faster, and stay in blocks over what is computed element by element between two layers, since it costs
time to bring rows into blocks and back.

What is faster is estimated from the shapes alone, because models of one architecture share an executable:
they have to become the same graph, whenever they are compiled.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from mainspring.compiler.reading.contents import array_of, tensor_of
from mainspring.compiler.reading.normalise import all_nodes, graphs_of
from mainspring.compiler.reading.stock import optimise
from mainspring.compiler.sizes.varying import sized_by_values

_DOMAIN = "com.microsoft.nchwc"
_CONTRIBUTED = "com.microsoft"
_OPSET = 15
"""The oldest version of ONNX's operators whose `Shape` can leave out the last dimension."""
_CHANNELS = 4
"""Divisor of the number of a layer's inputs."""
_PACK_NS = 0.2
"""Packing one weight. This and the next three were measured on an AVX-512 core; others are in proportion."""
_ENTER_NS, _EXIT_NS = 0.1, 0.4
"""Bringing one value into blocks, and out of them."""
_NODE_NS = 1_500
"""Time of the nodes at either end, whatever their size."""
_USUAL_BATCH, _USUAL_SIZE = 4, 32
"""Taken for dimensions that are not known: of the batch, and of any other."""

_FUSED = frozenset({"Relu", "Sigmoid", "Tanh"})
"""Activations that both a layer and a convolution compute with their product."""
_ELEMENTWISE = frozenset(
    {
        *(("", name) for name in ("Abs", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish")),
        *(("", name) for name in ("Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Sigmoid", "Softplus")),
        *(("", name) for name in ("Sqrt", "Tanh", "Add", "Sub", "Mul", "Div", "Pow")),
        *((_CONTRIBUTED, name) for name in ("FastGelu", "Gelu", "QuickGelu")),
    }
)
_WITH_BIAS = {(_CONTRIBUTED, "BiasGelu"): "Gelu", (_CONTRIBUTED, "FastGelu"): "FastGelu"}
"""Operators that add a bias first, and the one that does the rest."""

Array = npt.NDArray[np.float32]


class _Layer(NamedTuple):
    """A fully connected layer with constant weights."""

    node: onnx.NodeProto
    rows: str
    """The name of what it multiplies."""
    weights: str
    inputs: int
    outputs: int
    transposed: bool
    """True if the weights have a row for each output."""
    bias: str
    """Empty for none."""
    activation: str
    """Empty for none."""


class _Blocks(NamedTuple):
    """A value in blocks."""

    name: str
    channels: int
    like: str
    """The value outside whose dimensions but the last it has."""
    layers: frozenset[int]
    """The layers that it was computed by since rows were brought into blocks, by their place in the graph."""


def in_blocks(model: onnx.ModelProto) -> bool:
    """Turn layers of an optimised model into blocked convolutions where that is expected to be faster.

    Returns whether there are any; on a machine whose convolutions have no blocks there are none. A blocked
    convolution fails where a layer has no rows, as behind a detector that finds nothing.
    """
    block = block_size()
    if not block:
        return False
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    graph = _Graph(model.graph, block, opset)
    chosen = _chosen(graph)
    if not chosen:
        return False
    done = _Rewriting(graph, chosen)
    kept = [*done.constants.values()]
    for tensor in model.graph.initializer:
        layer = done.added.get(tensor.name)
        kept += [tensor] if layer is None else graph.in_blocks(layer)
    nodes = done.nodes
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(kept)
    for domain in (_DOMAIN, _CONTRIBUTED):
        if all(entry.domain != domain for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid(domain, 1))
    return True


@functools.cache
def block_size() -> int:
    """Return how many channels ONNX Runtime's convolutions have in a block on this machine; 0 for none."""
    size = 64
    weights = np.arange(size * size, dtype=np.float32).reshape(size, size, 1, 1)
    shape = [1, size, 8, 8]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    optimised = optimise(model.SerializeToString()).graph
    if not any(node.domain == _DOMAIN for node in optimised.node):
        return 0
    laid_out = [numpy_helper.to_array(each).reshape(-1) for each in optimised.initializer]
    for block in (8, 16, 32):
        wanted = _laid_out(weights.reshape(size, size), block).reshape(-1)
        if any(np.array_equal(array, wanted) for array in laid_out):
            return block
    return 0


def _dims_of(value: onnx.ValueInfoProto) -> list[int]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims]


def _laid_out(by_output: Array, block: int) -> Array:
    """Return weights, a row for each output, as a convolution takes them; both sides are filled up with 0."""
    rows, columns = by_output.shape
    outputs, inputs = (-(-size // block) for size in (rows, columns))
    filled = np.zeros((outputs * block, inputs * block), np.float32)
    filled[:rows, :columns] = by_output
    parts = filled.reshape(outputs, block, inputs, block).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(parts).reshape(outputs * block, inputs * block, 1, 1)


class _Graph:
    """A graph, what its layers are, and who uses which value."""

    def __init__(self, graph: onnx.GraphProto, block: int, opset: int) -> None:
        self.proto = graph
        self._opset = opset
        self.block = block
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.uses = Counter(name for node in all_nodes(graph) for name in node.input)
        self.uses.update(value.name for value in graph.output)
        self._users = {name: node for node in graph.node for name in node.input}
        values = [*graph.input, *graph.value_info, *graph.output]
        self._dims = {value.name: _dims_of(value) for value in values}
        for node in graph.node:
            if node.op_type.endswith("Gemm"):
                self._dims.setdefault(node.input[0], [-1, -1])
        self._varying = sized_by_values(graph)
        self.layers = {
            index: layer for index, node in enumerate(graph.node) if (layer := self._layer(node)) is not None
        }

    def _layer(self, node: onnx.NodeProto) -> _Layer | None:
        """Return what a node is as a layer; None if it is none that can be computed in blocks."""
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        kind = node.domain, node.op_type
        if kind not in (("", "MatMul"), ("", "Gemm"), (_CONTRIBUTED, "FusedGemm")):
            return None
        weights = self.constants.get(node.input[1])
        if weights is None or weights.data_type != TensorProto.FLOAT or len(weights.dims) != 2:
            return None
        plain = {"transA": 0, "alpha": 1.0, "beta": 1.0}
        if any(attributes.get(name, usual) != usual for name, usual in plain.items()):
            return None
        activation = attributes.get("activation", b"").decode()
        transposed = bool(attributes.get("transB", 0))
        inputs, outputs = weights.dims[::-1] if transposed else weights.dims
        bias = node.input[2] if len(node.input) > 2 else ""
        if (bias and not self.is_bias(bias, outputs)) or (activation and activation not in _FUSED):
            return None
        if inputs % _CHANNELS or not inputs or not outputs or self.uses[node.input[1]] > 1:
            return None
        if self._opset < _OPSET and not self.has_one_open(node.input[0]):
            return None
        if node.input[0] in self._varying:
            return None
        return _Layer(node, node.input[0], node.input[1], inputs, outputs, transposed, bias, activation)

    def is_bias(self, name: str, size: int) -> bool:
        """Return whether this is a constant that adds one number to each of ``size`` channels."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or not tensor.dims:
            return False
        return bool(tensor.dims[-1] == size == np.prod(tensor.dims))

    def biased_by(self, layer: _Layer) -> tuple[onnx.NodeProto, str] | None:
        """Return the node that adds a bias to what only it has of a layer, and the bias; None for none."""
        out = layer.node.output[0]
        if layer.bias or layer.activation or self.uses[out] != 1 or out not in self._users:
            return None
        node = self._users[out]
        kind = node.domain, node.op_type
        if (kind != ("", "Add") and kind not in _WITH_BIAS) or len(node.input) != 2:
            return None
        bias = node.input[1] if node.input[0] == out else node.input[0]
        fits = self.is_bias(bias, layer.outputs) and (kind == ("", "Add") or layer.outputs % self.block == 0)
        return (node, bias) if fits else None

    def is_elementwise(self, node: onnx.NodeProto, given: list[str]) -> bool:
        """Return whether a node can be computed in blocks if these inputs are; others must be one number."""
        others = [name for name in node.input if name and name not in given]
        scalar = all(
            name in self.constants and int(np.prod(self.constants[name].dims)) == 1 for name in others
        )
        # More than one dimension would be set beside those of blocks, which are four.
        low = all(len(self.constants[name].dims) <= 4 for name in others if name in self.constants)
        return (node.domain, node.op_type) in _ELEMENTWISE and scalar and low

    def in_blocks(self, layer: _Layer) -> list[onnx.TensorProto]:
        """Return a layer's weights, and its bias if it has one, as its convolution takes them."""
        weights = array_of(self.constants[layer.weights]).view(np.float32)
        laid_out = _laid_out(weights if layer.transposed else weights.T, self.block)
        made = [tensor_of(laid_out, f"{layer.weights}:blocks")]
        if layer.bias:
            bias = np.zeros(len(laid_out), np.float32)
            bias[: layer.outputs] = array_of(self.constants[layer.bias]).reshape(-1)
            made.append(numpy_helper.from_array(bias, f"{layer.weights}:bias"))
        return made

    def known_dims(self, name: str) -> list[int] | None:
        """Return a value's dimensions, -1 for open ones; None if not even their number is known."""
        return self._dims.get(name)

    def has_one_open(self, name: str) -> bool:
        """Return whether all of a value's dimensions but one, and but the last, are known."""
        dims = self.known_dims(name)
        return dims is not None and dims[:-1].count(-1) <= 1

    def usual_rows(self, name: str) -> int:
        """Return about how many rows a layer has that multiplies this value."""
        dims = self.known_dims(name)
        if dims is None:
            return _USUAL_BATCH * _USUAL_SIZE
        usual = [_USUAL_BATCH, *[_USUAL_SIZE] * len(dims)]
        return int(np.prod([usual[at] if size < 0 else size for at, size in enumerate(dims[:-1])]))


class _Rewriting:
    """A pass over a graph's nodes that computes chosen layers in blocks, and counts what that takes."""

    def __init__(self, graph: _Graph, chosen: frozenset[int]) -> None:
        """``chosen`` are layers, by their place in the graph."""
        self.nodes: list[onnx.NodeProto] = []
        self.costs: list[tuple[frozenset[int], float]] = []
        """Nanoseconds that values of these layers cost which get into blocks or out of them, with the
        layers."""
        self.added: dict[str, _Layer] = {}
        """Layers whose weights are needed in blocks, by the name of these."""
        self.constants: dict[str, onnx.TensorProto] = {}
        """Small constants of nodes that are new."""
        self._graph = graph
        self._blocks: dict[str, _Blocks] = {}
        self._outside: set[str] = set()
        """Values in blocks that have been brought outside as well."""
        self._done: set[str] = set()
        """Nodes whose bias a layer adds, by their output."""
        for index, node in enumerate(graph.proto.node):
            if node.output[0] in self._done:
                continue
            if index in chosen:
                self._layer(index, graph.layers[index])
            else:
                self._other(node)
        for value in graph.proto.output:
            self._leave(value.name)

    def _layer(self, index: int, layer: _Layer) -> None:
        found = self._enter(index, layer)
        biased = self._graph.biased_by(layer)
        bias = biased[1] if biased else layer.bias
        out = layer.node.output[0]
        result = _Blocks(f"{out}:blocks", layer.outputs, found.like, found.layers | {index})
        convolution = helper.make_node(
            "Conv",
            [found.name, f"{layer.weights}:blocks", *([f"{layer.weights}:bias"] if bias else [])],
            [result.name],
            domain=_DOMAIN,
            auto_pad="NOTSET",
            kernel_shape=[1, 1],
            strides=[1, 1],
            dilations=[1, 1],
            pads=[0, 0, 0, 0],
            group=1,
            **({"activation": layer.activation} if layer.activation else {}),
        )
        self.nodes.append(convolution)
        self.added[layer.weights] = layer._replace(bias=bias)
        self.costs.append((result.layers, 0.0))
        self._blocks[out] = result
        if biased:
            self._add_bias(biased[0], result)

    def _add_bias(self, node: onnx.NodeProto, result: _Blocks) -> None:
        """Take a node whose bias has been added by the layer before."""
        self._done.add(node.output[0])
        rest = _WITH_BIAS.get((node.domain, node.op_type))
        if rest is None:
            self._blocks[node.output[0]] = result
            return
        after = result._replace(name=f"{node.output[0]}:blocks")
        self.nodes.append(helper.make_node(rest, [result.name], [after.name], domain=node.domain))
        self._blocks[node.output[0]] = after

    def _other(self, node: onnx.NodeProto) -> None:
        """Take a node that is no chosen layer: in blocks where its inputs are and that is possible."""
        given = [name for name in node.input if name in self._blocks]
        values = [self._blocks[name] for name in given]
        alike = len({(each.channels, each.like) for each in values}) == 1
        if alike and values[0].channels % self._graph.block == 0 and self._graph.is_elementwise(node, given):
            moved = onnx.NodeProto()
            moved.CopyFrom(node)
            moved.input[:] = [self._blocks[name].name if name in given else name for name in node.input]
            moved.output[:] = [f"{node.output[0]}:blocks"]
            self.nodes.append(moved)
            layers = frozenset().union(*(each.layers for each in values))
            self._blocks[node.output[0]] = values[0]._replace(name=moved.output[0], layers=layers)
            self.costs.append((layers, 0.0))
            return
        for name in _read_by(node):
            self._leave(name)
        self.nodes.append(node)

    def _enter(self, index: int, layer: _Layer) -> _Blocks:
        """Return a layer's rows in blocks."""
        found = self._blocks.get(layer.rows)
        if found is not None and layer.inputs % self._graph.block == 0:
            return found
        self._leave(layer.rows)
        name = f"{layer.rows}:pixels"
        if name not in self._outside:
            self._outside.add(name)
            shape = self._constant([1, 1, -1, layer.inputs])
            self.nodes.append(helper.make_node("Reshape", [layer.rows, shape], [name]))
            self.nodes.append(
                helper.make_node("ReorderInput", [name], [f"{name}:in"], domain=_DOMAIN, channels_last=1)
            )
        values = self._graph.usual_rows(layer.rows) * layer.inputs
        self.costs.append((frozenset({index}), _NODE_NS + _ENTER_NS * values))
        return _Blocks(f"{name}:in", layer.inputs, layer.rows, frozenset())

    def _leave(self, name: str) -> None:
        """Bring a value outside under its own name, if it is in blocks alone."""
        found = self._blocks.get(name)
        if found is None or name in self._outside:
            return
        self._outside.add(name)
        rows = f"{name}:rows"
        size = found.channels
        leaving = helper.make_node(
            "ReorderOutput", [found.name], [rows], domain=_DOMAIN, channels=size, channels_last=1
        )
        self.nodes.append(leaving)
        self.nodes.append(helper.make_node("Reshape", [rows, self._shape(found)], [name]))
        values = self._graph.usual_rows(found.like) * size
        self.costs.append((found.layers, _NODE_NS + _EXIT_NS * values))

    def _shape(self, value: _Blocks) -> str:
        """Return the name of a value's shape outside; it is computed where more than one size is open."""
        dims = self._graph.known_dims(value.like)
        if dims is not None and self._graph.has_one_open(value.like):
            return self._constant([*dims[:-1], value.channels])
        shape = f"{value.like}:shape:{value.channels}"
        if shape not in self._outside:
            self._outside.add(shape)
            first = f"{value.like}:first:{value.channels}"
            self.nodes.append(helper.make_node("Shape", [value.like], [first], start=0, end=-1))
            last = self._constant([value.channels])
            self.nodes.append(helper.make_node("Concat", [first, last], [shape], axis=0))
        return shape

    def _constant(self, numbers: list[int]) -> str:
        name = "shape:" + "x".join(map(str, numbers))
        self.constants[name] = numpy_helper.from_array(np.array(numbers, np.int64), name)
        return name


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield all values that a node reads, also those that only graphs inside it read."""
    yield from node.input
    for inner in graphs_of(node):
        for each in inner.node:
            yield from _read_by(each)
        yield from (value.name for value in inner.output)


def _chosen(graph: _Graph) -> frozenset[int]:
    """Return the layers that are faster in blocks, those together between which values stay there."""
    everything = _Rewriting(graph, frozenset(graph.layers))
    groups = [frozenset({index}) for index in graph.layers]
    for layers, _ in everything.costs:
        joined = [group for group in groups if group & layers]
        groups = [group for group in groups if not group & layers]
        if joined:
            groups.append(frozenset().union(*joined))
    return frozenset().union(*(group for group in groups if _saved_ns(graph, group, everything) > 0))


def _saved_ns(graph: _Graph, group: frozenset[int], everything: _Rewriting) -> float:
    """Return how much shorter a run is expected to be with a group of layers in blocks."""
    spent = sum(ns for layers, ns in everything.costs if layers & group)
    layers = [graph.layers[index] for index in group]
    # One row is multiplied without packing.
    packed = sum(each.inputs * each.outputs for each in layers if graph.usual_rows(each.rows) > 1)
    return _PACK_NS * packed - spent
