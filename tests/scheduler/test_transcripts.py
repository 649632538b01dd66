"""Whole conversations as text (tests/scheduler/transcripts/*.txt), to be read and reviewed as diffs.

`REWRITE_TRANSCRIPTS=1 pytest tests/scheduler/test_transcripts.py` writes them anew.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.messages.actions import Command
from mainspring.messages.events import Event, ModelRemoved
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults
from mainspring.telemetry.entries import line

MILLISECOND = 1_000_000
FOLDER = Path(__file__).parent / "transcripts"


def model(name: str, pages: int = 1, single_ms: float = 4.0, load_ms: float = 8.0) -> ModelSpec:
    infer_ns = {size: int(single_ms * MILLISECOND * (0.5 + 0.5 * size)) for size in (1, 2, 4)}
    tensor = (TensorSpec("x", "float32", (4,)),)
    profile = {"gpu": Profile(infer_ns, int(load_ms * MILLISECOND))}
    return ModelSpec(
        name, name, f"graph of {name}", (1, 2, 4), pages * PAGE_BYTES, (1,) * pages, tensor, tensor, profile
    )


class Story:
    """A simulation that writes its stream down."""

    def __init__(
        self, models: list[ModelSpec], workers: int = 1, pages: int = 4, faults: Faults | None = None
    ) -> None:
        self.lines: list[str] = []
        quiet = faults or Faults(duration_jitter=0.0)
        config = SchedulerConfig(policy="clockwork", response_margin_ms=1.0, idle_loads=True)
        names = [(f"w{index}", "gpu", pages) for index in range(workers)]
        self.simulation = Simulation(
            config, models, names, faults=quiet, record=self._record, validate_every=1
        )
        self.simulation.run(100 * MILLISECOND)

    def _record(self, now_ns: int, message: Event | Command) -> None:
        text = line(now_ns, message)
        if text is not None:
            self.lines.append(text)

    def request(self, at_ms: float, number: int, name: str, slo_ms: float | None, rows: int = 1) -> None:
        slo_ns = None if slo_ms is None else int(slo_ms * MILLISECOND)
        self.simulation.request(int(at_ms * MILLISECOND), number, name, rows, slo_ns)

    def told(self) -> str:
        self.simulation.run(10_000 * MILLISECOND)
        assert all(outcome.answers == 1 for outcome in self.simulation.outcomes.values())
        return "\n".join(self.lines) + "\n"


def cold_start() -> Story:
    """Figure 4 of the paper: a cold start, a warm request, a request that can't be in time."""
    story = Story([model("star")])
    story.request(200, 1, "star", 30)
    story.request(230, 2, "star", 30)
    story.request(250, 3, "star", 3)
    return story


def eviction() -> Story:
    """Three models of two pages in a cache of four: the least recently used one goes."""
    story = Story([model("a", 2), model("b", 2), model("c", 2)])
    for number, name in enumerate("abac", start=1):
        story.request(200 + 50 * number, number, name, 40)
    return story


def batching() -> Story:
    """Requests that come together run together, in the largest batch that they fill."""
    story = Story([model("a")])
    story.request(150, 1, "a", 50)
    for number in range(2, 8):
        story.request(200, number, "a", 50)
    return story


def best_effort() -> Story:
    """Requests without a deadline wait for idle time, and are loaded for only by idle executors."""
    story = Story([model("a"), model("b")])
    story.request(200, 1, "a", None)
    for number in range(2, 6):
        story.request(230, number, "a", 30)
    story.request(230, 6, "b", None)
    return story


def late_worker() -> Story:
    """Two actions take 17 and 26 ms longer than they should: their requests are late, others refused."""
    story = Story(
        [model("a")], faults=Faults(duration_jitter=0.0, slow_probability=0.5, slow_ns=60 * MILLISECOND)
    )
    for number in range(1, 6):
        story.request(200 + 5 * number, number, "a", 25)
    return story


def worker_lost() -> Story:
    """A worker dies with work outstanding: the other one takes over what can still be in time."""
    crash = (222 * MILLISECOND, "w0", 300 * MILLISECOND)
    faults = Faults(duration_jitter=0.0, crashes=(crash,), detection_ns=10 * MILLISECOND)
    story = Story([model("a")], workers=2, faults=faults)
    story.request(200, 1, "a", 100)
    story.request(221, 2, "a", 100)
    story.request(221.1, 3, "a", 14)
    return story


def missed_model() -> Story:
    """A model whose LOAD alone takes longer than the SLO is loaded after its first miss."""
    story = Story([model("huge", load_ms=80)])
    story.request(200, 1, "huge", 50)
    story.request(400, 2, "huge", 50)
    return story


def model_removed() -> Story:
    """Removing a model rejects what waits for it, and frees its pages once its work is done."""
    story = Story([model("a")])
    for number in range(1, 5):
        story.request(200, number, "a", 500)
    story.simulation.feed(205 * MILLISECOND, ModelRemoved("a"))
    return story


STORIES = [
    cold_start,
    eviction,
    batching,
    best_effort,
    late_worker,
    worker_lost,
    missed_model,
    model_removed,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_conversation_is_as_it_was_reviewed(story: Callable[[], Story]) -> None:
    path = FOLDER / f"{story.__name__}.txt"
    told = f"{story.__doc__}\n\n{story().told()}"
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(told)
    assert told == path.read_text()
