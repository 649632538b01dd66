"""Everything that the command computes."""

from __future__ import annotations

import msgspec

from mainspring.experiments.ribbon.agreement import Agreement
from mainspring.experiments.ribbon.changed import Changed
from mainspring.experiments.ribbon.convergence import Convergence, Pruning
from mainspring.experiments.ribbon.fresh import Fresh
from mainspring.experiments.ribbon.guided import Guided
from mainspring.experiments.ribbon.instances import Instances
from mainspring.experiments.ribbon.live import Compared
from mainspring.experiments.ribbon.optima import Optimum
from mainspring.experiments.ribbon.served import Served
from mainspring.experiments.ribbon.timings import Timings
from mainspring.experiments.ribbon.watched import Watched


class Report(msgspec.Struct, kw_only=True):
    """What was computed; empty where a part was not asked for."""

    agreement: list[Agreement] = []
    optima: list[Optimum] = []
    searches: list[Convergence] = []
    pruning: list[Pruning] = []
    guided: list[Guided] = []
    load: list[Changed] = []
    served: list[Served] = []
    fresh: list[Fresh] = []
    timings: list[Timings] = []
    live: list[Compared] = []
    watched: list[Watched] = []
    instances: Instances | None = None
