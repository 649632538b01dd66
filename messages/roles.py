"""The roles of processes, and the messages that each may send to each other in a conversation.

A connection proves its role before its first message (`transport.handshake`); the receiver refuses what is
not in this table. Where one end has a vocabulary of its own (`codec`), the table and the vocabulary are the
same.
"""

from __future__ import annotations

import typing
from enum import StrEnum

import msgspec

from mainspring.messages import (
    actions,
    clients,
    following,
    learning,
    observing,
    operating,
    peers,
    repository,
    scaling,
    served,
    sharding,
)
from mainspring.messages.limits import TokensUsed
from mainspring.messages.queries import StepsKnown


class Role(StrEnum):
    """The role of a process at a connection."""

    CONTROLLER = "controller"
    WORKER = "worker"
    GATEWAY = "gateway"
    OBSERVER = "observer"
    """Watches: gets the event stream and changes nothing."""
    OPERATOR = "operator"
    """A console that passes operators' commands on, once it has checked who they are; watches as well."""
    REPOSITORY = "repository"
    """Keeps the cluster as a model repository says: a gateway without clients."""
    PROVIDER = "provider"
    """Starts and stops workers as the controller says."""
    CLIENT = "client"
    """Asks a gateway of its host and user for inference, over a connection like those between processes."""


def _types(*unions: object) -> frozenset[type[msgspec.Struct]]:
    return frozenset(each for union in unions for each in (typing.get_args(union) or (union,)))


_AS_GATEWAY = _types(
    *(peers.GatewayHello, peers.Pong, peers.Goodbye, peers.Deposed, peers.AdminRequest, peers.Drained)
)
_FROM_REPOSITORY = _AS_GATEWAY | {served.Awaited}
_FROM_GATEWAY = _AS_GATEWAY | _types(
    *(peers.Arrival, peers.QueryArrival, StepsKnown, peers.Cancel, sharding.ShardMap),
    *(learning.GatewayLearning, learning.RelayFeedback, learning.FeedbackCounted, TokensUsed),
)
_FROM_OBSERVER = _types(observing.ObserverHello, peers.Pong, peers.Goodbye)

MAY_SAY: dict[tuple[Role, Role], frozenset[type[msgspec.Struct]]] = {
    (Role.WORKER, Role.CONTROLLER): _types(
        *(peers.WorkerHello, peers.Pong, peers.Goodbye, peers.Deposed, peers.Restored, peers.Described),
        actions.Result,
    ),
    (Role.GATEWAY, Role.CONTROLLER): _FROM_GATEWAY,
    (Role.REPOSITORY, Role.CONTROLLER): _FROM_REPOSITORY,
    (Role.OBSERVER, Role.CONTROLLER): _FROM_OBSERVER,
    (Role.OPERATOR, Role.CONTROLLER): _FROM_OBSERVER | {operating.Operate},
    (Role.PROVIDER, Role.CONTROLLER): _types(
        scaling.ProviderHello, scaling.Running, peers.Pong, peers.Goodbye
    ),
    # One that stands by to the one that leads; back come `following.ToFollower`.
    (Role.CONTROLLER, Role.CONTROLLER): _types(following.Followed),
    (Role.CONTROLLER, Role.PROVIDER): _types(peers.ToProvider),
    (Role.CONTROLLER, Role.WORKER): _types(peers.ToWorker, actions.Action),
    (Role.CONTROLLER, Role.GATEWAY): _types(peers.ToGateway),
    (Role.CONTROLLER, Role.REPOSITORY): _types(peers.ToGateway),
    (Role.CONTROLLER, Role.OBSERVER): _types(peers.ToWorker, observing.ToObserver) - {operating.Operated},
    (Role.CONTROLLER, Role.OPERATOR): _types(peers.ToWorker, observing.ToObserver),
    (Role.GATEWAY, Role.WORKER): _types(peers.Input),
    (Role.WORKER, Role.GATEWAY): _types(peers.Output),
    (Role.GATEWAY, Role.REPOSITORY): _types(repository.Question),
    (Role.REPOSITORY, Role.GATEWAY): _types(repository.Reply),
    (Role.CLIENT, Role.GATEWAY): _types(clients.FromClient),
    (Role.GATEWAY, Role.CLIENT): _types(clients.ToClient),
}
"""The messages of a sender to a receiver; other pairs have no conversation."""


def may_connect(to: Role) -> tuple[Role, ...]:
    """Return the roles that have something to say to this one and connect to it."""
    return tuple(sender for sender, receiver in MAY_SAY if receiver is to)


def fault(sender: Role, receiver: Role, message: msgspec.Struct) -> str | None:
    """Return why a message is not to be taken from this sender; None if it is."""
    if type(message) in MAY_SAY.get((sender, receiver), ()):
        return None
    article = "an" if sender[0] in "aeiou" else "a"
    return f"{article} {sender} may not send {type(message).__name__} to the {receiver}"
