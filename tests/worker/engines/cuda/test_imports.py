"""What a worker on a GPU does not need, and what nobody without a GPU has to have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mainspring.worker.engines.cuda.driver import LIBCUDA
from tests.worker.engines.cuda import fake_libcuda


def run_without(modules: tuple[str, ...], imports: str) -> str:
    """Return what goes wrong when this is imported where those modules are not."""
    script = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\nimport {imports}"
    found = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    return found.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "mainspring.worker.engines.cuda.engine, mainspring.worker.server",
        "mainspring.worker.engines.cuda.cupy_driver, mainspring.worker.engines.cuda.nvml",
        "mainspring.worker.engines.cuda.libcuda_driver",
        "mainspring.worker.engines.cuda.devices",
        "mainspring.cli.doctor.machine, mainspring.cli.launcher.process_plan, mainspring.cli.verbs.doctor",
    ],
)
def test_nothing_of_cuda_is_imported_before_it_is_used(imports: str) -> None:
    assert run_without(("cupy", "cuda", "pynvml"), imports) == ""


@pytest.mark.skipif(fake_libcuda.COMPILER is None, reason="a C compiler makes the library")
def test_launch_plans_need_no_package_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is opened and used where CuPy, cuda-bindings, NVML, ONNX Runtime and TVM can't be imported."""
    monkeypatch.setenv(LIBCUDA, fake_libcuda.library())
    script = "mainspring.worker.engines.cuda.engine, mainspring.worker.engines.cuda.driver as drivers\n"
    script += "driver = drivers.open_driver(0)\ndriver.free(driver.allocate(256))\ndriver.close()"
    assert run_without(("cupy", "cuda", "pynvml", "onnxruntime", "onnx", "tvm", "tvm_ffi"), script) == ""


def test_a_worker_on_launch_plans_needs_neither_onnx_runtime_nor_tvm() -> None:
    libraries = ("onnxruntime", "onnx", "tvm", "tvm_ffi")
    assert run_without(libraries, "mainspring.worker.engines.cuda.engine, mainspring.worker.server") == ""
