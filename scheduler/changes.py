"""What whoever changes the cluster needs: the parts of the scheduler that have to know of it."""

from __future__ import annotations

from mainspring.scheduler.books import Books
from mainspring.scheduler.idle import Backlog
from mainspring.scheduler.intake import Intake
from mainspring.scheduler.pins import Pins
from mainspring.scheduler.policies.base import Policy
from mainspring.scheduler.residency import Residency


class Changes:
    """Base of those that change the cluster while requests are served, each for its own reasons."""

    def __init__(
        self,
        books: Books,
        policy: Policy,
        residency: Residency,
        backlog: Backlog,
        intake: Intake,
        pins: Pins,
    ) -> None:
        self._books = books
        self._policy = policy
        self._residency = residency
        self._backlog = backlog
        self._intake = intake
        self._pins = pins
