"""Models whose durations vary by the request, as `[[faults.spreads]]` says."""

from pathlib import Path

import pytest

from mainspring.messages.actions import Command, Infer, Result
from mainspring.messages.events import Event
from mainspring.messages.tables import ConfigError
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.scenario import MILLISECOND
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults, Spread
from mainspring.simulator.spec_file import read_spec
from tests.scheduler.hand import spec

SPEC = """
[[devices]]
count = 1
[[models]]
name = "a"
infer_ms = { 1 = 4.0 }
[[workload]]
rate = 10
[[faults.spreads]]
models = "a*, b"
"""


def durations(*spreads: Spread) -> dict[str, list[int]]:
    """How long each model's batches take, of requests that come one by one."""
    stream: list[Event | Command] = []
    simulation = Simulation(
        SchedulerConfig(),
        [spec("even"), spec("wild")],
        [("w0", "gpu", 8)],
        seed=1,
        faults=Faults(duration_jitter=0.0, spreads=spreads),
        record=lambda _, entry: stream.append(entry),
    )
    for index in range(400):
        simulation.request(index * 100 * MILLISECOND, index + 1, ("even", "wild")[index % 2], 1, None)
    simulation.run(45_000 * MILLISECOND)
    sent = {entry.action_id: entry.model for entry in stream if isinstance(entry, Infer)}
    found: dict[str, list[int]] = {"even": [], "wild": []}
    for entry in stream:
        if isinstance(entry, Result) and entry.action_id in sent:
            found[sent[entry.action_id]].append(entry.end_ns - entry.begin_ns)
    return found


def test_a_part_of_the_requests_takes_long() -> None:
    found = durations(Spread(models="w*", long_share=0.25, long_factor=8))
    shortest_ns = min(found["even"])
    assert max(found["even"]) == shortest_ns
    long = [each for each in found["wild"] if each > 7 * shortest_ns]
    assert len(found["wild"]) == 200
    assert 30 <= len(long) <= 70
    assert {round(each / shortest_ns) for each in found["wild"]} == {1, 8}


def test_the_first_that_fits_a_model_counts() -> None:
    first, second = Spread(models="x, wild", long_share=1, long_factor=2), Spread(long_share=1, long_factor=3)
    found = durations(first, second)
    assert min(found["even"]) > 1.4 * min(found["wild"])


def test_a_logarithm_varies_around_what_the_profile_says() -> None:
    ranked = sorted(durations(Spread(models="wild", kind="lognormal", sigma=1.0))["wild"])
    median, late = ranked[100], ranked[197]
    assert 3 * MILLISECOND < median < 5.5 * MILLISECOND
    assert 3 < late / median < 30


def test_a_file_says_it(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    assert read_spec(path).faults.spreads == (Spread(models="a*, b"),)
    path.write_text(SPEC + 'kind = "even"')
    with pytest.raises(ConfigError, match="choose lognormal or bimodal"):
        read_spec(path)
