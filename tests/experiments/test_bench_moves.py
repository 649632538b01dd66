"""Copies are counted where they happen: in the kernel, in the gateway and in the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.experiments.bench import moves

SIZE_KB = 600


@pytest.mark.parametrize("slab", [True, False])
def test_a_tensor_is_copied_as_often_as_it_is(tmp_path: Path, slab: bool) -> None:
    found = moves.measure(SIZE_KB, 0.4, tmp_path, slab=slab)
    copies = {each.name: each.value for each in moves.figures_of("input", SIZE_KB * 1e3, found)}
    wanted = {"HTTP": 2 if slab else 4, "gRPC": 5 if slab else 6}
    # libzmq receives into memory of its own.
    wanted["ZeroMQ"] = 3 if slab else 4
    # The client's own memory takes the place of the connection's copies.
    wanted["local"] = 1 if slab else 3
    wanted[moves.BARE] = 3
    for protocol, count in wanted.items():
        assert count <= copies[f"{protocol}: copies of an input"] < count + 0.4
