"""One run of an experiment: the same description is simulated and served live."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainspring.experiments.figures.outcomes import Outcomes
from mainspring.telemetry.report import Summary
from mainspring.telemetry.summary import Analysis
from mainspring.traces.arrival import SECOND_NS
from mainspring.traces.source import Playable


@dataclass(frozen=True)
class Case:
    """A cluster, a policy and a workload."""

    label: str
    policy: str
    table: str
    """CSV text of the profiles; see `profiles.py`."""
    copies: int
    """Models of each row."""
    devices: int
    pages: int
    """Of each device, 16 MiB each."""
    workload: Playable
    length_s: float
    """Until the last request, warm-up included."""
    warm_up_s: float = 0.0
    """What is sent before is not counted."""
    seed: int = 0
    preloaded: bool = True
    """Whether devices hold models from the start, as many as fit."""
    costed: bool = False
    """Whether a simulation measures the scheduler's own CPU too (instead of analysing its log)."""
    log: bool = False
    """Whether the figure needs what only the event log tells."""
    facts: dict[str, float] = field(default_factory=dict)
    """What sets this case apart from the others of its experiment: its place on the axes."""

    @property
    def length_ns(self) -> int:
        """`length_s` in nanoseconds."""
        return round(self.length_s * SECOND_NS)


@dataclass(frozen=True)
class Observed:
    """What came of a case."""

    summary: Summary
    outcomes: Outcomes
    analysis: Analysis | None
    """Of the event log, for cases with `Case.log`."""
    wall_s: float
    """How long the run took in real time."""
    scheduler_us: float | None
    """The scheduler's own CPU for each request in microseconds; None where it was not measured."""
