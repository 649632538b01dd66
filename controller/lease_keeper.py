"""Asks the store of the lease in a thread of its own, so that the controller never waits for it.

The controller says whether the lease is wanted, and shows now and then that it is alive: for one whose loop
hangs, nothing is renewed. What came of it waits in a queue until `LeaseKeeper.settle`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from mainspring.controller.lease import MAX_EPOCH, RENEWALS, Leadership, Lease, Store, StoreError

_LOGGER = logging.getLogger(__name__)
COLD_NS: Final = 250_000_000
"""Time for which a controller that nobody has told the memory leaves a free lease to those who were."""
HANGS_NS: Final = 4_000_000_000
"""Time without a turn of the controller's loop after which it hangs, and its lease is left to end."""
JOIN_S: Final = 2.0


class LeaseKeeper:
    """See the module's docstring."""

    def __init__(self, store: Store, core: Leadership, wake: Callable[[], object]) -> None:
        """``wake`` is called in the thread whenever `settle` has something to do."""
        self.lease: Lease | None = None
        """The lease as it was when it was looked at last."""
        self.problem = ""
        """Reason why the store can't be asked; empty if it can."""
        self._store, self._core, self._wake = store, core, wake
        self._renew_ns = store.ttl_ns // RENEWALS
        self._came: deque[Callable[[], None]] = deque()
        self._wants = self._warm = False
        self._epoch = 0
        """The epoch in which the store has the lease for this controller; 0 for none."""
        self._floor = 0
        """The highest epoch that anyone has told of."""
        self._alive_ns = time.monotonic_ns()
        self._free_since_ns: int | None = None
        self._turn = threading.Event()
        self._ends = False
        self._asking = threading.Thread(target=self._run, name="lease", daemon=True)
        self._asking.start()

    def want(self, warm: bool) -> None:
        """Have the lease claimed once it is free; ``warm``: this controller knows what it needs to lead."""
        self._wants, self._warm = True, warm

    def alive(self, now_ns: int) -> None:
        """Note that the controller's loop turns."""
        self._alive_ns = now_ns

    def settle(self) -> None:
        """Tell the core what has come of asking."""
        while self._came:
            self._came.popleft()()
        self._floor = max(self._floor, self._core.seen)

    def release(self) -> None:
        """Give the lease back, and claim it no more."""
        self._wants = False
        self._turn.set()

    def close(self) -> None:
        """Give the lease back and end."""
        self._ends = True
        self.release()
        self._asking.join(JOIN_S)

    def _run(self) -> None:
        while not self._ends:
            try:
                wait_ns = self._ask()
                self.problem = ""
            except StoreError as error:
                if str(error) != self.problem:
                    _LOGGER.warning("the lease can't be asked for: %s", error)
                self.problem = str(error)
                wait_ns = self._renew_ns
            self._turn.wait(wait_ns / 1e9)
            self._turn.clear()
        self._give_back()
        self._store.close()

    def _ask(self) -> int:
        """Look, claim, renew or give back; return how long to wait."""
        now_ns = time.monotonic_ns()
        if self._epoch and (self._floor > self._epoch or not self._wants):
            self._give_back()
            return 0
        if self._epoch:
            if now_ns - self._alive_ns >= HANGS_NS:
                return self._renew_ns
            if self._store.renew(now_ns):
                self._say(lambda: self._core.renewed(now_ns))
                return self._renew_ns
            self._epoch = 0
            self._say(self._core.lost)
            return 0
        lease = self.lease = self._store.look(now_ns)
        if lease is not None and lease.epoch > self._floor:
            self._floor = lease.epoch
            self._say(lambda: self._core.told(lease.epoch))
        if lease is not None and lease.held:
            self._free_since_ns = None
        elif self._wants:
            self._claim(now_ns)
        return self._store.look_ns

    def _claim(self, now_ns: int) -> None:
        if self._free_since_ns is None:
            self._free_since_ns = now_ns
        epoch = self._floor + 1
        if epoch >= MAX_EPOCH:
            raise StoreError(f"epoch {epoch:,} is the last: start the cluster anew, with another lease")
        if (self._warm or now_ns - self._free_since_ns >= COLD_NS) and self._store.claim(now_ns, epoch):
            self._epoch = epoch
            self._say(lambda: self._core.claimed(now_ns, epoch))

    def _give_back(self) -> None:
        self._epoch = 0
        self._store.release()
        self._say(self._core.lost)

    def _say(self, outcome: Callable[[], None]) -> None:
        self._came.append(outcome)
        self._wake()
