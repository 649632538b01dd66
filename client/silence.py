"""A gateway of several that gives no reply is doubted early enough for another one to answer in time.

Its connection may stand still, or those that it has to workers and to the controller. One request is then
tried at another gateway, too: when nothing has come back for a part of that request's SLO. If it is answered
there before the first gateway gives any reply, all that waits there is sent again elsewhere. Else the doubt
was false: it has cost one request, and the next such attempt is made after a pause that grows. So neither an
overloaded gateway nor a slow model has its requests executed twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mainspring.client.requests import InferCall

PART: Final = 4
"""Divisor of a request's SLO: nothing has come back for this long when it is tried elsewhere."""
LEAST_NS: Final = 50_000_000
"""No gateway is doubted sooner."""
_LOOK_NS: Final = 25_000_000
"""Time between two looks at the requests of a gateway that gives no reply."""
_STOOD_NS: Final = 100_000_000
"""Longest delay of a look; a longer one shows that the client itself has stood still."""
_FIRST_PAUSE_NS: Final = 1_000_000_000
_LONGEST_PAUSE_NS: Final = 16_000_000_000
_DOUBTED_NS: Final = 5_000_000_000
"""Time for which a gateway is left, unless it gives a reply before."""


class Silence:
    """Doubts of one gateway, by its replies; all instants are on the client's monotonic clock."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        """Instant of the last reply, or since when something waits for one."""
        self._look_ns: int | None = None
        """Instant of the next look; None while nothing waits."""
        self._quiet_until_ns = now_ns
        self._pause_ns = _FIRST_PAUSE_NS
        self._doubted_ns: int | None = None
        self.tried: InferCall | None = None
        """The request that another gateway has too."""

    def heard(self, now_ns: int) -> None:
        """Note a reply to any request."""
        self._since_ns = now_ns
        self._doubted_ns = None
        if self.tried is not None:
            self.undecided(now_ns)

    def undecided(self, now_ns: int) -> None:
        """Note that the attempt has shown nothing; the next one is made later."""
        self.tried = None
        self._quiet_until_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)

    def confirmed(self, now_ns: int) -> None:
        """Note that another gateway has answered what was tried there: this one is left for a while."""
        self.tried = None
        self._pause_ns = _FIRST_PAUSE_NS
        self._doubted_ns = now_ns

    def doubted(self, now_ns: int) -> bool:
        """Return whether requests had better go elsewhere."""
        return self._doubted_ns is not None and now_ns - self._doubted_ns < _DOUBTED_NS

    def next_look_ns(self) -> int | None:
        """Return when `look` is to be called next; None once something is sent."""
        return self._look_ns

    def look(self, now_ns: int, sent: Iterable[InferCall]) -> InferCall | None:
        """Return the request that is to be tried elsewhere now, None if none is.

        ``sent`` are those without a reply that another gateway may have.
        """
        due_ns = self._look_ns
        if due_ns is not None:
            if now_ns < due_ns:
                return None
            if now_ns - due_ns > _STOOD_NS:
                # The client itself has stood still, and replies with it.
                self._since_ns += now_ns - due_ns
            if now_ns < self._since_ns + LEAST_NS:
                self._look_ns = self._since_ns + LEAST_NS
                return None
        calls = [call for call in sent if call.deadline_ns is not None]
        if due_ns is None or not calls:
            self._since_ns = max(self._since_ns, now_ns)
        self._look_ns = max(now_ns + _LOOK_NS, self._since_ns + LEAST_NS) if calls else None
        if self.tried is not None or now_ns < self._quiet_until_ns:
            return None
        due = [call for call in calls if self._due_ns(call) <= now_ns < _deadline(call)]
        self.tried = min(due, key=_deadline, default=None)
        return self.tried

    def _due_ns(self, call: InferCall) -> int:
        slo_ns = _deadline(call) - call.called_ns
        return max(self._since_ns, call.since_ns) + max(LEAST_NS, slo_ns // PART)


def _deadline(call: InferCall) -> int:
    return call.deadline_ns or 0
