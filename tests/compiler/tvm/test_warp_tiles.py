"""Tiles for tensor cores: used where the model finds them faster than tiles without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.manifest import FP16, TF32
from mainspring.compiler.artifact.plan import MOST_THREADS
from mainspring.compiler.artifact.target import KNOWN, known_gpu
from mainspring.compiler.tvm.tiles import FRAGMENT_TERMS, Product, blocks, choose_warps, sensible, warp_tiles

H100 = known_gpu("sm_90")
_MOST_SHARED = 48 * 1024
_PADDING = 8


@pytest.mark.parametrize("precision", [TF32, FP16])
def test_large_products_take_tensor_cores_and_tiny_ones_do_not(precision: str) -> None:
    large = choose_warps(precision, Product(1, 16 * 28 * 28, 256, 1152), H100)
    assert large is not None
    assert large.tile.rows * large.tile.columns >= 64 * 64
    assert large.parts == 1, "blocks are enough"
    assert choose_warps(precision, Product(1, 1, 10, 32), H100) is None


@pytest.mark.parametrize("precision", [TF32, FP16])
def test_many_terms_of_few_sums_are_added_in_parts(precision: str) -> None:
    """As in the last layers of a ResNet-50 at batch size 1; a second kernel is not worth it for few terms."""
    product = Product(1, 49, 512, 4608)
    choice = choose_warps(precision, product, H100)
    assert choice is not None
    assert choice.parts > 1
    assert blocks(choice._replace(parts=1), product) < H100.processors < 2 * blocks(choice, product)
    few = choose_warps(precision, Product(1, 49, 512, 128), H100)
    assert few is None or few.parts == 1


@pytest.mark.parametrize("precision", [TF32, FP16])
def test_every_tile_can_be_launched(precision: str) -> None:
    size = 4 if precision == TF32 else 2
    for tile in warp_tiles(precision):
        assert tile.warps * 32 <= 256 <= MOST_THREADS
        assert tile.depth % FRAGMENT_TERMS[precision] == 0
        left, right = tile.rows * (tile.depth + _PADDING), tile.depth * (tile.columns + _PADDING)
        assert size * (left + right) <= _MOST_SHARED


@given(
    st.sampled_from([TF32, FP16]),
    st.integers(1, 64),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.sampled_from(sorted(KNOWN)),
)
def test_a_choice_is_one_of_the_tiles(
    precision: str, batch: int, rows: int, columns: int, terms: int, arch: str
) -> None:
    product = Product(batch, rows, columns, terms)
    choice = choose_warps(precision, product, known_gpu(arch))
    assert choice is None or choice.tile in warp_tiles(precision)
    assert choice is None or choice.parts == 1 or sensible(choice, product, known_gpu(arch))
    assert choice is None or arch not in ("sm_70", "sm_75"), "its tensor cores lack the instructions"
