"""A running average of each member's predictions stands in for one that is missing (Clipper, 5.2.2). Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mainspring.selection.outputs import Array, Kind

MOST_LABELS = 1_000
"""Different labels of a member that are counted."""
MOST_WAITING = 32
"""Outputs of a member that wait until they are added up together, which takes less time than one by one."""


class Averages:
    """The mean of the scores or values, or the most frequent label, that each member predicted for a row."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._waiting: dict[str, list[Array]] = {}
        self._rows: dict[str, int] = {}
        self._sums: dict[str, Array] = {}
        self._labels: dict[str, Counter[Any]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, member: str, output: Array) -> None:
        """Take a member's output into its average, ``(rows, ...)``."""
        waiting = self._waiting.get(member)
        if waiting is None:
            waiting = self._waiting[member] = []
        waiting.append(output)
        if len(waiting) >= MOST_WAITING:
            self._add_up(member)

    def _add_up(self, member: str) -> None:
        """Take into a member's average what waits for it."""
        waiting = self._waiting.pop(member, ())
        if self._kind == "label":
            counted = self._labels.setdefault(member, Counter())
            for output in waiting:
                self._dtypes[member] = output.dtype
                for label in output.reshape(-1).tolist():
                    if label in counted or len(counted) < MOST_LABELS:
                        counted[label] += 1
            return
        alike: list[Array] = []
        for output in waiting:
            if alike and alike[0].shape[1:] != output.shape[1:]:
                # What it predicts has another shape from here on.
                alike = []
                self._sums.pop(member, None)
            alike.append(output)
        if not alike:
            return
        together = np.concatenate(alike)
        added, total = together.sum(0, dtype=np.float64), self._sums.get(member)
        if total is None or total.shape != added.shape:
            self._rows[member], self._sums[member] = len(together), added
        else:
            self._rows[member] += len(together)
            total += added

    def of(self, member: str, rows: int) -> Array | None:
        """Return what stands in for a member's output of so many rows; None if it predicted nothing yet."""
        self._add_up(member)
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
        for kept in (self._waiting, self._rows, self._sums, self._labels, self._dtypes):
            kept.pop(member, None)
