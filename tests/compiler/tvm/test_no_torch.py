"""Where PyTorch is installed too, neither compiling nor serving imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.compiler.artifact.launching import SWITCH

pytest.importorskip("tvm", reason="this is about the extra tvm")

COMPILING = "import mainspring.compiler.tvm.build"
SERVING = """
from pathlib import Path
from mainspring.compiler.artifact.errors import ExecutableError
from mainspring.compiler.artifact.launching import _functions
from mainspring.compiler.artifact.plan import Plans
try:
    _functions(Path("no-such-kernels.so"), Plans("cpu", "", "", {}, ()))
except ExecutableError as error:
    assert "does not open" in str(error), error
"""


@pytest.mark.parametrize("work", [COMPILING, SERVING], ids=["compiling", "serving"])
def test_torch_is_not_imported(work: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    script = f"{work}\nimport sys\nassert 'tvm_ffi' in sys.modules and 'torch' not in sys.modules"
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    path = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
