"""Gateways' reports on their applications, with the weights of the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mainspring.messages.applications import MemberReport
from mainspring.messages.learning import GatewayLearning, LearningOfGateways

MOST_SECONDS = 300
"""Seconds whose weights are remembered."""
_SECOND_NS = 1_000_000_000

Weights = dict[str, float]
"""Weight of each member."""


class LearningView:
    """The newest reports, and each application's weights of late."""

    def __init__(self) -> None:
        self.gateways: dict[str, GatewayLearning] = {}
        """The newest message of each gateway, by its name."""
        self._course: dict[str, deque[tuple[int, Weights]]] = {}
        """The second, and the weights from then on, by application."""

    def take(self, now_ns: int, told: LearningOfGateways) -> None:
        """Take in what gateways told at an instant."""
        self.gateways = told.gateways
        reports = [each for gateway in told.gateways.values() for each in gateway.applications]
        names = {each.spec.name for each in reports}
        for name in self._course.keys() - names:
            del self._course[name]
        for name in names:
            own: dict[str, list[MemberReport]] = {}
            for report in reports:
                for each in report.members if report.spec.name == name else ():
                    own.setdefault(each.member, []).append(each)
            weights = {member: mean_weight(each) for member, each in own.items()}
            course = self._course.setdefault(name, deque(maxlen=MOST_SECONDS))
            if course and course[-1][0] == now_ns // _SECOND_NS:
                course.pop()
            course.append((now_ns // _SECOND_NS, weights))

    def weights(self, application: str, now_ns: int) -> dict[str, list[float | None]]:
        """Return each member's weight in each of the last `MOST_SECONDS` seconds; None before it was told."""
        course = self._course.get(application, ())
        first = now_ns // _SECOND_NS - MOST_SECONDS + 1
        members = dict.fromkeys(member for _, weights in course for member in weights)
        found: dict[str, list[float | None]] = {each: [None] * MOST_SECONDS for each in members}
        for (second, weights), (until, _) in zip(
            course, [*list(course)[1:], (first + MOST_SECONDS, {})], strict=True
        ):
            for at in range(max(0, second - first), min(until - first, MOST_SECONDS)):
                for member, weight in weights.items():
                    found[member][at] = weight
        return found


def mean_weight(reports: Sequence[MemberReport]) -> float:
    """Return the mean of gateways' weights of a member, by how often each of them asked it."""
    asked = sum(each.asked for each in reports)
    if not asked:
        return sum(each.weight for each in reports) / len(reports)
    return sum(each.weight * each.asked for each in reports) / asked
