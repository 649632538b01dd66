"""Clockwork's policy with the constants and the habits of the released code.

What the published sources do and the paper (appendix B) does not say, as far as it decides who is served:

* executors are given 10 ms of work in advance, 5 ms are taken off each SLO, and batches have 8 rows at most
  although 16 are compiled;
* every batch size that a model has enough requests for has its strategy in the queue: the one with the
  earliest required start decides whose turn it is, and the largest batch of that model that can be filled
  is run;
* only requests of the last 25 ms count as demand for a LOAD;
* nothing is rejected on arrival: requests wait until no dispatch could save them.

Left out are its faults (no time-out for a worker that is silent, models fixed at the start), and what this
core does in its own way: estimates for each kind of device in place of one scaled by the device's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import msgspec

from mainspring.scheduler.config import SchedulerConfig, completed, milliseconds
from mainspring.scheduler.policies.batching import fitting, largest_index
from mainspring.scheduler.policies.clockwork import Clockwork
from mainspring.scheduler.policies.demand import DemandLoads
from mainspring.scheduler.policies.options import ReleaseOptions
from mainspring.scheduler.policies.ready_queue import ready_by_ns

if TYPE_CHECKING:
    from mainspring.cluster.placements import Placement
    from mainspring.scheduler.state import SchedulerState

SLO_BUFFER_MS = 5.0
"""Taken off each SLO, if `SchedulerConfig.response_margin_ms` does not take off more."""


class ClockworkRelease(Clockwork):
    """Clockwork as released."""

    name: ClassVar[str] = "clockwork-release"
    Options: ClassVar[type[msgspec.Struct]] = ReleaseOptions
    lookahead_ms: ClassVar[float] = 10.0
    refuses: ClassVar[bool] = False

    @classmethod
    def complete(cls, config: SchedulerConfig) -> SchedulerConfig:
        """Return the configuration with what it leaves to the policy, and the buffer off each SLO."""
        margin_ms = max(config.response_margin_ms, SLO_BUFFER_MS)
        config = completed(config, cls.lookahead_ms, cls.pads_batches, cls.idle_loads)
        return msgspec.structs.replace(config, response_margin_ms=margin_ms)

    def __init__(self, state: SchedulerState, options: msgspec.Struct) -> None:
        super().__init__(state, options)
        self._largest = cast(ReleaseOptions, options).largest_batch

    def _make_loads(self) -> DemandLoads:
        options = cast(ReleaseOptions, self.options)
        return DemandLoads(self.state, milliseconds(options.load_slo_ms))

    def candidate(
        self, now_ns: int, placement: Placement, available_ns: int, inputs_ns: int
    ) -> tuple[int, int, int] | None:
        """Return (earliest required start, index of the largest size, its first request's index).

        The earliest required start is that of any size which the model has enough requests for.
        """
        queue, times = placement.model.queue, placement.times
        begin_ns = ready_by_ns(now_ns, placement, available_ns, inputs_ns + times.transfer_ns[0])
        if begin_ns is None:
            return None
        found: tuple[int, int, int] | None = None
        for index in range(largest_index(placement.model), -1, -1):
            first, rows = fitting(queue, times, index, begin_ns, inputs_ns)
            if not rows:
                continue
            size, below = times.sizes[index], times.sizes[index - 1] if index else 0
            if index == 0 or queue.rows_at(first) > below or (size <= self._largest and rows == size):
                required_ns = queue.dues[first] - times.ns[index]
                if found is None:
                    found = required_ns, index, first
                elif required_ns < found[0]:
                    found = required_ns, found[1], found[2]
        return found
