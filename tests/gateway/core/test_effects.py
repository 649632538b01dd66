"""A refused request was with a controller, which knows of it, or is counted by its gateway: never both."""

from __future__ import annotations

import random
from collections import Counter

from mainspring.gateway.core.effects import Arrive, Effect, Refuse, Withdraw
from mainspring.gateway.core.request_table import OwnRefusals
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Rejected
from tests.fuzz import seeded
from tests.gateway.core.test_state_machine import MS, core_with, submit


class Watched:
    """A core, what it asked a controller for, and what it refused."""

    def __init__(self) -> None:
        self.core: GatewayCore = core_with(2, max_in_flight_per_connection=20)
        self.own = OwnRefusals()
        self.core.observers.add(self.own)
        self.open: set[int] = set()
        """Ids that the controller knows, and has not refused."""
        self.refused: Counter[Reason] = Counter()
        self.by_controller = 0

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Arrive(request_id=request_id):
                    self.open.add(request_id)
                case Withdraw(request_id=request_id):
                    self.open.discard(request_id)
                case Refuse(reason=reason):
                    self.refused[reason] += 1


@seeded(20)
def test_every_refusal_is_known_to_exactly_one(seed: int) -> None:
    rng, watched = random.Random(seed), Watched()
    now_ns = 0
    for key in range(200):
        now_ns += rng.randrange(5 * MS)
        watched.take(submit(watched.core, key, slo_ms=rng.choice([1, 50, None]), now_ns=now_ns))
        if watched.open and rng.random() < 0.4:
            request_id = rng.choice(sorted(watched.open))
            watched.open.discard(request_id)
            watched.by_controller += 1
            watched.core.rejected(0, Rejected(request_id, Reason.DEADLINE_UNREACHABLE, "busy"))
            watched.take(watched.core.drain())
        if rng.random() < 0.1:
            watched.core.tick(now_ns)
            watched.take(watched.core.drain())
    watched.core.shut_down()
    watched.take(submit(watched.core, 999, now_ns=now_ns))
    watched.own.turned_away(InferRequest(1, "gone", (), None), Reason.UNKNOWN_MODEL)
    assert watched.own.counts[Reason.SHUTTING_DOWN] == 1
    assert sum(watched.refused.values()) + 1 == sum(watched.own.counts.values()) + watched.by_controller
    assert watched.by_controller > 10


def test_what_a_client_gives_up_counts_as_refused_by_nobody() -> None:
    watched = Watched()
    watched.take(submit(watched.core, 1))
    watched.core.forget_connection(next(iter(watched.core.requests())).connection)
    assert watched.own.counts == {}
