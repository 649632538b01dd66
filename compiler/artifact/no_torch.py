"""TVM without PyTorch, which it imports where both are installed, to exchange arrays with it.

Nothing here has arrays of PyTorch's. Importing it takes seconds and a few hundred megabytes in each process
that compiles or serves, and for versions of it that TVM does not know TVM compiles an extension before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

SWITCH = "TVM_FFI_DISABLE_TORCH_C_DLPACK"
"""Environment variable: whoever sets it says whether apache-tvm-ffi may look for PyTorch."""
_TORCH = "torch"


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Have imports in the ``with`` block find no PyTorch, unless it is imported already or `SWITCH` is 0."""
    if _TORCH in sys.modules or os.environ.setdefault(SWITCH, "1") == "0":
        yield
        return
    # What an import finds there instead of a module is an ImportError, which TVM is ready for.
    sys.modules[_TORCH] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TORCH]
