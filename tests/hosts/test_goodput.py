"""What the comparison of goodputs tells apart: a loss of three in a hundred, and accidents."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.hosts.goodput import BLOCKS, PAIRS, Blocks, judge

SEEDS = 2000


def look_at(random: np.random.Generator, lost: float, disturbed: float) -> Blocks:
    """Return a look at clusters of which the first loses a part of all, and either much of some blocks."""
    losses = np.stack([np.full(BLOCKS, lost), np.zeros(BLOCKS)], axis=1)
    hit = random.random((BLOCKS, 2)) < disturbed
    losses = np.where(hit, random.uniform(0.0, 0.6, (BLOCKS, 2)), losses)
    found: Blocks = random.binomial(PAIRS, 1.0 - losses).tolist()
    return found


def passed(lost: float, disturbed: float) -> int:
    """Return for how many seeds the first cluster is said to lose no more than it may."""
    randoms = map(np.random.default_rng, range(SEEDS))
    return sum(judge(partial(look_at, random, lost, disturbed))[0] for random in randoms)


def test_three_in_a_hundred_are_seen() -> None:
    assert passed(0.03, 0.0) <= SEEDS / 200
    assert passed(0.03, 0.1) <= SEEDS / 50


def test_accidents_are_not_taken_for_the_network() -> None:
    assert passed(0.0, 0.0) == SEEDS
    assert passed(0.0, 0.1) == SEEDS
    assert passed(0.0, 0.2) >= SEEDS * 0.995
