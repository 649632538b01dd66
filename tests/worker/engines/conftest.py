"""Models that were compiled for each of the CPU's engines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mainspring.compiler.artifact.manifest import ONNXRUNTIME, TVM
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.compiled import Target
from tests.worker.engines.dense import dense


def compiled(path: Path, engines: dict[str, str]) -> Path:
    """Compile models of one graph, each with weights of its own, for these engines by the models' names."""
    for seed, (name, engine) in enumerate(engines.items()):
        dense(path / f"{name}.onnx", seed)
        target = Target(engine=engine)
        compile_file(path / f"{name}.onnx", name, Store(path / "store"), (1, 2, 4), target=target)
    return path


@pytest.fixture(scope="session")
def for_onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a.onnx`` and ``b.onnx``, and ``store`` with both."""
    return compiled(tmp_path_factory.mktemp("onnxruntime"), {"a": ONNXRUNTIME, "b": ONNXRUNTIME})


@pytest.fixture(scope="session")
def for_tvm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for TVM; ``c`` is for ONNX Runtime."""
    pytest.importorskip("tvm", reason="compiling for the engine tvm needs the extra tvm")
    return compiled(tmp_path_factory.mktemp("tvm"), {"a": TVM, "b": TVM, "c": ONNXRUNTIME})


@pytest.fixture
def own_store(folder: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may damage."""
    shutil.copytree(folder / "store", tmp_path / "store")
    return tmp_path / "store"
