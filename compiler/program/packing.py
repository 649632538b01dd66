"""Kernels of ONNX Runtime that pack their weights: which do so in every run, and what that costs.

A stock session packs constant weights once, as it opens the model. Weights that are inputs of the graph, as
`split` makes them, come later, and these kernels pack them again in each run. So few bytes of them stay in
the graph: then the executable is this model's alone, and as fast as a stock session. Of models with more, the
cost is measured beside a stock session of the same file, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import onnx
import onnxruntime

from mainspring.compiler.artifact.arrays import BatchArrays, Runnable, bound_as, is_text
from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.artifact.executable import Binding
from mainspring.compiler.artifact.manifest import ExecutableInfo
from mainspring.compiler.reading.normalise import all_nodes
from mainspring.compiler.reading.stock import open_session

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
