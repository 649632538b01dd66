"""The least device time that a query needs where queries share executions: its part of the best batch.

A batch of size B that holds queries of r1, r2, ... rows takes t(B), and r1 + r2 + ... <= B; so it takes at
least the sum of r * t(B) / B. A query's part is that of the size of which a row costs least, among those that
hold the query. By medians: what is drawn, is drawn for an execution and not for a query.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainspring.messages.model import ModelSpec
from mainspring.planner.kernel import Whole
from mainspring.simulator.spec import DeviceGroup, SimulationSpec

Values = npt.NDArray[np.float64]
ONE_BY_ONE = ("first-free",)
"""Policies that never run two queries in one execution."""


def shares_executions(spec: SimulationSpec) -> bool:
    """Return whether a spec's policy may run several queries in one execution."""
    return spec.scheduler.policy not in ONE_BY_ONE


def shared_ns(
    groups: tuple[DeviceGroup, ...], models: tuple[ModelSpec, ...], model_of: Whole, rows: Whole
) -> Values:
    """Return the least time of each query on each kind, a row for each kind."""
    found = np.zeros((len(groups), len(rows)))
    for place, model in enumerate(models):
        mine = np.flatnonzero(model_of == place)
        for number, group in enumerate(groups):
            infer_ns = model.profiles[group.kind].infer_ns
            sizes = np.array(sorted(infer_ns), np.int64)
            of_row = np.array([infer_ns[size] / size for size in sizes.tolist()])
            least = np.minimum.accumulate(of_row[::-1])[::-1]
            found[number, mine] = rows[mine] * least[np.searchsorted(sizes, rows[mine])]
    return found
