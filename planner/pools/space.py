"""All pools that a plan may have, by rising price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mainspring.planner.errors import PlanError
from mainspring.planner.problem import DeviceKind, Pool, added

Counts = npt.NDArray[np.int64]
MOST_POOLS = 5_000_000
"""A larger space is refused: it would take gigabytes to list."""


class Space:
    """The pools between ``least`` and ``most`` of each kind, without the empty one."""

    def __init__(self, kinds: Sequence[DeviceKind]) -> None:
        """Raise `PlanError` for a space that is too large to list."""
        self.kinds = tuple(kinds)
        self.size = math.prod(kind.most - kind.least + 1 for kind in kinds)
        if self.size > MOST_POOLS:
            raise PlanError(
                f"there are {self.size:,} pools, more than {MOST_POOLS:,}: give kinds a smaller most or a "
                "larger least, or plan with fewer kinds"
            )
        ranges = [np.arange(kind.least, kind.most + 1) for kind in kinds]
        counts = np.stack([each.ravel() for each in np.meshgrid(*ranges, indexing="ij")], axis=1)
        counts = counts[counts.any(axis=1)].astype(np.int64)
        prices = np.round(counts @ np.array([kind.price for kind in kinds]), 9)
        # Of equal prices the pool with more of the preferred kinds comes first.
        order = np.lexsort((*[-counts[:, place] for place in reversed(range(len(kinds)))], prices))
        self.counts: Counts = counts[order]
        """A row for each pool, by rising price."""
        self.prices: npt.NDArray[np.float64] = prices[order]

    def __len__(self) -> int:
        return len(self.counts)

    def pools(self) -> Iterator[Pool]:
        """Yield all pools by rising price."""
        for row in self.counts.tolist():
            yield tuple(row)

    def of_one_kind(self, place: int) -> list[Pool]:
        """Return the pools of one kind alone by rising price, whatever ``least`` the others have."""
        kind, none = self.kinds[place], (0,) * len(self.kinds)
        return [added(none, place, count) for count in range(max(1, kind.least), kind.most + 1)]
