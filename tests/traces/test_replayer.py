"""The replayer over a real socket against a gateway that delays, drops and rejects as the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mainspring.client.connection import TOKEN_VARIABLE
from mainspring.client.errors import GatewayUnreachable
from mainspring.messages.codes import Reason
from mainspring.traces.arrival import SECOND_NS, Arrival
from mainspring.traces.generators import Poisson, closed_loop
from mainspring.traces.inputs import InputsError
from mainspring.traces.replayer import ReplayConfig, Replayer
from mainspring.traces.report import Progress
from mainspring.traces.workload import Workload

MS = 1_000_000


@dataclass(frozen=True)
class Regular(Workload):
    """One request each ``gap_ns``, to the models in turn."""

    count: int
    gap_ns: int
    names: tuple[str, ...] = ("a", "b")
    slo_ns: int | None = 60 * SECOND_NS

    @property
    def models(self) -> tuple[str, ...]:
        return self.names

    def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        for i in range(self.count):
            yield Arrival(i * self.gap_ns, self.names[i % len(self.names)], 1, self.slo_ns)


Open = Callable[..., Replayer]


@pytest.fixture
def connected() -> Iterator[Open]:
    opened = []

    def connect(gateway: Any, **options: Any) -> Replayer:
        opened.append(Replayer(ReplayConfig(address=gateway.address, **options)))
        return opened[-1]

    yield connect
    for replayer in opened:
        replayer.close()


def test_all_is_sent_as_described_and_counted(fake_gateway: Any, answering: Any, connected: Open) -> None:
    answers = [
        answering(),
        answering(reason=Reason.DEADLINE_UNREACHABLE),
        answering(delay_ns=2_500 * MS),
        answering(cold_start=True),
        answering(reason=Reason.OVERLOADED),
    ]
    shown: list[Progress] = []
    with fake_gateway(lambda number, request: answers[number % 5]).serving() as gateway:
        summary, records = connected(gateway, progress_every_s=0.05).play(
            Regular(100, 2 * MS, slo_ns=2 * SECOND_NS), progress=shown.append, notes={"workload": "regular"}
        )
        seen = gateway.seen
    assert (summary.offered, summary.goodput, summary.late, summary.lost) == (100, 40, 20, 0)
    assert summary.rejected == {"deadline_unreachable": 20, "overloaded": 20}
    assert summary.cold_starts == 20
    assert records.columns()[0]["model"].tolist() == [0, 1] * 50
    assert [request.model for _, request, _ in seen] == ["a", "b"] * 50
    sent = records.columns()[0]
    left_ns = sent["intended_ns"] + 2 * SECOND_NS - sent["sent_ns"]
    assert [request.slo_ns for _, request, _ in seen] == left_ns.tolist(), "what is left as it is sent"
    starts_ns = [
        request.sent_ns - sent_ns
        for (_, request, _), sent_ns in zip(seen, sent["sent_ns"].tolist(), strict=True)
    ]
    assert len(set(starts_ns)) == 1, "each bears the instant of its sending, on one clock"
    header = seen[0][1].inputs[0]
    assert (header.name, header.dtype, header.shape) == ("x", "float32", (1, 4))
    assert len({frames[0] for _, _, frames in seen}) == 1, "inputs are made once"
    assert np.isfinite(np.frombuffer(seen[0][2][0], "float32")).all()
    assert (shown[-1].offered, shown[-1].goodput, shown[-1].rejected, shown[-1].in_flight) == (100, 40, 40, 0)
    assert (summary.notes["ended"], summary.notes["workload"]) == ("finished", "regular")


def test_a_gateway_is_shown_the_token(
    fake_gateway: Any, answering: Any, connected: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "the environment's")
    with fake_gateway(lambda number, request: answering()).serving() as gateway:
        connected(gateway, token="the option's")
        connected(gateway)
        assert gateway.tokens == ["the option's", "the environment's"]


def test_what_is_not_answered_is_lost_after_the_wait(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    with fake_gateway(lambda number, request: None if number % 4 == 0 else answering()).serving() as gateway:
        summary, _ = connected(gateway, guard_s=0.2).play(Regular(40, MS, slo_ns=SECOND_NS))
    assert (summary.offered, summary.goodput, summary.lost, summary.unanswered) == (40, 30, 10, 0)


def test_what_could_still_be_answered_when_the_wait_is_cut_short_is_not_lost(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    never = fake_gateway(lambda number, request: None if number % 4 == 0 else answering())
    for slo_ns in (60 * SECOND_NS, None):
        with never.serving() as gateway:
            never.seen.clear()
            summary, _ = connected(gateway, straggler_wait_s=0.2).play(Regular(40, MS, slo_ns=slo_ns))
        assert (summary.goodput, summary.lost, summary.unanswered) == (30, 0, 10)
        assert summary.missing == 10


def test_stragglers_are_waited_for(fake_gateway: Any, answering: Any, connected: Open) -> None:
    with fake_gateway(lambda number, request: answering(delay_ns=400 * MS)).serving() as gateway:
        summary, _ = connected(gateway).play(Regular(10, MS, slo_ns=100 * MS))
    assert (summary.late, summary.lost) == (10, 0), "later than their SLO, whatever the gateway says of it"
    assert summary.gateway_late == 0
    assert summary.p50_ms is not None
    assert summary.p50_ms >= 400


@pytest.mark.timing("requests that are due during a stall of 300 ms are sent before it ends")
def test_the_schedule_is_kept_while_the_gateway_stalls_and_latency_counts_from_the_intended_send(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    """No coordinated omission: a stall of 300 ms is seen by all requests that were due in it."""
    gateway = fake_gateway(lambda number, request: answering(), stall_at=20, stall_ns=300 * MS)
    with gateway.serving():
        summary, records = connected(gateway).play(Regular(100, 5 * MS))
    sent, replied = records.columns()
    assert sent["intended_ns"].tolist() == [i * 5 * MS for i in range(100)]
    assert (sent["sent_ns"] >= sent["intended_ns"]).all()
    stalled = slice(20, 70)
    assert (sent["sent_ns"][stalled] < replied["replied_ns"][20]).all(), "sending went on during the stall"
    latency_ms = (replied["replied_ns"] - sent["intended_ns"]) / MS
    expected = 300 - 5 * np.arange(50)
    assert (latency_ms[stalled] >= expected - 20).all()
    assert summary.lost == 0
    assert summary.max_ms is not None
    assert summary.max_ms >= 290


@pytest.mark.timing("of requests due every millisecond, exactly those behind a pause of 250 ms expire")
def test_a_late_replayer_tells_its_lag_and_charges_it_to_latency(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    class Slow(Regular):
        def arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
            for number, arrival in enumerate(super().arrivals(rng)):
                if number == 10:
                    time.sleep(0.25)
                yield arrival

    with fake_gateway(lambda number, request: answering()).serving() as gateway:
        summary, _ = connected(gateway).play(Slow(30, MS, slo_ns=100 * SECOND_NS))
        expired, _ = connected(gateway).play(Slow(30, MS, slo_ns=100 * MS))
        seen = len(gateway.seen)
    assert summary.replayer_lag_max_us >= 200_000
    assert summary.max_ms is not None
    assert summary.max_ms >= 200
    assert (summary.offered, summary.goodput) == (30, 30)
    assert summary.since_sent.max_ms is not None
    assert summary.since_sent.max_ms < summary.max_ms, "the send itself is told apart"
    assert (expired.offered, expired.expired, expired.goodput + expired.late) == (30, 21, 9)
    assert seen == 39, "what nobody could answer in time is not sent"


def test_a_second_answer_is_not_counted_twice_but_told(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    with fake_gateway(lambda number, request: answering(times=2)).serving() as gateway:
        summary, _ = connected(gateway).play(Regular(20, MS))
    assert summary.goodput == 20
    assert int(summary.notes["unexpected_replies"] or 0) >= 19


def test_stopping_ends_the_sending_with_a_report_of_what_was_sent(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    stop = threading.Event()

    def decide(number: int, request: object) -> Any:
        if number == 30:
            stop.set()
        return answering(delay_ns=30 * MS)

    with fake_gateway(decide).serving() as gateway:
        summary, _ = connected(gateway).play(Regular(100_000, MS), stop=stop)
    assert 30 <= summary.offered < 5000
    assert (summary.lost, summary.goodput + summary.late) == (0, summary.offered)
    assert summary.notes["ended"] == "stopped"


def test_a_closed_loop_keeps_its_concurrency_and_ends_in_time(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    workload = closed_loop(["a", "b"], concurrency=3, duration_ns=SECOND_NS // 2, slo_ns=None)
    with fake_gateway(lambda number, request: answering(delay_ns=20 * MS)).serving() as gateway:
        summary, records = connected(gateway).play(workload)
    sent, replied = records.columns()
    moments = sorted(
        [(t, 1) for t in sent["sent_ns"].tolist()] + [(t, -1) for t in replied["replied_ns"].tolist()]
    )
    in_flight = np.cumsum([step for _, step in moments])
    assert in_flight.max() == 6
    assert 6 * 5 < summary.offered <= 6 * 26
    assert summary.goodput == summary.offered
    assert sent["intended_ns"].max() < SECOND_NS // 2


def test_plays_on_one_connection_do_not_mix(fake_gateway: Any, answering: Any, connected: Open) -> None:
    def decide(number: int, request: object) -> Any:
        return answering(delay_ns=300 * MS if number == 5 else 0)

    with fake_gateway(decide).serving() as gateway:
        replayer = connected(gateway, guard_s=0.05)
        first, _ = replayer.play(Regular(10, MS, slo_ns=100 * MS))
        second, _ = replayer.play(Regular(50, 5 * MS))
        keys = [request.key for _, request, _ in gateway.seen]
    assert (first.lost, second.lost, second.goodput + second.late) == (1, 0, 50)
    assert len(set(keys)) == 60
    assert second.notes["unexpected_replies"] == 0


@pytest.mark.parametrize("turns_away", [0, 1])
def test_a_gateway_that_goes_and_comes_back_costs_only_what_it_missed(
    fake_gateway: Any, answering: Any, connected: Open, turns_away: int
) -> None:
    first = fake_gateway(lambda number, request: answering())
    with first.serving():
        replayer = connected(first, guard_s=0.3)
        replayer.play(Regular(5, MS))
    second = fake_gateway(lambda number, request: answering(), address=first.address, turns_away=turns_away)
    results = []
    player = threading.Thread(
        target=lambda: results.append(replayer.play(Regular(1000, 2 * MS, slo_ns=SECOND_NS))[0])
    )
    player.start()
    time.sleep(0.3)
    with second.serving():
        player.join()
    summary = results[0]
    assert summary.offered == 1000
    assert summary.unsent > 50
    assert summary.goodput > 300
    assert summary.lost <= 5, "only what went into the breaking link"
    assert summary.goodput + summary.unsent + summary.lost == 1000


def test_the_record_limit_ends_the_run_with_a_report(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    with fake_gateway(lambda number, request: answering()).serving() as gateway:
        summary, _ = connected(gateway, max_requests=25).play(Regular(1000, MS))
    assert (summary.offered, summary.goodput, summary.notes["ended"]) == (25, 25, "record limit")


def test_the_same_seed_sends_the_same_requests(fake_gateway: Any, answering: Any, connected: Open) -> None:
    workload = Poisson({"a": 300.0, "b": 100.0}).with_requests(slo_ns=60 * SECOND_NS).cut(0, SECOND_NS // 4)
    plays = []
    for _ in range(2):
        with fake_gateway(lambda number, request: answering()).serving() as gateway:
            connected(gateway, seed=4).play(workload)
            plays.append([(request.model, frames) for _, request, frames in gateway.seen])
    assert plays[0] == plays[1]
    assert len(plays[0]) > 40


def test_models_that_are_not_served_are_named_before_anything_is_sent(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    with fake_gateway(lambda number, request: answering()).serving() as gateway:
        replayer = connected(gateway)
        assert [spec.name for spec in replayer.specs] == ["a", "b"]
        with pytest.raises(InputsError, match=r"does not serve 1 of.*zebra.*it serves a, b"):
            replayer.play(Regular(5, MS, ("a", "zebra")))
        assert gateway.seen == []


def test_no_gateway_is_said_in_time() -> None:
    with pytest.raises(GatewayUnreachable, match=r"127\.0\.0\.1:9"):
        Replayer(ReplayConfig(address="tcp://127.0.0.1:9", connect_timeout_s=0.2))


def test_who_is_refused_for_want_of_time_asks_once_more_with_what_is_left(
    fake_gateway: Any, answering: Any, connected: Open
) -> None:
    tries: dict[int, int] = {}

    def decide(number: int, request: Any) -> Any:
        tries[request.key] = tries.get(request.key, 0) + 1
        if request.key % 4 == 0:
            return answering()
        if request.key % 4 == 1:
            return answering(reason=Reason.BAD_VALUES)
        # One in four is refused twice, the other at first.
        served = request.key % 4 == 2 and tries[request.key] == 2
        return answering() if served else answering(reason=Reason.OVERLOADED)

    with fake_gateway(decide).serving() as gateway:
        summary, records = connected(gateway, retry_ns=50 * MS).play(Regular(40, MS, slo_ns=5 * SECOND_NS))
        seen = gateway.seen
    assert (summary.offered, summary.goodput, summary.lost) == (40, 20, 0), "it counts as one request"
    assert summary.rejected == {"bad_values": 10, "overloaded": 10}
    assert [tries[key] for key in sorted(tries)] == [1, 1, 2, 2] * 10
    sent: dict[int, list[Any]] = {}
    for _, request, _ in seen:
        sent.setdefault(request.key, []).append(request)
    for first, *again in sent.values():
        for second in again:
            waited_ns = second.sent_ns - first.sent_ns
            assert waited_ns >= 50 * MS
            assert second.slo_ns == first.slo_ns - waited_ns, "what is left, and no more"
    took_ns = records.columns()[1]["replied_ns"] - records.columns()[0]["intended_ns"]
    assert (took_ns[2::4] >= 50 * MS).all(), "its latency is from the first call on"


def test_nobody_comes_back_after_the_deadline(fake_gateway: Any, answering: Any, connected: Open) -> None:
    with fake_gateway(lambda number, request: answering(reason=Reason.OVERLOADED)).serving() as gateway:
        summary, _ = connected(gateway, retry_ns=2 * SECOND_NS).play(Regular(20, MS, slo_ns=SECOND_NS))
        assert len(gateway.seen) == 20
    assert summary.rejected == {"overloaded": 20}
