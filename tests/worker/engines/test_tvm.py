"""What only TVM's kernels have: a workspace, one thread, and models of another engine beside them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainspring.compiler.artifact.manifest import CUDA, ExecutableInfo
from mainspring.compiler.artifact.store import Store
from mainspring.messages.actions import Infer, Prepare
from mainspring.messages.codes import Status
from mainspring.worker.config import MIB
from mainspring.worker.core.jobs import Reservation, Slot
from mainspring.worker.core.residency import slot_layout
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.tvm import TvmCpuEngine
from tests.worker.engines.dense import WIDTH, check, model, rows
from tests.worker.peers import Cluster, infer, load

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., Cluster]
SMALL = {"io_bytes": 4 * MIB, "workspace_bytes": 4 * MIB}


@pytest.fixture
def folder(for_tvm: Path) -> Path:
    """``a`` and ``b`` are compiled for TVM, one graph with other weights; ``c`` is for ONNX Runtime."""
    return for_tvm


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
    assert f"and this worker runs {engine}-" in result.detail
    assert result.detail.endswith("or give the worker `--engine auto`")


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
    engine.prepare(model(folder, "a"))
    needed = np.flatnonzero(workspace)
    assert set(np.unique(workspace[: needed[-1] + 1])) == {255}
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
        from mainspring.compiler.artifact.store import Store
        from tests.worker.peers import load
        from mainspring.worker.engines.tvm import TvmCpuEngine
        engine = TvmCpuEngine({str(folder / "store")!r}, 2, 1 << 20, workspace_bytes=4 << 20)
        engine.prepare(Store({str(folder / "store")!r}).manifest("a").spec())
        engine.load(load(1, (0, 1), "a"))
        print("tvm" in sys.modules, "tvm_ffi" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
