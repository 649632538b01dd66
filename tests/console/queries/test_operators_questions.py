"""What operators ask: which model thrashes, is a worker ill, who waits, what happened in that second."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from mainspring.console.pages import Gpu, WorkerPage
from mainspring.console.payloads import Clock
from mainspring.console.queries.asking import Unknown, recent
from mainspring.console.queries.cluster import LEAST_SAMPLES, cluster
from mainspring.console.queries.models import ROOM, commonest_kind, model, models
from mainspring.console.queries.schedule import schedule
from mainspring.console.queries.worker import worker
from mainspring.console.terminal.cluster import cluster_lines
from mainspring.console.view.view import View
from mainspring.messages.actions import Load, Result, Unload
from mainspring.messages.codes import Status
from mainspring.messages.events import ModelRemoved
from mainspring.messages.metrics import READINGS, DeviceHealth, Reading
from mainspring.messages.observing import Clocks, WorkerClock
from mainspring.messages.sequencing import Sequencing, State
from mainspring.telemetry.entries import Entry
from tests.console.view.streams import EVERYTHING, Watched, feed
from tests.fuzz import seeded

SECOND = 1_000_000_000


def at(seed: int, ms: float) -> tuple[View, list[tuple[int, Entry]]]:
    watched, view = Watched(seed), View(EVERYTHING)
    stream = list(watched.run_ms(ms))
    feed(view, stream)
    return view, stream


@pytest.mark.parametrize("seed", range(3))
def test_models_are_counted_as_often_as_they_were_loaded_and_evicted(seed: int) -> None:
    view, stream = at(seed, 900)
    loads = Counter(entry.model for _, entry in stream if isinstance(entry, Load))
    unloads = Counter(entry.model for _, entry in stream if isinstance(entry, Unload))
    minutes = max(1, view.traffic.seconds.in_window(300)) / 60
    found = models(view, sort="evictions", descending=True, limit=1_000).rows
    assert sum(unloads.values()) > 0
    # What was removed and added again is another model.
    removed = {entry.name for _, entry in stream if isinstance(entry, ModelRemoved)}
    for line in found:
        if line.name in removed:
            continue
        assert line.loads_pm * minutes == pytest.approx(loads[line.name])
        assert line.evictions_pm * minutes == pytest.approx(unloads[line.name])
        assert line.thrashes == (unloads[line.name] >= 3 and 2 * loads[line.name] >= unloads[line.name])
    assert [line.evictions_pm for line in found] == sorted(
        (line.evictions_pm for line in found), reverse=True
    )


def test_a_models_page_says_how_its_durations_spread_and_that_it_is_erratic() -> None:
    view, _ = at(0, 300)
    kind = commonest_kind(view)
    known = next(each for each in view.cluster.models.values() if kind in each.infer_times)
    times = known.infer_times[kind]
    for number in range(300):
        times.spreads.add(0, 40_000_000 if number % 10 == 0 else 4_000_000)
    times.spreads.erratic = times.spreads.uneven
    page = model(view, known.name)
    assert page.line.erratic
    assert [line.name for line in models(view, limit=1_000).rows if line.erratic] == [
        each.name for each in view.cluster.models.values() if each.infer_times.get(kind) is times
    ]
    spread = page.spread
    assert spread is not None
    assert (spread.batch_size, spread.sizes) == (times.sizes[0], "")
    assert spread.durations >= 300
    assert spread.median_ms == pytest.approx(4, rel=0.07)
    assert spread.p99_ms == pytest.approx(40, rel=0.07)
    assert spread.mean_ms == pytest.approx(7.6, rel=0.07)
    assert spread.estimate_ms == times.ns[0] / 1e6


def test_a_models_page_says_what_its_sequences_carry() -> None:
    view, _ = at(0, 20)
    known = next(iter(view.cluster.models.values()))
    assert model(view, known.name).states is None
    sequencing = Sequencing((State("h", "next_h"), State("c", "next_c")))
    known.spec = msgspec.structs.replace(known.spec, sequencing=sequencing)
    assert model(view, known.name).states == ["next_h to h", "next_c to c"]
    known.spec = msgspec.structs.replace(known.spec, sequencing=Sequencing())
    assert model(view, known.name).states == []


def test_nothing_is_said_of_few_durations() -> None:
    view, _ = at(0, 20)
    pages = [model(view, line.name) for line in models(view, limit=1_000).rows]
    assert pages
    assert all(page.spread is None and not page.line.erratic for page in pages)


@pytest.mark.parametrize("seed", range(3))
def test_who_made_room_for_whom_is_said_from_both_sides(seed: int) -> None:
    view, _ = at(seed, 900)
    pages = [model(view, line.name) for line in models(view, limit=1_000).rows]
    given = {page.line.name: page.evicted_for for page in pages}
    taken = {page.line.name: page.evicted for page in pages}
    assert any(given.values())
    for name, others in given.items():
        for other, times in others.items():
            # A page names the ten most frequent ones.
            if other in taken and len(taken[other]) < ROOM:
                assert taken[other][name] == times


@seeded(3)
def test_a_workers_errors_are_those_of_its_results(seed: int) -> None:
    view, stream = at(seed, 900)
    sent = {entry.action_id: entry for _, entry in stream if isinstance(entry, Load)}
    worst: dict[tuple[str, int], float] = {}
    for now_ns, entry in stream:
        if isinstance(entry, Result) and entry.action_id in sent and entry.status is Status.OK:
            over_ms = (entry.end_ns - entry.begin_ns - sent[entry.action_id].predicted_duration_ns) / 1e6
            key = entry.worker, now_ns // SECOND
            worst[key] = max(worst.get(key, over_ms), over_ms)
    names = {name for name, _ in worst}
    assert names
    for name in names:
        page = worker(view, name)
        shown = {
            (name, page.first_ns // SECOND + place): value
            for place, value in enumerate(page.load_worst_ms)
            if value is not None
        }
        assert shown == pytest.approx({key: value for key, value in worst.items() if key[0] == name})
        results = [entry for _, entry in stream if isinstance(entry, Result) and entry.action_id in sent]
        loads = sum(each.worker == name and each.status is Status.OK for each in results)
        assert (page.picture.load_error_p99_us is not None) == (loads >= LEAST_SAMPLES)
        assert msgspec.json.decode(msgspec.json.encode(page), type=WorkerPage) == page
    with pytest.raises(Unknown, match="there is no worker 'nobody'"):
        worker(view, "nobody")


def test_a_worker_is_set_beside_the_others_of_its_kind() -> None:
    view, _ = at(1, 900)
    pictures = {each.name: each for each in cluster(view).workers}
    for name, own in pictures.items():
        peers = [
            each for each in pictures.values() if each.device_kind == own.device_kind and each.name != name
        ]
        norm = worker(view, name).norm
        assert norm.workers == len(peers)
        known = [each.load_error_p99_us for each in peers if each.load_error_p99_us is not None]
        assert (norm.load_error_us is None) == (not known)
        assert norm.load_error_us is None or min(known) <= norm.load_error_us <= max(known)


@seeded(4)
def test_who_waits_is_in_the_schedule_with_the_least_slack_first(seed: int) -> None:
    watched, view = Watched(seed), View(EVERYTHING)
    seen = 0
    for until_ms in range(10, 900, 10):
        feed(view, watched.run_ms(until_ms))
        now_ns = view.now_ns
        found = schedule(view, now_ns - SECOND, now_ns)
        queued = {line.name: line.queued for line in models(view, limit=1_000).rows if line.queued}
        assert {each.model: each.requests for each in found.waiting} == queued
        assert found.waiting_requests == sum(queued.values())
        slacks = [each.slack_ns for each in found.waiting if each.slack_ns is not None]
        assert slacks == sorted(slacks)
        for each in found.waiting:
            assert (each.slack_ns is None) == (each.deadline_ns is None)
            assert (
                each.slack_ns is None or each.deadline_ns is None or each.slack_ns < each.deadline_ns - now_ns
            )
        seen += len(found.waiting)
        assert schedule(view, now_ns - SECOND, now_ns - 1).waiting == []
    assert seen


@seeded(3)
def test_the_requests_of_a_second_are_those_that_ended_in_it(seed: int) -> None:
    view, _ = at(seed, 2_400)
    series = cluster(view).series
    outcomes = ("in_time", "late", "rejected", "lost")
    assert sum(series.rejected) > 0
    for place in range(len(series.offered)):
        begin_ns = series.first_ns + place * SECOND
        found = recent(view, outcomes=outcomes, limit=1_000, from_ns=begin_ns, to_ns=begin_ns + SECOND)
        assert sum(each.outcome == "rejected" for each in found) == series.rejected[place]


def test_a_workers_gpu_is_shown_as_it_was_told() -> None:
    view, _ = at(0, 300)
    name = sorted(view.cluster.workers)[0]
    assert worker(view, name).gpu is None
    view.devices = {
        name: DeviceHealth(
            ("its clocks are held down by its power limit",),
            (
                Reading("mainspring_gpu_sm_clock_hertz", 1.41e9),
                Reading("mainspring_gpu_throttled", 1.0, "power"),
                Reading("mainspring_gpu_throttled", 0.0, "temperature"),
                Reading("mainspring_gpu_remapped_rows", 2.0),
                Reading("mainspring_gpu_executables_without_graph", 1.0),
            ),
        )
    }
    gpu = worker(view, name).gpu
    assert gpu == Gpu(
        ["its clocks are held down by its power limit"], ["power"], clock_mhz=1410.0, remapped_rows=2.0,
        without_graph=1.0,
    )  # fmt: skip
    assert all(worker(view, other).gpu is None for other in view.cluster.workers if other != name)


def test_a_workers_clock_is_shown_as_it_was_told() -> None:
    view, _ = at(0, 300)
    name, *others = sorted(view.cluster.workers)
    assert worker(view, name).picture.clock is None
    view.told(Clocks({name: WorkerClock(-2_500_000, 41_000, 12.5), "gone": WorkerClock(0, 0, 0.0)}))
    assert worker(view, name).picture.clock == Clock(offset_ms=-2.5, error_us=41.0, rate_ppm=12.5)
    assert all(worker(view, other).picture.clock is None for other in others)
    row = next(str(line) for line in cluster_lines(cluster(view), 160, view.now_ns) if name in str(line))
    assert "±41" in row


def test_every_reading_of_a_gpu_has_its_place() -> None:
    view, _ = at(0, 300)
    name = sorted(view.cluster.workers)[0]
    view.devices = {name: DeviceHealth((), tuple(Reading(each, 1.0, "power") for each in READINGS))}
    gpu = worker(view, name).gpu
    assert gpu is not None
    told = msgspec.structs.asdict(gpu)
    del told["notes"]
    assert len(told) == len(READINGS)
    assert all(told.values()), told
