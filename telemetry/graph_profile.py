"""A graph's profile by an event log: rows of each step, which conditions go together, durations.

InferLine's profiler (SoCC '20, section 4.1), of the queries that a cluster served instead of a sample that is
sent through. It reads records in order and keeps a few numbers for each query.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import msgspec
import numpy as np

from mainspring.messages.actions import Command, Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import Event, QueryArrived, RequestArrived, WorkerJoined
from mainspring.messages.queries import QueryStep


class StepProfile(msgspec.Struct, frozen=True):
    """A step as queries had it."""

    name: str
    model: str
    after: tuple[str, ...]
    share: float
    """Rows for each row of the steps before it, in the mean: InferLine's scale factor, step by step."""
    queries: float
    """The share of the queries that came to it."""


class Together(msgspec.Struct, frozen=True):
    """Two steps to which some queries come and some don't."""

    steps: tuple[str, str]
    both: float
    """The share of the queries that came to both."""
    independent: float
    """The same if one told nothing of the other."""


class GraphProfile(msgspec.Struct, frozen=True):
    """A graph's profile."""

    graph: str
    queries: int
    steps: tuple[StepProfile, ...]
    together: tuple[Together, ...]
    infer_ms: dict[str, dict[str, dict[int, float]]]
    """Median durations by model, kind of device and batch size."""


class GraphProfiler:
    """Reads records of a log: `take` each, then `finish`."""

    def __init__(self, graph: str) -> None:
        self._graph = graph
        self._steps: tuple[QueryStep, ...] = ()
        self._rows: dict[int, list[int]] = {}
        """Rows of each step, by query."""
        self._kinds: dict[str, str] = {}
        self._infers: dict[int, Infer] = {}
        self._took: dict[tuple[str, str, int], list[int]] = {}

    def take(self, entry: Event | Command) -> None:
        """Take a record in."""
        match entry:
            case WorkerJoined(worker=worker, device_kind=kind):
                self._kinds[worker] = kind
            case QueryArrived(query_id=query, graph=self._graph, steps=steps):
                if len(steps) != len(self._steps):
                    # The graph was replaced by another one.
                    self._rows.clear()
                self._steps = steps
                self._rows[query] = [0] * len(steps)
            case RequestArrived(query=query, step=step, rows=rows) if query in self._rows:
                self._rows[query][step] += rows
            case Infer():
                self._infers[entry.action_id] = entry
            case Result():
                self._ended(entry)

    def _ended(self, result: Result) -> None:
        infer = self._infers.pop(result.action_id, None)
        if infer is not None and result.status is Status.OK:
            key = infer.model, self._kinds.get(infer.worker, ""), infer.batch_size
            self._took.setdefault(key, []).append(result.end_ns - result.begin_ns)

    def finish(self) -> GraphProfile | None:
        """Return the profile; None if no query of the graph came."""
        if not self._rows:
            return None
        rows = np.array(list(self._rows.values()))
        # Queries that were refused, or still run, have not come to their first steps.
        rows = rows[rows.sum(axis=1) > 0]
        if not len(rows):
            return None
        came = rows > 0
        steps = tuple(self._step(place, rows, came) for place in range(len(self._steps)))
        return GraphProfile(
            graph=self._graph,
            queries=len(rows),
            steps=steps,
            together=tuple(_together(steps, came)),
            infer_ms=self._durations({step.model for step in steps}),
        )

    def _step(self, place: int, rows: np.ndarray, came: np.ndarray) -> StepProfile:
        step = self._steps[place]
        before = np.minimum.reduce([rows[:, each] for each in step.after]) if step.after else rows[:, place]
        return StepProfile(
            step.name or step.model,
            step.model,
            tuple(self._steps[each].name or self._steps[each].model for each in step.after),
            float(rows[:, place].sum() / max(1, before.sum())),
            float(came[:, place].mean()),
        )

    def _durations(self, models: Iterable[str]) -> dict[str, dict[str, dict[int, float]]]:
        found: dict[str, dict[str, dict[int, float]]] = {}
        for (model, kind, size), took_ns in sorted(self._took.items()):
            if model in models:
                found.setdefault(model, {}).setdefault(kind, {})[size] = float(np.median(took_ns)) / 1e6
        return found


def _together(steps: tuple[StepProfile, ...], came: np.ndarray) -> Iterable[Together]:
    """Yield each pair of steps that are not always there, and of which neither waits for the other."""
    seldom = [place for place, step in enumerate(steps) if 0 < step.queries < 1]
    for one, other in combinations(seldom, 2):
        if steps[one].name not in steps[other].after:
            yield Together(
                (steps[one].name, steps[other].name),
                float((came[:, one] & came[:, other]).mean()),
                steps[one].queries * steps[other].queries,
            )


def as_spec(profile: GraphProfile, kind: str | None = None) -> str:
    """Return the part of a spec to plan by: the graph, and its models' durations on a kind of device.

    By default that is the kind that ran most of the models. Other kinds, and conditions that go together,
    are told as comments. Raises ValueError for a kind on which nothing ran.
    """
    kinds = [each for by_kind in profile.infer_ms.values() for each in by_kind]
    if not kinds or (kind is not None and kind not in kinds):
        known = ", ".join(sorted({*kinds})) or "none"
        raise ValueError(
            f"nothing of {profile.graph} ran on a device of kind {kind or 'any'}; known are {known}"
        )
    chosen = kind or max(dict.fromkeys(kinds), key=kinds.count)
    lines = [f"# {profile.queries:,} queries of {profile.graph}, durations on {chosen}"]
    for pair in profile.together:
        one, other = pair.steps
        lines.append(
            f"# {one} and {other}: {pair.both:.1%} of the queries, {pair.independent:.1%} if independent"
        )
    for model, by_kind in profile.infer_ms.items():
        for other_kind, durations in by_kind.items():
            told = ", ".join(f"{size} = {each:.4g}" for size, each in durations.items())
            if other_kind == chosen:
                lines += ["[[models]]", f'name = "{model}"', f"infer_ms = {{ {told} }}"]
            else:
                lines.append(f"# {model} on {other_kind}: {told}")
    lines += ["[[graphs]]", f'name = "{profile.graph}"', "steps = ["]
    for step in profile.steps:
        after = ", ".join(f'"{each}"' for each in step.after)
        named = f'name = "{step.name}", model = "{step.model}"'
        lines.append(f"  {{ {named}, after = [{after}], share = {step.share:.4g} }},")
    return "\n".join([*lines, "]", ""])
