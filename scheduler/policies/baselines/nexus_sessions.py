"""Sessions as Nexus counts them: each model with its SLO and the rate at which it is asked for.

Rates are measured by the epoch, of which the first may be shorter, and smoothed over epochs. A model's SLO is
the tightest of those that its requests had in the last epoch with any.
"""

from __future__ import annotations

from mainspring.cluster.models import Model

FORGOTTEN = 0.05
"""Rows an epoch below which a session with nothing queued is forgotten."""


class Session:
    """One model that is asked for."""

    __slots__ = ("_epochs", "_rows", "_tightest_ns", "model", "rows_per_epoch", "slo_ns")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rows_per_epoch = 0.0
        """Smoothed."""
        self.slo_ns = 0
        """Time from when a request could be dispatched to when its EXEC must have ended; 0 if it is not
        known."""
        self._epochs = 0.0
        """Time that was counted, in whole epochs."""
        self._rows = 0
        self._tightest_ns = 0

    def count(self, rows: int, slo_ns: int) -> None:
        """Note a request; ``slo_ns`` is 0 if it is not known."""
        self._rows += rows
        if slo_ns > 0 and (slo_ns < self._tightest_ns or not self._tightest_ns):
            self._tightest_ns = slo_ns

    def end_epoch(self, weight: float, length: float) -> bool:
        """Take the epoch's count into the rate by a weight; return whether the session is still one.

        ``length`` is the part of a whole epoch that was counted: a shorter one weighs less. The first epochs
        weigh by their length alone, until each has less weight than the given one.
        """
        self._epochs += length
        measured = self._rows / length
        self.rows_per_epoch += max(weight * min(length, 1.0), length / self._epochs) * (
            measured - self.rows_per_epoch
        )
        self.slo_ns = self._tightest_ns or self.slo_ns
        self._rows = self._tightest_ns = 0
        return self.rows_per_epoch >= FORGOTTEN or bool(self.model.queue.dues)


class Sessions:
    """Every session, by its model's number."""

    def __init__(self) -> None:
        self._by_number: dict[int, Session] = {}

    def __bool__(self) -> bool:
        return bool(self._by_number)

    def count(self, model: Model, rows: int, slo_ns: int) -> None:
        """Note a request for a model; ``slo_ns`` is 0 if it is not known."""
        session = self._by_number.get(model.number)
        if session is None:
            session = self._by_number[model.number] = Session(model)
        session.count(rows, slo_ns)

    def end_epoch(self, weight: float, length: float) -> list[Session]:
        """Return the sessions that are left with their rates as of now, in the order of their models.

        ``length`` is the part of a whole epoch since the last call, greater than 0.
        """
        left = {number: each for number, each in self._by_number.items() if each.end_epoch(weight, length)}
        self._by_number = left
        return [left[number] for number in sorted(left)]
