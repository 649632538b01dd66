"""Sums and differences of each element type, as Triton's L0_infer asks for: with rows and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.compiler.artifact.executable import open_executable
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_file
from mainspring.compiler.program.layout import Arena
from mainspring.experiments.triton_clients.__main__ import COLUMNS, KINDS, add_and_subtract

LETTERS = {"u": "uint8", "b": "int8", "s": "int16", "i": "int32", "l": "int64", "h": "float16"}
LETTERS |= {"f": "float32", "o": "object"}
TYPES = "uuu bbb sss iii lll hhh fff hff bii ibb ibs fuu uff fuh iff fii ihs ooo oii oio ooi ioo ioi iio"
"""The types of the inputs, of the sum and of the difference, by their letters."""


def test_every_type_is_asked_for() -> None:
    assert {LETTERS[each] for each in TYPES if each != " "} == set(KINDS)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("types", TYPES.split())
def test_sums_and_differences_of_each_type_are_right(types: str, rows: bool, tmp_path: Path) -> None:
    given, sum_as, difference_as = (LETTERS[each] for each in types)
    model = add_and_subtract(given, sum_as, difference_as, rows=rows)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    store = Store(tmp_path / "store")
    manifest = compile_file(
        tmp_path / "m.onnx", "m", store, [1, 8] if rows else None, whole=not rows
    ).manifest
    arena = Arena(np.fromfile(store.weights_path(manifest), np.uint8), manifest.extents)
    arena.load()
    bound = open_executable(store, manifest).bind(manifest.tensors, arena.address_of)
    random = np.random.default_rng(0)
    shape = (8, COLUMNS) if rows else (COLUMNS,)
    first, second = random.integers(30, 60, shape), random.integers(0, 30, shape)
    found = bound.run_arrays(8 if rows else 1, [_as(each, given) for each in (first, second)])
    for answer, wanted, kind in zip(
        found, (first + second, first - second), (sum_as, difference_as), strict=True
    ):
        assert np.array_equal(np.asarray(answer).astype(float).reshape(shape), wanted), kind


def _as(values: Any, kind: str) -> Any:
    return values.astype(str).astype("S") if kind == "object" else values.astype(kind)
