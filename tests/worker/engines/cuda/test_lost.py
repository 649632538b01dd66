"""After an error that ends a context every call fails, that which makes a thread the device's among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mainspring.worker.engine import DeviceLost, EngineError
from mainspring.worker.engines.cuda.weights_index import Index
from tests.worker.engines.cuda.test_engine import Bench
from tests.worker.peers import infer, load

ILLEGAL = "an illegal memory access was encountered"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A device that served, and that every call now says is lost."""
    made = Bench(tmp_path)
    made.resident("a", (0, 1))
    for call in ("attach", "copy", "record", "synchronize", "launch_graph", "begin_capture"):
        made.driver.fails[call] = RuntimeError(ILLEGAL)

    def explain(error: Exception) -> EngineError:
        return DeviceLost(str(error))

    monkeypatch.setattr(made.driver, "explain", explain)
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda bench: bench.engine.prepare(bench.store.manifest("b").spec()),
        lambda bench: bench.engine.load(load(1, (2, 3), "a")),
        lambda bench: bench.engine.execute(infer(1, model="a"), bench.place(1)),
        lambda bench: bench.engine.release("a"),
        lambda bench: bench.engine.heartbeat(),
    ],
    ids=["prepare", "load", "execute", "release", "heartbeat"],
)
def test_whoever_calls_first_hears_that_the_device_is_lost(
    bench: Bench, call: Callable[[Bench], object]
) -> None:
    with pytest.raises(DeviceLost, match=ILLEGAL):
        call(bench)


def test_a_device_that_has_nothing_to_do_is_asked_whether_it_answers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.engine._probe()
    monkeypatch.setattr("mainspring.worker.engines.cuda.engine.IDLE_NS", 0)
    with pytest.raises(DeviceLost, match=ILLEGAL):
        bench.engine._probe()


def test_an_idle_device_that_a_thread_may_use_is_asked_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make a device the thread's may ask nothing of it."""
    monkeypatch.setattr("mainspring.worker.engines.cuda.engine.IDLE_NS", 0)
    del bench.driver.fails["attach"]
    bench.engine._probe()
    bench.driver.fails["memory"] = RuntimeError(ILLEGAL)
    with pytest.raises(DeviceLost, match=ILLEGAL):
        bench.engine._probe()
    monkeypatch.setattr(bench.driver, "explain", lambda error: EngineError(str(error)))
    bench.engine._probe()


def test_closing_raises_nothing_and_leaves_the_other_workers(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What ended the worker is said by who raised it: an error of the close would be said instead."""
    bench.engine.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"the GPU can't be used any more; the driver releases its memory: {ILLEGAL}"
    ]
    index = msgspec.json.decode((tmp_path / "agreed" / "index.json").read_bytes(), type=Index)
    assert not index.holders
