"""The GPU's engine on a fake device: outputs, order, overlap, and that serving allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import ExecutableInfo
from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.messages.metrics import Reading
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import MIB, WorkerConfig
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.engine import DeviceLost, Engine, EngineError, OwnMemory
from mainspring.worker.engines.cuda.copies import IN_FLIGHT
from mainspring.worker.engines.cuda.driver import Copy
from mainspring.worker.engines.cuda.engine import CudaEngine, kind_of
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.tiny_store import tiny_store
from tests.worker.peers import infer, load

TOTAL = 200 * MIB


class Bench:
    """An engine, its device, and what a worker does around it."""

    def __init__(self, folder: Path, *, stored: bool = False, **fields: object) -> None:
        """``stored``: whether models are in the store before the engine starts, which then opens them."""
        if stored:
            tiny_store(folder / "store")
        given: dict[str, object] = {
            "name": "w", "engine": "tvm", "device": "cuda:0", "store": str(folder / "store"), "pages": 0,
            "io_bytes": MIB, "workspace_bytes": MIB, "reserve_bytes": 16 * MIB, "load_chunk_bytes": MIB,
        }  # fmt: skip
        self.config = WorkerConfig(**(given | fields))  # type: ignore[arg-type]
        self.driver = FakeDriver(TOTAL, dict(tiny.KERNELS))
        self.engine = CudaEngine(self.config, self.driver, folder / "agreed")
        self.store = Store(folder / "store") if stored else tiny_store(folder / "store")

    def resident(self, name: str, pages: tuple[int, int]) -> None:
        self.engine.prepare(self.store.manifest(name).spec())
        assert self.engine.load(load(1, pages, name)) > 0

    def place(self, rows: int, offset: int = 0) -> Reservation:
        return Reservation(Slot(offset, tiny.LAYOUTS[rows].size), tiny.LAYOUTS[rows])

    def send(self, x: tiny.Floats, offset: int = 0) -> None:
        """Bring each row on its own, as requests come."""
        for row, values in enumerate(x):
            start = offset + row * tiny.ROW_BYTES
            self.engine.io[start : start + tiny.ROW_BYTES] = values.view(np.uint8)
            self.engine.transfers.send(self.place(len(x), offset), row * tiny.ROW_BYTES, tiny.ROW_BYTES)

    def infer(self, name: str, x: tiny.Floats, offset: int = 0) -> tiny.Floats:
        io = self.place(len(x), offset)
        duration_ns = self.engine.execute(infer(1, tuple(range(len(x))), model=name), io)
        assert duration_ns > 0
        assert self.engine.transfers.receive(io) == ""
        start = offset + io.layout.outputs[0]
        return self.engine.io[start : start + x.nbytes].view(np.float32).reshape(x.shape).copy()

    def check(self, name: str, x: tiny.Floats, offset: int = 0) -> None:
        """Send, infer, and compare with what the model is."""
        self.send(x, offset)
        expected = tiny.expected(tiny.weights_file(ord(name)), x)
        np.testing.assert_allclose(self.infer(name, x, offset), expected, rtol=1e-6)

    def expected(self, name: str, x: tiny.Floats) -> tiny.Floats:
        return tiny.expected(tiny.weights_file(ord(name)), x)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    if not made.driver.closed:
        made.engine.close()
    assert not made.driver.leaks


def rows(count: int, seed: int = 0) -> tiny.Floats:
    return np.random.default_rng(seed).standard_normal((count, tiny.WIDTH), np.float32)


def test_it_is_an_engine_with_memory_of_its_own(bench: Bench) -> None:
    engine: Engine = bench.engine
    assert isinstance(engine, OwnMemory)
    assert engine.device_kind == "nvidia-fake-1"
    assert engine.pages == (TOTAL - 18 * MIB) // PAGE_BYTES
    assert engine.io.size == MIB


def test_outputs_are_the_models_own_wherever_pages_and_slots_are(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.resident("b", (7, 3))
    for seed, (name, count) in enumerate([("a", 1), ("b", 2), ("a", 2), ("b", 1)]):
        bench.check(name, rows(count, seed), seed * 2048)


def test_inputs_that_were_not_sent_ahead_are_found_too(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    x = rows(2)
    bench.engine.io[: x.nbytes] = x.reshape(-1).view(np.uint8)
    np.testing.assert_allclose(bench.infer("a", x), bench.expected("a", x), rtol=1e-6)


def test_models_that_take_turns_in_the_same_pages_run_on_their_own_weights(bench: Bench) -> None:
    for name in ("a", "b", "a"):
        bench.resident(name, (4, 2))
        bench.check(name, rows(2))
        bench.engine.unload(name)


def test_serving_allocates_nothing(bench: Bench) -> None:
    for name in "ab":
        bench.engine.prepare(bench.store.manifest(name).spec())
    bench.engine.load(load(1, (0, 1), "a"))
    bench.engine.load(load(2, (2, 3), "b"))
    bench.engine.unload("a")
    before, free = list(bench.driver.allocations), bench.driver.memory().free_bytes
    for turn in range(4):
        name, other = ("a", "b") if turn % 2 == 0 else ("b", "a")
        bench.engine.load(load(turn, (turn, turn + 4), name))
        for count in tiny.SIZES:
            bench.send(rows(count))
            bench.infer(name, rows(count))
        bench.engine.unload(other)
    assert bench.driver.allocations == before
    assert bench.driver.memory().free_bytes == free


def test_exec_is_one_graph_launch_behind_its_addresses(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.send(rows(1))
    bench.driver.calls.clear()
    bench.engine.execute(infer(1, model="a"), bench.place(1))
    assert bench.driver.calls == [
        *("wait", "record", "launch", "launch_graph", "record"),
        *("wait", "copy", "record", "synchronize"),
    ]
    assert not bench.driver.find("copy ON_DEVICE")


def test_exec_runs_while_a_model_is_loaded_and_its_inputs_pass_the_load(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.engine.prepare(bench.store.manifest("b").spec())
    x = rows(2)
    copies = 0

    def infer_meanwhile(kind: Copy) -> None:
        nonlocal copies
        copies += kind is Copy.TO_DEVICE
        if copies == 5:
            bench.driver.before_copy = lambda _: None
            bench.send(x)
            np.testing.assert_allclose(bench.infer("a", x), bench.expected("a", x), rtol=1e-6)

    bench.driver.before_copy = infer_meanwhile
    bench.engine.load(load(1, (4, 5), "b"))
    kernels = bench.driver.find("kernel")
    chunks = [work for work in bench.driver.find("copy TO_DEVICE") if work.size == MIB]
    assert len(kernels) == 2
    assert kernels[-1].end_ns < chunks[-3].begin_ns, "EXEC waited for the LOAD"
    bench.check("b", x)


def test_execs_duration_is_that_of_its_kernels_alone(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.send(rows(2))
    duration_ns = bench.engine.execute(infer(1, (1, 2), model="a"), bench.place(2))
    assert duration_ns == sum(tiny.KERNELS[name].duration_ns for name in ("multiply_2", "add_2"))


def test_execs_duration_is_the_same_without_graphs(bench: Bench) -> None:
    bench.driver.graphs_break = True
    bench.resident("a", (0, 1))
    bench.check("a", rows(2))
    bench.send(rows(2))
    duration_ns = bench.engine.execute(infer(1, (1, 2), model="a"), bench.place(2))
    assert duration_ns == sum(tiny.KERNELS[name].duration_ns for name in ("multiply_2", "add_2"))


def test_a_graph_that_was_refused_is_told_as_long_as_its_executable_is_open(bench: Bench) -> None:
    bench.driver.graphs_break = True
    bench.resident("a", (0, 1))
    bench.engine._monitor.look(0)
    health = bench.engine.health()
    (note,) = health.notes
    assert "kernels of 1 executable are launched one by one" in note
    assert "GPU 0: operation not supported" in note
    assert health.readings == (Reading("mainspring_gpu_executables_without_graph", 1.0),)
    bench.engine.release("a")
    bench.engine._monitor.look(1)
    health = bench.engine.health()
    assert (health.notes, health.readings[0].value) == ((), 0.0)


def test_a_load_is_its_chunks_and_nothing_else(bench: Bench) -> None:
    for name in "ab":
        bench.engine.prepare(bench.store.manifest(name).spec())
    count = -(-tiny.WEIGHTS_BYTES // bench.config.load_chunk_bytes)
    give = ["copy", "record"]
    expected = [
        "record",
        *give * IN_FLIGHT,
        *["synchronize", *give] * (count - IN_FLIGHT),
        "record",
        "synchronize",
    ]
    for turn, (name, pages) in enumerate([("a", (0, 1)), ("b", (4, 2)), ("a", (2, 7)), ("b", (2, 7))]):
        bench.driver.calls.clear()
        bench.engine.load(load(turn, pages, name))
        assert bench.driver.calls == expected
        bench.check(name, rows(2, turn))
        bench.engine.unload(name)


def test_a_model_that_moved_is_run_where_it_is(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.check("a", rows(2))
    bench.engine.unload("a")
    bench.resident("b", (0, 1))
    bench.resident("a", (6, 3))
    for name in "abab":
        bench.check(name, rows(1))
        bench.check(name, rows(2), 4096)


def test_load_takes_the_time_of_its_copy(bench: Bench) -> None:
    bench.engine.prepare(bench.store.manifest("a").spec())
    duration_ns = bench.engine.load(load(1, (0, 1), "a"))
    pieces = bench.driver.find("copy TO_DEVICE")
    assert sum(piece.size for piece in pieces) == tiny.WEIGHTS_BYTES
    assert duration_ns == sum(piece.duration_ns for piece in pieces)


def test_released_models_give_weights_and_code_back(bench: Bench) -> None:
    for name in "ab":
        bench.resident(name, (0, 1) if name == "a" else (2, 3))
    # As when RELEASE follows UNLOAD at once: the LOAD thread may not have come to it.
    bench.engine.release("a")
    bench.engine.unload("a")
    assert "modules" in bench.driver.leaks
    bench.engine.release("b")
    assert "modules" not in bench.driver.leaks
    assert "executables" not in bench.driver.leaks
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))
    bench.engine.release("nobody")


def test_code_is_given_back_even_if_weights_can_not_be(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.resident("a", (0, 1))

    def fail(key: str) -> None:
        raise EngineError(f"{key} can't be given back")

    with monkeypatch.context() as patched:
        patched.setattr(bench.engine._weights, "give_back", fail)
        with pytest.raises(EngineError, match="can't be given back"):
            bench.engine.release("a")
    assert "modules" not in bench.driver.leaks
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))


def test_weights_that_were_altered_are_refused_with_the_remedy(bench: Bench) -> None:
    manifest = bench.store.manifest("a")
    path = bench.store.weights_path(manifest)
    whole = bytearray(path.read_bytes())
    whole[PAGE_BYTES] ^= 1
    path.write_bytes(whole)
    with pytest.raises(
        EngineError, match=r"was altered after it was compiled; `mainspring compile tiny.onnx"
    ):
        bench.engine.prepare(manifest.spec())
    assert "modules" not in bench.driver.leaks
    bench.resident("b", (0, 1))


def test_kernels_that_were_altered_are_refused(bench: Bench) -> None:
    manifest = bench.store.manifest("a")
    bench.store.executable_path(manifest).with_name("kernels.cubin").write_bytes(b"other code")
    with pytest.raises(StoreError, match=r"kernels.cubin was altered"):
        bench.engine.prepare(manifest.spec())


def test_plans_that_were_altered_are_refused(bench: Bench) -> None:
    manifest = bench.store.manifest("a")
    path = bench.store.executable_path(manifest)
    path.write_bytes(path.read_bytes().replace(b'"grid":[2', b'"grid":[3'))
    with pytest.raises(EngineError, match=r"plans.json was altered"):
        bench.engine.prepare(manifest.spec())


def test_an_executable_of_another_device_is_refused(bench: Bench) -> None:
    manifest = bench.store.manifest("a")
    path = bench.store.executable_path(manifest).with_name("info.json")
    info = msgspec.json.decode(path.read_bytes(), type=ExecutableInfo)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, device="cpu")))
    with pytest.raises(EngineError, match=r"was compiled for the cpu.*--device cuda"):
        bench.engine.prepare(manifest.spec())


def test_an_executable_of_another_engine_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, engine="onnxruntime")
    with pytest.raises(EngineError, match=r"for the engine tvm and this worker's is onnxruntime"):
        bench.engine.prepare(bench.store.manifest("a").spec())
    bench.engine.close()


def test_another_artifact_than_the_controllers_is_refused(bench: Bench) -> None:
    wrong = msgspec.structs.replace(bench.store.manifest("a").spec(), batch_sizes=(1, 3))
    with pytest.raises(EngineError, match="another artifact"):
        bench.engine.prepare(wrong)


def test_a_model_larger_than_the_device_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pages=1)
    with pytest.raises(EngineError, match="needs 2 pages and the GPU has 1"):
        bench.engine.prepare(bench.store.manifest("a").spec())
    bench.engine.close()


def test_what_fails_on_the_device_is_explained_and_the_next_one_works(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.driver.fails["launch_graph"] = RuntimeError("out of resources")
    with pytest.raises(EngineError, match="GPU 0: out of resources"):
        bench.engine.execute(infer(1, model="a"), bench.place(1))
    bench.driver.fails.clear()
    bench.check("a", rows(1))


def test_a_load_that_fails_leaves_no_model_and_the_next_one_works(bench: Bench) -> None:
    bench.engine.prepare(bench.store.manifest("a").spec())
    bench.driver.fails["copy"] = RuntimeError("bus error")
    with pytest.raises(EngineError, match="bus error"):
        bench.engine.load(load(1, (0, 1), "a"))
    bench.driver.fails.clear()
    with pytest.raises(KeyError):
        bench.engine.bound("a")
    bench.engine.load(load(1, (0, 1), "a"))
    bench.check("a", rows(1))


def test_a_lost_device_is_said_to_be_lost(bench: Bench) -> None:
    bench.resident("a", (0, 1))
    bench.driver.fails["launch_graph"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        bench.engine.execute(infer(1, model="a"), bench.place(1))
    bench.driver.fails.clear()


def test_two_workers_of_a_machine_read_the_weights_once(bench: Bench, tmp_path: Path) -> None:
    bench.resident("a", (0, 1))
    other = CudaEngine(bench.config, FakeDriver(TOTAL, dict(tiny.KERNELS)), tmp_path / "agreed")
    manifest = bench.store.manifest("a")
    Store(tmp_path / "store").weights_path(manifest).write_bytes(bytes(manifest.weights_bytes))
    other.prepare(manifest.spec())
    other.load(load(1, (3, 2), "a"))
    other.close()


def test_names_of_gpus_become_device_kinds() -> None:
    assert kind_of("NVIDIA H200") == "nvidia-h200"
    assert kind_of("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


def test_a_heartbeat_is_done_when_it_returns_and_changes_no_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.resident("a", (0, 1))
    before = len(bench.driver.allocations)
    bench.engine.heartbeat()
    assert bench.driver.find("clear")[-1].end_ns <= bench.driver.now_ns
    bench.check("a", rows(1))
    bench.engine.heartbeat()
    bench.check("a", rows(2))
    assert len(bench.driver.allocations) == before


def test_a_device_that_works_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))
    before = len(bench.driver.calls)
    monkeypatch.setattr("mainspring.worker.engines.cuda.engine.IDLE_NS", 3600 * 10**9)
    bench.engine._probe()
    monkeypatch.setattr("mainspring.worker.engines.cuda.engine.IDLE_NS", 0)
    with bench.engine._runs.alone:
        bench.engine._probe()
    assert len(bench.driver.calls) == before
    bench.engine._probe()
    assert bench.driver.calls[before:] == ["memory"]
