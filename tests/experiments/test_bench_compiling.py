"""What compiling takes, as `bench-compile` measures it."""

from __future__ import annotations

import pytest

from mainspring.compiler.reading.contents import LARGE_BYTES
from mainspring.experiments.bench.compiling import Took, measure


@pytest.fixture(scope="module")
def tiny() -> Took:
    return measure(1)


@pytest.mark.parametrize(("size", "most"), [(34_000_000, 3.5), (180_000_000, 2.6)])
def test_compiling_takes_less_memory_than_three_times_the_file(size: int, most: float, tiny: Took) -> None:
    found = measure(size)
    assert found.file_bytes > LARGE_BYTES
    times = (found.peak_bytes - tiny.peak_bytes) / found.file_bytes
    assert times < most, f"{times:.2f} times the file"
