"""LOADs by what they bring: requests saved for each millisecond of the way to the device.

The load priority of Clockwork's appendix B is unfulfilled work in device time. Divided by a request's time
it is unfulfilled requests; divided by the LOAD's own time, requests for what the LOAD costs: a model of
long executions and large weights does not go before many small ones. Evicted is who was asked for least
(`Popularity`).
"""

from __future__ import annotations

import math

from mainspring.scheduler.books import Books
from mainspring.scheduler.mirror import Model, Placement
from mainspring.scheduler.placing import LoadPlan, plan_load
from mainspring.scheduler.policies.demand import DemandTracker
from mainspring.scheduler.policies.demand_loads import DemandLoads
from mainspring.scheduler.policies.popularity import Popularity

SCALE = 10**15
"""Makes whole numbers of requests for each nanosecond."""
MOST_BOOST = 4.0
"""As if 50 times as many requests waited: what no LOAD can save does not keep the others from theirs."""


class WorthTracker(DemandTracker):
    """Orders models by requests for each millisecond of LOAD."""

    def worth(self, model: Model, priority_ns: int) -> int:
        """Return unfulfilled requests for each nanosecond of LOAD, scaled; boosted models count for more."""
        cost = 0
        for kind, times in model.infer_times.items():
            here = times.ns[0] * model.load_times[kind].ns
            if not cost or here < cost:
                cost = here
        worth = SCALE * priority_ns // max(1, cost)
        return int(worth * math.exp(min(model.boost, MOST_BOOST))) if model.boost else worth


class WorthLoads(DemandLoads):
    """Answers `Policy.next_load` by worth, and evicts by popularity."""

    def __init__(self, books: Books, popularity: Popularity) -> None:
        super().__init__(books)
        self._demand = WorthTracker(books)
        self._popularity = popularity

    def plan(self, placement: Placement) -> LoadPlan | None:
        """Find pages for a model that requests wait for."""
        return plan_load(placement, victims=self._popularity.victims(placement.worker))
