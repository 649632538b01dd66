"""The event of what gateways refuse themselves, once a second at most for each of them.

A gateway says in each pong how many requests it has refused so far, by reason. What it refused before its
session began is left out: a controller that has just started can't say when that was.
"""

from __future__ import annotations

from typing import Final

from mainspring.controller.logged_scheduler import LoggedScheduler
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.messages.codes import Reason
from mainspring.messages.events import GatewayRefused

INTERVAL_NS: Final = 1_000_000_000
"""The least time between two looks."""
_REASONS: Final = frozenset([reason.value for reason in Reason])


class Refusals:
    """Takes what gateways count, and enters what is new."""

    def __init__(self, scheduler: LoggedScheduler, sessions: SessionTable) -> None:
        self._scheduler = scheduler
        self._sessions = sessions
        self._due_ns = 0

    def heard(self, session: GatewaySession, refused: dict[str, int]) -> None:
        """Take a gateway's counts in; reasons that are none are left out."""
        known = {reason: count for reason, count in refused.items() if reason in _REASONS and count > 0}
        if session.refused is None:
            session.refused_noted = known
        session.refused = known

    def beat(self, now_ns: int) -> None:
        """Enter what gateways have refused since the last look, if it is time for one."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + INTERVAL_NS
            for session in self._sessions.gateways.values():
                self.enter(now_ns, session)

    def enter(self, now_ns: int, session: GatewaySession) -> None:
        """Enter what one gateway has refused since it was entered last."""
        refused, noted = session.refused, session.refused_noted
        if refused is None or refused == noted:
            return
        session.refused_noted = refused
        news = {reason: count - noted.get(reason, 0) for reason, count in refused.items()}
        news = {reason: count for reason, count in news.items() if count > 0}
        if news:
            self._scheduler.handle(now_ns, GatewayRefused(session.name, news))
