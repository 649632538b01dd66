"""Arrays that a function of loops makes for itself, such as a padded copy of its input.

TVM would have them allocated at each call. As parameters they get a place in the workspace like any result.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from tvm import s_tir, tirx

from mainspring.compiler.artifact.errors import CompileError


class Scratch(NamedTuple):
    """An array that lives during one call."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def lift_scratch(function: Any) -> tuple[Any, tuple[Scratch, ...]]:
    """Return the function with its own arrays as additional parameters, and what these are."""
    realize = function.body
    if not isinstance(realize, s_tir.SBlockRealize):
        return function, ()
    root = realize.block
    own = [buffer for buffer in root.alloc_buffers if buffer.ty.storage_scope == "global"]
    if not own:
        return function, ()
    kept = [buffer for buffer in root.alloc_buffers if buffer.ty.storage_scope != "global"]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        kept,
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    lifted = tirx.PrimFunc([*function.params, *own], body, function.ret_type, function.attrs)
    return lifted, tuple(map(_scratch, own))


def _scratch(buffer: Any) -> Scratch:
    try:
        return Scratch(str(buffer.ty.dtype), tuple(int(dimension) for dimension in buffer.ty.shape))
    except TypeError:
        raise CompileError(f"the size of {buffer.name} is not known before a request is") from None
