"""Actions that wait for an executor: strict order by (earliest, id), and expiry (Clockwork, 4.4)."""

from __future__ import annotations

import heapq
from collections import deque

from mainspring.messages.actions import Infer, Load, Open, Prepare
from mainspring.messages.codes import Status
from mainspring.worker.core.jobs import Ending, Executor, Reservation

REMEMBERED_IDS = 65536
"""Action ids that are remembered to recognise a repeated one."""


class Pending:
    """An action that waits for its executor."""

    __slots__ = ("action", "executor", "inputs_ns", "io", "missing")

    def __init__(
        self, executor: Executor, action: Infer | Load | Prepare | Open, io: Reservation | None = None
    ) -> None:
        self.executor = executor
        self.action = action
        self.io = io
        self.missing = set(action.request_ids) if isinstance(action, Infer) else set[int]()
        self.inputs_ns = 0
        """Instant at which the last of the inputs was in place; 0 while some are missing."""

    def why_expired(self, *, resident: bool) -> Ending:
        """Return how the action ends once its latest instant has passed; ``resident``: its model is."""
        if isinstance(self.action, Infer):
            if not resident:
                detail = f"model {self.action.model} was not loaded when it had to begin"
                return Status.NOT_RESIDENT, detail
            if self.missing:
                detail = f"inputs had not come when it had to begin: requests {sorted(self.missing)}"
                return Status.INPUT_MISSING, detail
        return Status.TOO_LATE, f"executor {self.executor} was not free when it had to begin"


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


class RecentIds:
    """The last `REMEMBERED_IDS` action ids."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._order: deque[int] = deque()

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._known

    def add(self, action_id: int) -> bool:
        """Remember an id; return whether it was new."""
        if action_id in self._known:
            return False
        self._known.add(action_id)
        self._order.append(action_id)
        if len(self._order) > REMEMBERED_IDS:
            self._known.discard(self._order.popleft())
        return True


def model_name(action: Infer | Load | Prepare | Open) -> str:
    """Name of the action's model."""
    return action.model.name if isinstance(action, Prepare) else action.model
