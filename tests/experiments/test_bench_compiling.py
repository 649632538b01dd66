"""What compiling a large model takes, as `bench-compile` measures it."""

from __future__ import annotations

from mainspring.compiler.reading.contents import LARGE_BYTES
from mainspring.experiments.bench.compiling import measure


def test_compiling_takes_less_memory_than_three_times_the_file() -> None:
    small, large = measure(1), measure(180_000_000)
    assert large.file_bytes > LARGE_BYTES
    times = (large.peak_bytes - small.peak_bytes) / large.file_bytes
    assert times < 2.6, f"{times:.2f} times the file"
