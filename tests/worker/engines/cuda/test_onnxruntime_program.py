"""What ONNX Runtime is told for a GPU: options, addresses, and that its memory is one bounded piece."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.manifest import BATCH, ExecutableInfo, IoTensor, WeightTensor
from mainspring.compiler.artifact.plan import Shape
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import SlotLayout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda import onnxruntime_program
from mainspring.worker.engines.cuda.memory import SESSION_BYTES
from mainspring.worker.engines.cuda.onnxruntime_program import (
    Device,
    OnnxRuntimeBound,
    OnnxRuntimeProgram,
    arena_options,
)
from mainspring.worker.engines.cuda.programs import Times

WORKSPACE = 1 << 20
TENSORS = (
    WeightTensor("w0", "float32", (4,), 0, 128),
    WeightTensor("w1", "float16", (2, 3), 1, PAGE_BYTES + 64),
)
INFO = ExecutableInfo(
    executable="e" * 64,
    instruction_set="portable",
    onnxruntime="",
    cpu_flags=(),
    weights=(),
    inputs=(IoTensor("i0", "float32", (3,)), IoTensor("i1", "int64", ())),
    outputs=(IoTensor("o0", "float32", (2,)),),
    device="cuda",
)
LAYOUTS = {1: SlotLayout((0, 64), (128,), 192), 4: SlotLayout((0, 64), (128,), 256)}


class Session:
    """A session that notes what it is told."""

    def __init__(self, graph: str, options: onnxruntime.SessionOptions, providers: list[Any]) -> None:
        self.options, self.providers = options, providers
        self.bound: dict[str, tuple[Any, ...]] = {}
        self.runs: list[dict[str, int]] = []
        self.rebound = 0
        self.fails = ""

    def get_providers(self) -> list[str]:
        return [each if isinstance(each, str) else each[0] for each in self.providers]

    def io_binding(self) -> Session:
        return self

    def bind_input(self, name: str, *place: Any) -> None:
        self.rebound += 1
        self.bound[name] = place

    bind_output = bind_input

    def run_with_iobinding(self, binding: Session, options: onnxruntime.RunOptions) -> None:
        if self.fails:
            raise RuntimeError(self.fails)
        key = "disable_synchronize_execution_providers"
        assert options.get_run_config_entry(key) == "1"
        self.runs.append({name: place[-1] for name, place in binding.bound.items()})


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """A CUDA provider as far as opening goes; yields the arenas that were registered.

    Like the real one it can't be asked for anything before the libraries are open that it needs.
    """
    made: list[tuple[Any, ...]] = []
    loaded: list[bool] = []

    def register(*args: Any) -> None:
        if not loaded:
            raise RuntimeError("CUDA Provider not available, can't get interface for it")
        made.append(args)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "create_and_register_allocator_v2", register)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append(True))
    forget()
    yield made
    forget()


def forget() -> None:
    """Have the next program be the first of the process."""
    onnxruntime_program._register_arena.cache_clear()
    onnxruntime_program._load_libraries.cache_clear()


class Bench:
    """A program on a fake device."""

    def __init__(
        self, graph: Path = Path("graph.onnx"), workspace_bytes: int = WORKSPACE, total_bytes: int = 1 << 30
    ) -> None:
        self.driver = FakeDriver(total_bytes=total_bytes)
        self.driver.attach()
        self.stream = self.driver.stream()
        self.alone = 0
        self.workspace = self.driver.allocate(WORKSPACE)
        self.times = Times(self.driver.event(timed=True), self.driver.event(timed=True))
        device = Device(self.driver, self.workspace, workspace_bytes, self.stream, self.times, self.run_alone)
        self.program = OnnxRuntimeProgram(graph, INFO, TENSORS, LAYOUTS, device)
        self.sessions: dict[int, Session] = self.program._sessions
        self.session = self.sessions[1]

    def bind(self) -> OnnxRuntimeBound:
        """Bind weights at two far pages."""
        bound = self.program.bind([1 << 30, 5 << 30])
        for _ in bound.steps():
            pass
        return bound

    def run_alone(self, function: Any) -> None:
        self.alone += 1
        function()


def test_the_provider_has_our_stream_and_our_bounds_and_all_digits(arenas: list[Any]) -> None:
    bench = Bench()
    (name, options), fallback = bench.session.providers
    assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["user_compute_stream"] == str(bench.stream)
    assert options["device_id"] == "0"
    assert options["gpu_mem_limit"] == str(WORKSPACE)
    assert options["use_tf32"] == "0"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert bench.session.options.get_session_config_entry("session.use_env_allocators") == "1"


@pytest.mark.parametrize(("before", "expected"), [(None, "0"), ("1", "1")])
def test_nvidias_libraries_compute_with_all_digits_unless_told_otherwise(
    before: str | None, expected: str, arenas: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ})
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    if before is not None:
        os.environ["NVIDIA_TF32_OVERRIDE"] = before
    seen: list[str] = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: seen.append(os.environ["NVIDIA_TF32_OVERRIDE"]))
    with pytest.raises(ExecutableError):
        Bench()
    assert seen == [expected], "they read it when they start"


def test_all_sessions_share_one_arena_that_is_taken_whole_and_never_extended(arenas: list[Any]) -> None:
    Bench()
    Bench()
    ((provider, memory, options, arena),) = arenas
    assert (provider, options) == ("CUDAExecutionProvider", {"device_id": "0"})
    assert memory.name == "Cuda"
    assert arena.max_mem == WORKSPACE
    assert arena.initial_chunk_size_bytes == WORKSPACE, "a second piece would be needed"
    assert arena.arena_extend_strategy == 0
    assert arena_options(5)["max_mem"] == arena_options(5)["initial_chunk_size_bytes"] == 5


def test_weights_are_bound_at_their_pages_and_batches_in_their_slots(arenas: list[Any]) -> None:
    bench = Bench()
    bound = bench.bind()
    assert bench.session.bound["w0"] == ("cuda", 0, np.dtype("float32"), (4,), (1 << 30) + 128)
    assert bench.session.bound["w1"] == ("cuda", 0, np.dtype("float16"), (2, 3), (5 << 30) + 64)
    bound.launch(Shape(4), 7 << 30, LAYOUTS[4], bench.stream)
    session = bench.sessions[4]
    assert session.bound["w0"] == bench.session.bound["w0"]
    assert session.bound["i0"] == ("cuda", 0, np.dtype("float32"), (4, 3), 7 << 30)
    assert session.bound["i1"] == ("cuda", 0, np.dtype("int64"), (4,), (7 << 30) + 64)
    assert session.bound["o0"] == ("cuda", 0, np.dtype("float32"), (4, 2), (7 << 30) + 128)


def test_a_session_sees_one_batch_size_and_is_not_bound_again_to_the_same_slot(arenas: list[Any]) -> None:
    bench = Bench()
    bound = bench.bind()
    for size in (1, 4):
        bound.launch(Shape(size), 7 << 30, LAYOUTS[size], bench.stream)
    before = [each.rebound for each in bench.sessions.values()]
    for size in (1, 4, 4, 1):
        bound.launch(Shape(size), 7 << 30, LAYOUTS[size], bench.stream)
    assert [each.rebound for each in bench.sessions.values()] == before
    bound.launch(Shape(4), 8 << 30, LAYOUTS[4], bench.stream)
    assert bench.sessions[4].rebound == before[1] + 3
    assert {size: len(each.runs) for size, each in bench.sessions.items()} == {1: 3, 4: 4}


def test_the_sessions_of_a_graph_have_static_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["i0", "w0"], ["o0"])],
        "rows",
        [
            helper.make_tensor_value_info("i0", TensorProto.FLOAT, [BATCH, 3]),
            helper.make_tensor_value_info("w0", TensorProto.FLOAT, [3, 2]),
        ],
        [helper.make_tensor_value_info("o0", TensorProto.FLOAT, [BATCH, 2])],
    )
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    opened = onnxruntime.InferenceSession

    def on_the_cpu(graph: str, options: onnxruntime.SessionOptions, providers: list[Any]) -> Any:
        session = opened(graph, options, providers=["CPUExecutionProvider"])
        monkeypatch.setattr(session, "get_providers", lambda: ["CUDAExecutionProvider"])
        return session

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", on_the_cpu)
    monkeypatch.setattr(onnxruntime_program, "_register_arena", lambda *_: None)
    monkeypatch.setattr(onnxruntime_program, "_load_libraries", lambda: None)
    for size, session in Bench(path).program._sessions.items():
        assert [each.shape for each in (*session.get_inputs(), *session.get_outputs())] == [
            [size, 3],
            [3, 2],
            [size, 2],
        ]


def test_warming_runs_every_batch_size_alone_and_on_zeros(arenas: list[Any]) -> None:
    bench = Bench()
    bench.program.warm([1 << 30, 5 << 30], bench.stream)
    for session in bench.sessions.values():
        assert [run["i0"] for run in session.runs] == [bench.workspace] * 2
    assert bench.alone == 4
    assert len(bench.driver.find("clear")) == 4


def test_handles_that_have_no_room_are_refused_before_they_are_made(arenas: list[Any]) -> None:
    with pytest.raises(EngineError, match=r"about 80 MiB.*sessions of 2 batch sizes.*79 MiB left; raise"):
        Bench(total_bytes=WORKSPACE + 2 * SESSION_BYTES - 1)
    assert not arenas


def test_a_program_that_does_not_open_keeps_nothing(
    arenas: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[Session]] = []

    def open_first(*given: Any, **named: Any) -> Session:
        if opened:
            raise RuntimeError("a kernel was not found")
        session = Session(*given, **named)
        opened.append(weakref.ref(session))
        return session

    bench = Bench()
    before = list(bench.driver.allocations)
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_first)
    with pytest.raises(ExecutableError, match="a kernel was not found") as raised:
        OnnxRuntimeProgram(Path("graph.onnx"), INFO, TENSORS, LAYOUTS, bench.program._device)
    assert raised.value.__traceback__ is not None
    assert [session() for session in opened] == [None], "it would stay as long as the error"
    assert bench.driver.allocations == before, "the driver keeps events until it is closed"


def test_a_batch_that_warming_has_no_room_for_is_refused(arenas: list[Any]) -> None:
    with pytest.raises(EngineError, match=r"a batch of 4 take 256 bytes.*workspace of 100"):
        Bench(workspace_bytes=100).program.warm([1, 2], 0)


def test_a_failing_run_is_explained_and_the_next_one_binds_anew(arenas: list[Any]) -> None:
    bench = Bench()
    bound = bench.bind()
    bench.session.fails = "Available memory of 0 is smaller than requested bytes of 512"
    with pytest.raises(EngineError, match=r"executable eeeeeeeeeeee failed at batch size 1: Available"):
        bound.launch(Shape(1), 7 << 30, LAYOUTS[1], bench.stream)
    bench.session.fails = ""
    bound.launch(Shape(1), 7 << 30, LAYOUTS[1], bench.stream)
    assert len(bench.session.runs) == 1


def test_without_a_cuda_provider_it_says_what_to_install() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has a CUDA provider")
    with pytest.raises(ExecutableError, match=r"pip uninstall onnxruntime.*onnxruntime-gpu"):
        Bench()


def test_a_provider_that_does_not_load_says_what_it_needs(
    arenas: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "get_providers", lambda _: ["CPUExecutionProvider"])
    with pytest.raises(ExecutableError, match=r"did not load; pip install"):
        Bench()


def test_libraries_that_are_missing_are_said_to_be(
    arenas: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    with pytest.raises(ExecutableError, match=r"did not load; pip install"):
        Bench()
    assert not arenas
