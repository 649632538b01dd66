"""LOADs and INFERs that take far longer than predicted, and what waits for them."""

from __future__ import annotations

import pytest

from mainspring.messages.actions import Command, Infer, Load, Reject, Result
from mainspring.messages.codes import Reason, Status
from mainspring.messages.events import Wakeup
from mainspring.messages.model import ModelSpec
from mainspring.scheduler.policies.registry import policy_names
from tests.scheduler.hand import MS, Hand, reasons, spec

LOADING = [name for name in policy_names() if name != "nexus"]
"""Those that load for what waits; nexus loads what it planned."""
TICK_MS = 0.001
"""An event comes so much after what it is for, whatever is lost by counting in milliseconds."""


class Workers:
    """Workers whose actions all end as predicted, but for those that never end."""

    def __init__(self, *specs: ModelSpec, workers: int, policy: str, stuck: type[Infer | Load]) -> None:
        self.hand = Hand(*specs, workers=workers, policy=policy)  # type: ignore[arg-type]
        self.stuck = stuck
        self.stuck_on: str | None = None
        """The first worker that got an action of the kind that gets stuck, whose actions all do."""
        self.sent: list[Infer | Load] = []
        self.rejects: list[Reject] = []
        self._ends: list[tuple[int, int, Infer | Load, Status]] = []

    def ask(self, now_ms: float, id_: int, model: str, slo_ms: float | None) -> None:
        self.until(now_ms)
        self._take(now_ms, self.hand.request(now_ms, id_, model, slo_ms))

    def until(self, now_ms: float) -> None:
        """Let time pass."""
        while True:
            wakeup_ns = self.hand.scheduler.next_wakeup_ns()
            end = min(self._ends, default=None)
            if end is not None and (wakeup_ns is None or end[0] <= wakeup_ns):
                when_ms = end[0] / MS + TICK_MS
                if when_ms > now_ms:
                    return
                self._ends.remove(end)
                self._take(when_ms, self.hand.end(when_ms, end[2], end[3]))
            elif wakeup_ns is not None and wakeup_ns / MS + TICK_MS <= now_ms:
                when_ms = wakeup_ns / MS + TICK_MS
                self._take(when_ms, self.hand.feed(when_ms, Wakeup()))
            else:
                return

    def _take(self, now_ms: float, commands: list[Command]) -> None:
        """Begin what was sent: what needs weights that are stuck on their way is given up in its window."""
        for command in commands:
            if isinstance(command, Reject):
                self.rejects.append(command)
            if not isinstance(command, Infer | Load):
                continue
            self.sent.append(command)
            if isinstance(command, self.stuck) and self.stuck_on in (None, command.worker):
                self.stuck_on = command.worker
                continue
            waits = self.stuck_on == command.worker
            status = Status.NOT_RESIDENT if self.stuck is Load else Status.TOO_LATE
            end_ns = command.predicted_begin_ns + command.predicted_duration_ns
            end = (command.latest_ns, status) if waits else (max(end_ns, round(now_ms * MS)), Status.OK)
            self._ends.append((end[0], command.action_id, command, end[1]))


@pytest.mark.parametrize("policy", LOADING)
def test_nothing_is_sent_again_and_again_to_wait_for_a_load_that_does_not_end(policy: str) -> None:
    workers = Workers(spec("m"), workers=1, policy=policy, stuck=Load)
    workers.ask(0, 1, "m", 150)
    workers.until(160)
    infers = [each for each in workers.sent if isinstance(each, Infer)]
    assert len(infers) <= 1, "as the LOAD was about to end, and never since"


@pytest.mark.parametrize("policy", LOADING)
@pytest.mark.parametrize("slo_ms", [100, None])
def test_what_waits_for_a_load_that_does_not_end_is_served_elsewhere(
    policy: str, slo_ms: float | None
) -> None:
    workers = Workers(spec("m"), workers=2, policy=policy, stuck=Load)
    workers.ask(0, 1, "m", slo_ms)
    workers.until(100)
    served = [each for each in workers.sent if isinstance(each, Infer) and each.worker != workers.stuck_on]
    assert [each.request_ids for each in served] == [(1,)]
    assert workers.rejects == []
    loads = [each for each in workers.sent if isinstance(each, Load)]
    assert len(loads) == 2
    workers.hand.ok(110, loads[0])
    workers.stuck_on = ""
    workers.ask(120, 2, "m", 50)
    workers.until(170)
    assert workers.rejects == [], "it counts again"


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
def test_what_waits_for_an_infer_that_does_not_end_is_served_elsewhere(policy: str) -> None:
    workers = Workers(spec("m"), workers=2, policy=policy, stuck=Infer)
    workers.ask(0, 1, "m", 100)
    workers.until(20)
    assert workers.stuck_on is not None
    workers.ask(20, 2, "m", 80)
    workers.until(120)
    here = [each for each in workers.sent if isinstance(each, Infer) and each.worker == workers.stuck_on]
    assert len(here) <= 2, "the one that is stuck, and one behind it"
    served = [each for each in workers.sent if isinstance(each, Infer) and each.worker != workers.stuck_on]
    assert [each.request_ids for each in served] == [(2,)]


@pytest.mark.parametrize("policy", ["mainspring", "clockwork"])
@pytest.mark.parametrize("slo_ms", [90, None])
def test_what_comes_long_after_an_infer_has_stalled_is_served_elsewhere(
    policy: str, slo_ms: float | None
) -> None:
    """Nothing waited behind the INFER, so nothing looked at its worker when it stalled."""
    workers = Workers(spec("a"), spec("b"), workers=2, policy=policy, stuck=Infer)
    workers.stuck_on = "none yet"
    workers.ask(0, 1, "a", 100)
    workers.ask(50, 2, "b", 100)
    workers.until(100)
    (stuck_on,) = {each.worker for each in workers.sent}
    workers.stuck_on = None
    workers.ask(100, 3, "a", 100)
    workers.ask(300, 4, "b", slo_ms)
    workers.until(390)
    assert workers.stuck_on == stuck_on
    served = [each for each in workers.sent if isinstance(each, Infer) and each.worker != stuck_on]
    assert [each.request_ids for each in served] == [(4,)]


def test_a_refusal_names_the_action_that_is_overdue() -> None:
    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 60)
    assert isinstance(load, Load)
    (reject,) = hand.request(50, 2, "m", 30)
    assert isinstance(reject, Reject)
    assert reject.reason is Reason.DEADLINE_UNREACHABLE
    assert f"LOAD {load.action_id} on w0 is 41.0 ms overdue" in reject.detail
    (reject,) = hand.feed(60, Wakeup())
    assert isinstance(reject, Reject)
    assert reject.reason is Reason.DEADLINE_PASSED
    assert f"LOAD {load.action_id} on w0 is " in reject.detail
    (infer,) = [each for each in hand.ok(61, load) + hand.request(62, 3, "m", 30) if isinstance(each, Infer)]
    (reject,) = hand.request(100, 4, "m", 30)
    assert isinstance(reject, Reject)
    assert f"INFER {infer.action_id} on w0 is " in reject.detail


def test_a_result_that_is_on_its_way_keeps_nobody_waiting() -> None:
    """A LOAD's result is in time if it comes as long after the predicted end as results are on their way."""
    hand = Hand(spec("m"))
    (load,) = hand.request(0, 1, "m", 60)
    assert isinstance(load, Load)
    end_ms = (load.predicted_begin_ns + load.predicted_duration_ns) / MS
    (infer,) = [each for each in hand.feed(end_ms + 0.5, Wakeup()) if isinstance(each, Infer)]
    assert infer.predicted_begin_ns == round((end_ms + 1.0) * MS)


def test_a_worker_counts_again_once_its_stalled_infer_has_ended() -> None:
    hand = Hand(spec("m"))
    hand.warm("m")
    (infer,) = [each for each in hand.request(100, 1, "m", 60) if isinstance(each, Infer)]
    model = hand.scheduler._state.cluster.models["m"]
    hand.scheduler._overdue_actions.look(140 * MS, hand.scheduler._state.cluster.workers["w0"])
    assert model.holders == [], "its only worker has stalled"
    hand.ok(141, infer)
    assert [worker.name for worker in model.holders] == ["w0"]


def test_a_worker_does_not_count_again_for_what_was_given_up_behind_its_stalled_infer() -> None:
    hand = Hand(spec("m"), lookahead_ms=50)
    hand.warm("m")
    (stuck,) = [each for each in hand.request(100, 1, "m", 60) if isinstance(each, Infer)]
    (behind,) = [each for each in hand.request(101, 2, "m", 30) if isinstance(each, Infer)]
    model = hand.scheduler._state.cluster.models["m"]
    hand.scheduler._overdue_actions.look(140 * MS, hand.scheduler._state.cluster.workers["w0"])
    assert model.holders == []
    commands = hand.end(140, behind, Status.TOO_LATE)
    assert [each.request_id for each in commands if isinstance(each, Reject)] == [2]
    assert model.holders == [], "the first one still runs"
    hand.ok(141, stuck)
    assert [worker.name for worker in model.holders] == ["w0"]


@pytest.mark.parametrize(("policy", "rank"), [("mainspring", 3), ("clockwork", 1), ("edf", 1)])
def test_a_worker_that_stood_still_for_seconds_has_no_request_with_time_refused(
    policy: str, rank: int
) -> None:
    """Neither while it stands still nor after: the stall is not taken for the model's duration."""
    hand = Hand(spec("m"), policy=policy, estimate_rank=rank)  # type: ignore[arg-type]
    hand.warm("m")
    (stuck,) = [each for each in hand.request(100, 1, "m", 60) if isinstance(each, Infer)]
    behind = hand.request(106, 2, "m", 2_000)
    assert reasons(behind) == [], "it is 2 ms overdue"
    assert reasons(hand.request(600, 3, "m", 2_000)) == []
    hand.feed(3_102, Result(stuck.action_id, "w0", Status.OK, 101 * MS, 3_101 * MS, 0, ""))
    for late in behind:
        hand.end(3_103, late, Status.TOO_LATE)
    (infer,) = [each for each in hand.request(3_110, 4, "m", 2_000) if isinstance(each, Infer)]
    assert infer.predicted_duration_ns == stuck.predicted_duration_ns
    overdue_ms = (infer.predicted_begin_ns + infer.predicted_duration_ns) / MS + 0.9
    assert reasons(hand.request(overdue_ms, 5, "m", 2_000)) == [], "the next one is 0.9 ms overdue"
