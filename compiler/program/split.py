"""Weights apart from kernels: an optimised graph becomes an executable and a list of weights.

Every floating-point initializer, and every other large one, becomes an input of the graph. All names in the
rest are replaced by canonical ones, so that two models with the same graph and different weights become the
same bytes. Shapes, axes and other small integers stay in the graph: they are part of the
computation, and kernels need them constant. So do the weights of the operators in `_HOLDING`, of libraries'
operators, and few ones that would be packed in every run.

A stock session packs constant weights once, as it opens the model; kernels that pack pack weights that are
inputs in each run. Where few bytes of them stay in the graph the executable is this model's alone, and as
fast as a stock session. Of models with more, the cost is measured beside a stock session of the same file.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from mainspring.compiler.artifact.arrays import BatchArrays, Runnable, bound_as, is_text
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.executable import Binding
from mainspring.compiler.artifact.manifest import BATCH, ExecutableInfo, GraphTensor, IoTensor
from mainspring.compiler.artifact.target import cpu_flags, instruction_set
from mainspring.compiler.reading.contents import array_of, take_in
from mainspring.compiler.reading.normalise import all_nodes, graphs_of, rename
from mainspring.compiler.reading.operator_libraries import in_use, is_of_library
from mainspring.compiler.reading.stock import open_session
from mainspring.messages.model import TEXT_BYTES, Symbol, TensorSpec, array_dtype

if TYPE_CHECKING:
    from mainspring.compiler.reference import Prepared


PACKING: Final = frozenset(
    {
        *("LSTM", "GRU", "DynamicQuantizeLSTM", "Attention", "QAttention", "ConvTranspose"),
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "QGemm"),
        "QLinearConv",
    }
)
"""Operators with such kernels. Products of 32-bit floats are `blocked`'s; a simple RNN and ConvInteger take
the same time either way (measured with ONNX Runtime 1.32.0)."""
HELD_BYTES: Final = 1 << 20
"""Most bytes of a model's weights of these operators that stay in its graph, all together or none."""
_SECONDS: Final = 0.15
"""Time for comparing a batch size."""
_FEWEST: Final = 3
_LONG_S: Final = 3.0
"""Time after which further batch sizes are not compared."""


def held_weights(graph: onnx.GraphProto, weight_bytes: Mapping[str, int]) -> set[str]:
    """Return the names of the weights that stay in the graph: those that would be packed, if they are few.

    ``weight_bytes`` are the bytes of each initializer that is a weight.
    """
    names = {name for node in all_nodes(graph) if node.op_type in PACKING for name in node.input}
    found = names & weight_bytes.keys()
    return found if sum(weight_bytes[name] for name in sorted(found)) <= HELD_BYTES else set()


def packed_in_every_run(content: bytes, info: ExecutableInfo) -> dict[str, int]:
    """Return which kinds of nodes in an executable pack their weights in every run, and how many of each."""
    weights = {tensor.name for tensor in info.weights}
    nodes = all_nodes(onnx.load_from_string(content).graph)
    kinds = Counter(
        node.op_type for node in nodes if node.op_type in PACKING and not weights.isdisjoint(node.input)
    )
    return dict(sorted(kinds.items()))


def beside_stock(
    model: Runnable, info: ExecutableInfo, prepared: Prepared, batch_sizes: Sequence[int]
) -> dict[int, float]:
    """Return how many times as long as a stock session's a median run takes, by batch size.

    Nothing where a stock session can't be run in the same way.
    """
    if any(is_text(each.dtype) or each.varies for each in (*prepared.inputs, *prepared.outputs)):
        return {}
    ratios: dict[int, float] = {}
    sizes = tuple(symbol.limit for symbol in info.symbols)
    end = time.monotonic() + _LONG_S
    try:
        stock = open_session(prepared.content)
        for batch_size in batch_sizes:
            arrays = BatchArrays(info, batch_size, sizes)
            rows = prepared.rows_at(sizes, batch_size) if sizes else prepared.rows
            arrays.fill([array[:batch_size] for array in rows])
            runs: list[Callable[[], None]] = [
                bound_stock(stock, info, arrays, sizes),
                partial(arrays.run, model),
            ]
            theirs, ours = (statistics.median(each) for each in in_turns(runs, _SECONDS, _FEWEST))
            ratios[batch_size] = round(ours / theirs, 2)
            if time.monotonic() > end:
                break
    except (CompileError, RuntimeError, ValueError):
        # A batch that the file fixes, say.
        return ratios
    return ratios


def bound_stock(
    session: onnxruntime.InferenceSession, info: ExecutableInfo, arrays: BatchArrays, sizes: tuple[int, ...]
) -> Callable[[], None]:
    """Return what runs a stock session on the same inputs, into outputs of its own."""
    binding = Binding(session)
    for value, array in zip(session.get_inputs(), arrays.inputs, strict=True):
        binding.input(value.name, bound_as(str(array.dtype)), array.shape, array.ctypes.data)
    own = BatchArrays(info, len(arrays.inputs[0]), sizes).outputs
    for value, array in zip(session.get_outputs(), own, strict=True):
        binding.output(value.name, bound_as(str(array.dtype)), array.shape, array.ctypes.data)

    def run() -> None:
        session.run_with_iobinding(binding.io)
        assert own, "they are kept for as long as they are bound"

    return run


def in_turns(runs: Sequence[Callable[[], None]], seconds: float, fewest: int) -> list[list[int]]:
    """Return what each run took, in nanoseconds; the order changes with every turn."""
    took: list[list[int]] = [[] for _ in runs]
    for run in runs:
        run()
        run()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(took[0]) < fewest:
        for index in list(range(len(runs)))[:: 1 if len(took[0]) % 2 else -1]:
            begin_ns = time.perf_counter_ns()
            runs[index]()
            took[index].append(time.perf_counter_ns() - begin_ns)
    return took


_HOLDING = {"MatMulNBits"}
"""Operators that prepare their weights while the graph is opened, and compute something else from weights
that are inputs: other roundings, or zeros where only some of them are."""
_STRUCTURE_ELEMENTS = 1024
"""An integer initializer up to this size is taken for a shape or an axis; a larger one is a weight."""

Array = npt.NDArray[np.generic]


class Split(NamedTuple):
    """A model, taken apart."""

    graph: bytes
    """The executable: a serialised ONNX model whose weights are inputs."""
    info: ExecutableInfo
    weights: tuple[Array, ...]
    """Weights in the order of ``info.weights``."""


def split(
    optimised: onnx.ModelProto,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    structural: frozenset[str] = frozenset(),
    symbols: tuple[Symbol, ...] = (),
    *,
    holds: bool = True,
) -> Split:
    """Take an optimised model apart; ``inputs``, ``outputs`` and ``symbols`` are as the original has them.

    Initializers named in ``structural`` always stay in the graph; if it ``holds``, few weights of operators
    that would pack them in every run (`packing`), too.
    """
    graph = optimised.graph
    _compute_outputs(graph)
    _take_weights_out(graph, graph)
    if holds:
        structural |= held_weights(
            graph, {each.name: _weight_bytes(each) for each in graph.initializer if _is_weight(each)}
        )
    names = _Names([value.name for value in graph.input], [value.name for value in graph.output])
    weights, constants = _sort_initializers(graph, names, structural)
    executable = _executable(optimised, names, weights, constants, (inputs, outputs))
    if symbols:
        # What is measured is of these limits, so models of other limits don't share it.
        _note(executable, "symbols", [f"{each} {each.ceilings}" for each in symbols])
    slots = {each.dtype for each in (*inputs, *outputs) if is_text(each.dtype)} - {f"S{TEXT_BYTES}"}
    if slots:
        # Texts of other sizes lie otherwise in memory.
        _note(executable, "texts", sorted(slots))
    if libraries := in_use().libraries:
        # Other code under the same operators' names computes something else.
        _note(executable, "op_libraries", [each.sha256 for each in libraries])
    content = bytes(executable.SerializeToString(deterministic=True))
    info = ExecutableInfo(
        executable=hashlib.sha256(content).hexdigest(),
        instruction_set=instruction_set(),
        onnxruntime=onnxruntime.__version__,
        cpu_flags=cpu_flags(),
        weights=tuple(GraphTensor(name, str(array.dtype), array.shape) for name, array in weights.items()),
        inputs=tuple(IoTensor(f"i{k}", each.dtype, each.shape, each.open) for k, each in enumerate(inputs)),
        outputs=tuple(
            IoTensor(f"o{k}", each.dtype, each.shape, each.open, each.varies)
            for k, each in enumerate(outputs)
        ),
        symbols=symbols,
        libraries=libraries,
    )
    return Split(content, info, tuple(weights.values()))


def _note(executable: onnx.ModelProto, key: str, values: Sequence[str]) -> None:
    """Make values part of the executable's bytes, and so of its name."""
    executable.metadata_props.add(key=key, value=" ".join(values))


class _Names:
    """Canonical names, by order of appearance: i inputs, o outputs, w weights, c constants, v values."""

    def __init__(self, inputs: list[str], outputs: list[str]) -> None:
        self._new = {"": ""}
        self._new.update({name: f"i{k}" for k, name in enumerate(inputs)})
        self._new.update({name: f"o{k}" for k, name in enumerate(outputs)})
        self._counts: dict[str, int] = {}

    def add(self, name: str, prefix: str) -> str:
        """Give ``name`` the next name of this kind, unless it has one."""
        if name not in self._new:
            count = self._counts.get(prefix, 0)
            self._counts[prefix] = count + 1
            self._new[name] = f"{prefix}{count}"
        return self._new[name]

    def __getitem__(self, name: str) -> str:
        return self._new[name]


def _compute_outputs(graph: onnx.GraphProto) -> None:
    """Have a node compute each output that the optimiser found to be a constant or an input."""
    computed = {name for node in graph.node for name in node.output}
    known = {value.name for value in (*graph.input, *graph.initializer)}
    for value in graph.output:
        if value.name in computed:
            continue
        if value.name not in known:
            raise CompileError(f"output {value.name!r} is computed by no node; take it out of the model")
        graph.node.add(op_type="Identity", input=[value.name], output=[f"{value.name}:computed"])
        value.name = f"{value.name}:computed"


def _take_weights_out(graph: onnx.GraphProto, top: onnx.GraphProto) -> None:
    """Move weights of control flow to the top, where the graphs inside see them as well."""
    for node in graph.node:
        for position, inner in enumerate(graphs_of(node)):
            _take_weights_out(inner, top)
            # A graph may not return a value that is not its own.
            own = {value.name for value in inner.output}
            moved = [
                each for each in inner.initializer if each.name not in own and _as_weight(each) is not None
            ]
            names = {each.name: f"{node.name}:{position}:{node.output[0]}:{each.name}" for each in moved}
            kept = [each for each in inner.initializer if each.name not in names]
            rename(inner, names)
            for each in moved:
                top.initializer.append(each)
                top.initializer[-1].name = names[each.name]
            del inner.initializer[:]
            inner.initializer.extend(kept)


def _sort_initializers(
    graph: onnx.GraphProto, names: _Names, structural: frozenset[str]
) -> tuple[dict[str, Array], list[onnx.TensorProto]]:
    """Return the weights by canonical name and the constants that stay, both in the order of first use."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    holding = [node for node in all_nodes(graph) if node.op_type in _HOLDING or is_of_library(node)]
    kept = {name for node in holding for name in node.input}
    weights: dict[str, Array] = {}
    constants = []
    for name in [name for node in all_nodes(graph) for name in node.input]:
        tensor = tensors.pop(name, None)
        if tensor is None:
            continue
        array = None if name in structural or name in kept else _as_weight(tensor)
        if array is None:
            constants.append(_constant(tensor, names.add(name, "c")))
        else:
            weights[names.add(name, "w")] = array
    return weights, constants


def _as_weight(tensor: onnx.TensorProto) -> Array | None:
    """Return the array if the initializer is a weight; None if it is part of the graph's structure."""
    return np.asarray(array_of(tensor), order="C") if _is_weight(tensor) else None


def _is_weight(tensor: onnx.TensorProto) -> bool:
    """Say whether an initializer is a weight, and not part of the graph's structure."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return False
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return dtype.isbuiltin == 1 and (dtype.kind == "f" or math.prod(tensor.dims) > _STRUCTURE_ELEMENTS)


def _weight_bytes(tensor: onnx.TensorProto) -> int:
    item: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(math.prod(tensor.dims)) * item


def _constant(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """Copy a constant under its canonical name, its value in one canonical encoding where there is one."""
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if dtype.isbuiltin == 1:
        return numpy_helper.from_array(array_of(tensor), name)
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    take_in(copy)
    copy.name = name
    copy.ClearField("doc_string")
    return copy


def _executable(
    optimised: onnx.ModelProto,
    names: _Names,
    weights: dict[str, Array],
    constants: list[onnx.TensorProto],
    signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
) -> onnx.ModelProto:
    """Build the executable from an empty model, so that nothing else of the original is in it."""
    model = onnx.ModelProto(ir_version=optimised.ir_version)
    graph = model.graph
    graph.name = "mainspring"
    for index, node in enumerate(optimised.graph.node):
        graph.node.append(_canonical_node(node, index, names))
    for prefix, specs, into in (("i", signature[0], graph.input), ("o", signature[1], graph.output)):
        for k, spec in enumerate(specs):
            into.append(_value_info(f"{prefix}{k}", spec.dtype, (BATCH, *_dims(spec, f"{prefix}{k}"))))
    graph.input.extend(_value_info(name, str(array.dtype), array.shape) for name, array in weights.items())
    graph.initializer.extend(constants)
    used = {node.domain for node in all_nodes(graph)} | {""}
    imports = sorted(
        (entry.domain, entry.version) for entry in optimised.opset_import if entry.domain in used
    )
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in imports)
    # The layout of the weights and the meaning of the graph's bytes depend on these.
    target = model.metadata_props.add()
    target.key, target.value = "target", f"{instruction_set()} onnxruntime {onnxruntime.__version__}"
    return model


def _canonical_node(node: onnx.NodeProto, index: int, names: _Names) -> onnx.NodeProto:
    canonical = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=f"n{index}")
    canonical.input.extend(names[name] for name in node.input)
    canonical.output.extend(names.add(name, "v") for name in node.output)
    for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
        canonical.attribute.append(attribute)
        canonical.attribute[-1].ClearField("doc_string")
    for inner in graphs_of(canonical):
        _make_canonical(inner, names)
    return canonical


def _make_canonical(graph: onnx.GraphProto, names: _Names) -> None:
    """Give a graph of control flow canonical names; branches may have the same, since one of them runs."""
    graph.name = "inside"
    graph.ClearField("doc_string")
    del graph.value_info[:]
    for value in graph.input:
        value.name = names.add(value.name, "v")
        value.ClearField("doc_string")
    for tensor in graph.initializer:
        tensor.CopyFrom(_constant(tensor, names.add(tensor.name, "c")))
    nodes = [_canonical_node(node, index, names) for index, node in enumerate(graph.node)]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = names.add(value.name, "v")
        value.ClearField("doc_string")


def _dims(spec: TensorSpec, name: str) -> list[int | str]:
    """Return the dimensions behind the batch, with a name for each that is open."""
    dims: list[int | str] = [*spec.shape]
    for axis in spec.varies:
        dims[axis] = f"{name}:{axis}"
    for dim in spec.open:
        if dim.axis in spec.varies:
            continue
        dims[dim.axis] = f"{name}:{dim.axis}" if dim.symbol is None else f"s{dim.symbol}"
    return dims


def _value_info(name: str, dtype: str, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    if is_text(dtype):
        return helper.make_tensor_value_info(name, onnx.TensorProto.STRING, shape)
    element = helper.np_dtype_to_tensor_dtype(array_dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)
