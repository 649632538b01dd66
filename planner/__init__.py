"""Plans: the cheapest pool of unlike devices that keeps a promise (Ribbon, SC '21).

`plan` takes a simulation's spec whose counts of devices are left open, and finds them.
"""

from __future__ import annotations

from mainspring.planner.plan import Plan, plan
from mainspring.planner.problem import PlanError

__all__ = ["Plan", "PlanError", "plan"]
