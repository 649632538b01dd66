"""The compiler's process: what it does, what it survives, and what bounds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper, numpy_helper

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import CUDA, TVM
from mainspring.compiler.artifact.plan import PLAN_FORMATS, read_plans
from mainspring.compiler.artifact.store import Store
from mainspring.repository.compile_child import CHANGED, Job, run
from mainspring.repository.compiling import CompileFailed, Compiler
from mainspring.repository.named_files import digest_of, stamp_of
from mainspring.repository.recipe import Recipe, artifact_name
from tests.patience import PATIENCE_S
from tests.python_models import HEAD
from tests.python_models import folder as python_model
from tests.repository.nets import put, scaling

MEMORY_BYTES = 8 << 30


def test_a_python_model_is_compiled(tmp_path: Path) -> None:
    made = python_model(tmp_path / "net" / "1") / "model.toml"

    async def steps(compiler: Compiler) -> None:
        spec = await compiler.compile(job(made))
        assert (spec.target, spec.batch_sizes) == ("python-any", (1, 2, 4))
        assert await compiler.compile(job(made)) == spec
        python_model(made.parent, "os._exit(1)")
        with pytest.raises(CompileFailed, match=r"with exit code 1: model.py may not end it"):
            await compiler.compile(job(made))
        python_model(made.parent, head=HEAD.replace("rows", "row"))
        with pytest.raises(CompileFailed, match=r"has the key 'row' .*did you mean 'rows'"):
            await compiler.compile(job(made))

    using(tmp_path, steps)


def job(path: Path, recipe: Recipe = Recipe((1, 2)), digest: str = "") -> Job:  # noqa: B008
    folder = path.parent
    digest = digest or digest_of(folder, stamp_of(folder))
    return Job(artifact_name("net", 1, digest, recipe), str(folder), path.name, digest, recipe)


def using(
    tmp_path: Path,
    what: Callable[[Compiler], Awaitable[None]],
    timeout_s: float = 5 * PATIENCE_S,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    async def run() -> None:
        compiler = Compiler(str(tmp_path / "store"), timeout_s, memory_bytes)
        try:
            await what(compiler)
        finally:
            await compiler.close()

    asyncio.run(run())


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # It may end between the two questions.
            found += [each] if "compile_child" in " ".join(each.cmdline()) else []
    return found


def test_it_compiles_once_beside_everything_else_and_goes_on_after_a_broken_model(tmp_path: Path) -> None:
    async def steps(compiler: Compiler) -> None:
        path = put(tmp_path, "net", 1, 2.0)
        spec = await compiler.compile(job(path))
        assert (spec.name, spec.batch_sizes) == (job(path).name, (1, 2))
        (process,) = children()
        assert process.nice() == 19
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
        with pytest.raises(CompileFailed, match="is not an ONNX model"):
            await compiler.compile(job(put(tmp_path, "broken", 1, b"nonsense")))
        manifest = tmp_path / "store" / "models" / spec.name / "manifest.json"
        before = manifest.stat()
        assert await compiler.compile(job(path)) == spec
        assert manifest.stat().st_mtime_ns == before.st_mtime_ns, "it was in the store"
        assert children() == [process]
        wide = scaling(2.0, columns="columns")
        shaped = await compiler.compile(job(put(tmp_path, "wide", 1, wide), Recipe((1,))))
        assert [symbol.name for symbol in shaped.symbols] == ["columns"]
        (named,) = [await compiler.compile(job(put(tmp_path, "wide", 1, wide), Recipe((1,), {"x": (1, 1)})))]
        assert named.inputs[0].shape == (1,)

    using(tmp_path, steps)
    assert children() == []


def test_batches_that_need_too_much_memory_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [
        helper.make_node("Expand", ["x", "wide"], ["w"]),
        helper.make_node("ReduceSum", ["w", "axes"], ["y"], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.array([1, 1 << 20], np.int64), "wide"),
        numpy_helper.from_array(np.array([1], np.int64), "axes"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n"])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = put(tmp_path, "net", 1, model)

    async def what(compiler: Compiler) -> None:
        spec = await compiler.compile(job(path, Recipe((1, 2, 1024))))
        assert spec.batch_sizes == (1, 2)

    using(tmp_path, what)
    assert "max_batch_size is 1024; it is served with 2 rows" in caplog.text


def test_a_file_with_external_data_in_a_folder_of_its_name_is_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "net" / "1"
    (folder / "model.onnx").mkdir(parents=True)
    onnx.save_model(
        scaling(3.0),
        folder / "model.onnx" / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    outcome = run(Store(tmp_path / "store"), job(folder / "model.onnx"))
    assert outcome.spec is not None, outcome.fault


def test_files_that_change_meanwhile_are_not_stored_under_the_name_of_others(tmp_path: Path) -> None:
    async def steps(compiler: Compiler) -> None:
        old = job(put(tmp_path, "net", 1, 2.0))
        put(tmp_path, "net", 1, 3.0)
        with pytest.raises(CompileFailed, match=CHANGED) as caught:
            await compiler.compile(old)
        assert caught.value.changed
        assert not (tmp_path / "store" / "models").exists()

    using(tmp_path, steps)


def test_a_compilation_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def steps(compiler: Compiler) -> None:
        with pytest.raises(CompileFailed, match="longer than compile_timeout_s"):
            await compiler.compile(job(put(tmp_path, "net", 1, 2.0)))
        assert children() == []

    using(tmp_path, steps, timeout_s=0.01)


def test_a_compilation_that_takes_too_much_memory_costs_only_itself(tmp_path: Path) -> None:
    async def steps(compiler: Compiler) -> None:
        big = scaling(1.0, columns=30_000_000)
        with pytest.raises(CompileFailed, match=r"memory|failed on it"):
            await compiler.compile(job(put(tmp_path, "net", 1, big), Recipe((8,))))
        spec = await compiler.compile(job(put(tmp_path, "small", 1, 2.0)))
        assert Store(tmp_path / "store").names() == [spec.name]

    using(tmp_path, steps, memory_bytes=1 << 30)


def test_a_file_that_is_too_large_is_refused_by_its_size_at_once(tmp_path: Path) -> None:
    path = put(tmp_path, "net", 1, 2.0)
    with (path.parent / "weights").open("wb") as file:
        file.truncate(400_000_000)

    async def steps(compiler: Compiler) -> None:
        why = r"files have 400,000,\d+ bytes, .* 3 times that, 1,200,.* compile_memory_bytes = 1,073,741,824"
        with pytest.raises(CompileFailed, match=why):
            await compiler.compile(job(path, digest="0" * 64))

    using(tmp_path, steps, memory_bytes=1 << 30)


def test_a_compiler_that_dies_costs_one_model(tmp_path: Path) -> None:
    async def steps(compiler: Compiler) -> None:
        await compiler.compile(job(put(tmp_path, "net", 1, 2.0)))
        (process,) = children()
        process.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(compiler.compile(job(put(tmp_path, "net", 1, 3.0))))
        await asyncio.sleep(0)
        process.kill()
        with pytest.raises(CompileFailed, match=r"process ended with it \(SIGKILL\)|process failed"):
            await waiting
        assert (await compiler.compile(job(put(tmp_path, "net", 1, 4.0)))).name

    using(tmp_path, steps)


def test_the_process_ends_when_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.repository.compiling.IDLE_S", 0.01)

    async def steps(compiler: Compiler) -> None:
        await compiler.compile(job(put(tmp_path, "net", 1, 2.0)))
        give_up = time.monotonic() + PATIENCE_S
        while children():
            assert time.monotonic() < give_up, "it is still there"
            await asyncio.sleep(0.02)
        await compiler.compile(job(put(tmp_path, "net", 1, 2.0)))

    using(tmp_path, steps)


def test_plans_for_a_gpu_of_an_old_format_are_made_again_for_the_same_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tvm", reason="compiling for a GPU needs the extra tvm")
    from mainspring.compiler.pipeline import compile_file
    from mainspring.compiler.program.compiled import Target
    from mainspring.compiler.tvm import build

    monkeypatch.setattr(build, "compiled_kernels", lambda *_: None)
    store, path = Store(tmp_path / "store"), put(tmp_path, "net", 1, 2.0)
    task = job(path)
    with monkeypatch.context() as before:
        before.setitem(PLAN_FORMATS, "cuda", 1)
        old = compile_file(path, task.name, store, (1, 2), target=Target(TVM, CUDA, "sm_80")).manifest
    build._architecture.cache_clear()
    with pytest.raises(StoreError, match=r"plans of format 1 .* runs format 2; `mainspring compile"):
        read_plans(store, old)
    outcome = run(store, task)
    assert not outcome.fault
    made = store.manifest(task.name)
    assert outcome.spec == made.spec()
    assert made.executable != old.executable
    assert read_plans(store, made).arch == "sm_80"
    assert store.executable_info(made).device == CUDA
    monkeypatch.setattr(build, "Model", None)
    assert run(store, task).spec == outcome.spec, "it is compiled once"


def test_the_compilers_process_may_have_a_lower_bound_of_memory_than_configured() -> None:
    """One of an operator's shell, or of a container."""
    code = (
        "import resource; from mainspring.repository.compile_child import bound_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); bound_memory(1 << 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)\n"
        "bound_memory(1 << 29); print(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1024", "512"]
