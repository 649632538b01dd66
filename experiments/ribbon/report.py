"""Everything that the command computes."""

from __future__ import annotations

import msgspec

from mainspring.experiments.ribbon.agreement import Agreement
from mainspring.experiments.ribbon.fresh import Fresh
from mainspring.experiments.ribbon.optima import Optimum
from mainspring.experiments.ribbon.served import Served


class Report(msgspec.Struct, kw_only=True):
    """What was computed; empty where a part was not asked for."""

    agreement: list[Agreement] = []
    optima: list[Optimum] = []
    served: list[Served] = []
    fresh: list[Fresh] = []
