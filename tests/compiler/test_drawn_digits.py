"""The zoo's digit reader: its answers mean something, for pictures that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mainspring.compiler.zoo import build
from mainspring.compiler.zoo.networks import CLASSES, SIZE, draw


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_model_of_any_seed_reads_digits_that_it_has_not_seen(
    seed: int, run_stock: Callable[..., list[Any]]
) -> None:
    random = np.random.default_rng([7, seed])
    labels = np.arange(400) % CLASSES
    pictures = np.stack([draw(int(digit), random) for digit in labels])[:, np.newaxis]
    probabilities = run_stock(build("digits", seed), [pictures])[-1]
    read = probabilities.argmax(axis=1)
    assert (read == labels).mean() > 0.97
    assert np.median(probabilities[read == labels].max(axis=1)) > 0.9


def test_pictures_are_blank_at_the_edges_and_inked_in_between() -> None:
    random = np.random.default_rng(3)
    for digit in range(CLASSES):
        picture = draw(digit, random)
        assert picture.shape == (SIZE, SIZE)
        assert picture.dtype == np.float32
        assert picture.min() == 0
        assert picture.max() == 1
        assert 0.05 < picture.mean() < 0.4
