"""Event streams of simulated clusters, and what a view of one must have in common with its scheduler."""

from __future__ import annotations

from mainspring.console.view.series import Limits
from mainspring.console.view.view import View
from mainspring.controller.logged_scheduler import about
from mainspring.messages.actions import Command
from mainspring.messages.events import Event, Wakeup
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.scenario import LONGEST_WAIT_NS, random_scenario
from mainspring.telemetry.entries import FORMAT, Entry, SegmentHeader
from tests.cluster.described import described

SECOND = 1_000_000_000
EVERYTHING = Limits(keep_ns=1000 * SECOND)


class Watched:
    """A random cluster in virtual time, with its stream as the controller would write it."""

    def __init__(
        self, seed: int, policy: str = "mainspring", length_ns: int = SECOND, *, shaped: bool = False
    ) -> None:
        """If ``shaped``, some of the models have symbols."""
        self.records: list[tuple[int, Entry]] = []
        self.length_ns = length_ns
        self.simulation = random_scenario(
            seed, policy, length_ns, validate_every=1_000_000, record=self._record, shaped=shaped
        )
        self.scheduler = self.simulation.scheduler
        header = SegmentHeader(FORMAT, 7, True, 1_700_000_000 * SECOND, about(self.scheduler.config))
        self.records.insert(0, (0, header))

    def _record(self, now_ns: int, entry: Event | Command) -> None:
        if not isinstance(entry, Wakeup):
            self.records.append((now_ns, entry))

    def drain(self) -> list[tuple[int, Entry]]:
        """Return the records since the last call."""
        records, self.records = self.records, []
        return records

    def run_ms(self, until_ms: float) -> list[tuple[int, Entry]]:
        """Let virtual time pass up to an instant, and return what was recorded."""
        self.simulation.run(round(until_ms * 1e6))
        return self.drain()

    def everything(self) -> list[tuple[int, Entry]]:
        """Run to the end and return all records from the header on."""
        self.simulation.run(self.length_ns + LONGEST_WAIT_NS)
        return self.drain()


def feed(view: View, records: list[tuple[int, Entry]]) -> None:
    """Let a view take records that a controller has written, none of which contradicts what is known."""
    for now_ns, entry in records:
        view.take(now_ns, entry)
    assert not [each for _, each in view.happened() if "contradicts" in each.text]


def check(view: View, state: SchedulerState) -> None:
    """Compare a view with the scheduler's own state; raise AssertionError at the first difference."""
    mine, own = described(view.cluster), described(state.cluster)
    for key, value in own.items():
        assert mine[key] == value, key
    for name in state.cluster.workers:
        sent = {action_id for lane in view.histories[name].lanes for action_id in lane.sent}
        told = {action.id for lane in view.histories[name].lanes for action in view.outstanding(lane)}
        assert sent <= told, f"{name}: ended actions count as outstanding"


def counted(view: View, name: str) -> tuple[int, int, int, int]:
    """Return a model's requests that arrived, ended in time, ended late and were rejected."""
    arrived, in_time, late, rejected, *_ = view.traffic.model(name).counts
    return arrived, in_time, late, rejected


def never_removed(state: SchedulerState) -> list[str]:
    """Return the models that are served since the beginning: requests of one that was removed count apart."""
    return [name for name, model in state.cluster.models.items() if name == f"m{model.number - 1}"]


def tallied(state: SchedulerState, name: str) -> tuple[int, int, int, int]:
    """Return the same as the scheduler's state has it."""
    counts = state.cluster.models[name].counts
    return counts.arrived, counts.finished, counts.late, counts.rejected
