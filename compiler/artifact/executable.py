"""Opens an executable, binds a model's weights to addresses in an arena, runs it, and says why a run failed.

The compiler verifies and profiles models with this file, and the worker's ``onnxruntime`` engine serves with
it, so what was verified is what runs. A worker's steps are:

1. PREPARE: ``executable = open_executable(store, manifest)``, once for all models that share it (the key is
   ``manifest.executable``); then ``executable.bind(manifest.tensors, lambda offset: mapped + offset)
   .warm(manifest.batch_sizes)`` with the address of the mapped weights file, so nothing is set up later.
2. LOAD: after the copy, ``bound = executable.bind(manifest.tensors, address_of)``; ``address_of(offset)``
   is the arena's address of a byte of the weights file (`manifest.WeightTensor` has the formula). What
   depends on the tensors alone can be done before: ``executable.plan(manifest.tensors)``.
3. INFER: ``bound.run(batch_size, input_addresses, output_addresses, sizes)``, in the order of
   `Manifest.inputs` and `Manifest.outputs`: whole batches, rows along the first axis, each at a multiple of
   64 bytes. ``sizes`` are of the model's symbols, if it has any: shapes are exactly those that follow.

A run computes in the calling thread, plus ``threads - 1`` of the session's own, and releases the GIL. One
executable may run in several threads at once; one bound model may not. The caller owns all memory and keeps
it for as long as an address of it is bound.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from mainspring.compiler.artifact.arrays import (
    BatchArrays,
    Sizes,
    bound_as,
    is_text,
    memory_at,
    put,
    texts_at,
    value_at,
)
from mainspring.compiler.artifact.errors import ExecutableError, Interrupted, ValuesError
from mainspring.compiler.artifact.manifest import ExecutableInfo, Manifest, WeightTensor
from mainspring.compiler.artifact.op_libraries import register
from mainspring.compiler.artifact.store import Store, recompile_command
from mainspring.compiler.artifact.target import check_target

_PREALLOCATED = "pre-allocated output"
"""Part of ONNX Runtime's error for an output whose shape does not fit the memory that it was given."""

_OTHER_SHAPE = (
    "an output's shape for these inputs differs from the one that the model was compiled with; only inputs "
    "that give outputs of that shape can be answered"
)

_NODE = re.compile(r"while running (\S+) node\. Name:'([^']*)' Status Message: (.*)", re.DOTALL)

_OF_MEMORY = re.compile(r"allocat|out of memory", re.IGNORECASE)

_MOST_CHARACTERS = 500
"""Most characters of ONNX Runtime's message that are passed on to whoever sent the inputs."""


def not_run(info: ExecutableInfo, batch_size: int, error: Exception) -> ExecutableError:
    """Return what a run's error, or that of binding what it reads and writes, says of the executable."""
    return ExecutableError(f"executable {info.executable[:12]} failed at batch size {batch_size}: {error}")


def failed(info: ExecutableInfo, batch_size: int, error: Exception) -> ExecutableError:
    """Return what the error of a run says: `ValuesError` if the inputs' values are at fault."""
    said = str(error)
    if _PREALLOCATED in said:
        return ValuesError(_OTHER_SHAPE)
    if isinstance(error, ValueError):
        return ValuesError(said)
    node = _NODE.search(said)
    if node is None or _OF_MEMORY.search(said) is not None:
        return not_run(info, batch_size, error)
    kind, name, why = node.groups()
    called = f" {name!r}" if name else ""
    return ValuesError(f"the model's node {kind}{called} fails on these values: {_short(why)}")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


FATAL_ONLY = 4
"""ONNX Runtime's log level: errors are raised too, and the compiler checks the subjects of its warnings."""

_WITHOUT_BOUND = tuple(b"\x22\x04" + name for name in (b"Loop", b"Scan"))
"""Operators whose values may decide how long a run takes, as `onnx.NodeProto` has their names. Only runs of
graphs with one can be ended early: to be given options costs a run some 25 us (ONNX Runtime 1.32)."""

Shape = tuple[int, ...]

Element = np.dtype[Any] | int
"""A type of numbers as bindings take it: numpy's, or ONNX's number for one that numpy lacks."""

_Wanted = tuple[int, tuple[int, ...], tuple[int, ...], Sizes]
"""Batch size, addresses of inputs and of outputs, and sizes of symbols."""


def open_executable(store: Store, manifest: Manifest, threads: int = 1) -> Executable:
    """Open the model's executable; raise `StoreError` if it is missing or of another machine or library."""
    info = store.executable_info(manifest)
    check_target(info, recompile_command(manifest.name, manifest.source, store.root))
    return Executable(store.executable_path(manifest), info, threads)


class Executable:
    """An open graph without weights, shared by all models that were compiled to it."""

    def __init__(
        self, graph: Path | bytes, info: ExecutableInfo, threads: int = 1, own_workspace: bool = False
    ) -> None:
        """Open ``graph``, a file or its bytes; raise `ExecutableError` if ONNX Runtime refuses it.

        It is one, too, if the graph needs a library of operators that is not allowed here.

        With ``own_workspace`` its activations have memory of their own, so that they can be measured.
        """
        self.info = info
        self._endable = _may_take_any_time(graph)
        self._plans: dict[tuple[WeightTensor, ...], WeightsPlan] = {}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        # The graph was optimised when it was compiled; doing it again would move nodes and cost time.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A pattern is of one shape: the first run of another would take memory otherwise than later ones.
        options.enable_mem_pattern = not info.symbols
        if not own_workspace:
            _register_shared_arena()
            options.add_session_config_entry("session.use_env_allocators", "1")
        register(options, info.libraries)
        content = str(graph) if isinstance(graph, Path) else graph
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
            raise ExecutableError(f"executable {info.executable[:12]} does not open: {error}") from error

    def plan(self, tensors: Sequence[WeightTensor]) -> WeightsPlan:
        """Return how these tensors are bound, at any addresses: one plan for equal tensors.

        Raises `ExecutableError` for tensors that are not the executable's.
        """
        known = self._plans.get(tuple(tensors))
        if known is not None:
            return known
        expected = {tensor.name: (tensor.dtype, tensor.shape) for tensor in self.info.weights}
        given = {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
        if given != expected:
            raise ExecutableError(f"executable {self.info.executable[:12]} has other weights than were bound")
        plan = self._plans[tuple(tensors)] = WeightsPlan(self._session, self.info, tensors, self._endable)
        return plan

    def bind(self, tensors: Sequence[WeightTensor], address_of: Callable[[int], int]) -> BoundModel:
        """Return a model whose weights are at ``address_of(tensor.offset)``; nothing is copied.

        Raises `ExecutableError` for tensors that are not the executable's.
        """
        return self.plan(tensors).bind(address_of)


class WeightsPlan:
    """The binding of weights without their addresses: one plan for all weights files of the same layout."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        info: ExecutableInfo,
        tensors: Sequence[WeightTensor],
        endable: bool = False,
    ) -> None:
        """``endable`` if runs may be ended early."""
        self.info = info
        self._session = session
        self._endable = endable
        self._weights = [(each.name, np.dtype(each.dtype), each.shape, each.offset) for each in tensors]
        self._ends = _Ends(info)
        self._reads_texts = any(is_text(tensor.dtype) for tensor in info.inputs)

    def bind(self, address_of: Callable[[int], int]) -> BoundModel:
        """Return a model whose weights are at ``address_of(offset)``; about 1 us for each tensor."""
        if self._reads_texts:
            return BoundModel(self.info, partial(self._feed_weights, address_of))
        return BoundModel(self.info, partial(self._bind_weights, address_of))

    def warm(self, address_of: Callable[[int], int], batch_sizes: Sequence[int]) -> None:
        """Warm a model whose weights are at ``address_of(offset)``, as `BoundModel.warm` does."""
        self.bind(address_of).warm(batch_sizes)

    def _bind_weights(self, address_of: Callable[[int], int]) -> _Run:
        binding = Binding(self._session)
        for name, dtype, shape, offset in self._weights:
            binding.input(name, dtype, shape, address_of(offset))
        return _Run(self.info, self._session, binding, self._ends, self._endable)

    def _feed_weights(self, address_of: Callable[[int], int]) -> _FedRun:
        weights = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(memory_at(address_of(offset), shape, dtype))
            for name, dtype, shape, offset in self._weights
        }
        return _FedRun(self.info, self._session, weights, self._endable)


class BoundModel:
    """An executable with one model's weights, ready to run."""

    def __init__(self, info: ExecutableInfo, bind: Callable[[], _Run | _FedRun]) -> None:
        """``bind`` binds the weights once more."""
        self._info = info
        self._bind = bind
        self._first = bind()
        self._spare: _Run | _FedRun | None = None

    def run(self, batch_size: int, inputs: Sequence[int], outputs: Sequence[int], sizes: Sizes = ()) -> None:
        """Run one batch from and to these addresses; raise `ExecutableError` if the engine fails.

        It is a `ValuesError` if it fails on what the inputs hold, such as an index out of range.
        ``sizes`` has one size of each symbol: shapes are exactly those that follow. ONNX Runtime writes the
        outputs in place. Addresses and sizes that are the same as last time cost nothing.
        """
        self._first.place((batch_size, tuple(inputs), tuple(outputs), sizes))
        self._first()

    def stage(
        self,
        batch_size: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        sizes: Sizes = (),
        *,
        spare: bool,
    ) -> Callable[[], None] | None:
        """Return what runs the batch as `run` does, while a run of the other binding may go on.

        ``spare`` says which binding is to be used, that of `run` or the one that `make_spare` makes. None if
        that has not been made.
        """
        chosen = self._spare if spare else self._first
        if chosen is not None:
            chosen.place((batch_size, tuple(inputs), tuple(outputs), sizes))
        return chosen

    def make_spare(self) -> None:
        """Make a second binding, if there is none; any thread may, while the first one runs."""
        if self._spare is None:
            self._spare = self._bind()

    def warm(self, batch_sizes: Sequence[int]) -> None:
        """Run each batch size twice on zeros: the first plans memory, the second grows the arena to it.

        A model with symbols plans no memory, and runs once at their limits and once at the least sizes.
        """
        symbols = self._info.symbols
        limits, least = tuple(each.limit for each in symbols), tuple(each.least for each in symbols)
        for batch_size in batch_sizes:
            for sizes in dict.fromkeys((limits, least)):
                zeros = BatchArrays(self._info, batch_size, sizes)
                for _ in range(1 if sizes else 2):
                    zeros.begin(self)

    def run_arrays(
        self, batch_size: int, arrays: Sequence[npt.NDArray[np.generic]], sizes: Sizes = ()
    ) -> list[npt.NDArray[np.generic]]:
        """Run one batch on arrays, for callers without IO memory of their own; return the outputs."""
        batch = BatchArrays(self._info, batch_size, sizes)
        batch.fill(arrays)
        batch.run(self)
        return batch.found


class _Ends:
    """An executable's inputs and outputs, each with what ONNX Runtime's bindings take it as."""

    def __init__(self, info: ExecutableInfo) -> None:
        self.inputs = [(tensor, bound_as(tensor.dtype)) for tensor in info.inputs]
        self.own = [
            index for index, tensor in enumerate(info.outputs) if tensor.varies or is_text(tensor.dtype)
        ]
        """Outputs in memory of ONNX Runtime's own, to be copied."""
        self.outputs = [
            (tensor, None if index in self.own else bound_as(tensor.dtype))
            for index, tensor in enumerate(info.outputs)
        ]


class _Run:
    """One binding of all of a model's tensors."""

    def __init__(
        self,
        info: ExecutableInfo,
        session: onnxruntime.InferenceSession,
        binding: Binding,
        ends: _Ends,
        endable: bool,
    ) -> None:
        self._info = info
        self._session = session
        self._binding = binding
        self._ends = ends
        self._placed: _Wanted | None = None
        self._endable = endable
        self._options: onnxruntime.RunOptions | None = None

    def place(self, wanted: _Wanted) -> None:
        """Bind inputs and outputs, unless they are bound to these addresses in these sizes already."""
        if wanted == self._placed:
            return
        batch_size, inputs, outputs, sizes = wanted
        self._placed = None
        try:
            for (tensor, element), address in zip(self._ends.inputs, inputs, strict=True):
                shape = tensor.at(sizes) if sizes else tensor.shape
                self._binding.input(tensor.name, element, (batch_size, *shape), address)
            for (tensor, kind), address in zip(self._ends.outputs, outputs, strict=True):
                if kind is None:
                    self._binding.own_output(tensor.name)
                else:
                    shape = tensor.at(sizes) if sizes else tensor.shape
                    self._binding.output(tensor.name, kind, (batch_size, *shape), address)
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
            raise not_run(self._info, batch_size, error) from error
        self._placed = wanted

    def __call__(self) -> None:
        """Run; raise `ExecutableError` if the engine fails, `ValuesError` if it does on what inputs hold."""
        assert self._placed is not None, "what runs is placed"
        batch_size, _, addresses, sizes = self._placed
        options = self._options = onnxruntime.RunOptions() if self._endable else None
        try:
            self._session.run_with_iobinding(self._binding.io, options)
            if self._ends.own:
                found = self._binding.io.get_outputs()
                for index in self._ends.own:
                    put(self._info.outputs[index], batch_size, sizes, found[index], addresses[index])
                    # Otherwise the next run would write to the memory of this one.
                    self._binding.own_output(self._info.outputs[index].name)
        except Exception as error:
            self._placed = None
            raise _why(options, self._info, batch_size, error) from error

    def interrupter(self) -> Callable[[], None]:
        """Return what ends the run that goes on, and no later one, between two nodes; any thread may.

        Only a run of a graph that may take any time is ended.
        """
        return partial(_interrupt, self._options)


class _FedRun:
    """Runs of a model that reads texts, which ONNX Runtime's bindings don't take."""

    def __init__(
        self,
        info: ExecutableInfo,
        session: onnxruntime.InferenceSession,
        weights: Mapping[str, Any],
        endable: bool,
    ) -> None:
        """``weights`` by name, as values of ONNX Runtime's."""
        self._info = info
        self._session = session
        self._weights = weights
        self._names = [tensor.name for tensor in info.outputs]
        self._placed: _Wanted | None = None
        self._endable = endable
        self._options: onnxruntime.RunOptions | None = None

    def place(self, wanted: _Wanted) -> None:
        """Note what the next run reads and writes."""
        self._placed = wanted

    def __call__(self) -> None:
        """Run; raise `ExecutableError` if the engine fails, `ValuesError` if it does on what inputs hold."""
        assert self._placed is not None, "what runs is placed"
        batch_size, inputs, outputs, sizes = self._placed
        options = self._options = onnxruntime.RunOptions() if self._endable else None
        try:
            feeds = dict(self._weights)
            for tensor, address in zip(self._info.inputs, inputs, strict=True):
                read = texts_at if is_text(tensor.dtype) else value_at
                feeds[tensor.name] = read(address, (batch_size, *tensor.at(sizes)), tensor.dtype)
            found = self._session.run(self._names, feeds, options)
            for tensor, value, address in zip(self._info.outputs, found, outputs, strict=True):
                put(tensor, batch_size, sizes, value, address)
        except Exception as error:
            raise _why(options, self._info, batch_size, error) from error

    def interrupter(self) -> Callable[[], None]:
        """Return what ends the run that goes on, like `_Run.interrupter`."""
        return partial(_interrupt, self._options)


def _may_take_any_time(graph: Path | bytes) -> bool:
    if isinstance(graph, bytes):
        return any(name in graph for name in _WITHOUT_BOUND)
    try:
        # Weights that stay in the graph may make it large.
        with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(name) >= 0 for name in _WITHOUT_BOUND)
    except (OSError, ValueError):
        # It is missing or empty, which whoever opens it next says.
        return False


def _interrupt(options: onnxruntime.RunOptions | None) -> None:
    if options is not None:
        options.terminate = True


def _why(
    options: onnxruntime.RunOptions | None, info: ExecutableInfo, batch_size: int, error: Exception
) -> ExecutableError:
    """Return what a run's error says: `Interrupted` if it had these options and was ended by them."""
    if options is not None and options.terminate:
        return Interrupted(f"executable {info.executable[:12]} was ended at batch size {batch_size}")
    return failed(info, batch_size, error)


@functools.cache
def _register_shared_arena() -> None:
    """Give all sessions of the process one arena: one runs at a time, so one workspace serves them all."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(memory, None)


class Binding:
    """The addresses of one session's inputs and outputs, on the CPU or on a GPU.

    ONNX Runtime's Python wrapper makes a new object for the device at each call: that is half of what binding
    a model's weights costs, and a part of every INFER. The wrapped object takes one device for all calls. Its
    name is not public, so where it is not what it is in ONNX Runtime 1.31 the wrapper is used.
    """

    def __init__(self, session: onnxruntime.InferenceSession, kind: str = "cpu", number: int = 0) -> None:
        """``kind`` is ``cpu`` or ``cuda``, ``number`` the GPU's."""
        self.io = session.io_binding()
        """Binding that ``run_with_iobinding`` expects."""
        self._where = kind, number
        self._device = _device(kind, number)
        self._inner = getattr(self.io, "_iobinding", None) if self._device is not None else None

    def input(self, name: str, dtype: Element, shape: Shape, address: int) -> None:
        """Read this input at ``address`` from now on."""
        if self._inner is None:
            self.io.bind_input(name, *self._where, dtype, shape, address)
        else:
            self._inner.bind_input(name, self._device, dtype, shape, address)

    def output(self, name: str, dtype: Element, shape: Shape, address: int) -> None:
        """Write this output to ``address`` from now on."""
        if self._inner is None:
            self.io.bind_output(name, *self._where, dtype, shape, address)
        else:
            self._inner.bind_output(name, self._device, dtype, shape, address)

    def own_output(self, name: str) -> None:
        """Have the session find memory for this output in the next run."""
        self.io.bind_output(name, *self._where)


@functools.cache
def _device(kind: str, number: int) -> Any:
    """Return a device as ONNX Runtime's own code knows it, or None where that code has another form."""
    try:
        from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice

        return OrtDevice.make(kind, number)._get_c_device()
    except (ImportError, AttributeError, TypeError):
        return None
