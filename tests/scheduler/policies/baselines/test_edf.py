"""Earliest deadline first, against its rule written down over all models; and what its rule costs."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cluster.models import Model
from mainspring.cluster.placements import State
from mainspring.cluster.workers import Worker
from mainspring.messages.model import Profile
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.policies.baselines.edf import Edf
from mainspring.scheduler.policies.options import EdfOptions
from mainspring.scheduler.state import SchedulerState
from mainspring.simulator.device import Preloaded
from mainspring.simulator.simulation import Simulation
from tests.cluster import made
from tests.scheduler.hand import MS
from tests.scheduler.test_clockwork import SIZES, spec


class Bench:
    """A policy with models resident on one worker, fed by hand."""

    def __init__(self, models: int, infer_ms: tuple[int, ...] = (4, 6, 10), skip_heads: bool = False) -> None:
        self.state = SchedulerState(SchedulerConfig(pad_batches=False, dispatch_delay_ms=0))
        self.policy = Edf(self.state, EdfOptions(skip_heads=skip_heads))
        self.worker = self.state.cluster.workers["w0"] = Worker("w0", 1, "gpu", 64)
        self.models = []
        for number in range(models):
            model = Model(spec(f"m{number}", infer_ms), number)
            self.state.cluster.models[model.name] = model
            self.state.cluster.place(model, self.worker).make_up(State.RESIDENT)
            self.models.append(model)

    def queue(self, id_: int, model: Model, due_ms: int) -> None:
        request = made.request(id_, model, 1, 0, due_ms * MS)
        model.queue.add(request)
        self.policy.queued(0, request)

    def ask(self, available_ms: int) -> tuple[str, int, list[int]] | None:
        """Return the batch's model, size and requests."""
        batch = self.policy.next_batch(0, self.worker, available_ms * MS)
        if batch is None:
            return None
        size = batch.placement.times.sizes[batch.size_index]
        return batch.placement.model.name, size, [request.id for request in batch.requests]


def by_its_rule(
    bench: Bench, available_ms: int, infer_ms: tuple[int, ...]
) -> tuple[str, int, list[int]] | None:
    """Look at every request of every model."""
    heads = []
    for model in bench.models:
        live = [r for r in model.queue if (r.due_ns or 0) >= (available_ms + infer_ms[0]) * MS]
        if live:
            heads.append((live[0].due_ns or 0, model.number, model, live))
    if not heads:
        return None
    due_ns, _, model, live = min(heads, key=lambda head: head[:2])
    fitting = [
        size
        for size, ms in zip(SIZES, infer_ms, strict=True)
        if len(live) >= size and (available_ms + ms) * MS <= due_ns
    ]
    return model.name, fitting[-1], [request.id for request in live[: fitting[-1]]]


@given(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 12)),
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), max_size=8),
            st.integers(0, 20),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_the_batch_is_the_one_of_its_rule(
    durations: tuple[int, int, int], rounds: list[tuple[list[tuple[int, int]], int, bool]]
) -> None:
    single, more, most = durations
    infer_ms = (single, single + more, single + more + most)
    bench = Bench(3, infer_ms)
    id_ = available_ms = 0
    for requests, later_ms, dispatches in rounds:
        available_ms += later_ms
        for index, due_ms in requests:
            id_ += 1
            bench.queue(id_, bench.models[index], available_ms + due_ms)
        expected = by_its_rule(bench, available_ms, infer_ms)
        batch = bench.policy.next_batch(0, bench.worker, available_ms * MS)
        assert bench.ask(available_ms) == expected, "asking changes nothing"
        if batch is not None and dispatches:
            batch.placement.model.queue.remove_all(batch.requests)
            bench.policy.dispatched(0, batch)


def test_the_model_whose_first_request_in_time_is_due_first_goes_first() -> None:
    bench = Bench(2)
    bench.queue(1, bench.models[0], 30)
    bench.queue(2, bench.models[1], 25)
    assert bench.ask(0) == ("m1", 1, [2])
    assert bench.ask(22) == ("m0", 1, [1]), "the other one can't make it any more"
    assert bench.ask(27) is None


@pytest.mark.parametrize(
    ("skip_heads", "expected"), [(False, ("m0", 1, [1])), (True, ("m0", 4, [2, 3, 4, 5]))]
)
def test_a_head_that_is_about_to_be_late_makes_its_batch_small(
    skip_heads: bool, expected: tuple[str, int, list[int]]
) -> None:
    bench = Bench(1, skip_heads=skip_heads)
    for id_, due_ms in enumerate((5, 40, 41, 42, 43), start=1):
        bench.queue(id_, bench.models[0], due_ms)
    assert bench.ask(0) == expected


def test_in_overload_batches_shrink_nearly_to_one_unless_heads_are_skipped() -> None:
    """One model with 25 ms at 1.5 times the capacity of full batches; one by one would be 41 % of that."""
    infer_ns = {1: 2_610_000, 2: 3_800_000, 4: 5_900_000, 8: 9_400_000, 16: 17_300_000}
    model = msgspec.structs.replace(
        spec("m"), batch_sizes=tuple(infer_ns), profiles={"gpu": Profile(infer_ns, 8 * MS)}
    )
    capacity = 16 / 0.0173
    rate = round(1.5 * capacity)
    shares = []
    for skip_heads in (False, True):
        config = SchedulerConfig(
            policy="edf",
            policy_options={"skip_heads": skip_heads},
            dispatch_delay_ms=0.3,
            response_margin_ms=0.2,
        )
        held = {"w0": Preloaded([model], [model])}
        simulation = Simulation(config, [model], [("w0", "gpu", 8)], preloaded=held)
        rng = random.Random(1)
        for id_ in range(2 * rate):
            simulation.request(rng.randrange(2_000 * MS), id_, "m", slo_ns=25 * MS)
        simulation.run(3_000 * MS)
        shares.append(sum(outcome.in_time for outcome in simulation.outcomes.values()) / 2 / capacity)
    assert shares[0] == pytest.approx(1 / 0.00261 / capacity, abs=0.08), "hardly more than one by one"
    assert shares[1] > 0.75
