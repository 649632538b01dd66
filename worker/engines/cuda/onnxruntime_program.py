"""The ``onnxruntime`` engine's executables on a GPU, through its CUDA provider.

Weights are inputs of the graph, bound at their pages; inputs and outputs are bound in the batch's slot of the
device's IO cache, so nothing is copied. Kernels go to EXEC's stream. Their intermediate results are in one
arena, shared by all sessions of the process: allocated whole at its first use, bounded, and never extended.

Each batch size has a session of its own, with static shapes: the provider keeps a convolution's plan only
until it meets another shape, and to plan again takes longer than the convolution. Weights are not the
session's, so a session costs its handles (`SESSION_BYTES`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.executable import FATAL_ONLY, Binding
from mainspring.compiler.artifact.manifest import BATCH, ExecutableInfo, WeightTensor
from mainspring.compiler.artifact.plan import Shape
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.memory import MIB, SESSION_BYTES
from mainspring.worker.engines.cuda.programs import Times

PROVIDER = "CUDAExecutionProvider"
DEVICE = "cuda"
_AT_A_TIME = 32
"""Weights that are bound in one step, at about a microsecond each."""
_NEXT_POWER_OF_TWO = 0
"""Strategy by which an arena is extended; an arena that begins with its full size never is."""


class Device(NamedTuple):
    """The device's resources that a program runs with."""

    driver: Driver
    workspace: int
    """An address in the device's workspace, which warming uses for inputs and outputs."""
    workspace_bytes: int
    stream: int
    """EXEC's."""
    times: Times
    alone: Callable[[Callable[[], None]], None]
    """Runs a function while no EXEC runs."""


def provider_options(device: int, stream: int, workspace_bytes: int) -> dict[str, str]:
    """Return the provider's options: predictable, in our stream and memory, with all digits."""
    return {
        "device_id": str(device),
        "user_compute_stream": str(stream),
        "do_copy_in_default_stream": "1",
        # Trying all algorithms could choose another one each time.
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        # The outputs were verified with more than ten bits of mantissa.
        "use_tf32": "0",
        # The limit of allocations outside the shared arena, if there are any.
        "gpu_mem_limit": str(workspace_bytes),
        "arena_extend_strategy": "kSameAsRequested",
    }


def arena_options(workspace_bytes: int) -> dict[str, int]:
    """Return an arena's configuration: one piece, taken at once, and no second."""
    return {
        "max_mem": workspace_bytes,
        "arena_extend_strategy": _NEXT_POWER_OF_TWO,
        "initial_chunk_size_bytes": workspace_bytes,
    }


class OnnxRuntimeProgram:
    """An open graph without weights."""

    def __init__(
        self,
        graph: Path,
        info: ExecutableInfo,
        tensors: Sequence[WeightTensor],
        layouts: Mapping[int, SlotLayout],
        device: Device,
    ) -> None:
        """Open the graph; raise `ExecutableError` if ONNX Runtime refuses it, or has no CUDA provider."""
        self.refused = ""
        self._info = info
        self._layouts = layouts
        self._device = device
        self._weights = [(each.name, np.dtype(each.dtype), each.shape, each.offset) for each in tensors]
        _check_room(info, len(layouts), device.driver)
        self._sessions = {size: _open(graph, info, device, size) for size in layouts}
        # Last, since the driver keeps an event until it is closed.
        self._done = device.driver.event(sleeps=True)

    def bind(self, pages: Sequence[int]) -> OnnxRuntimeBound:
        """See `Program`."""
        number = self._device.driver.device
        weights = [
            (name, dtype, shape, pages[offset // PAGE_BYTES] + offset % PAGE_BYTES)
            for name, dtype, shape, offset in self._weights
        ]
        sizes = {
            size: _BoundSize(session, Binding(session, DEVICE, number))
            for size, session in self._sessions.items()
        }
        return OnnxRuntimeBound(sizes, weights, self._info, self._device)

    def warm(self, pages: Sequence[int], stream: int) -> None:  # noqa: ARG002  (a session has its own)
        """See `Program`: run each batch size twice on the workspace's contents, the largest first.

        The first run plans memory and chooses algorithms, the second allocates memory as planned.
        """
        bound = self.bind(pages)
        for _ in bound.steps():
            pass
        device = self._device
        for size, layout in sorted(self._layouts.items(), reverse=True):
            if layout.size > device.workspace_bytes:
                raise EngineError(
                    f"inputs and outputs of a batch of {size} take {layout.size} bytes, more than the "
                    f"workspace of {device.workspace_bytes}; give it more with [worker] workspace_bytes"
                )
            for _ in range(2):
                device.alone(functools.partial(self._run_once, bound, size, layout))

    def close(self) -> None:
        """See `Program`."""
        self._sessions = {}

    def _run_once(self, bound: OnnxRuntimeBound, size: int, layout: SlotLayout) -> None:
        driver, stream = self._device.driver, self._device.stream
        # Integers that index rows of a table have to be valid: zeros are.
        driver.clear(self._device.workspace, layout.size, stream)
        bound.launch(Shape(size), self._device.workspace, layout, stream)
        driver.record(self._done, stream)
        driver.synchronize(self._done)


_Weight = tuple[str, np.dtype[np.generic], tuple[int, ...], int]
"""A weight's name, type, shape and address."""


class _BoundSize:
    """The session of a batch size with one model's weights."""

    def __init__(self, session: Any, binding: Binding) -> None:
        self.session = session
        self.binding = binding
        self.slot: int | None = None
        """Address of the slot to which its inputs and outputs are bound."""


class OnnxRuntimeBound:
    """A graph with one model's weights.

    Its batches are not given ahead: a run goes through the whole graph on the host, which may take as long as
    the kernels do, and waits for the device where a node has to be on the host. Whoever gives a batch ahead
    holds the worker's lock, which EXEC needs when the batch before has ended.
    """

    at_once = False

    def __init__(
        self,
        sizes: Mapping[int, _BoundSize],
        weights: Sequence[_Weight],
        info: ExecutableInfo,
        device: Device,
    ) -> None:
        self._sizes = sizes
        self._weights = weights
        self._info = info
        self._device = device
        self._options = onnxruntime.RunOptions()
        # EXEC waits for an event of its own, which precedes the copy of the outputs.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def steps(self) -> Iterator[None]:
        """See `Bound`."""
        for bound in self._sizes.values():
            for count, weight in enumerate(self._weights, 1):
                bound.binding.input(*weight)
                if count % _AT_A_TIME == 0:
                    yield
            yield

    def launch(self, shape: Shape, slot: int, layout: SlotLayout, stream: int) -> None:
        """See `Bound`; the stream is the session's own, EXEC's."""
        bound = self._sizes[shape.batch_size]
        try:
            if bound.slot != slot:
                self._bind_slot(bound, shape.batch_size, slot, layout)
            self._device.driver.record(self._device.times.begin, stream)
            bound.session.run_with_iobinding(bound.binding.io, self._options)
            self._device.driver.record(self._device.times.end, stream)
        except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
            bound.slot = None
            raise EngineError(
                f"executable {self._info.executable[:12]} failed at {shape}: {error}"
            ) from error

    def _bind_slot(self, bound: _BoundSize, batch_size: int, slot: int, layout: SlotLayout) -> None:
        for tensors, starts, bind in (
            (self._info.inputs, layout.inputs, bound.binding.input),
            (self._info.outputs, layout.outputs, bound.binding.output),
        ):
            for tensor, start in zip(tensors, starts, strict=True):
                bind(tensor.name, np.dtype(tensor.dtype), (batch_size, *tensor.shape), slot + start)
        bound.slot = slot


def _check_room(info: ExecutableInfo, sessions: int, driver: Driver) -> None:
    """Raise `EngineError` if the device has no memory left for these sessions' handles."""
    free, needed = driver.memory().free_bytes, sessions * SESSION_BYTES
    if free < needed:
        raise EngineError(
            f"executable {info.executable[:12]} needs about {needed // MIB} MiB beside the pages, for ONNX "
            f"Runtime's sessions of {sessions} batch sizes, and the GPU has {free // MIB} MiB left; raise "
            "[worker] reserve_bytes, or compile the model for fewer batch sizes or for the engine tvm"
        )


def _open(graph: Path, info: ExecutableInfo, device: Device, batch_size: int) -> Any:
    """Open the graph with static shapes, those of one batch size."""
    if PROVIDER not in onnxruntime.get_available_providers():
        raise ExecutableError(
            f"executable {info.executable[:12]} needs ONNX Runtime's CUDA provider, which is not installed: "
            "pip uninstall onnxruntime, then pip install --force-reinstall 'onnxruntime-gpu[cuda,cudnn]'"
        )
    number = device.driver.device
    _load_libraries()
    try:
        _register_arena(number, device.workspace_bytes)
    except RuntimeError as error:
        # ONNX Runtime says here only that it has no such provider; it has printed why.
        raise ExecutableError(_not_loaded(info)) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_free_dimension_override_by_name(BATCH, batch_size)
    providers = [
        (PROVIDER, provider_options(number, device.stream, device.workspace_bytes)),
        "CPUExecutionProvider",
    ]
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=providers)
    except Exception as error:  # ONNX Runtime raises a dozen classes without a common base.
        raise ExecutableError(f"executable {info.executable[:12]} does not open: {error}") from error
    if PROVIDER not in session.get_providers():
        raise ExecutableError(_not_loaded(info))
    return session


def _not_loaded(info: ExecutableInfo) -> str:
    return (
        f"ONNX Runtime could not use the GPU for executable {info.executable[:12]}: its CUDA provider "
        "did not load; pip install 'onnxruntime-gpu[cuda,cudnn]' brings the libraries that it needs"
    )


@functools.cache
def _load_libraries() -> None:
    """Open cuBLAS, cuDNN and the other libraries that the provider needs, in the folders of pip.

    The provider names them without a folder: libraries outside the search path must be open before it loads.
    Where it finds no convolution without tensor cores it takes one with them, in spite of its options: cuDNN
    and cuBLAS get the option too, unless the environment says otherwise.
    """
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    onnxruntime.preload_dlls()


@functools.cache
def _register_arena(device: int, workspace_bytes: int) -> None:
    """Give all sessions of the process one arena on the device: one runs at a time, so one is enough."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cuda", kind, device, onnxruntime.OrtMemType.DEFAULT)
    arena = onnxruntime.OrtArenaCfg(arena_options(workspace_bytes))
    onnxruntime.create_and_register_allocator_v2(PROVIDER, memory, {"device_id": str(device)}, arena)
