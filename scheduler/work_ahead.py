"""Work of higher rank before a model's requests: sums over ranks, kept as queues change.

Ranks are instants, as policies order by them (`Policy.standing_ns`). They fall into slots of equal width on a
ring that moves on with the time, its middle where ranks have lately been. A Fenwick tree over the slots gives
the work before a rank, and takes a change, in a number of steps that grows with the logarithm of the slots,
whatever waits.
"""

from __future__ import annotations

from typing import Final

BITS: Final = 10
SLOTS: Final = 1 << BITS
SLACKS: Final = 8
"""Span of the slots, in slacks of the requests that wait; what ranks beyond counts as at the ends."""
SPARE: Final = SLOTS // 8
"""Slots at either end that nothing is entered in: the ring moves on by as many while a slack passes, within
which a model is entered again, for its requests leave."""
MIDDLE_WEIGHT: Final = 1 / 64
"""Weight of one rank in the position of the middle."""
FINEST_NS: Final = 1 << 14
COARSEST_NS: Final = 1 << 36


class WorkAhead:
    """Work by rank, one entry a model."""

    __slots__ = ("_entries", "_middle_ns", "_tree", "total_ns", "width_ns")

    def __init__(self) -> None:
        self.width_ns = FINEST_NS
        """Width of a slot."""
        self.total_ns = 0
        """The work of all models."""
        self._middle_ns: float = 0.0
        """Position of the middle, from the present instant on."""
        self._entries: dict[int, tuple[int, int, int]] = {}
        """(slot on a ring without end, work, rank) of each model, by number."""
        self._tree: list[int] = [0] * (SLOTS + 1)

    def __len__(self) -> int:
        return len(self._entries)

    def numbers(self) -> list[int]:
        """Return the numbers of all models with an entry."""
        return list(self._entries)

    def work_of(self, number: int) -> int:
        """Return a model's work as it was entered; 0 without an entry."""
        entry = self._entries.get(number)
        return 0 if entry is None else entry[1]

    def enter(self, now_ns: int, number: int, rank_ns: int, work_ns: int) -> None:
        """Have a model of a number rank at an instant with its work; 0 takes it out."""
        entry = self._entries.get(number)
        if entry is not None:
            self._add(entry[0], -entry[1])
        if work_ns:
            if not self._entries:
                self._middle_ns = float(rank_ns - now_ns)
            half_ns = self.width_ns * SLOTS // 2
            apart_ns = rank_ns - now_ns - self._middle_ns
            self._middle_ns += MIDDLE_WEIGHT * max(-half_ns, min(half_ns, apart_ns))
            slot = self._slot(now_ns, rank_ns)
            self._entries[number] = slot, work_ns, rank_ns
            self._add(slot, work_ns)
        elif entry is not None:
            del self._entries[number]

    def before(self, now_ns: int, number: int) -> int:
        """Return the work of the models that rank before one, by at least a slot; 0 if it has no entry."""
        entry = self._entries.get(number)
        if entry is None:
            return 0
        first = self._first(now_ns)
        start, end = first & (SLOTS - 1), max(entry[0], first) & (SLOTS - 1)
        if start <= end:
            return self._sum(end) - self._sum(start)
        return self.total_ns - (self._sum(start) - self._sum(end))

    def fit(self, now_ns: int, slack_ns: int) -> None:
        """Have slots span what is needed where requests have about this slack when they come."""
        needed_ns = SLACKS * slack_ns // SLOTS
        width_ns = self.width_ns
        if 2 * needed_ns < width_ns or needed_ns > width_ns:
            width_ns = FINEST_NS
            while width_ns < needed_ns and width_ns < COARSEST_NS:
                width_ns *= 2
        if width_ns != self.width_ns:
            self._respan(now_ns, width_ns)

    def clear(self) -> None:
        """Take all models out."""
        self._entries.clear()
        self._tree = [0] * (SLOTS + 1)
        self.total_ns = 0

    def validate(self) -> None:
        """Check the sums; raise AssertionError if they are not those of the entries."""
        works = [0] * SLOTS
        for number, (slot, work_ns, _) in self._entries.items():
            assert work_ns > 0, f"model {number} is entered with {work_ns} ns of work"
            works[slot & (SLOTS - 1)] += work_ns
        assert sum(works) == self.total_ns, f"{self.total_ns} ns of work stand, entries say {sum(works)}"
        before = 0
        for slot, work_ns in enumerate(works):
            assert self._sum(slot) == before, f"{self._sum(slot)} ns stand before slot {slot}, not {before}"
            before += work_ns

    def _first(self, now_ns: int) -> int:
        return (now_ns + int(self._middle_ns)) // self.width_ns - SLOTS // 2

    def _slot(self, now_ns: int, rank_ns: int) -> int:
        first = self._first(now_ns)
        return min(max(rank_ns // self.width_ns, first + SPARE), first + SLOTS - 1 - SPARE)

    def _respan(self, now_ns: int, width_ns: int) -> None:
        entries = self._entries
        self._entries = {}
        self._tree = [0] * (SLOTS + 1)
        self.total_ns, self.width_ns = 0, width_ns
        for number, (_, work_ns, rank_ns) in entries.items():
            self.enter(now_ns, number, rank_ns, work_ns)

    def _add(self, slot: int, work_ns: int) -> None:
        self.total_ns += work_ns
        tree, index = self._tree, (slot & (SLOTS - 1)) + 1
        while index <= SLOTS:
            tree[index] += work_ns
            index += index & -index

    def _sum(self, index: int) -> int:
        """Return the work in the slots of the ring before one."""
        tree, work_ns = self._tree, 0
        while index:
            work_ns += tree[index]
            index &= index - 1
        return work_ns
