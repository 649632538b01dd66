"""Reports of gateways on their applications, for observers; feedback on its way to who gave the answer.

It hangs on sessions: what a gateway told is forgotten when its session ends. Feedback on its way is not kept
here; the gateway that asked waits for a while.
"""

from __future__ import annotations

from mainspring.controller.outbox import Outbox
from mainspring.controller.sessions import GatewaySession, SessionTable
from mainspring.messages.learning import (
    FeedbackCounted,
    GatewayLearning,
    LearningOfGateways,
    RelayFeedback,
    answered_by,
)

NOTHING = GatewayLearning()


class Learnings:
    """The messages about applications between gateways."""

    def __init__(self, sessions: SessionTable, outbox: Outbox) -> None:
        self._sessions = sessions
        self._outbox = outbox

    def take(
        self, session: GatewaySession, message: GatewayLearning | RelayFeedback | FeedbackCounted
    ) -> None:
        """Take a gateway's message in, or pass it on."""
        match message:
            case GatewayLearning():
                session.learning = message
            case RelayFeedback():
                self._relay(session, message)
            case FeedbackCounted(asked_by=number):
                there = self._sessions.gateway(number)
                if there is not None:
                    self._outbox.send(there, message)

    def told(self) -> LearningOfGateways:
        """Return what gateways told last, by name, of those that have applications."""
        sessions = self._sessions.gateways.values()
        return LearningOfGateways({each.name: each.learning for each in sessions if each.learning != NOTHING})

    def _relay(self, session: GatewaySession, message: RelayFeedback) -> None:
        """Pass feedback on to the gateway that gave the answer, or say that none is here."""
        seed = answered_by(message.observe.query_id)
        for each in self._sessions.gateways.values():
            if each is not session and seed and each.seed == seed:
                self._outbox.send(each, RelayFeedback(message.token, message.observe, session.number))
                return
        self._outbox.send(session, FeedbackCounted(message.token, session.number))
