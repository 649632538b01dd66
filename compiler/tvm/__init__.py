"""Compiling ONNX to launch plans with TVM, offline: kernels, the order they are launched in, and their
weights.

The extra ``tvm`` installs what this folder needs; a worker never imports it, since it runs only a plan
(`compiler.artifact.plan`) and its kernels. Start reading at ``build``. ``graph`` prepares the ONNX model,
``lowering`` makes a straight line of calls of it with Relax (``channels_last`` chooses the layout,
``schedules_cpu`` and ``schedules_cuda`` how loops are run), ``line`` reads that line, ``kernels`` generates
code and ``assembly`` the plan. ``memory`` (places in the workspace), ``tiles`` (sizes of a GPU's tiles)
and ``toolchain`` (compiling the code) work without TVM and are tested where it is not installed.
"""

import contextlib

from mainspring.compiler.artifact.launching import without_torch

with without_torch(), contextlib.suppress(ImportError):
    # Before a module of this folder imports TVM; without TVM, that import raises the error.
    import tvm  # noqa: F401
