"""Models that a worker failed on, until their files in the store change and another try is worthwhile.

The PREPARE thread looks at the files of such models alone, a bounded number at a time, so serving never waits
for the file system. The executors report failures and successes, the network thread takes changed models.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.fingerprint import Fingerprint, fingerprint
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import ModelSpec

INTERVAL_NS = 1_000_000_000
"""Time between two looks."""
LOOKED_AT = 256
"""Most models that one look takes; the next look continues with the others."""


class _Waiting(NamedTuple):
    model: ModelSpec
    seen: Fingerprint
    """Its files when it failed, or when their change was last reported."""


class StoreWatch:
    """Each method names the threads that may call it; a dictionary's single steps need no lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, _Waiting] = {}
        self._told: dict[str, Fingerprint] = {}
        """Models that are about to be tried again, with their files when the change was reported."""
        self._changed: deque[ModelSpec] = deque()
        self._next_look_ns = 0

    def failed(self, model: ModelSpec) -> None:
        """PREPARE or LOAD thread: note a model that could not be prepared or loaded."""
        if model.name not in self._waiting:
            seen = self._told.pop(model.name, None) or fingerprint(self._store.root, model)
            self._waiting[model.name] = _Waiting(model, seen)

    def worked(self, name: str) -> None:
        """PREPARE or LOAD thread: note a model that was prepared or loaded."""
        if self._waiting or self._told:
            self._waiting.pop(name, None)
            self._told.pop(name, None)

    def due(self, now_ns: int) -> bool:
        """Network thread: whether to call `look` now; true at most once in `INTERVAL_NS`."""
        if not self._waiting or now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + INTERVAL_NS
        return True

    def look(self) -> None:
        """PREPARE thread: look at the files of the next models that failed."""
        for name in list(islice(self._waiting, LOOKED_AT)):
            if (waiting := self._waiting.pop(name, None)) is None:
                continue
            model, seen = waiting
            now = fingerprint(self._store.root, model)
            found = self._read(name) if now != seen else None
            if found is None:
                self._waiting[name] = _Waiting(model, now)
            else:
                self._told[name] = now
                self._changed.append(found)

    def changed(self) -> ModelSpec | None:
        """Network thread: return a model whose files have changed, as its manifest has it now, once."""
        return self._changed.popleft() if self._changed else None

    def _read(self, name: str) -> ModelSpec | None:
        try:
            return self._store.manifest(name).spec()
        except StoreError:
            return None  # Another change may mend the manifest too.
