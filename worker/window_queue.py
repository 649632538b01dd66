"""An executor's queue: strict order by (earliest, id), and which entries have expired (Clockwork, 4.4)."""

from __future__ import annotations

import heapq


class WindowQueue:
    """Ids with windows ``[earliest_ns, latest_ns]``; all operations are O(log n), amortised."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, int | None]] = {}
        self._by_earliest: list[tuple[int, int]] = []
        self._by_latest: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._live)

    def push(self, entry_id: int, earliest_ns: int, latest_ns: int | None) -> None:
        """Add an id that isn't queued; ``latest_ns`` None never expires."""
        self._live[entry_id] = (earliest_ns, latest_ns)
        heapq.heappush(self._by_earliest, (earliest_ns, entry_id))
        if latest_ns is not None:
            heapq.heappush(self._by_latest, (latest_ns, entry_id))

    def remove(self, entry_id: int) -> None:
        """Take a queued id out, wherever it stands."""
        del self._live[entry_id]
        if len(self._by_latest) > 2 * len(self._live) + 64:
            self._by_latest = [(end, key) for key, (_, end) in self._live.items() if end is not None]
            heapq.heapify(self._by_latest)
        if len(self._by_earliest) > 2 * len(self._live) + 64:
            self._by_earliest = [(start, key) for key, (start, _) in self._live.items()]
            heapq.heapify(self._by_earliest)

    def head(self) -> tuple[int, int] | None:
        """``(earliest_ns, id)`` of the first entry, or None."""
        heap = self._by_earliest
        while heap and not self._is_live(heap[0], 0):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def first_expiry_ns(self) -> int | None:
        """The first instant at which an entry will have expired, or None."""
        heap = self._by_latest
        while heap and not self._is_live(heap[0], 1):
            heapq.heappop(heap)
        return heap[0][0] + 1 if heap else None

    def pop_expired(self, now_ns: int) -> list[int]:
        """Remove and return the ids whose latest instant has passed, by (earliest, id)."""
        if not self._by_latest or self._by_latest[0][0] >= now_ns:
            return []
        expired: list[tuple[int, int]] = []
        while (expiry_ns := self.first_expiry_ns()) is not None and expiry_ns <= now_ns:
            entry_id = self._by_latest[0][1]
            expired.append((self._live[entry_id][0], entry_id))
            self.remove(entry_id)
        return [entry_id for _, entry_id in sorted(expired)]

    def clear(self) -> list[int]:
        """Remove and return all ids, by (earliest, id)."""
        entries = sorted((earliest_ns, entry_id) for entry_id, (earliest_ns, _) in self._live.items())
        self._live.clear()
        self._by_earliest.clear()
        self._by_latest.clear()
        return [entry_id for _, entry_id in entries]

    def _is_live(self, entry: tuple[int, int], side: int) -> bool:
        window = self._live.get(entry[1])
        return window is not None and window[side] == entry[0]
