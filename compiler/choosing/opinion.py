"""A third opinion where ONNX Runtime answers otherwise once it has optimised a model.

Some of its optimisations change what some models compute: ``1 / x * z`` becomes ``z / x``, for whole
numbers, too; what looks like a layer's normalisation becomes one, whatever its exponent. So the optimised
session, which artifacts are compared with, is compared with the unoptimised one first. Where they differ,
the onnx package's own evaluator says which of them is right. It takes its time, so it runs in a process of
its own: ``python -m mainspring.compiler.choosing.opinion FOLDER``.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from mainspring.compiler.artifact.errors import CompileError
from mainspring.compiler.choosing.tolerances import (
    FLOOR,
    RELATIVE_TOLERANCE,
    SCALE_TOLERANCE,
    Tolerance,
    in_tolerances,
)
from mainspring.compiler.reading.contents import Content
from mainspring.compiler.reading.stock import StockSession

Arrays = list[npt.NDArray[np.generic]]

LONGEST_S = 30
"""Processor time that the evaluator may take."""
MOST_BYTES = 64 << 20
"""Largest model that it is asked about."""
_MEMORY_BYTES = 2 << 30
"""Memory that it may take."""
_EXACT = Tolerance(RELATIVE_TOLERANCE, SCALE_TOLERANCE, FLOOR)
_ROUNDED = Tolerance(0.25, 0.25)
"""Tolerance of models that round to few bits: integer kernels and 16-bit sums round in other places."""
_NUDGE = 1e-5
"""Part of itself by which each float of an input is changed, to see what rounding does to the outputs."""


class Opinion(NamedTuple):
    """Session to compare an artifact with, and the reason."""

    session: StockSession
    says: str = ""
    """Empty if ONNX Runtime's optimisations change nothing."""


def opinion(
    content: Content, optimised: StockSession, names: Sequence[str], batches: Iterator[Arrays]
) -> Opinion:
    """Compare the optimised session with the unoptimised one on batches, as the model takes them.

    The optimised one stays the reference unless the evaluator contradicts it and confirms the other.
    """
    try:
        plain = StockSession(content, optimised=False)
        rounded: bool | None = None
        for batch in batches:
            first, second = optimised.run(batch), plain.run(batch)
            if not _differ(first, second, _EXACT):
                continue
            rounded = _rounds(content) if rounded is None else rounded
            allowed = _ROUNDED if rounded else _EXACT
            if _differ(first, second, allowed) and not _differ(second, plain.run(_nudged(batch)), allowed):
                return _judged(content, names, batch, (optimised, first), (plain, second), allowed)
    except CompileError:
        # The model runs with its optimisations alone, or not on this batch.
        pass
    return Opinion(optimised)


def _judged(
    content: Content,
    names: Sequence[str],
    batch: Arrays,
    optimised: tuple[StockSession, Sequence[Any]],
    plain: tuple[StockSession, Sequence[Any]],
    allowed: Tolerance,
) -> Opinion:
    """Have the evaluator say which session, each given with its answer, is right about a batch."""
    differ = "ONNX Runtime's optimisations change what the model answers"
    try:
        third = _evaluate(content, names, batch)
    except CompileError as error:
        return Opinion(optimised[0], f"{differ}, and onnx.reference can't say which is right: {error}")
    if not _differ(optimised[1], third, allowed):
        return Opinion(optimised[0], f"{differ}, and onnx.reference answers as the optimised model does")
    if _differ(plain[1], third, allowed):
        return Opinion(optimised[0], f"{differ}, and onnx.reference answers as neither of the two")
    return Opinion(plain[0], f"{differ}: it is compared unoptimised, which onnx.reference confirms")


def _differ(found: Sequence[Any], expected: Sequence[Any], allowed: Tolerance) -> bool:
    """Say whether two lists of outputs differ by more than is allowed."""
    pairs = [(np.asarray(ours), np.asarray(theirs)) for ours, theirs in zip(found, expected, strict=True)]
    return any(
        ours.shape != theirs.shape or bool(ours.size and in_tolerances(ours, theirs, allowed) > 1)
        for ours, theirs in pairs
    )


def _nudged(batch: Arrays) -> Arrays:
    """Return a batch whose floats differ by as much as rounding might make of them."""
    return [
        np.multiply(array, 1 + _NUDGE * np.resize([1, -1], array.shape)).astype(array.dtype)
        if np.issubdtype(array.dtype, np.floating)
        else array
        for array in batch
    ]


def _rounds(content: Content) -> bool:
    """Say whether a model computes with numbers of few bits."""
    model = read(content)
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    values = [*model.graph.input, *model.graph.output]
    return (
        any("Quantize" in node.op_type or "Integer" in node.op_type for node in model.graph.node)
        or any(tensor.data_type in halves for tensor in model.graph.initializer)
        or any(value.type.tensor_type.elem_type in halves for value in values)
    )


def read(content: Content) -> onnx.ModelProto:
    """Return a serialised model; large tensors stay in its file."""
    if isinstance(content, bytes):
        return onnx.load_from_string(content)
    return onnx.load(content.path, load_external_data=False)


def _evaluate(content: Content, names: Sequence[str], batch: Arrays) -> Arrays:
    """Return what the evaluator answers; raise `CompileError` if it can't, or takes too much."""
    if not isinstance(content, bytes) or len(content) > MOST_BYTES:
        raise CompileError(f"the model is larger than {MOST_BYTES >> 20} MiB")
    if any(array.dtype.kind == "S" for array in batch):
        raise CompileError("it has texts")
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        Path(folder, "model.onnx").write_bytes(content)
        given: dict[str, Any] = dict(zip(names, batch, strict=True))
        np.savez(Path(folder, "in.npz"), **given)
        command = [sys.executable, "-m", "mainspring.compiler.choosing.opinion", folder]
        with suppress(subprocess.TimeoutExpired):
            # On a busy machine processor time is not the clock's.
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=3 * LONGEST_S, check=False
            )
            if done.returncode > 0:
                raise CompileError((done.stderr.strip().splitlines() or ["it failed"])[-1])
            if done.returncode == 0:
                with np.load(Path(folder, "out.npz")) as found:
                    return [found[name] for name in found.files]
    raise CompileError(f"it took longer than {LONGEST_S} s")


def main(folder: str) -> None:
    """Answer what `_evaluate` asks."""
    from onnx.reference import ReferenceEvaluator

    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    with np.load(Path(folder, "in.npz")) as given, np.errstate(all="ignore"):
        model = onnx.load(Path(folder, "model.onnx"))
        found = ReferenceEvaluator(model).run(None, {name: given[name] for name in given.files})
    np.savez(Path(folder, "out.npz"), *[np.asarray(each) for each in found])


if __name__ == "__main__":
    main(sys.argv[1])
