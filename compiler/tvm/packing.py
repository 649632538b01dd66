"""Rearranging a model's weights, offline, into the arrays that its kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm_ffi.structural import structural_equal

from mainspring.compiler.artifact.errors import CompileError

Array = npt.NDArray[np.generic]


def pack(packing: Any, weights: Sequence[Array]) -> tuple[Array, ...]:
    """Return what the Relax function ``packing`` makes of the weights, computed on this machine's CPU."""
    module = tvm.IRModule({"pack": packing.with_attr("global_symbol", "pack")})
    with tvm.target.Target("llvm"):
        module = relax.transform.LegalizeOps()(module)
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    packed = machine["pack"](tuple(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in weights))
    return tuple(np.ascontiguousarray(each.numpy()) for each in packed)


def check_equal(packings: dict[int, Any]) -> None:
    """Raise `CompileError` unless all batch sizes read the same packed weights: there is one weights file."""
    (first_size, first), *others = packings.items()
    for size, other in others:
        if not structural_equal(first, other, map_free_vars=True):
            raise CompileError(
                f"TVM packs the weights for batch size {size} otherwise than for {first_size}, but an "
                "artifact has one weights file; `--engine onnxruntime` compiles the model"
            )
