"""The benchmark of one worker in a small form: what it measures is consistent, however fast the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.experiments.bench.worker import FILTER, Plan, compile_models, image_filter, measure
from mainspring.experiments.bench.worker_bare import ENGINE
from mainspring.experiments.bench.worker_exec import back_to_back, ratio_of_medians, tensors_on_their_way
from mainspring.experiments.bench.worker_load import beside, during_both, load_bandwidth
from mainspring.experiments.bench.worker_peer import LoneWorker, running
from mainspring.experiments.bench.worker_streams import Begun, Windows
from mainspring.experiments.bench.worker_windows import WindowSamples, begin_errors, window_figures
from mainspring.messages.actions import Prepare
from mainspring.messages.model import ModelSpec
from mainspring.worker.config import MIB, WorkerConfig

TINY = "digits"
PLAN = Plan(
    executed=(TINY,),
    loaded=(TINY,),
    beside=FILTER,
    windowed=FILTER,
    filter_pixels=128,
    windows=4,
    seconds=3.0,
    rounds=2,
    realtime=False,
)
PAGES = [(4,), (5,)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, list[ModelSpec]]:
    return compile_models(PLAN, folder)


@pytest.fixture(scope="module")
def worker(models: dict[str, list[ModelSpec]], folder: Path) -> Iterator[LoneWorker]:
    """A worker that has everything prepared and nothing resident."""
    config = WorkerConfig(
        name="bench",
        engine=ENGINE,
        store=str(folder / "store"),
        pages=8,
        io_bytes=4 * MIB,
        realtime=False,
        controller_silence_ms=60_000,
    )
    with running(config, folder) as lone:
        for copies in models.values():
            for model in copies:
                lone.do(Prepare(lone.next_id(), lone.name, model))
        yield lone
        calls = lone.close()
        assert len(calls) == len({action_id for action_id, _ in calls.tolist()}) > 0


def test_exec_is_measured_in_turns_with_the_bare_loop(
    worker: LoneWorker, models: dict[str, list[ModelSpec]]
) -> None:
    model = models[TINY][0]
    worker.hold(model, (0,))
    samples = back_to_back(worker, model, 0.3, 2)
    worker.drop(model)
    for kind in (samples.bare, samples.bare_busy, samples.worker, samples.device):
        assert len(kind) == 2
        assert all(len(turn) >= 5 and (turn > 0).all() for turn in kind)
    assert all((turn > 0).all() for turn in samples.between), "two EXECs ran at a time"
    assert all((turn > 0).all() for turn in samples.own), "a period is shorter than the run in it"


def test_tensors_are_measured_with_and_without(
    worker: LoneWorker, models: dict[str, list[ModelSpec]]
) -> None:
    model = models[FILTER][0]
    worker.hold(model, (0,))
    samples = tensors_on_their_way(worker, model, 0.3, 2)
    worker.drop(model)
    assert len(samples.periods) == len(samples.periods_withdrawn) == 2
    assert min(samples.alone) > 0
    assert min(samples.alone_withdrawn) > 0


def test_load_is_measured_in_turns_with_memcpy(
    worker: LoneWorker, models: dict[str, list[ModelSpec]]
) -> None:
    samples = load_bandwidth(worker, models[TINY][0], PAGES[0], 0.2, 2)
    for own, device, bare in zip(samples.worker, samples.device, samples.bare, strict=True):
        assert len(own) == len(device) > 0
        assert len(bare) > 0
        assert (own > device).all(), "an action can't be shorter than the copy in it"


def test_exec_and_load_are_measured_alone_and_beside_each_other(
    worker: LoneWorker, models: dict[str, list[ModelSpec]]
) -> None:
    model = models[FILTER][0]
    worker.hold(model, (0,))
    bare, own = beside(worker, model, models[TINY], PAGES, 1.8, 2)
    worker.drop(model)
    for samples in (bare, own):
        for turns in (samples.exec_alone, samples.exec_beside, samples.load_alone, samples.load_beside):
            assert len(turns) == 2
        assert all(map(len, [*samples.exec_alone, *samples.load_alone]))
    assert all((turn > 0).all() for turn in own.load_beside)


def test_windows_are_kept_or_refused(worker: LoneWorker, models: dict[str, list[ModelSpec]]) -> None:
    model = models[TINY][0]
    worker.hold(model, (0,))
    samples = begin_errors(worker, model, [models[FILTER][0]], [(4,)], 4, 2)
    worker.drop(model)
    assert all((spans[:, 1] >= spans[:, 0]).all() for spans in samples.bare), "a wait ended too early"
    streams = [*samples.quiet, *samples.beside_loads, *samples.tight]
    assert sum(len(each.begun) + each.refused + each.unsent for each in streams) == 12
    for begun in (one for stream in streams for one in stream.begun):
        assert begun.earliest_ns <= begun.begin_ns <= begun.latest_ns


WAITED = [np.array([[0, 2_000], [10_000, 13_000]])]


def windows(*begun: Begun) -> Windows:
    model = ModelSpec("m", "w", "e", (1,), 1, (1,), (), (), {})
    stream = Windows(model, 0, np.random.default_rng(0))
    stream.begun.extend(begun)
    return stream


def test_a_begin_outside_its_window_is_counted() -> None:
    ms = 1_000_000
    right, early, late = (
        Begun(key, 5 * ms, 6 * ms, at, 0) for key, at in ((1, 5 * ms), (2, 4 * ms), (3, 7 * ms))
    )
    samples = WindowSamples(WAITED, [windows(right, early)], [windows(right)], [windows(late)])
    rows = window_figures(samples, {1: 5 * ms + 30_000, 2: 5 * ms})
    found = {row.name: row for row in rows}
    assert found["begun before earliest or after latest"].value == 2
    assert not found["begun before earliest or after latest"].met
    assert found["begin error, beside LOADs:   p99 at the engine"].value == 30


def test_an_infer_that_was_sent_late_says_nothing_about_windows() -> None:
    ms = 1_000_000
    on_time = Begun(1, 5 * ms, 60 * ms, 5 * ms + 7_000, ms)
    sent_late = Begun(2, 5 * ms, 60 * ms, 50 * ms, 49 * ms)
    samples = WindowSamples(WAITED, [windows(on_time, sent_late)], [windows(on_time)], [windows()])
    found = {row.name: row.value for row in window_figures(samples, {1: 5 * ms, 2: 50 * ms})}
    assert found["begin error, quiet: p99"] == 7


def test_ratios_are_taken_within_a_round() -> None:
    slow, fast, none = np.array([200, 220, 900]), np.array([20, 22, 30]), np.array([], np.int64)
    assert ratio_of_medians([slow, fast, none], [slow * 2, fast * 2, fast]) == 0.5


def test_only_what_ran_beside_the_other_counts() -> None:
    one = np.array([[0, 10], [10, 20], [20, 30], [30, 40]])
    other = np.array([[8, 18], [18, 28], [28, 38], [38, 48]])
    kept, others = during_both(one, other)
    assert kept.tolist() == [[10, 20], [20, 30], [30, 40]]
    assert others.tolist() == [[8, 18], [18, 28], [28, 38]]


def test_the_whole_benchmark_runs_in_small(tmp_path: Path) -> None:
    rows = measure(PLAN, tmp_path)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert all(np.isfinite(row.value) for row in rows)
    targets = {row.name: row.target for row in rows if row.target is not None}
    assert targets == {
        "EXEC digits: back to back / bare loop": 0.97,
        "INPUT/OUTPUT: hidden behind EXEC": 0.8,
        "LOAD digits: bandwidth / memcpy's": 0.85,
        "both: EXEC slows / bare loops slow": 1.05,
        "both: LOAD slows / bare loops slow": 1.05,
        "begin error, quiet: p99": 50,
        "begin error, beside LOADs: p99": 50,
        "begun before earliest or after latest": 0,
    }


def test_the_filter_moves_much_for_what_it_computes() -> None:
    graph = image_filter(32).graph
    assert [value.name for value in graph.input] == ["data"]
    assert [value.name for value in graph.output] == ["output"]
