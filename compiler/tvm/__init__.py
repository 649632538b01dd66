"""From ONNX to launch plans with TVM, offline: kernels, the order they are launched in, and their weights.

The extra ``tvm`` installs what this folder needs; a worker never imports it, since a plan (`compiler.plan`)
and its kernels are all that it runs. Where to start reading: ``build``. ``graph`` prepares the ONNX model,
``lowering`` makes a straight line of calls of it with Relax (``channels_last`` chooses the layout,
``schedules_cpu`` and ``schedules_cuda`` how loops are run), ``line`` reads that line, ``packing`` rearranges
the weights, ``memory`` finds places in the workspace, ``kernels`` generates code, ``toolchain`` compiles it.
"""

import contextlib

from mainspring.compiler.artifact.no_torch import without_torch

with without_torch(), contextlib.suppress(ImportError):
    # Before a module of this folder does; where there is no TVM, that module says so.
    import tvm  # noqa: F401
