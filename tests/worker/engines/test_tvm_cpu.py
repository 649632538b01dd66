"""TVM's kernels through the worker: what comes back is what a stock ONNX Runtime session returns."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact import Target
from mainspring.compiler.manifest import CUDA, TVM, ExecutableInfo
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.plan import PLANS, SHARED_OBJECT
from mainspring.compiler.store import Store
from mainspring.messages.actions import Infer, Prepare, Unload
from mainspring.messages.codes import Status
from mainspring.worker.config import MIB
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.tvm_cpu import TvmCpuEngine
from mainspring.worker.io_memory import slot_layout
from mainspring.worker.jobs import Reservation
from mainspring.worker.slots import Slot
from tests.worker.peers import Cluster, infer, load
from tests.worker.test_onnxruntime_engine import WIDTH, check, dense, flip, model, rows

pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., Cluster]
SMALL = {"io_bytes": 4 * MIB, "workspace_bytes": 4 * MIB}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a`` and ``b`` are compiled for TVM, one graph with other weights; ``c`` is for ONNX Runtime."""
    path = tmp_path_factory.mktemp("tvm")
    store = Store(path / "store")
    for seed, (name, engine) in enumerate([("a", TVM), ("b", TVM), ("c", "onnxruntime")]):
        dense(path / f"{name}.onnx", seed)
        compile_file(path / f"{name}.onnx", name, store, (1, 2, 4), target=Target(engine=engine))
    return path


@pytest.fixture
def own_store(folder: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may damage."""
    subprocess.run(["cp", "-r", str(folder / "store"), str(tmp_path / "store")], check=True)
    return tmp_path / "store"


def test_outputs_are_those_of_a_stock_session(start: Start, folder: Path) -> None:
    cluster = start(engine="tvm", store=str(folder / "store"), **SMALL)
    a, b = model(folder, "a"), model(folder, "b")
    assert a.executable == b.executable
    assert a.extents == (2,), "the test needs a tensor that spans pages"
    cluster.resident(a, (6, 7))
    cluster.resident(b, (2, 3))
    for counts, batch_size in [((1,), 1), ((1, 1), 2), ((2, 1), 4), ((1, 2, 1), 4), ((3,), 4)]:
        for name in ("a", "b"):
            check(cluster, folder, name, counts, batch_size)
    assert cluster.do(Unload(cluster.next_id(), "w", "a")).status is Status.OK
    assert cluster.do(load(cluster.next_id(), (4, 5), "a")).status is Status.OK
    check(cluster, folder, "a", (1, 1), 2)
    check(cluster, folder, "b", (1,), 1)


def test_models_take_turns_in_the_same_pages(start: Start, folder: Path) -> None:
    """The second and every later model finds the weights bound there, and must run on its own."""
    cluster = start(engine="tvm", store=str(folder / "store"), **SMALL)
    for name in ("a", "b"):
        assert cluster.do(Prepare(cluster.next_id(), "w", model(folder, name))).status is Status.OK
    for name in ("a", "b", "a", "b"):
        assert cluster.do(load(cluster.next_id(), (2, 3), name)).status is Status.OK
        check(cluster, folder, name, (2, 1), 4)
        assert cluster.do(Unload(cluster.next_id(), "w", name)).status is Status.OK


def test_models_of_both_engines_are_served_beside_each_other(start: Start, folder: Path) -> None:
    cluster = start(engine="auto", store=str(folder / "store"), **SMALL)
    assert model(folder, "a").executable != model(folder, "c").executable
    for page, name in enumerate("abc"):
        cluster.resident(model(folder, name), (2 * page, 2 * page + 1))
    for name in "cabca":
        check(cluster, folder, name, (1, 2), 4)


@pytest.mark.parametrize(("engine", "name"), [("onnxruntime", "a"), ("tvm", "c")])
def test_model_of_another_engine_is_refused_with_what_would_serve_it(
    start: Start, folder: Path, engine: str, name: str
) -> None:
    cluster = start(engine=engine, store=str(folder / "store"), **SMALL)
    result = cluster.do(Prepare(cluster.next_id(), "w", model(folder, name)))
    assert result.status is Status.ENGINE_ERROR
    assert f"this worker runs {engine} alone: give it `--engine auto`" in result.detail


@pytest.mark.parametrize("victim", [PLANS, SHARED_OBJECT, "weights"])
def test_an_altered_file_is_refused_at_prepare_with_its_remedy(
    start: Start, folder: Path, own_store: Path, victim: str
) -> None:
    a = model(folder, "a")
    weights = own_store / "weights" / f"{a.weights_hash}.bin"
    altered = weights if victim == "weights" else own_store / "executables" / a.executable / victim
    flip(altered)
    cluster = start(engine="tvm", store=str(own_store), **SMALL)
    result = cluster.do(Prepare(cluster.next_id(), "w", a))
    assert result.status is Status.ENGINE_ERROR
    assert f"{altered} was altered" in result.detail
    assert "`mainspring compile" in result.detail
    flip(altered)
    cluster.resident(a, (0, 1))
    check(cluster, folder, "a", (1,), 1)


def test_kernels_for_a_gpu_are_refused(own_store: Path) -> None:
    a = Store(own_store).manifest("a")
    path = own_store / "executables" / a.executable / "info.json"
    info = msgspec.json.decode(path.read_bytes(), type=ExecutableInfo)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, device=CUDA)))
    engine = TvmCpuEngine(own_store, 2, MIB, workspace_bytes=4 * MIB)
    with pytest.raises(EngineError, match="a was compiled for cuda and this worker computes on the CPU"):
        engine.prepare(a.spec())


def test_too_small_a_workspace_is_refused_with_the_size_that_would_do(folder: Path) -> None:
    a = model(folder, "a")
    with pytest.raises(
        EngineError, match=r"a needs (\d+) bytes of workspace and this worker has 512"
    ) as found:
        TvmCpuEngine(folder / "store", 2, MIB, workspace_bytes=512).prepare(a)
    needed = int(str(found.value).split("needs ")[1].split()[0])
    TvmCpuEngine(folder / "store", 2, MIB, workspace_bytes=needed).prepare(a)


def test_kernels_have_one_thread() -> None:
    with pytest.raises(ValueError, match="computes in one thread on the CPU, not in 2"):
        TvmCpuEngine("nowhere", 1, MIB, threads=2)


def run_alone(engine: TvmCpuEngine, action: Infer, name: str, folder: Path) -> list[np.ndarray]:
    """Run a batch in IO memory at its start; return both outputs."""
    spec = model(folder, name)
    layout = slot_layout(spec, action.batch_size)
    x, k = rows(action.batch_size, 5)
    for offset, array in zip(layout.inputs, (x, k), strict=True):
        engine.io[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    engine.execute(action, Reservation(Slot(0, layout.size), layout))
    sizes = (action.batch_size * 4 * WIDTH * 4, action.batch_size * 4)
    return [
        engine.io[offset : offset + size].copy().view(np.float32)
        for offset, size in zip(layout.outputs, sizes, strict=True)
    ]


def test_what_the_workspace_held_before_changes_nothing_and_preparing_leaves_it_alone(folder: Path) -> None:
    engine = TvmCpuEngine(folder / "store", 4, 4 * MIB, workspace_bytes=4 * MIB)
    workspace = engine.workspace
    assert set(np.unique(workspace)) == {255}
    engine.prepare(model(folder, "a"))
    engine.load(load(1, (0, 1), "a"))
    first = run_alone(engine, infer(2, (1,), (4,), batch_size=4, model="a"), "a", folder)
    assert np.isfinite(first[0]).all()
    held = workspace.copy()
    assert (held != 255).any()
    engine.release("a")
    engine.prepare(model(folder, "b"))
    np.testing.assert_array_equal(workspace, held)
    for value in (255, 0, 127):
        workspace.fill(value)
        again = run_alone(engine, infer(3, (1,), (4,), batch_size=4, model="a"), "a", folder)
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, other)
    engine.close()


def test_serving_imports_tvm_ffi_and_nothing_else_of_tvm(folder: Path) -> None:
    code = f"""
        import sys
        from mainspring.compiler.store import Store
        from tests.worker.peers import load
        from mainspring.worker.engines.tvm_cpu import TvmCpuEngine
        engine = TvmCpuEngine({str(folder / "store")!r}, 2, 1 << 20, workspace_bytes=4 << 20)
        engine.prepare(Store({str(folder / "store")!r}).manifest("a").spec())
        engine.load(load(1, (0, 1), "a"))
        print("tvm" in sys.modules, "tvm_ffi" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
