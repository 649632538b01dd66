"""Importing TVM without PyTorch, which TVM imports where both are installed, to exchange arrays.

Nothing here uses PyTorch's arrays. Importing PyTorch takes seconds and a few hundred megabytes in each
process that compiles or serves, and for unknown versions of PyTorch TVM compiles an extension first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

SWITCH = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
"""Environment variable that says whether apache-tvm-ffi may look for PyTorch."""
_TORCH = "torch"


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Have imports in the ``with`` block find no PyTorch, unless it is imported already or `SWITCH` is 0."""
    if _TORCH in sys.modules or os.environ.setdefault(SWITCH, "1") == "0":
        yield
        return
    # None instead of a module makes the import raise ImportError, which TVM handles.
    sys.modules[_TORCH] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TORCH]
