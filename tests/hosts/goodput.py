"""How much less goodput one cluster has than another, by requests that went to both at the same time.

What else the machine does comes in bursts and hits both, or one of them by accident: blocks of half a second
are compared, and the most extreme ones on either side do not count. A loss that the network makes is in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

BLOCKS, PAIRS = 24, 50
"""Of one look: blocks, and requests to each cluster in a block."""
MOST_LOST = 0.01
LOOKS = 5
"""At most, all of whose blocks count together; the first that shows no loss is the last."""

Blocks = Sequence[Sequence[int]]


def lost(blocks: Blocks) -> float:
    """Return which part of the requests the first cluster answered in time less than the second."""
    differences = np.sort([second - first for first, second in blocks]) / PAIRS
    quarter = len(differences) // 4
    return float(differences[quarter:-quarter].mean())


def judge(look: Callable[[], Blocks]) -> tuple[bool, list[Sequence[int]]]:
    """Return whether the first cluster loses no more than it may, and all blocks that say so."""
    blocks: list[Sequence[int]] = []
    for _ in range(LOOKS):
        blocks += look()
        if lost(blocks) <= MOST_LOST:
            return True, blocks
    return False, blocks
