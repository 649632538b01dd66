"""Features of items, read from a file of the gateway's host when an application is added."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from mainspring.extras import command
from mainspring.gateway.graphs.checking import GraphError
from mainspring.selection.linear.weights import Matrix


def load_table(path: str) -> Matrix:
    """Return a table that is mapped from its file (.npy), not copied; raise `GraphError`."""
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise GraphError(
            f"the table {path!r} can't be read as a .npy file of the gateway's host: {error}"
        ) from None
    if not isinstance(found, np.ndarray):
        raise GraphError(f"the table {path!r} is not a .npy file with one array")
    return np.asarray(found)


def check_linear() -> None:
    """Raise `GraphError` if SciPy is missing; have its and NumPy's BLAS use one thread."""
    if find_spec("scipy") is None:
        raise GraphError(f"policy 'linear' needs SciPy on the gateway's host: {command('linear')}")
    if find_spec("threadpoolctl") is not None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1, "blas")
