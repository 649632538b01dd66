"""Many cells on all cores, and the table that they make."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import TypeVar

from rich.table import Table

from mainspring.experiments.policies.cell import Cell, Job, play_cell
from mainspring.experiments.policies.constants import changed
from mainspring.experiments.policies.scenarios import SCENARIOS

Of = TypeVar("Of")


def play_all(jobs: Sequence[Job], processes: int) -> Iterator[Cell]:
    """Play jobs side by side and yield what came of each, in the order of the jobs.

    Raises what a job raises: ValueError for a policy that there is not.
    """
    yield from on_all_cores(_play, jobs, processes)


def on_all_cores(play: Callable[[Job], Of], jobs: Sequence[Job], processes: int) -> Iterator[Of]:
    """Yield what a function makes of each job, in their order; it runs in as many processes side by side."""
    if processes == 1 or len(jobs) == 1:
        yield from map(play, jobs)
        return
    # Numpy's own threads would take the cores from one another.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        yield from pool.imap(play, jobs)


def _play(job: Job) -> Cell:
    with changed(job.constants):
        return play_cell(job)


class Results:
    """Cells by policy, scenario and load; several seeds are averaged."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells: dict[tuple[str, str, float], list[Cell]] = {}
        for cell in cells:
            self._cells.setdefault((cell.job.policy, cell.job.scenario, cell.job.load), []).append(cell)

    @property
    def policies(self) -> list[str]:
        """Policies in the order of their first cells."""
        return list(dict.fromkeys(policy for policy, _, _ in self._cells))

    @property
    def scenarios(self) -> list[str]:
        """Scenarios likewise."""
        return list(dict.fromkeys(scenario for _, scenario, _ in self._cells))

    @property
    def loads(self) -> list[float]:
        """Loads likewise."""
        return list(dict.fromkeys(load for _, _, load in self._cells))

    @property
    def whole(self) -> str:
        """Return what goodput is a share of: the bound or, without one, the offered rate."""
        cells = [cell for each in self._cells.values() for cell in each]
        if any(cell.bound is None for cell in cells):
            return "what was offered"
        floors = {cell.job.fairness for cell in cells} - {0.0}
        return f"the bound under the floor of fairness {min(floors):g}" if floors else "the bound"

    def of_bound(self, policy: str, scenario: str, load: float) -> float | None:
        """Return goodput as a part of what was possible, of what was offered without a bound."""
        cells = self._cells.get((policy, scenario, load))
        if not cells:
            return None
        return fmean(cell.in_time if cell.of_bound is None else cell.of_bound for cell in cells)

    def worst_tenth(self, policy: str, scenario: str, load: float) -> float | None:
        """Return the share of answers over the tenth of models that were served worst."""
        cells = self._cells.get((policy, scenario, load))
        return fmean(cell.worst_tenth for cell in cells) if cells else None

    def unanswered(self, policy: str, scenario: str, load: float) -> float:
        """Return the models without an answer in time, likewise."""
        return fmean(cell.unanswered for cell in self._cells[policy, scenario, load])

    def mean_of_bound(self, policy: str, load: float) -> float:
        """Return the mean over all scenarios that were played."""
        values = [self.of_bound(policy, scenario, load) for scenario in self.scenarios]
        return fmean(value for value in values if value is not None)

    def table(self) -> Table:
        """Return goodput in % of the bound, and in brackets the worst tenth's share and the models without an
        answer, at each load."""
        loads = " / ".join(f"{load:g}x" for load in self.loads)
        title = (
            f"goodput in % of {self.whole}, the worst tenth's share in %, and models without an answer, "
            f"at {loads}"
        )
        table = Table(title=title)
        table.add_column("scenario")
        for policy in self.policies:
            table.add_column(policy, justify="right")
        for scenario in self.scenarios:
            title = f"{scenario}: {SCENARIOS[scenario].title}"
            table.add_row(title, *(self._entry(policy, scenario) for policy in self.policies))
        means = [
            " / ".join(f"{100 * self.mean_of_bound(policy, load):.1f}" for load in self.loads)
            for policy in self.policies
        ]
        table.add_row("mean", *means)
        return table

    def _entry(self, policy: str, scenario: str) -> str:
        goods = [self.of_bound(policy, scenario, load) for load in self.loads]
        worsts = [self.worst_tenth(policy, scenario, load) for load in self.loads]
        good = " / ".join("-" if value is None else f"{100 * value:.1f}" for value in goods)
        worst = " / ".join("-" if value is None else f"{100 * value:.0f}" for value in worsts)
        without = " / ".join(
            "-"
            if (policy, scenario, load) not in self._cells
            else f"{self.unanswered(policy, scenario, load):g}"
            for load in self.loads
        )
        weighed = [
            cell.weighed for load in self.loads for cell in self._cells.get((policy, scenario, load), [])
        ]
        giants = [f"{100 * value:.0f}" for value in weighed if value is not None]
        return f"{good} ({worst}; {without})" + (f", weighed {' / '.join(giants)}" if giants else "")
