"""Pools that a search found, on streams that it did not see."""

from __future__ import annotations

import msgspec
import pytest

from mainspring.experiments.ribbon.optima import first_sure, share_of
from mainspring.planner.estimate import Estimate
from mainspring.planner.problem import Pool


def estimate(pool: Pool) -> Estimate:
    share = min(1.0, 0.8 + 0.04 * sum(pool))
    return Estimate(
        pool=pool,
        price=0.5 * pool[0] + 0.1 * pool[1],
        attainment=share,
        low=share,
        high=share,
        p50_ms=5.0,
        p99_ms=30.0 - sum(pool),
        reached_ms=20.0,
        utilisation={},
        queries=1000,
        complete=True,
    )


class Stream:
    """An estimator that knows what pools do."""

    name = "known"
    dear = False
    shares = False

    def __init__(self, known: dict[Pool, tuple[float, float]]) -> None:
        """``known`` are the shares and half the width of their intervals."""
        self.known = known
        self.asked: list[tuple[Pool, bool]] = []

    def evaluate(self, pool: Pool, *, whole: bool = False, load: float = 1.0) -> Estimate:
        del load
        self.asked.append((pool, whole))
        share, half = self.known[pool]
        return msgspec.structs.replace(
            estimate(pool),
            attainment=share,
            low=share - half,
            high=share + half,
            complete=whole or share > 0.97,
        )


def test_errors_of_streams_are_independent() -> None:
    streams = [Stream({(1, 0): (share, 0.003)}) for share in (0.99, 0.992, 0.988, 0.994)]
    share = share_of((1, 0), streams)
    assert share.mean == pytest.approx(0.991)
    assert share.low == pytest.approx(0.991 - 0.003 / 2)
    assert share.high == pytest.approx(0.991 + 0.003 / 2)
    assert all(whole for stream in streams for _, whole in stream.asked)
    assert str(share) == "99.10% (98.95% to 99.25%)"


def test_the_first_pool_is_taken_that_holds_on_all_streams_together() -> None:
    first: dict[Pool, tuple[float, float]] = {
        (1, 0): (0.5, 0.01),
        (1, 1): (0.986, 0.002),
        (2, 0): (0.99, 0.002),
        (2, 1): (0.993, 0.002),
    }
    second: dict[Pool, tuple[float, float]] = {(2, 0): (0.991, 0.002), (2, 1): (0.992, 0.002)}
    streams = [Stream(first), Stream(second)]
    pools = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 3)]
    found = first_sure(pools, streams, 0.99)
    assert found == ((2, 1), share_of((2, 1), streams), 4)
    asked = [pool for pool, _ in streams[1].asked]
    assert (1, 0) not in asked, "a pool that ends early is not played again"
    assert (1, 1) not in asked, "nor one whose whole interval is below"
    assert first_sure(pools[:3], streams, 0.99) == (None, None, 3)
