"""Overload with inputs that take their time: what the executor could do is done."""

import numpy as np
import pytest

from mainspring.messages.actions import Command, Infer, Result
from mainspring.messages.codes import Status
from mainspring.messages.events import Event
from mainspring.messages.model import PAGE_BYTES, ModelSpec, Profile, TensorSpec
from mainspring.scheduler.config import SchedulerConfig
from mainspring.simulator.simulation import Simulation
from mainspring.simulator.spec import Faults

MS = 1_000_000
SECOND = 1_000_000_000
INPUT_BYTES = 602_112
SIZES = (1, 2, 4, 8, 16)
PER_BATCH_MS, PER_ROW_MS = 2, 1
EXEC_RATE = 16 / (PER_BATCH_MS + 16 * PER_ROW_MS) * 1000
LENGTH_S = 2


def model(name: str) -> ModelSpec:
    infer_ns = {size: (PER_BATCH_MS + PER_ROW_MS * size) * MS for size in SIZES}
    inputs, outputs = TensorSpec("x", "uint8", (INPUT_BYTES,)), TensorSpec("y", "uint8", (4,))
    profile = {"gpu": Profile(infer_ns, 8 * MS)}
    return ModelSpec(name, name, name, SIZES, PAGE_BYTES, (1,), (inputs,), (outputs,), profile)


class Overload:
    """One worker is offered a multiple of what it, or its link, can take."""

    def __init__(self, rate: float, ns_per_byte: float, models: int = 1, jitter: float = 0.001) -> None:
        self.statuses: list[Status] = []
        self._infers: set[int] = set()
        faults = Faults(input_ns_per_byte=ns_per_byte, duration_jitter=jitter, delay_jitter_ns=200_000)
        specs = [model(f"m{index}") for index in range(models)]
        self.simulation = Simulation(
            SchedulerConfig(policy="clockwork"),
            specs,
            [("w0", "gpu", 8)],
            faults=faults,
            record=self._note,
            validate_every=97,
        )
        rng = np.random.default_rng(1)
        now_ns, id_ = 100 * MS, 0
        while now_ns < LENGTH_S * SECOND:
            id_ += 1
            self.simulation.request(now_ns, id_, f"m{rng.integers(models)}", 1, 100 * MS)
            now_ns += int(rng.exponential(SECOND / rate))
        self.simulation.run((LENGTH_S + 2) * SECOND)
        outcomes = self.simulation.outcomes.values()
        self.in_time_rate = sum(outcome.in_time for outcome in outcomes) / (LENGTH_S - 0.1)
        self.late = sum(outcome.reason is None and not outcome.in_time for outcome in outcomes)

    def _note(self, _: int, message: Event | Command) -> None:
        if isinstance(message, Infer):
            self._infers.add(message.action_id)
        elif isinstance(message, Result) and message.action_id in self._infers:
            self.statuses.append(message.status)

    @property
    def missed(self) -> float:
        """The share of INFERs whose inputs did not come in time."""
        return self.statuses.count(Status.INPUT_MISSING) / len(self.statuses)


@pytest.mark.parametrize("models", [1, 4])
def test_an_overloaded_executor_is_kept_busy_while_inputs_travel(models: int) -> None:
    overload = Overload(3 * EXEC_RATE, ns_per_byte=1.0, models=models)
    assert overload.in_time_rate >= 0.9 * EXEC_RATE
    assert overload.missed < 0.05
    assert overload.late == 0


def test_where_the_link_is_the_bottleneck_it_is_kept_busy() -> None:
    link_rate = SECOND / (3.0 * INPUT_BYTES)
    assert link_rate < 0.7 * EXEC_RATE
    overload = Overload(3 * link_rate, ns_per_byte=3.0)
    assert overload.in_time_rate >= 0.8 * link_rate
    assert overload.missed < 0.1


def test_durations_that_vary_do_not_bring_the_storm_back() -> None:
    overload = Overload(3 * EXEC_RATE, ns_per_byte=1.0, jitter=0.1)
    assert overload.in_time_rate >= 0.75 * EXEC_RATE
    assert overload.missed < 0.05
