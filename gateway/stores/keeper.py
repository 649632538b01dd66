"""The keeper: asks the store what applications' journals want to know and to have written, in a thread.

The store works in a thread of its own, at one job at a time, so that the gateway's loop never waits for a
disk or a network. One that fails, or takes long, is asked again every `RETRY_NS`; meanwhile everything is
served from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
from time import monotonic_ns
from typing import Final, NamedTuple, Protocol

from mainspring.selection.application import Application
from mainspring.selection.stores.journal import Journal
from mainspring.selection.stores.records import Job, Outcome, StoreAway

log = logging.getLogger("mainspring.gateway")

RETRY_NS: Final = 200_000_000
MOST_AT_ONCE: Final = 500
"""Records of one application that a job reads, and writes, at most."""


class Store(Protocol):
    """A store; it is used by one thread."""

    def perform(self, job: Job) -> Outcome:
        """Do a job; raise `StoreAway` if that is not possible now."""

    def close(self) -> None:
        """Give up files and connections; a later job opens them again."""


class _Done(NamedTuple):
    parts: list[tuple[Journal, Job]]
    outcomes: list[Outcome]
    """Of the first ones; of all unless the store went away."""
    away: StoreAway | None


class Keeper:
    """The journals of a gateway's applications around one store."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        """Start the store's thread; all else is called in the loop's thread."""
        self._loop = loop
        self._journals: list[Journal] = []
        self._serving: dict[str, Journal] = {}
        self._seed, self._writes = secrets.randbits(31) | 1, 0
        self._busy = self._soon = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._epoch = 0
        self.away = ""
        """Why the store could not be used when it was last asked; empty if it could."""
        self._jobs: queue.SimpleQueue[list[tuple[Journal, Job]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(store,), name="store", daemon=True)
        self._thread.start()

    def attach(self, application: Application) -> None:
        """Keep what an application learns, if it is not kept already."""
        if application.journal is None:
            self._journals.append(application.keep_in_store(self._token, self._wake))
            self._wake()
        self._serving[application.spec.name] = application.journal or self._journals[-1]

    def _token(self) -> int:
        self._writes += 1
        return (self._seed << 32) + self._writes

    # --- the loop ---

    def _wake(self) -> None:
        """See to it that the store is asked as soon as it may be."""
        if not (self._soon or self._busy or self.away):
            self._soon = True
            self._loop.call_soon(self._ask)

    def _ask(self) -> None:
        """Give the store what is due, or look again when something will be."""
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._busy or self._closed:
            return
        now_ns = monotonic_ns()
        parts = self._parts(now_ns)
        if parts:
            self._busy = True
            self._jobs.put(parts)
            return
        due = [each for each in map(Journal.due_ns, self._journals) if each is not None]
        if due:
            self._timer = self._loop.call_later(max(0, min(due) - now_ns) / 1e9 + 1e-3, self._ask)

    def _parts(self, now_ns: int, *, all_of_it: bool = False) -> list[tuple[Journal, Job]]:
        serving = set(map(id, self._serving.values()))
        self._journals = [each for each in self._journals if id(each) in serving or each.due_ns() is not None]
        parts = []
        for each in self._journals:
            due_ns = each.due_ns()
            if due_ns is not None and (all_of_it or due_ns <= now_ns):
                parts.append((each, each.take(now_ns, MOST_AT_ONCE, all_of_it=all_of_it)))
        return parts

    def _collect(self) -> None:
        """Take in what came of a job, and go on: at once, or later if the store is away."""
        with contextlib.suppress(queue.Empty):
            self._take_in(self._results.get_nowait())
        if self._closed:
            return
        if self.away:
            self._timer = self._loop.call_later(RETRY_NS / 1e9, self._ask)
        else:
            self._wake()

    def _take_in(self, done: _Done) -> None:
        self._busy = False
        now_ns = monotonic_ns()
        for (journal, job), outcome in zip(done.parts, done.outcomes, strict=False):
            self._began(outcome.epoch)
            journal.done(now_ns, job, outcome)
        if done.away is not None:
            for journal, job in done.parts[len(done.outcomes) :]:
                journal.failed(job, doubtful=done.away.doubtful)
            if not self.away:
                log.warning("what applications have learnt is served from memory: %s", done.away)
            self.away = str(done.away)
        elif self.away:
            log.warning("what applications have learnt is stored again")
            self.away = ""

    def _began(self, epoch: int) -> None:
        """Note when the store began; one that has lost all is written again."""
        if self._epoch not in (0, epoch):
            log.warning("the store of what applications have learnt started empty: memory is written to it")
            for each in self._journals:
                each.lost_all()
        self._epoch = epoch

    def close(self, wait_s: float) -> None:
        """Write what is gathered, for a while, and end the thread."""
        self._closed = True
        end_ns = monotonic_ns() + round(wait_s * 1e9)
        with contextlib.suppress(queue.Empty):
            while True:
                if self._busy:
                    self._take_in(self._results.get(timeout=max(0.0, (end_ns - monotonic_ns()) / 1e9)))
                parts = self._parts(monotonic_ns(), all_of_it=True)
                if self.away or not parts:
                    break
                self._busy = True
                self._jobs.put(parts)
        self._jobs.put(None)
        self._thread.join(wait_s)

    # --- the thread ---

    def _work(self, store: Store) -> None:
        while (parts := self._jobs.get()) is not None:
            outcomes, away = list[Outcome](), None
            try:
                for _, job in parts:
                    outcomes.append(store.perform(job))
            except StoreAway as error:
                away = error
            except Exception as error:
                log.exception("the store of what applications have learnt failed")
                away = StoreAway(repr(error), doubtful=True)
            self._results.put(_Done(parts, outcomes, away))
            with contextlib.suppress(RuntimeError):  # The loop may be closed.
                self._loop.call_soon_threadsafe(self._collect)
        store.close()
