"""Compiling ONNX to launch plans with TVM, offline: kernels, their order, and their weights.

The extra ``tvm`` installs what this folder needs; a worker never imports it, since it runs only a plan
(`compiler.artifact.plan`) and its kernels. Start reading at ``build``. ``lowering`` makes a straight line of
calls of the ONNX model with Relax and chooses the layout, ``schedules`` how loops are run, ``line`` reads
that line, ``kernels`` generates code and ``assembly`` the plan. ``tiles`` (sizes of a GPU's tiles) works
without TVM.
"""

import contextlib

from mainspring.compiler.artifact.launching import without_torch

with without_torch(), contextlib.suppress(ImportError):
    # Before a module of this folder imports TVM; without TVM, that import raises the error.
    import tvm  # noqa: F401
