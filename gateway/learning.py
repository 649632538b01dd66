"""What applications learnt on its way to controllers, and feedback for answers that other gateways gave.

The upper bits of an answer's id name the gateway that gave it. Feedback that comes to another one goes there
through the controller, so that it is learnt from once, wherever it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.catalog import Catalog
from mainspring.gateway.shards import Shard
from mainspring.messages.applications import ApplicationReport
from mainspring.messages.clients import ErrorReply
from mainspring.messages.codec import encode
from mainspring.messages.codes import Reason
from mainspring.messages.learning import (
    MOST_TOLD_BYTES,
    FeedbackCounted,
    GatewayLearning,
    Observe,
    Observed,
    RelayFeedback,
    answered_by,
)

INTERVAL_NS = 1_000_000_000
_SLOW = (
    "the gateway that gave the answer did not say in time what became of the feedback: send it again, for "
    "nothing counts twice"
)
Then = Callable[[Observed | ErrorReply], None]


class _Relayed(NamedTuple):
    expires_ns: int
    observe: Observe
    then: Then


class LearningLinks:
    """The part of a gateway's conversation with its controllers that is about what applications learn."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, shards: Sequence[Shard]) -> None:
        self._timeout_ns = milliseconds(config.admin_timeout_ms)
        self._most = config.max_admin_requests
        self._catalog = catalog
        self._shards = shards
        self._relayed: dict[int, _Relayed] = {}
        """Feedback that other gateways have, in the order in which it is given up."""
        self._next_token = 0
        self._due_ns = 0
        self._told: dict[int, GatewayLearning] = {}
        """The message that each controller was told last in this session."""

    def observe(self, now_ns: int, message: Observe, then: Then) -> None:
        """Have feedback learnt from here, or where the answer was given; hand on what became of it."""
        applications = self._catalog.graphs.applications
        if answered_by(message.query_id) == applications.seed:
            then(self._catalog.observe(now_ns, message))
            return
        if len(self._relayed) >= self._most:
            then(ErrorReply(message.key, Reason.OVERLOADED, f"{self._most} rows of feedback wait already"))
            return
        token = self._next_token
        self._next_token += 1
        self._relayed[token] = _Relayed(now_ns + self._timeout_ns, message, then)
        shard = self._shards[self._shard_of(message.application)]
        if not shard.link.deliver(RelayFeedback(token, message)):
            self._end(token, ErrorReply(message.key, Reason.CONTROLLER_UNREACHABLE, shard.absent))

    def take(self, now_ns: int, shard: Shard, message: RelayFeedback | FeedbackCounted) -> None:
        """Learn from feedback that came to another gateway, or take in what became of what came here."""
        match message:
            case RelayFeedback(token=token, asked_by=asked_by):
                told = self._catalog.observe(now_ns, message.observe)
                if isinstance(told, ErrorReply):
                    shard.link.deliver(FeedbackCounted(token, asked_by, None, told.reason, told.detail))
                else:
                    shard.link.deliver(FeedbackCounted(token, asked_by, told))
            case FeedbackCounted(token=token) if token in self._relayed:
                observe = self._relayed[token].observe
                if message.told is not None:
                    self._end(token, message.told)
                elif message.reason is not None:
                    self._end(token, ErrorReply(observe.key, message.reason, message.detail))
                else:
                    # No gateway says that the answer is its own: it is as unknown here.
                    self._end(token, self._catalog.observe(now_ns, observe))

    def _shard_of(self, application: str) -> int:
        return self._catalog.graphs.shards.get(application, 0)

    def _end(self, token: int, told: Observed | ErrorReply) -> None:
        self._relayed.pop(token).then(told)

    def lost(self, shard: int) -> None:
        """Tell a controller everything again, whose session ended."""
        self._told.pop(shard, None)
        self._due_ns = 0

    @property
    def busy(self) -> bool:
        """Say whether there is anything to look at where no graph is served."""
        return bool(self._relayed) or any(told.applications for told in self._told.values())

    def look(self, now_ns: int) -> None:
        """Give up feedback that is waited for too long, and tell controllers what changed, if it is time."""
        while self._relayed:
            token, first = next(iter(self._relayed.items()))
            if first.expires_ns > now_ns:
                break
            self._end(token, ErrorReply(first.observe.key, Reason.TIMED_OUT, _SLOW))
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + INTERVAL_NS
        found = [*self._catalog.graphs.reports()]
        for shard in self._shards:
            own = [each for each in found if self._shard_of(each.spec.name) == shard.number]
            message, told = learning(own), self._told.get(shard.number, GatewayLearning())
            if shard.session.welcomed and message != told and shard.link.deliver(message):
                self._told[shard.number] = message


def learning(reports: Sequence[ApplicationReport]) -> GatewayLearning:
    """Return the message of as many reports as it may have."""
    told, size = list[ApplicationReport](), 0
    for each in reports:
        size += len(encode(each))
        if size > MOST_TOLD_BYTES:
            break
        told.append(each)
    return GatewayLearning(tuple(told), len(reports) - len(told))
