"""A running average of each member's predictions stands in for one that is missing (Clipper, 5.2.2). Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mainspring.selection.outputs import Array, Kind

MOST_LABELS = 1_000
"""Different labels of a member that are counted."""


class Averages:
    """The mean of the scores or values, or the most frequent label, that each member predicted for a row."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rows: dict[str, int] = {}
        self._sums: dict[str, Array] = {}
        self._labels: dict[str, Counter[Any]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, member: str, output: Array) -> None:
        """Take a member's output into its average, ``(rows, ...)``."""
        if self._kind == "label":
            counted = self._labels.setdefault(member, Counter())
            self._dtypes[member] = output.dtype
            for label in output.reshape(-1).tolist():
                if label in counted or len(counted) < MOST_LABELS:
                    counted[label] += 1
            return
        added = output[0] if len(output) == 1 else output.sum(0, dtype=np.float64)
        total = self._sums.get(member)
        if total is None or total.shape != added.shape:
            self._rows[member] = len(output)
            self._sums[member] = np.array(added, np.float64)
        else:
            self._rows[member] += len(output)
            total += added

    def of(self, member: str, rows: int) -> Array | None:
        """Return what stands in for a member's output of so many rows; None if it predicted nothing yet."""
        if self._kind == "label":
            counted = self._labels.get(member)
            if not counted:
                return None
            label = counted.most_common(1)[0][0]
            return np.full(rows, label, self._dtypes[member])
        total = self._sums.get(member)
        if total is None:
            return None
        return np.broadcast_to(total / self._rows[member], (rows, *total.shape))

    def drop(self, member: str) -> None:
        """Forget a member."""
        for kept in (self._rows, self._sums, self._labels, self._dtypes):
            kept.pop(member, None)
