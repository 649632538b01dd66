"""What the rules say of any value of a random graph is so: where its rows are, and that they are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from mainspring.compiler.choosing.tolerances import RELATIVE_TOLERANCE, SCALE_TOLERANCE
from mainspring.compiler.independence.step import Batch, Rows
from tests.compiler.independence import (  # noqa: F401  They add their cases.
    elementwise_operators,
    layer_operators,
    moving_operators,
    quantised_operators,
)
from tests.compiler.independence.growing import CASES, Growing, pool_of_rows

POOL = 6
FINITE = 4
BATCHES = ([0, 1, 2, 3], [3, 4, 0, 5], [5, 2], [1, 1, 0], [4, 1, 5, 5, 2, 0])
SEEDS = 8
SELDOM = {"binary_of_any"}
"""Cases whose few seeds may all be refused."""


def session_of(growing: Growing, names: list[str]) -> onnxruntime.InferenceSession | None:
    """Return a session with these outputs; None for a graph that ONNX Runtime refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = growing.model(names).SerializeToString()
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime raises a dozen classes without a common base.
        return None


class RefusedError(Exception):
    """ONNX Runtime can't run the graph with these rows."""


def run(session: Any, pool: dict[str, NDArray[Any]], chosen: list[int]) -> list[NDArray[Any]]:
    """Return the outputs for these rows of the pool; raise `RefusedError`."""
    wanted = {each.name for each in session.get_inputs()}
    try:
        return list(session.run(None, {name: pool[name][chosen] for name in wanted}))
    except Exception as error:
        raise RefusedError from error


def slices(value: Rows, array: NDArray[Any], rows: int, row: int) -> NDArray[Any]:
    """Return what ``value`` says is of this row, as (outer, inner, the other axes)."""
    moved = np.moveaxis(array, value.axis, 0)
    return moved.reshape(value.outer, rows, value.inner, *moved.shape[1:])[:, row]


def check_shape(value: Rows, array: NDArray[Any], rows: int) -> None:
    assert array.ndim == value.rank, f"{array.shape} instead of {value.shape}"
    for dim, found in zip(value.shape, array.shape, strict=True):
        wanted = dim.times * rows if isinstance(dim, Batch) else dim
        assert wanted in (None, found), f"{array.shape} for {rows} rows instead of {value.shape}"


def check_equal(found: NDArray[Any], alone: NDArray[Any]) -> None:
    if found.dtype.itemsize == 1 and found.dtype.kind == "u":
        # Vectors and what is left over of them may round to different steps of a quantised value.
        np.testing.assert_allclose(found.astype(np.int64), alone.astype(np.int64), rtol=0, atol=1)
        return
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, alone)
        return
    finite = np.abs(alone[np.isfinite(alone)])
    np.testing.assert_allclose(
        found.astype(np.float64),
        alone.astype(np.float64),
        rtol=RELATIVE_TOLERANCE,
        atol=SCALE_TOLERANCE * float(finite.max(initial=1e-6)),
    )


def check(growing: Growing, pool: dict[str, NDArray[Any]]) -> int:
    """Compare every value that the rules follow; return how many were."""
    claims = {name: value for name, value in growing.known().items() if isinstance(value, Rows)}
    names = [name for node in growing.nodes for name in node.output if name in claims]
    session = session_of(growing, names) if names else None
    if session is None:
        return 0
    try:
        alone = [run(session, pool, [row]) for row in range(POOL)]
        together = [run(session, pool, chosen) for chosen in BATCHES]
    except RefusedError:
        # What doesn't run with any number of rows is never served with several.
        return 0
    for chosen, outputs in zip(BATCHES, together, strict=True):
        for index, name in enumerate(names):
            value, array = claims[name], outputs[index]
            check_shape(value, array, len(chosen))
            for place, row in enumerate(chosen):
                single = alone[row][index]
                check_shape(value, single, 1)
                if row < FINITE:
                    found = slices(value, array, len(chosen), place)
                    check_equal(found, slices(value, single, 1, 0))
    return len(names)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_where_the_rules_say_and_apart(name: str) -> None:
    compared = 0
    for seed in range(SEEDS):
        growing = Growing(seed)
        try:
            CASES[name](growing)
        except LookupError:
            continue
        try:
            compared += check(growing, pool_of_rows(seed, POOL))
        except AssertionError as error:
            nodes = "\n".join(f"{n.output} = {n.op_type}({n.input}) {n.attribute}" for n in growing.nodes)
            raise AssertionError(f"{name}, seed {seed}: {error}\n{nodes}") from error
    assert compared or name in SELDOM, "no graph of this kind was proven and run"
