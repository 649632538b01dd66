"""Workers on their way to another controller: copies of what only they hold, drained, and sent there.

A worker that was sent away and comes back, because its process has started again with the address it was
configured with, is sent after; one that another controller sends here is welcome.
"""

from __future__ import annotations

import logging
from typing import Final

from mainspring.controller.journal import Journal
from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.outbox import Outbox
from mainspring.controller.registry import Refusal
from mainspring.controller.sessions import SessionTable, WorkerSession
from mainspring.messages.codes import Reason
from mainspring.messages.events import OperatorAsked
from mainspring.messages.operating import DrainWorker, LoadOn, ResumeWorker
from mainspring.messages.peers import Greet, WorkerHello
from mainspring.messages.sharding import MOVED, MoveWorker

_LOGGER = logging.getLogger(__name__)
COPY_NS: Final = 10_000_000_000
"""How long copies may take that the other workers get of what only this one holds."""
COPIES_AT_ONCE: Final = 4
"""LOADs that are asked for at each heartbeat: those for requests should not wait for them."""


class _Move:
    """One worker."""

    def __init__(self, now_ns: int, who: str, address: str) -> None:
        self.who = who
        self.address = address
        self.copied_by_ns = now_ns + COPY_NS
        self.copied: set[str] = set()
        """Models that are being loaded elsewhere, or are."""
        self.drained = False


class Moves:
    """The workers that are to have another controller; ``now_ns`` is on the controller's clock."""

    def __init__(
        self, scheduler: LoggedScheduler, sessions: SessionTable, outbox: Outbox, journal: Journal
    ) -> None:
        self._scheduler = scheduler
        self._sessions = sessions
        self._outbox = outbox
        self._journal = journal
        self._moves: dict[str, _Move] = {}

    def begin(self, now_ns: int, who: str, asked: MoveWorker, known: tuple[str, ...]) -> Refusal | None:
        """Begin to move a worker; return why not, or None. ``known``: the addresses of all controllers."""
        others = [address for address in known if address != asked.controller]
        if asked.controller not in known or len(others) == len(known):
            where = ", ".join(known) or "none: [shards] lists them"
            return (
                Reason.BAD_MESSAGE,
                f"{asked.controller!r} is not one of the controllers, which are {where}",
            )
        refusal = self._scheduler.refusal(DrainWorker(asked.worker))
        if refusal is not None:
            return Reason.BAD_MESSAGE, refusal
        if not self._sessions.workers.keys() - self._moves.keys() - {asked.worker}:
            return (
                Reason.BAD_MESSAGE,
                f"{asked.worker} is the only worker that stays here: its models need another",
            )
        self._moves[asked.worker] = _Move(now_ns, who, asked.controller)
        return None

    def beat(self, now_ns: int) -> list[tuple[WorkerSession, str]]:
        """Go on with what was begun; return the workers that have just been sent away, each with where to.

        The caller ends their sessions.
        """
        sent = []
        for name, move in list(self._moves.items()):
            session = self._sessions.workers.get(name)
            if session is None or not session.joined:
                # It left by itself. If it comes back, it is asked for again.
                self._stay(now_ns, name, move)
            elif not move.drained:
                self._copy(now_ns, name, move)
            elif not self._scheduler.outstanding(name):
                self._stay(now_ns, name, move)
                self._journal.moved(name, move.address)
                self._outbox.send(session, Greet(move.address))
                sent.append((session, move.address))
        return sent

    def elsewhere(self, hello: WorkerHello) -> Greet | None:
        """Return where a worker belongs that says hello here, if that is another controller."""
        if hello.sent == MOVED:
            self._journal.moved(hello.worker, "")
        address = self._journal.places.get(hello.worker)
        return None if address is None else Greet(address, again=True)

    def _copy(self, now_ns: int, name: str, move: _Move) -> None:
        """Have other workers load what only this one holds; then drain it."""
        only = self._scheduler.only_on(name)
        granted = 0
        for model in only:
            command = LoadOn(model)
            if model in move.copied or granted >= COPIES_AT_ONCE:
                continue
            if self._scheduler.refusal(command) is None:
                # A worker that loads something now is asked at the next heartbeat.
                move.copied.add(model)
                granted += 1
                self._scheduler.handle(now_ns, OperatorAsked(move.who, command))
        if only and now_ns < move.copied_by_ns:
            return
        move.drained = True
        _LOGGER.info("%s is drained: it moves to %s", name, move.address)
        self._scheduler.handle(now_ns, OperatorAsked(move.who, DrainWorker(name)))

    def _stay(self, now_ns: int, name: str, move: _Move) -> None:
        """Forget a move, and that the worker is to get no work from here."""
        del self._moves[name]
        if move.drained:
            self._scheduler.handle(now_ns, OperatorAsked(move.who, ResumeWorker(name)))
