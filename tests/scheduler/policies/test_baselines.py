"""The policies that look at no deadline, or at nothing else, in random clusters with faults, by seed."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
import pytest

from mainspring.messages.codes import Reason
from mainspring.scheduler.policies.baselines.clipper import Clipper
from mainspring.scheduler.policies.baselines.edf import Edf
from mainspring.scheduler.policies.baselines.fifo import Fifo
from mainspring.scheduler.policies.options import ClipperOptions, EdfOptions, FifoOptions
from mainspring.scheduler.policies.registry import policy_names
from mainspring.simulator.spec import Faults
from tests.fuzz import seeded
from tests.simulator.played import decided_again, played

HERE = "tests.scheduler.policies.test_baselines:"


class _PatientOptions(FifoOptions, frozen=True, kw_only=True):
    max_queue_delay_ms: float = 4.0
    preferred_batch_sizes: str = "2,3"
    queue_timeout_ms: float = 30.0
    timeout_action: Literal["reject", "delay"] = "delay"


class PatientFifo(Fifo):
    """Holds batches, and puts behind what waited for long."""

    Options: ClassVar[type[msgspec.Struct]] = _PatientOptions


class _RegressionOptions(ClipperOptions, frozen=True, kw_only=True):
    batch_limit: Literal["aimd", "quantile", "single"] = "quantile"
    batch_wait_ms: float = 2.0
    quantile_window: int = 30


class RegressionClipper(Clipper):
    """Finds its limits by quantile regression, and delays batches."""

    Options: ClassVar[type[msgspec.Struct]] = _RegressionOptions


class _SkippingOptions(EdfOptions, frozen=True, kw_only=True):
    skip_heads: bool = True


class SkippingEdf(Edf):
    """Lets no head make a batch small."""

    Options: ClassVar[type[msgspec.Struct]] = _SkippingOptions


POLICIES = ("fifo", "clipper", "edf", f"{HERE}PatientFifo", f"{HERE}RegressionClipper", f"{HERE}SkippingEdf")


@pytest.mark.parametrize("policy", POLICIES)
@seeded(8)
def test_every_request_gets_one_answer_and_every_invariant_holds(policy: str, seed: int) -> None:
    simulation, _ = played(seed, policy, validate_every=5)
    for outcome in simulation.outcomes.values():
        assert outcome.answers == 1, f"seed {seed}: {outcome}"
        if "edf" in policy and simulation.faults == Faults():
            assert outcome.in_time or outcome.reason, f"seed {seed}: {outcome} is late with nothing wrong"
        if "edf" not in policy.lower():
            assert outcome.reason is not Reason.DEADLINE_UNREACHABLE, f"seed {seed}: {outcome}"
    status = simulation.scheduler.status()
    assert status.requests_queued == 0
    assert all(worker.outstanding == 0 for worker in status.workers)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_events_give_the_same_commands(policy: str) -> None:
    simulation, stream = played(3, policy)
    assert decided_again(simulation, stream) == stream


def test_nothing_is_kept_of_what_is_gone() -> None:
    for policy in POLICIES:
        simulation, _ = played(5, policy)
        own = simulation.scheduler._policy
        assert isinstance(own, Fifo | Clipper | Edf)
        for commands in (own._absent, own._copies):
            assert not commands._keys, f"{policy}: nothing waits"
            assert not commands._passed_over, f"{policy}: nothing waits"
        if not isinstance(own, Edf):
            assert not own._queues, f"{policy}: nothing waits"


def test_they_can_be_chosen_by_name() -> None:
    assert {"fifo", "clipper", "edf"} <= set(policy_names())
