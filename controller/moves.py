"""Workers that belong to another controller: sent there once the scheduler lets them go.

How one leaves is decided by the scheduler (`scheduler.scaling`). A worker that was sent away and comes back,
because its process has started again with the address it was configured with, is sent after; one that another
controller sends here is welcome.
"""

from __future__ import annotations

from mainspring.controller.journal import Journal
from mainspring.controller.outbox import Outbox
from mainspring.controller.sessions import SessionTable
from mainspring.messages.operating import MoveWorker
from mainspring.messages.peers import Greet, WorkerHello
from mainspring.messages.sharding import MOVED


class Moves:
    """Knows which workers have another controller."""

    def __init__(
        self,
        sessions: SessionTable,
        outbox: Outbox,
        journal: Journal,
        controllers: tuple[str, ...],
    ) -> None:
        """``controllers``: the addresses of all controllers of the cluster; none if there is one."""
        self._sessions = sessions
        self._outbox = outbox
        self._journal = journal
        self._controllers = controllers

    def refusal(self, asked: MoveWorker) -> str | None:
        """Return why a worker can't go where it is asked to, or None."""
        known = self._controllers
        if asked.controller in known:
            return None
        where = ", ".join(known) or "none: [shards] lists them"
        return f"{asked.controller!r} is not one of the controllers, which are {where}"

    def sent(self, worker: str, address: str) -> None:
        """Send a worker away, behind all that it was told before."""
        self._journal.moved(worker, address)
        session = self._sessions.workers.get(worker)
        if session is not None:
            self._outbox.send(session, Greet(address))

    def elsewhere(self, hello: WorkerHello) -> Greet | None:
        """Return where a worker belongs that says hello here, if that is another controller."""
        if hello.sent == MOVED:
            self._journal.moved(hello.worker, "")
        address = self._journal.places.get(hello.worker)
        return None if address is None else Greet(address, again=True)
