"""Two batches that the device has at once: each with its addresses, its events, its slot, and its own end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mainspring.experiments.gpu_check.rehearsal.driver import LAUNCH_NS
from mainspring.worker.engine import DeviceLost, EngineError, Queues
from mainspring.worker.engines.cuda.runs import DRIFT, Run, bounds_ns
from tests.fuzz import seeded
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.test_engine import Bench, rows
from tests.worker.peers import infer

KERNELS_NS = {size: sum(tiny.KERNELS[f"{name}_{size}"].duration_ns for name in ("multiply", "add"))
              for size in tiny.SIZES}  # fmt: skip
ILLEGAL = "an illegal memory access was encountered"
Asked = tuple[str, tiny.Floats, int]
"""A model, its input, and the slot."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.resident("a", (0, 1))
    made.resident("b", (7, 3))
    yield made
    made.driver.fails.clear()
    made.engine.close()
    assert not made.driver.leaks


def give(bench: Bench, asked: Asked) -> Run:
    name, x, offset = asked
    bench.send(x, offset)
    return bench.engine.give(infer(1, tuple(range(len(x))), model=name), bench.place(len(x), offset))


def outputs(bench: Bench, asked: Asked) -> tiny.Floats:
    """Bring the outputs of a batch that has ended, and leave its slot for another one to fill."""
    _, x, offset = asked
    io = bench.place(len(x), offset)
    assert bench.engine.transfers.receive(io) == ""
    found = bench.engine.io[offset + io.layout.outputs[0] :][: x.nbytes].view(np.float32).copy()
    bench.engine.io[offset : offset + io.layout.size] = 0xEE
    return found.reshape(x.shape)


def asked(count: int) -> list[Asked]:
    """Batches of two models and sizes in two slots in turn: each pair of neighbours is there."""
    return [("aab"[seed % 3], rows(1 + seed % 4 // 2, seed), seed % 2 * 4096) for seed in range(count)]


def test_it_takes_batches_ahead(bench: Bench) -> None:
    assert isinstance(bench.engine, Queues)
    assert bench.engine.takes_ahead(infer(1, model="a"))
    assert not bench.engine.takes_ahead(infer(1, model="nobody"))


def test_each_of_two_batches_has_its_own_weights_inputs_and_outputs(bench: Bench) -> None:
    batches = asked(13)
    ahead = give(bench, batches[0])
    for before, after in itertools.pairwise(batches):
        following = give(bench, after)
        ahead.wait()
        np.testing.assert_allclose(outputs(bench, before), bench.expected(*before[:2]), rtol=1e-6)
        ahead = following
    ahead.wait()
    np.testing.assert_allclose(outputs(bench, batches[-1]), bench.expected(*batches[-1][:2]), rtol=1e-6)


def test_what_the_device_does_is_the_same_as_one_by_one(tmp_path: Path) -> None:
    """The order of all work, and each output, bit for bit."""
    done, found = [], []
    for ahead in (False, True):
        bench = Bench(tmp_path / str(ahead))
        bench.resident("a", (0, 1))
        bench.resident("b", (7, 3))
        bench.driver.done.clear()
        batches = asked(12)
        got, waiting = [], []
        for each in batches:
            waiting.append((give(bench, each), each))
            while len(waiting) > ahead:
                run, which = waiting.pop(0)
                run.wait()
                got.append(outputs(bench, which))
        for run, which in waiting:
            run.wait()
            got.append(outputs(bench, which))
        found.append(got)
        done.append(
            [work.what for work in bench.driver.done if work.what.split()[0] in ("addresses", "kernel")]
        )
        bench.engine.close()
    assert done[0] == done[1]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_the_second_begins_behind_the_first_and_the_host_is_not_asked_between(bench: Bench) -> None:
    one, other = ("a", rows(2), 0), ("b", rows(1), 4096)
    first, second = give(bench, one), give(bench, other)
    bench.driver.calls.clear()
    began = first.wait()
    assert len(bench.driver.find("kernel")) == 2, "the host waited for more than the first"
    then = second.wait()
    assert bench.driver.calls == ["synchronize", "synchronize"]
    multiply, add, next_multiply, next_add = bench.driver.find("kernel")
    assert next_multiply.begin_ns == add.end_ns + LAUNCH_NS, "between the two is what writes the addresses"
    assert bench.driver.find("copy TO_HOST")[0].begin_ns == add.end_ns, (
        "OUTPUT of the first waited for the second"
    )
    assert then.device_ns == KERNELS_NS[1] == next_add.end_ns - next_multiply.begin_ns
    assert began.device_ns == KERNELS_NS[2] + LAUNCH_NS, "its kernels, and what writes their addresses"
    assert began.begin_ns <= began.end_ns <= then.begin_ns <= then.end_ns
    assert multiply.begin_ns < add.begin_ns


def test_begin_and_end_are_the_devices_even_if_the_host_looks_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device's own clock, which is the host's here."""
    driver = bench.driver
    monkeypatch.setattr(time, "monotonic_ns", lambda: driver.now_ns)
    synchronize, late_ns = driver.synchronize, itertools.cycle([0, 0, 0, 3_000_000, 0])

    def looks_late(event: int) -> None:
        synchronize(event)
        driver.now_ns += next(late_ns)

    driver.synchronize = looks_late  # type: ignore[method-assign]
    bench.engine.execute(infer(1, model="a"), bench.place(1, 8192))
    driver.done.clear()
    batches = asked(12)
    found, ahead = [], give(bench, batches[0])
    for each in batches[1:]:
        following = give(bench, each)
        found.append(ahead.wait())
        ahead = following
    found.append(ahead.wait())
    ends_ns = [work.end_ns for work in driver.find("kernel add")]
    starts_ns = [work.begin_ns for work in driver.find("addresses")]
    assert len(ends_ns) == len(starts_ns) == len(found)
    for ran, start_ns, end_ns in zip(found, starts_ns, ends_ns, strict=True):
        # As much as clocks may differ: the device's and the host's are the same here, and nobody knows.
        assert start_ns <= ran.begin_ns + 3_000 <= start_ns + 6_000
        assert end_ns <= ran.end_ns <= end_ns + 3_000


def test_a_batch_alone_has_the_duration_of_its_kernels(bench: Bench) -> None:
    for _ in range(4):
        assert give(bench, ("a", rows(2), 0)).wait().device_ns == KERNELS_NS[2]


def test_nothing_is_allocated_for_the_one_ahead(bench: Bench) -> None:
    before = list(bench.driver.allocations)
    ahead = give(bench, ("a", rows(1), 0))
    for each in asked(10):
        following = give(bench, each)
        ahead.wait()
        ahead = following
    ahead.wait()
    assert bench.driver.allocations == before


@pytest.mark.parametrize("call", ["wait", "launch", "launch_graph", "record", "copy"])
def test_one_that_can_not_be_given_is_its_own_failure(bench: Bench, call: str) -> None:
    """Wherever it fails; what was launched of it has ended before its slot is another's."""
    one, other = ("a", rows(2), 0), ("b", rows(1), 4096)
    first = give(bench, one)
    bench.send(other[1], 4096)
    bench.driver.fails[call] = RuntimeError("out of resources")
    second = bench.engine.give(infer(2, model="b"), bench.place(1, 4096))
    bench.driver.fails.clear()
    first.wait()
    np.testing.assert_allclose(outputs(bench, one), bench.expected("a", one[1]), rtol=1e-6)
    with pytest.raises(EngineError, match="GPU 0: out of resources"):
        second.wait()
    if call != "record":
        assert not bench.driver._queues[bench.engine._exec], "its slot may be another's while it runs"
    bench.check("b", other[1], 4096)


def test_the_first_may_fail_and_the_second_not(bench: Bench) -> None:
    bench.send(rows(1), 4096)
    bench.driver.fails["launch_graph"] = RuntimeError("out of resources")
    first = bench.engine.give(infer(2, model="b"), bench.place(1, 4096))
    bench.driver.fails.clear()
    other = ("a", rows(2), 0)
    second = give(bench, other)
    with pytest.raises(EngineError, match="out of resources"):
        first.wait()
    second.wait()
    np.testing.assert_allclose(outputs(bench, other), bench.expected("a", other[1]), rtol=1e-6)


def test_a_lost_device_ends_both(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = give(bench, ("a", rows(2), 0)), give(bench, ("b", rows(1), 4096))
    bench.driver.fails["synchronize"] = RuntimeError(ILLEGAL)
    monkeypatch.setattr(bench.driver, "explain", lambda error: DeviceLost(str(error)))
    for each in (first, second):
        with pytest.raises(DeviceLost, match=ILLEGAL):
            each.wait()


def test_an_input_that_failed_ends_its_own_batch_and_not_the_one_before(bench: Bench) -> None:
    x, following = rows(2), bench.place(1, 4096)
    bench.send(x)
    bench.driver.fails["copy"] = RuntimeError("bus error")
    bench.engine.transfers.send(following, 0, tiny.ROW_BYTES)
    bench.driver.fails.clear()
    first = bench.engine.give(infer(1, (1, 2), model="a"), bench.place(2))
    assert bench.engine.takes_ahead(infer(2, model="b"))
    second = bench.engine.give(infer(2, model="b"), following)
    assert first.wait().device_ns > 0
    with pytest.raises(EngineError, match="bus error"):
        second.wait()
    bench.check("b", rows(1))


def test_kernels_that_are_launched_one_by_one_are_not_given_ahead(tmp_path: Path) -> None:
    """There are hundreds, and whoever gives them holds the worker's lock."""
    bench = Bench(tmp_path)
    bench.driver.graphs_break = True
    bench.resident("a", (0, 1))
    assert not bench.engine.takes_ahead(infer(1, model="a"))
    bench.check("a", rows(1))
    bench.engine.close()


def test_a_device_that_computes_is_not_asked_whether_it_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.worker.engines.cuda.engine.IDLE_NS", 0)
    first, second = give(bench, ("a", rows(2), 0)), give(bench, ("b", rows(1), 4096))
    bench.driver.calls.clear()
    bench.engine._probe()
    first.wait()
    bench.engine._probe()
    assert "memory" not in bench.driver.calls
    second.wait()
    bench.engine._probe()
    assert bench.driver.calls[-1] == "memory"


def test_a_heartbeat_between_batches_takes_nothing_from_their_times(bench: Bench) -> None:
    for _ in range(4):
        run = give(bench, ("a", rows(1), 0))
        ran = run.wait()
        assert run.told_ns <= ran.begin_ns <= ran.end_ns
        bench.engine.heartbeat()


# --- instants ---


def test_a_run_whose_end_the_host_saw_at_once_ended_then() -> None:
    assert bounds_ns(told_ns=50, seen_ns=1_300, whole_ns=300, last_ns=1_000, since_ns=300) == (1_000, 1_300)
    assert bounds_ns(told_ns=50, seen_ns=1_290, whole_ns=280, last_ns=1_000, since_ns=300) == (1_010, 1_290)


def test_a_run_whose_end_the_host_saw_late_ended_when_the_device_says() -> None:
    """EXEC's thread had to wait for a core: the run neither began nor ended later for that."""
    assert bounds_ns(50, 9_000, 300, 1_000, 310) == (1_010, 1_310)
    since_ns = 10 * DRIFT
    assert bounds_ns(50, 9 * since_ns, 300, 1_000, since_ns)[1] == 1_000 + since_ns + 10, "clocks may differ"


def test_no_run_began_before_the_device_was_told() -> None:
    assert bounds_ns(told_ns=5_000, seen_ns=6_000, whole_ns=300, last_ns=1_000, since_ns=310) == (
        5_000,
        5_300,
    )
    assert bounds_ns(told_ns=5_000, seen_ns=5_100, whole_ns=300, last_ns=1_000, since_ns=310) == (
        5_000,
        5_100,
    )


def test_the_first_run_is_told_as_the_host_saw_it() -> None:
    assert bounds_ns(told_ns=50, seen_ns=9_000, whole_ns=300, last_ns=0, since_ns=None) == (8_700, 9_000)


@seeded(4)
def test_late_looks_never_add_up_and_no_end_is_told_too_early(seed: int) -> None:
    """For clocks that differ by as much as is allowed, and a host that looks late now and then."""
    random = np.random.default_rng(seed)
    rate = 1 + random.uniform(-0.9, 0.9) / DRIFT
    true_ns, last_ns, before_ns, seen_ns = 0, 0, 0, 0
    for _ in range(2_000):
        told_ns = true_ns
        gap_ns, whole_ns = int(random.integers(0, 50_000)), int(random.integers(1_000, 2_000_000))
        true_ns += gap_ns + whole_ns
        # One after the other: what ended after a late look is seen after it.
        seen_ns = max(seen_ns, true_ns + int(random.choice([500, 500, 3_000_000])))
        since_ns = int((true_ns - before_ns) * rate)
        begin_ns, end_ns = bounds_ns(told_ns, seen_ns, whole_ns, last_ns, since_ns if before_ns else None)
        assert true_ns - 2 <= end_ns <= seen_ns
        assert last_ns <= begin_ns <= end_ns
        if last_ns == before_ns + 500:
            assert end_ns - true_ns <= 500 + 2 * (true_ns - before_ns) // DRIFT + 2
        before_ns, last_ns = true_ns, end_ns
