"""The member of a family that answers, chosen by its score and the price of a device's time. Pure.

Requests that come faster than the best member can serve them need smaller answers. To serve them all with the
highest total score is a linear program: each member's share of the requests, subject to the devices' time.
Its dual has one price, of a unit of that time, and at the right price each request gets the member of the
highest score less price times the time of its rows. The right price follows from the work that waits, as in a
queue under drift-plus-penalty control: it is 0 while a device has little to do, and rises to the price at
which the smallest member is chosen well before what waits fills a request's time. In between the backlog
rests where as much is chosen as can be done (Proteus, Loki and SuperServe solve the program again by the
second; here it is never solved).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

FREE: Final = 0.2
"""Part of a request's time that may be spent waiting before time has a price."""
DEAREST: Final = 0.55
"""Part of it at which time has the price of the last exchange, of the smallest member for the one before."""
BEYOND: Final = 1.25
"""Price at `DEAREST` as a multiple of that of the last exchange, which it has to pass."""
REMEMBERED_NS: Final = 10_000_000_000
"""Time for which the last exchange of a family that nobody asks for counts for others."""


class Offer(NamedTuple):
    """Answer that a member could give for a step."""

    model: str
    score: float
    finish_ns: int
    """Predicted end of the step."""
    row_ns: float
    """Time of a device for one row, in the batches that are forming."""
    wait_ns: int
    """Time until a device would begin it."""


class Choice(NamedTuple):
    """A member, and the price at which it was chosen, in score for a second of a device."""

    offer: Offer
    price: float


def exchanges(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the prices at which the linear program goes from one member to the next, ascending.

    ``points`` are (time, score) of members. They are the slopes of the upper hull of these, in score by time;
    a member below the hull is never a part of an optimum.
    """
    hull: list[tuple[float, float]] = []
    for time, score in sorted(points, key=lambda each: (each[0], -each[1])):
        if hull and (score <= hull[-1][1] or time <= hull[-1][0]):
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (time, score)):
            hull.pop()
        hull.append((time, score))
    return [_slope(*each) for each in pairwise(hull)][::-1]


def _slope(before: tuple[float, float], behind: tuple[float, float]) -> float:
    return (behind[1] - before[1]) / (behind[0] - before[0])


class Prices:
    """The price of time, one for all families, so that those that lose least by it give way first."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], tuple[float, int]] = {}
        """The dearest exchange of each family by its members, and when it was last asked for."""

    def choose(self, now_ns: int, offers: Sequence[Offer], due_ns: int | None) -> Choice | None:
        """Return the member for a step that is due at an instant; None if none would be in time.

        Without a deadline nothing has a price, and the best member is chosen that there is. ``offers`` are in
        the order of their scores, the best first, which wins where two are worth the same.
        """
        if offers and is_free(now_ns, offers[0], due_ns):
            return Choice(offers[0], 0.0)
        if due_ns is None:
            return None
        dearest = self._dearest(now_ns, offers)
        left_ns = due_ns - now_ns
        found: Choice | None = None
        most = 0.0
        for offer in offers:
            if offer.finish_ns > due_ns:
                continue
            price = price_of(offer.wait_ns, left_ns, dearest)
            worth = offer.score - price * offer.row_ns
            if found is None or worth > most:
                found, most = Choice(offer, price * 1e9), worth
        return found

    def _dearest(self, now_ns: int, offers: Sequence[Offer]) -> float:
        """Return the price of the dearest exchange of all families that were asked for lately."""
        found = exchanges([(each.row_ns, each.score) for each in offers])
        self._last[tuple([each.model for each in offers])] = (found[-1] if found else 0.0), now_ns
        until_ns = now_ns - REMEMBERED_NS
        self._last = {key: each for key, each in self._last.items() if each[1] >= until_ns}
        return max([price for price, _ in self._last.values()])


def is_free(now_ns: int, best: Offer, due_ns: int | None) -> bool:
    """Return whether the best member is chosen whatever the others offer: time has no price for it."""
    return due_ns is None or (best.finish_ns <= due_ns and best.wait_ns <= FREE * (due_ns - now_ns))


def price_of(wait_ns: int, left_ns: int, dearest: float) -> float:
    """Return the price of a ns of a device's time where a request of so much time left would wait so long."""
    if left_ns <= 0:
        return BEYOND * dearest
    part = (wait_ns / left_ns - FREE) / (DEAREST - FREE)
    return BEYOND * dearest * min(1.0, max(0.0, part))
