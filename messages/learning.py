"""Feedback for applications, and reports of what they learnt.

Clients tell gateways; these tell the controller and, through it, observers and one another.
"""

from __future__ import annotations

import msgspec

from mainspring.messages.applications import ApplicationReport
from mainspring.messages.codes import Reason

MOST_TOLD_BYTES = 256 << 10
"""Bytes of reports in one message, encoded."""


class Observe(msgspec.Struct, frozen=True, tag="observe", omit_defaults=True):
    """Tell an application what came true of an answer; the reply is `Observed`."""

    key: int
    application: str
    query_id: int
    """Same as `Learnt.query_id`."""
    truth: tuple[int | float | str, ...] = ()
    """Number of the class, label or value, for each of ``rows``."""
    rewards: tuple[float, ...] = ()
    """Reward of each of ``rows``, from 0 to 1, in place of ``truth``."""
    rows: tuple[int, ...] = ()
    """Rows of the request; empty: the first ones, as many as there is feedback for."""


class Observed(msgspec.Struct, frozen=True, tag="observed", omit_defaults=True):
    """The rows of feedback by what became of them."""

    key: int
    joined: int = 0
    late: int = 0
    """The answer is not kept any more."""
    duplicate: int = 0
    """There was feedback before."""
    unknown: int = 0
    """No gateway that is there gave such an answer."""


class GatewayLearning(msgspec.Struct, frozen=True, tag="learning"):
    """Report of a gateway on its applications: at most once a second, if it has changed."""

    applications: tuple[ApplicationReport, ...] = ()
    more: int = 0
    """Number of applications that are left out, because the message would be too long."""


class RelayFeedback(msgspec.Struct, frozen=True, tag="relay_feedback"):
    """Feedback for an answer of another gateway, which the controller passes on to that one."""

    token: int
    """The asking gateway's own, which `FeedbackCounted` brings back."""
    observe: Observe
    asked_by: int = 0
    """The asking gateway's session, entered by the controller."""


class FeedbackCounted(msgspec.Struct, frozen=True, tag="feedback_counted"):
    """Fate of relayed feedback, on its way back."""

    token: int
    asked_by: int
    told: Observed | None = None
    reason: Reason | None = None
    """Reason why the feedback can't be. Without this and ``told``, no gateway gave the answer."""
    detail: str = ""


class LearningOfGateways(msgspec.Struct, frozen=True, tag="learning_of_gateways"):
    """Newest reports of gateways on their applications, for observers: once a second, if one has changed."""

    gateways: dict[str, GatewayLearning] = {}


AboutFeedback = RelayFeedback | FeedbackCounted


def answered_by(query_id: int) -> int:
    """Return the seed of the gateway that gave an answer."""
    return query_id >> 32
