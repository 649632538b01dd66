"""How loops are divided among a GPU's blocks and threads."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import dlight


def schedule_cuda(module: Any) -> Any:
    """Return the module with each function's loops bound to blocks and threads."""
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    return dlight.ApplyDefaultSchedule(*rules)(module)
