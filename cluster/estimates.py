"""Estimates of how long actions take, by the last 10 measured durations, seeded from profiles.

Clockwork, section 5.3 ("measurements of past 10 actions duration, stratified by action type, model and
batch size"). INFER is kept for each (device kind, executable, batch size), so that a new copy of a known
model starts with a good estimate; LOAD for each (device kind, weights bytes).

An estimate is their maximum, as Clockwork's is, while they are about equally long, which on a GPU they are.
Where they spread it is the third-largest of ten: beside others' work a CPU has outliers of several times the
median, no measurement foretells the next, and a maximum that holds for ten more executions turns away many
more requests than it saves (docs/measurements.md, "Estimates where durations spread"). An execution that
stood still is no sample at all (`cluster.rolling`).
"""

from __future__ import annotations

from typing import Final

from mainspring.cluster.rolling import RANK, Rolling
from mainspring.cluster.seeds import indices_by_rows
from mainspring.cluster.spread import Spreads
from mainspring.messages.snapshot import DurationState, InferEstimate, LoadEstimate

CEILING_SHIFT: Final = 3
"""A ceiling is an eighth above the estimate that set it: durations on one device mostly differ by less."""


class Raised:
    """A count of how often any of some estimates rose beyond its ceiling (`InferTimes.ceilings_ns`)."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class InferTimes:
    """Estimates of one executable on one kind of device, for every batch size.

    ``ns[i]`` belongs to ``sizes[i]``; readers keep a reference to the list, which is updated in place.
    """

    __slots__ = (
        "_raised",
        "_rolling",
        "_transfers",
        "ceilings_ns",
        "index_of",
        "note",
        "ns",
        "opening",
        "sizes",
        "spreads",
        "transfer_ns",
    )

    def __init__(
        self,
        sizes: tuple[int, ...],
        seeds_ns: list[int],
        rank: int = RANK,
        raised: Raised | None = None,
        known: bool = True,
    ) -> None:
        """``raised`` counts for several estimates together; these have one of their own without it.

        ``known`` says whether the seeds were measured on such a device, or are assumed.
        """
        self.sizes = sizes
        self.index_of = indices_by_rows(sizes)
        """``index_for`` as a table by rows."""
        self.ns = [seed_ns if seed_ns > 0 else 1 for seed_ns in seeds_ns]
        self.ceilings_ns = [ns + (ns >> CEILING_SHIFT) for ns in self.ns]
        """No estimate is above its own: what is derived from these holds until `Raised.count` changes."""
        self._raised = raised or Raised()
        self.transfer_ns = [0] * len(sizes)
        """Time for which a batch's inputs occupy the connection to the worker, beyond the delay of any
        dispatch."""
        self.note: object = None
        """The policy's own, dropped where a doubt changes an estimate."""
        self._rolling = [Rolling(seed_ns, rank=rank, known=known) for seed_ns in self.ns]
        self._transfers: dict[int, Rolling] = {}
        """Transfer times that were measured to be more than nothing, by index of the batch size."""
        self.opening: Rolling | None = None
        """Estimate of an OPEN of the executable, once one was measured."""
        self.spreads = Spreads(len(sizes))
        """Distribution of the durations; no estimate follows from it."""

    def state(self, kind: str, executable: str) -> InferEstimate:
        """Return all that is known, as that of an executable on a kind of device."""
        durations = tuple([rolling.state() for rolling in self._rolling])
        transfers = {index: rolling.state() for index, rolling in self._transfers.items()}
        opening = None if self.opening is None else self.opening.state()
        spreads = self.spreads
        told = spreads.counts(), spreads.total, spreads.erratic
        return InferEstimate(kind, executable, self.sizes, durations, transfers, opening, *told)

    def restore(self, state: InferEstimate) -> None:
        """Know what another one of the same sizes knew."""
        for index, duration in enumerate(state.durations):
            self._set(index, self._rolling[index].restore(duration))
        self._transfers = {}
        for index in range(len(self.sizes)):
            self.transfer_ns[index] = 0
        for index, transfer in state.transfers.items():
            rolling = self._transfers[index] = Rolling(0, rank=1)
            self.transfer_ns[index] = rolling.restore(transfer)
        self.opening = None if state.opening is None else restored(state.opening)
        self.spreads.restore(state.spreads, state.measured, state.erratic)

    def add(self, now_ns: int, index: int, duration_ns: int) -> bool:
        """Take the measured duration of a batch of size ``sizes[index]`` in; return whether it is an outlier.

        Nothing takes no time, whatever a worker says: policies divide by what they expect.
        """
        duration_ns = max(duration_ns, 1)
        rolling = self._rolling[index]
        outlying = rolling.stands_out(duration_ns)
        self._set(index, rolling.add(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)
        return outlying

    def give_up(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Record that a batch was awaited in vain."""
        self._set(index, self._rolling[index].give_up(now_ns, duration_ns))
        self.spreads.add(index, duration_ns)

    def add_transfer(self, now_ns: int, index: int, duration_ns: int) -> None:
        """Take in how long the inputs of a batch of size ``sizes[index]`` kept the way busy."""
        rolling = self._transfers.get(index)
        if rolling is None:
            if not duration_ns:
                return
            # This many batches ran until now whose inputs took nothing.
            nothing = max(1, self._rolling[index].count - 1)
            rolling = self._transfers[index] = Rolling(0, seeds=nothing, rank=1, known=nothing > 1)
        self.transfer_ns[index] = rolling.add(now_ns, duration_ns)

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        for rolling in self._rolling:
            if rolling.doubtful(now_ns):
                return True
        for rolling in self._transfers.values():  # noqa: SIM110 - a generator would cost more than the search
            if rolling.doubtful(now_ns):
                return True
        return False

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        for index, rolling in enumerate(self._rolling):
            before_ns = self.ns[index]
            self._set(index, rolling.doubt(now_ns))
            if self.ns[index] != before_ns:
                self.note = None
        for index, rolling in self._transfers.items():
            self.transfer_ns[index] = rolling.doubt(now_ns)

    def _set(self, index: int, estimate_ns: int) -> None:
        """Have an estimate, below a ceiling that falls once it is twice as high."""
        self.ns[index] = estimate_ns
        ceiling_ns = self.ceilings_ns[index]
        if estimate_ns > ceiling_ns:
            self._raised.count += 1
        elif 2 * estimate_ns > ceiling_ns:
            return
        self.ceilings_ns[index] = estimate_ns + (estimate_ns >> CEILING_SHIFT)

    def index_for(self, rows: int) -> int:
        """Return the index of the smallest size that holds ``rows``; raise ValueError if none does."""
        if rows >= len(self.index_of):
            raise ValueError(f"{rows} rows do not fit the largest batch size {self.sizes[-1]}")
        return self.index_of[rows]

    def for_rows(self, rows: int) -> int:
        """Return the estimate of the smallest batch that holds a number of rows."""
        return self.ns[self.index_for(rows)]


class LoadTime:
    """Estimate of copying one number of bytes to one kind of device."""

    __slots__ = ("_rolling", "ns")

    def __init__(self, seed_ns: int, rank: int = RANK, known: bool = True) -> None:
        """``known`` says whether the seed was measured on such a device, or is assumed."""
        self.ns = seed_ns
        self._rolling = Rolling(seed_ns, rank=rank, known=known)

    def state(self, kind: str, weights_bytes: int) -> LoadEstimate:
        """Return all that is known, as that of a number of bytes on a kind of device."""
        return LoadEstimate(kind, weights_bytes, self._rolling.state())

    def restore(self, state: LoadEstimate) -> None:
        """Know what another one knew."""
        self.ns = self._rolling.restore(state.duration)

    def add(self, now_ns: int, duration_ns: int) -> bool:
        """Take one measured duration in; return whether it is an outlier."""
        outlying = self._rolling.stands_out(duration_ns)
        self.ns = self._rolling.add(now_ns, duration_ns)
        return outlying

    def doubtful(self, now_ns: int) -> bool:
        """Return whether `doubt` would change anything."""
        return self._rolling.doubtful(now_ns)

    def doubt(self, now_ns: int) -> None:
        """Let no stale outlier stand in the way (`Rolling.doubt`)."""
        self.ns = self._rolling.doubt(now_ns)


def restored(state: DurationState) -> Rolling:
    """Return an estimate that knows what another one knew."""
    rolling = Rolling(0, rank=1)
    rolling.restore(state)
    return rolling
