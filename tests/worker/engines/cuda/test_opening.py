"""Executables of a GPU: which are open when, what opening them takes, and that all of it is given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.config import MIB
from mainspring.worker.engine import EngineError, OpensAlone
from mainspring.worker.engines.cuda.launch_plans import LaunchPlanProgram
from mainspring.worker.engines.cuda.memory import SESSION_BYTES
from tests.worker.engines.cuda import tiny_plans as tiny
from tests.worker.engines.cuda.test_engine import TOTAL, Bench, rows
from tests.worker.engines.cuda.tiny_store import put_graph, put_model, tiny_store
from tests.worker.peers import load


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """An engine whose store held nothing when it started; it has to give everything back."""
    made = Bench(tmp_path)
    yield made
    made.engine.close()
    assert not made.driver.leaks


def test_graphs_are_made_at_the_first_prepare_of_their_executable_alone(bench: Bench) -> None:
    first = bench.store.manifest("a")
    for name in "cdef":
        put_model(bench.store, bench.store.executable_info(first), name)
    made = {"load_module", "begin_capture", "end_capture", "instantiate", "upload"}
    bench.engine.prepare(first.spec())
    assert bench.driver.calls.count("instantiate") == bench.driver.calls.count("upload") == len(tiny.SIZES)
    bench.driver.calls.clear()
    for place, name in enumerate("bcdef"):
        bench.engine.prepare(bench.store.manifest(name).spec())
        bench.engine.load(load(place, (place, 9 - place), name))
    for name in "bcdef":
        for count in tiny.SIZES:
            bench.check(name, rows(count))
    assert not made & {*bench.driver.calls}
    assert bench.driver.leaks["executables"] == len(tiny.SIZES)


def test_what_the_store_holds_is_opened_before_anything_is_served(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored=True)
    assert bench.driver.calls.count("load_module") == 1, "both models have one executable"
    assert bench.driver.calls.count("instantiate") == len(tiny.SIZES)
    bench.driver.calls.clear()
    for _ in range(2):
        for name in "ab":
            bench.resident(name, (0, 1))
            bench.check(name, rows(2))
            bench.engine.release(name)
    assert not {"load_module", "unload_module", "instantiate", "begin_capture"} & {*bench.driver.calls}
    bench.engine.close()
    assert not bench.driver.leaks


def test_what_can_not_be_opened_at_the_start_is_said_at_prepare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tiny_store(tmp_path / "store")
    path = store.executable_path(store.manifest("a")).with_name("kernels.cubin")
    code = path.read_bytes()
    path.write_bytes(b"other code")
    with caplog.at_level("INFO"):
        bench = Bench(tmp_path, stored=False)
    path.write_bytes(b"other code")
    assert "a is not opened before it is prepared" in caplog.text
    with pytest.raises(StoreError, match=r"kernels.cubin was altered"):
        bench.engine.prepare(bench.store.manifest("a").spec())
    path.write_bytes(code)
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))
    bench.engine.close()
    assert not bench.driver.leaks


def test_a_worker_of_the_other_engine_opens_no_plans(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored=True, engine="onnxruntime")
    assert "load_module" not in bench.driver.calls
    bench.engine.close()


def test_an_executable_that_can_not_be_warmed_is_closed_at_the_start_and_at_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise EngineError("it can't be warmed")

    monkeypatch.setattr(LaunchPlanProgram, "warm", fail)
    with caplog.at_level("INFO"):
        bench = Bench(tmp_path, stored=True)
    assert "a is not opened before it is prepared: it can't be warmed" in caplog.text
    assert "modules" not in bench.driver.leaks
    with pytest.raises(EngineError, match="can't be warmed"):
        bench.engine.prepare(bench.store.manifest("a").spec())
    assert "modules" not in bench.driver.leaks
    monkeypatch.undo()
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))
    bench.engine.close()
    assert not bench.driver.leaks


def test_handles_of_stored_graphs_are_left_out_of_the_pages(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    free = TOTAL - 2 * MIB - 16 * MIB
    assert Bench(tmp_path / "1", engine="auto").engine.pages == (free - MIB) // PAGE_BYTES
    for name, device in (("g", "cuda"), ("h", "cuda"), ("i", "cpu")):
        put_graph(store, name, device)
    handles = len(tiny.SIZES) * SESSION_BYTES
    assert Bench(tmp_path, engine="auto").engine.pages == (free - MIB - handles) // PAGE_BYTES
    assert Bench(tmp_path, engine="tvm").engine.pages == free // PAGE_BYTES


def test_what_exec_opens_needs_no_file_and_no_weights_then(bench: Bench) -> None:
    model = bench.store.manifest("a").spec()
    assert isinstance(bench.engine, OpensAlone)
    assert not bench.engine.fetch(model)
    assert bench.driver.calls.count("load_module") == 0
    for path in sorted(bench.store.root.rglob("*")):
        if path.is_file():
            path.rename(path.with_suffix(".away"))
    bench.engine.prepare(model)
    assert bench.driver.calls.count("load_module") == 1
    assert bench.engine.load(load(1, (0, 1), "a")) > 0
    bench.check("a", rows(2))


def test_a_model_of_an_open_executable_needs_no_opening(bench: Bench) -> None:
    bench.engine.prepare(bench.store.manifest("a").spec())
    assert bench.engine.fetch(bench.store.manifest("b").spec())
    assert bench.engine.load(load(1, (0, 1), "b")) > 0
    bench.check("b", rows(1))


def test_a_model_that_was_fetched_is_there_once_another_one_has_opened_its_executable(bench: Bench) -> None:
    first, second = (bench.store.manifest(name).spec() for name in "ab")
    assert not bench.engine.fetch(first)
    assert not bench.engine.fetch(second)
    bench.engine.prepare(first)
    assert bench.engine.fetch(second)
    bench.engine.release("a")
    assert bench.engine.load(load(1, (0, 1), "b")) > 0
    bench.check("b", rows(2))


def test_a_model_that_was_fetched_can_be_released(bench: Bench) -> None:
    model = bench.store.manifest("a").spec()
    assert not bench.engine.fetch(model)
    bench.engine.release("a")
    assert not bench.engine.fetch(model)
    bench.resident("a", (0, 1))
    bench.check("a", rows(1))


def test_an_executable_that_is_opened_for_two_models_at_once_is_opened_once(bench: Bench) -> None:
    """As the scheduler may ask for it, which does not know that what it measures apart is one program."""
    for name in "ab":
        assert not bench.engine.fetch(bench.store.manifest(name).spec())
    for name in "ab":
        bench.engine.prepare(bench.store.manifest(name).spec())
    assert bench.driver.calls.count("load_module") == 1
    bench.engine.release("a")
    bench.engine.load(load(1, (0, 1), "b"))
    bench.check("b", rows(1))
    bench.engine.release("b")
    assert "modules" not in bench.driver.leaks
