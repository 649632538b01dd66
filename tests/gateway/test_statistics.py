"""Statistics of each model, fed by a real request table."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import msgspec
import pytest

from mainspring.gateway.config import GatewayConfig
from mainspring.gateway.core.cache import ModelCounts, PredictionCache
from mainspring.gateway.core.effects import Accepted, Arrive, Connection
from mainspring.gateway.core.state_machine import GatewayCore
from mainspring.gateway.core.validation import BadRequest, Signature
from mainspring.gateway.metrics.series import Series
from mainspring.gateway.statistics import KEPT, Statistics
from mainspring.gateway.statistics_report import Count, ModelStatistics
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.peers import Dispatch, Output, OutputTimes, Rejected
from mainspring.telemetry.bounded import OTHER, RANK_NS, BoundedLabels, key_labels
from tests.gateway.fakes import make_spec

MS = 1_000_000
ALICE = Connection("calls", b"alice")
KEEPING_NS = 700
"""How long the cache takes to keep outputs."""


class Table:
    """A request table with statistics, whose clock stands where the test puts it."""

    def __init__(self, *models: str, labels: int | None = None) -> None:
        self.signatures = {name: Signature(make_spec(name)) for name in models or ("m",)}
        self.cache = PredictionCache(1 << 20, clock=itertools.count(0, KEEPING_NS).__next__)
        self.core = GatewayCore(GatewayConfig(), self.signatures, self.cache)
        self.labels = None if labels is None else BoundedLabels(labels, Series)
        self.now_ns = 0
        self.statistics = Statistics(
            self.signatures, self._resolve, self.cache.counts_of, self.labels, lambda: self.now_ns
        )
        self.core.observers.add(self.statistics)
        self.core.controller_welcomed(0, 1)
        self._key = 0

    def _resolve(self, name: str, version: int | None) -> Signature:
        if name not in self.signatures:
            raise BadRequest(Reason.UNKNOWN_MODEL, name)
        return self.signatures[name]

    def of(self, model: str = "m") -> ModelStatistics:
        return self.statistics.of(self.signatures[model].spec)

    def submit(self, rows: int = 1, slo_ms: int | None = 50, model: str = "m", **more: Any) -> int:
        """Return the id under which the controller would know the request."""
        self._key += 1
        slo_ns = None if slo_ms is None else slo_ms * MS
        accepted = Accepted(model, rows, slo_ns, (0,), (0, 1), self.signatures[model])
        self.core.submit(self.now_ns, ALICE, self._key, accepted, [bytes(16 * rows)], **more)
        arrivals = [send for send in self.core.drain() if isinstance(send, Arrive)]
        return arrivals[-1].request_id if arrivals else -1

    def run(self, *requests: tuple[int, int], action_id: int, worker: str = "w", **more: Any) -> None:
        """Dispatch requests, each an id and its rows, in one action and have it run."""
        ids = tuple(request_id for request_id, _ in requests)
        cold = more.pop("cold", False)
        self.core.dispatched(self.now_ns, Dispatch(action_id, worker, ids, (cold,) * len(ids), 4))
        self.now_ns += more.pop("took_ns", 5 * MS)
        for place, (request_id, rows) in enumerate(requests):
            times = more.get("times", OutputTimes(10, 20, 30 * (place + 1)))
            self.core.outputs(
                self.now_ns, Output(action_id, request_id, 2 * MS, times), (bytes(16 * rows), bytes(4 * rows))
            )
        self.core.validate()


def series(table: Table) -> dict[str, Series]:
    assert table.labels is not None
    table.statistics.settle()
    return {key_labels(key)[0]: each for key, each in table.labels.shown()}


def test_a_model_that_nothing_was_asked_of_has_zeros() -> None:
    statistics = Table().of()
    assert (statistics.name, statistics.version, statistics.last_inference) == ("m", "1", 0)
    assert statistics.inference_stats.success == statistics.inference_stats.fail == Count(0, 0)
    assert statistics.batch_stats == ()


def test_where_the_time_of_answered_requests_went() -> None:
    table = Table()
    first, second = table.submit(rows=1), table.submit(rows=2)
    table.now_ns = 3 * MS
    table.run((first, 1), (second, 2), action_id=1)
    statistics = table.of()
    inference = statistics.inference_stats
    assert inference.success == Count(2, 2 * 8 * MS)
    assert inference.queue == Count(2, 2 * (3 * MS + 20))
    assert inference.compute_input == Count(2, 20)
    assert inference.compute_infer == Count(2, 4 * MS)
    assert inference.compute_output == Count(2, 30 + 60)
    assert (statistics.inference_count, statistics.execution_count) == (3, 1)
    [batch] = statistics.batch_stats
    assert batch.batch_size == 4
    assert batch.compute_input == Count(1, 20)
    assert batch.compute_infer == Count(1, 2 * MS)
    assert batch.compute_output == Count(1, 60), "the second's outputs left 60 ns after the end"


@pytest.mark.parametrize("ended", [1, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT + 5])
def test_whoever_asks_finds_every_request_counted(ended: int) -> None:
    table = Table(labels=4)
    assert table.labels is not None
    for number in range(ended):
        request_id = table.submit()
        if number % 3:
            table.run((request_id, 1), action_id=number)
        else:
            table.core.rejected(0, Rejected(request_id, Reason.NO_WORKER, "none"))
    refused = len(range(0, ended, 3))
    if ended >= KEPT:
        counted = next(each for key, each in table.labels.shown() if key_labels(key)[0] == "m")
        done = ended - ended % KEPT
        assert counted.latency.count == done - len(range(0, done, 3)), "counted together, KEPT at a time"
    assert table.of().inference_stats.success.count == ended - refused
    assert table.of().inference_stats.fail.count == refused
    table.statistics.rank(0)
    assert series(table)["m"].rejected[Reason.NO_WORKER] == refused


def test_what_waits_to_be_counted_holds_no_tensor() -> None:
    table = Table()
    request_id = table.submit()
    frame = next(iter(table.core._pending.values())).frames[0]
    table.run((request_id, 1), action_id=1)
    table.core.drain()
    assert sys.getrefcount(frame) == 2, "the name here and the call's argument"
    assert table.of().inference_stats.success.count == 1


def test_executions_are_counted_once_whatever_other_workers_do() -> None:
    table = Table()
    ids = [table.submit() for _ in range(4)]
    table.core.dispatched(0, Dispatch(1, "a", (ids[0], ids[1]), (False, False), 2))
    table.core.dispatched(0, Dispatch(2, "b", (ids[2], ids[3]), (False, False), 2))
    for action_id, request_id in ((1, ids[0]), (2, ids[2]), (1, ids[1]), (2, ids[3])):
        table.core.outputs(MS, Output(action_id, request_id, MS), (bytes(16), bytes(4)))
    assert table.of().execution_count == 2
    assert table.of().batch_stats[0].compute_infer == Count(2, 2 * MS)


def test_refusals_are_failures_with_the_time_that_they_took() -> None:
    table = Table()
    request_id = table.submit()
    table.now_ns = 7 * MS
    table.core.rejected(0, Rejected(request_id, Reason.DEADLINE_PASSED, "late"))
    table.submit()
    table.core.forget_connection(ALICE)
    request = InferRequest(9, "m", (), 5)
    table.statistics.turned_away(request, Reason.BAD_INPUT)
    assert table.of().inference_stats.fail == Count(3, 7 * MS)
    assert table.of().inference_stats.success == Count(0, 0)


def test_the_last_inference_is_told_in_unix_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.gateway.statistics.time_ns", lambda: 1_700_000_000_000 * MS)
    table = Table()
    request_id = table.submit()
    table.now_ns = 10**12
    table.run((request_id, 1), action_id=1)
    table.now_ns += 250 * MS
    assert table.of().last_inference == 1_700_000_000_000 - 250


def test_hits_and_misses_are_the_caches_and_hits_compute_nothing() -> None:
    table = Table(labels=3)
    table.cache.switch("m", True)
    digest = table.cache.digest(Accepted("m", 1, None, (0,), (0, 1), table.signatures["m"]), [bytes(16)])
    assert digest is not None
    table.cache.took("m", digest, 2_000)
    table.run((table.submit(digest=digest, spent_ns=2_000), 1), action_id=1)
    table.cache.took("m", digest, 5_000)
    assert table.submit(digest=digest, spent_ns=5_000) == -1
    inference = table.of().inference_stats
    assert (inference.success.count, inference.compute_infer.count) == (2, 1)
    counts: ModelCounts = table.cache.counts_of("m")
    assert (inference.cache_hit.count, inference.cache_miss.count) == (counts.hits, counts.misses)
    assert (inference.cache_hit.ns, inference.cache_miss.ns) == (5_000, 2_000 + KEEPING_NS)
    assert inference.success.ns == 5 * MS + 5_000, "a hit takes as long as looking for it"
    own = series(table)["m"]
    assert (own.hits, own.misses, own.latency.count, own.queue.count) == (1, 1, 2, 1)
    assert (own.hit_ns, own.miss_ns) == (5_000, 2_000 + KEEPING_NS)
    table.core.rejected(
        0, Rejected(table.submit(digest=b"other", spent_ns=300), Reason.DEADLINE_PASSED, "late")
    )
    table.statistics.settle()
    assert (own.misses, own.miss_ns) == (2, 2_300 + KEEPING_NS), "what is refused was looked for as well"


def test_deadlines_kept_and_missed_by_label() -> None:
    table = Table(labels=1)
    table.run((table.submit(slo_ms=50), 1), action_id=1, cold=True)
    table.run((table.submit(slo_ms=50), 1), action_id=2, took_ns=60 * MS)
    table.run((table.submit(slo_ms=None), 1), action_id=3)
    table.core.rejected(0, Rejected(table.submit(), Reason.DEADLINE_UNREACHABLE, "no"))
    table.core.cancel(ALICE, table._key + 1)
    table.submit()
    table.core.cancel(ALICE, table._key)
    own = series(table)["m"]
    assert (own.with_slo, own.in_time, own.late, own.best_effort, own.cold) == (3, 1, 1, 1, 1)
    assert own.rejected == {Reason.DEADLINE_UNREACHABLE: 1, Reason.CANCELLED: 1}
    assert own.latency.sum == 70 * MS
    assert own.slack.sum == (45 - 10) * MS


def test_a_request_for_no_model_makes_no_label() -> None:
    table = Table(labels=5)
    for number in range(1_000):
        request = InferRequest(number, f"invented-{number}", (), None)
        table.statistics.turned_away(request, Reason.UNKNOWN_MODEL)
    assert list(series(table)) == [OTHER]
    assert series(table)[OTHER].rejected == {Reason.UNKNOWN_MODEL: 1_000}
    assert not table.statistics._accounts


def test_the_busiest_models_get_labels_and_counts_stay_where_they_were() -> None:
    table = Table("a", "b", labels=1)
    table.run((table.submit(model="a"), 1), action_id=1)
    for action_id in range(2, 9):
        table.run((table.submit(model="b"), 1), action_id=action_id)
    assert {name: each.rows for name, each in series(table).items()} == {"a": 1, OTHER: 7}
    table.statistics.rank(0)
    table.run((table.submit(model="b"), 1), action_id=9)
    table.run((table.submit(model="a"), 1), action_id=10)
    assert {name: each.rows for name, each in series(table).items()} == {"b": 1, OTHER: 8}
    assert (table.of("a").inference_count, table.of("b").inference_count) == (2, 8), "statistics know no top"


def test_models_that_are_served_no_more_are_forgotten() -> None:
    table = Table(*[f"m{number}" for number in range(200)], labels=10)
    for number in range(200):
        table.run((table.submit(model=f"m{number}"), 1), action_id=number)
    keep = {"m7": table.signatures["m7"]}
    table.signatures.clear()
    table.signatures.update(keep)
    table.statistics.rank(RANK_NS)
    assert list(table.statistics._accounts) == ["m7"]
    assert set(series(table)) == {"m7", OTHER}


def test_they_are_json_in_tritons_words() -> None:
    table = Table()
    table.run((table.submit(), 1), action_id=1)
    told = msgspec.to_builtins(table.of())
    assert told["inference_stats"]["success"] == {"count": 1, "ns": 5 * MS}
    assert told["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 2 * MS}
