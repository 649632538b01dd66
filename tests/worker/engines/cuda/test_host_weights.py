"""Weights that workers share: read once, pinned once in each, and gone with the last worker."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.compiler.artifact.store import Store
from mainspring.experiments.gpu_check.rehearsal.driver import FakeDriver
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda import host_weights
from mainspring.worker.engines.cuda.host_weights import (
    HostWeights,
    default_folder,
    may_be_pinned,
    reserve_for,
)
from mainspring.worker.engines.cuda.shared_memory import started
from mainspring.worker.engines.cuda.weights_index import ALIGNMENT_BYTES, Blob, Holder, Index, Segment
from tests.worker.engines.cuda.tiny_store import tiny_store

MIB = 1 << 20


class Worker:
    """A worker's view with its own device; several may be in one process, as if they were in several."""

    def __init__(self, folder: Path, reserve_bytes: int = 0) -> None:
        self.driver = FakeDriver()
        self.driver.attach()
        self.filled: list[str] = []
        self.weights = HostWeights(self.driver, Path("store"), reserve_bytes, folder)

    def take(self, key: str, size: int) -> bytes:
        def fill(into: memoryview) -> None:
            self.filled.append(key)
            into[:] = pattern(key, size)

        return ctypes.string_at(self.weights.take(key, size, fill), size)


def pattern(key: str, size: int) -> bytes:
    return (key.encode() * size)[:size]


def read_index(folder: Path) -> Index:
    return msgspec.json.decode((folder / "index.json").read_bytes(), type=Index)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(host_weights, "SEGMENT_BYTES", 4 * MIB)
    yield tmp_path / "agreed"
    index = tmp_path / "agreed" / "index.json"
    if index.exists():
        assert not msgspec.json.decode(index.read_bytes(), type=Index).problems()


def test_the_second_worker_finds_what_the_first_has_read(folder: Path) -> None:
    one, two = Worker(folder), Worker(folder)
    for key in ("a", "b"):
        assert one.take(key, MIB) == two.take(key, MIB) == pattern(key, MIB)
    assert (one.filled, two.filled) == (["a", "b"], [])
    one.weights.close()
    assert two.take("a", MIB) == pattern("a", MIB), "the weights went with the worker that read them"
    two.weights.close()
    assert not one.driver.leaks
    assert not two.driver.leaks


def test_another_process_finds_them_too(folder: Path) -> None:
    here = Worker(folder)
    here.take("a", MIB)
    script = (
        "import sys; from pathlib import Path;"
        "from tests.worker.engines.cuda.test_host_weights import Worker;"
        "worker = Worker(Path(sys.argv[1])); print(worker.take('a', 1 << 20)[:3], worker.filled);"
        "print(worker.take('b', 1000)[:3], worker.filled, flush=True); import os; os._exit(9)"
    )
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", script, str(folder)]
    found = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["b'aaa' []", "b'bbb' ['b']"], found.stderr
    # It was killed without taking leave; what it read is here, because its segment is.
    assert here.take("b", 1000) == pattern("b", 1000)
    assert here.filled == ["a"]
    here.weights.close()


def test_room_is_there_from_the_start_and_pinned_once(folder: Path) -> None:
    worker = Worker(folder, reserve_bytes=8 * MIB)
    for number in range(8):
        worker.take(f"model {number}", MIB)
    assert worker.driver.allocations == ["register_host"]
    other = Worker(folder, reserve_bytes=8 * MIB)
    assert other.driver.allocations == ["register_host"]
    worker.weights.close()
    other.weights.close()


def test_memory_grows_when_models_come_that_find_no_room(folder: Path) -> None:
    one, two = Worker(folder, reserve_bytes=MIB), Worker(folder)
    assert one.take("small", MIB) == pattern("small", MIB)
    assert one.take("large", 6 * MIB) == pattern("large", 6 * MIB)
    assert two.take("large", 6 * MIB) == pattern("large", 6 * MIB), "a segment made later is not seen"
    assert two.filled == []
    one.weights.close()
    two.weights.close()


def test_a_host_that_is_full_refuses_a_model_instead_of_losing_a_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(folder, reserve_bytes=2 * MIB)
    monkeypatch.setattr(host_weights, "may_be_pinned", lambda: 3 * MIB)
    with pytest.raises(EngineError, match=r"room for 3 MiB of weights more, and 5 MiB are wanted"):
        worker.take("large", 5 * MIB)
    assert worker.take("small", 2 * MIB) == pattern("small", 2 * MIB)
    assert worker.take("other", MIB) == pattern("other", MIB), "less than a whole segment was there"
    worker.weights.close()


def test_what_nobody_uses_makes_room_and_comes_back_for_nothing_until_then(folder: Path) -> None:
    worker = Worker(folder, reserve_bytes=2 * MIB)
    worker.take("a", MIB)
    worker.take("b", MIB)
    worker.weights.give_back("a")
    worker.take("a", MIB)
    worker.weights.give_back("a")
    assert worker.filled == ["a", "b"]
    worker.take("c", MIB)
    worker.take("a", MIB)
    assert worker.filled == ["a", "b", "c", "a"]
    assert worker.driver.allocations == ["register_host", "register_host"], "only the last one found no room"
    worker.weights.close()


def test_models_with_the_same_weights_share_them_until_the_last_is_released(folder: Path) -> None:
    worker = Worker(folder, reserve_bytes=MIB)
    assert worker.take("a", MIB) == worker.take("a", MIB)
    worker.weights.give_back("a")
    index = read_index(folder)
    assert len(index.blobs["a"].users) == 1
    worker.weights.give_back("a")
    index = read_index(folder)
    assert index.blobs["a"].users == []
    worker.weights.close()


def test_weights_that_can_not_be_read_are_not_kept(folder: Path) -> None:
    worker = Worker(folder)

    def fail(into: memoryview) -> None:
        raise EngineError("altered")

    with pytest.raises(EngineError, match="altered"):
        worker.weights.take("a", MIB, fail)
    assert worker.take("a", MIB) == pattern("a", MIB)
    worker.weights.close()


def test_others_go_on_while_a_worker_reads_and_wait_only_for_the_same_weights(folder: Path) -> None:
    one, two = Worker(folder, 4 * MIB), Worker(folder)
    begun, go_on = threading.Event(), threading.Event()

    def read(into: memoryview) -> None:
        begun.set()
        assert go_on.wait(30)
        into[:] = pattern("a", MIB)

    with ThreadPoolExecutor(2) as threads:
        reads = threads.submit(one.weights.take, "a", MIB, read)
        assert begun.wait(30)
        assert two.take("b", MIB) == pattern("b", MIB), "it waits for weights that are not its own"
        waits = threads.submit(two.take, "a", MIB)
        assert not waits.done()
        go_on.set()
        assert ctypes.string_at(reads.result(30), MIB) == pattern("a", MIB)
        assert waits.result(30) == pattern("a", MIB)
    assert two.filled == ["b"]
    one.weights.close()
    two.weights.close()


def test_a_worker_that_waits_long_says_for_whom_and_waits_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_weights, "LONG_WAIT_S", 0.0)
    one, two = Worker(folder, 4 * MIB), Worker(folder)
    begun, told = threading.Event(), threading.Event()

    def note(record: logging.LogRecord) -> bool:
        told.set()
        return True

    monkeypatch.setattr(host_weights.LOG, "filter", note)

    def read(into: memoryview) -> None:
        begun.set()
        assert told.wait(30)
        into[:] = pattern("a", MIB)

    with ThreadPoolExecutor(1) as threads:
        reads = threads.submit(one.weights.take, "a", MIB, read)
        assert begun.wait(30)
        assert two.take("a", MIB) == pattern("a", MIB)
        reads.result(30)
    assert [record.getMessage() for record in caplog.records] == [
        f"weights a are waited for, which another worker reads (process {os.getpid()}): if its disk hangs, "
        "stop it"
    ]
    one.weights.close()
    two.weights.close()


def test_what_a_worker_was_reading_when_it_died_is_read_again(folder: Path) -> None:
    here = Worker(folder, 4 * MIB)
    script = (
        "import sys, time; from pathlib import Path;"
        "from tests.worker.engines.cuda.test_host_weights import Worker, MIB;"
        "weights = Worker(Path(sys.argv[1])).weights;"
        "weights.take('a', MIB, lambda into: (print('reads', flush=True), time.sleep(600)))"
    )
    root = Path(__file__).resolve().parents[4]
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reads\n"
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(here.take, "a", MIB)
            other.kill()
            other.wait()
            assert waits.result(30) == pattern("a", MIB)
    assert here.filled == ["a"]
    here.weights.close()


def test_the_reserve_is_pinned_in_pieces_that_can_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_weights, "LARGEST_SEGMENT_BYTES", 4 * MIB)
    worker = Worker(folder, reserve_bytes=10 * MIB)
    index = read_index(folder)
    assert [segment.size for segment in index.segments] == [4 * MIB, 4 * MIB, 2 * MIB]
    for number in range(10):
        worker.take(f"model {number}", MIB)
    assert worker.driver.allocations == ["register_host"] * 3
    worker.weights.close()
    monkeypatch.setattr(host_weights, "may_be_pinned", lambda: 9 * MIB)
    with pytest.raises(EngineError, match="room for 9 MiB of weights more, and 10 MiB are wanted"):
        Worker(folder, reserve_bytes=10 * MIB)
    index = read_index(folder)
    assert not index.segments, "a part of it was made"


def test_memory_that_keeps_growing_grows_in_larger_pieces(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_weights, "SEGMENT_BYTES", 2 * MIB)
    monkeypatch.setattr(host_weights, "DOUBLED_AFTER", 2)
    monkeypatch.setattr(host_weights, "LARGEST_GROWTH_BYTES", 8 * MIB)
    worker = Worker(folder)
    for number in range(28):
        worker.take(f"model {number}", MIB)
    index = read_index(folder)
    assert [segment.size >> 20 for segment in index.segments] == [2, 2, 4, 4, 8, 8]
    worker.weights.close()


def test_a_host_that_can_not_pin_says_what_to_change(folder: Path) -> None:
    driver = FakeDriver()
    driver.attach()
    driver.fails["register_host"] = RuntimeError("out of memory")
    with pytest.raises(EngineError, match=r"8 MiB of host memory.*pinned.*host_weights_bytes lower"):
        HostWeights(driver, Path("store"), 8 * MIB, folder)
    driver.fails.clear()
    HostWeights(driver, Path("store"), 8 * MIB, folder).close()


def test_weights_whose_segment_can_not_be_pinned_are_left_to_whoever_can(folder: Path) -> None:
    one, two = Worker(folder), Worker(folder)
    one.take("small", MIB)
    two.driver.fails["register_host"] = RuntimeError("out of memory")
    with pytest.raises(EngineError, match="can't be pinned"):
        two.take("a", MIB)
    assert list(read_index(folder).blobs) == ["small"], "others wait for what nobody writes"
    two.driver.fails.clear()
    assert one.take("a", MIB) == two.take("a", MIB) == pattern("a", MIB)
    one.weights.close()
    two.weights.close()


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing be written any more."""

    def fail(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", fail)


def test_an_index_that_can_not_be_written_hides_no_other_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(folder)
    with monkeypatch.context() as patched:
        fill_disk(patched)
        with pytest.raises(EngineError, match=r"index\.json can't be written \(No space left on device\)"):
            worker.take("a", MIB)

        def fail(into: memoryview) -> None:
            fill_disk(patched)
            raise EngineError("altered")

        patched.undo()
        with pytest.raises(EngineError, match="altered"):
            worker.weights.take("a", MIB, fail)
        patched.setattr(host_weights, "may_be_pinned", lambda: 0)
        with pytest.raises(EngineError, match="wanted: serve fewer models"):
            worker.take("large", 16 * MIB)
    assert worker.take("a", MIB) == pattern("a", MIB)
    worker.weights.close()
    assert not worker.driver.leaks


def test_a_segment_that_could_not_be_entered_is_not_taken_for_another_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Worker(folder), Worker(folder)
    with monkeypatch.context() as patched:
        fill_disk(patched)
        with pytest.raises(EngineError, match="can't be written"):
            one.take("a", MIB)
    assert two.take("b", MIB) == pattern("b", MIB)
    assert one.take("b", MIB) == pattern("b", MIB), "it read its own segment of the same number"
    one.weights.close()
    two.weights.close()
    assert not one.driver.leaks


def test_weights_whose_end_could_not_be_entered_are_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Worker(folder), Worker(folder)
    with monkeypatch.context() as patched, pytest.raises(EngineError, match="can't be written"):
        one.weights.take("a", MIB, lambda into: fill_disk(patched))
    monkeypatch.setattr(host_weights, "WRITER_POLL_S", -1)  # Whoever waits fails.
    assert one.take("a", MIB) == two.take("a", MIB) == pattern("a", MIB)
    one.weights.close()
    two.weights.close()


def test_a_damaged_agreement_is_named(folder: Path) -> None:
    Worker(folder).weights.close()
    (folder / "index.json").write_text("{")
    with pytest.raises(EngineError, match=r"index.json is damaged"):
        Worker(folder)
    (folder / "index.json").unlink()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(EngineError, match="not this user's own folder"):
        Worker(tmp_path / "link")


def test_stores_have_folders_of_their_own(tmp_path: Path) -> None:
    assert default_folder(tmp_path / "a") != default_folder(tmp_path / "b")
    assert default_folder(tmp_path / "a") == default_folder(tmp_path / "b" / ".." / "a")


def test_a_process_is_known_by_its_start() -> None:
    assert started(os.getpid()) == started(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert started(child.pid) is not None
    child.communicate(b"\n")
    assert started(child.pid) is None


def test_a_segment_that_died_with_its_only_holder_is_used_no_more() -> None:
    index = Index(
        {"one": Holder(1, 1, {0: 3, 1: 4}), "two": Holder(2, 2, {0: 5})},
        [Segment(MIB, 10), Segment(MIB, 11)],
        {"a": Blob(0, 0, 5, ["one", "two"]), "b": Blob(1, 0, 5, ["one"])},
    )
    index.remove_holder("one")
    assert list(index.blobs) == ["a"]
    assert index.place(MIB) is None
    assert index.place(1000) == (0, 4096)
    index.remove_holder("two")
    assert index == Index()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 9), st.integers(1, 40_000)),
            st.tuples(st.just("give"), st.integers(0, 9), st.just(0)),
        ),
        max_size=60,
    )
)
def test_blobs_never_overlap_and_what_is_used_stays(steps: list[tuple[str, int, int]]) -> None:
    index = Index({"me": Holder(1, 1, {0: 3, 1: 4})}, [Segment(60_000, 1), Segment(30_000, 2)], {})
    used: dict[str, tuple[int, int]] = {}
    for step, number, size in steps:
        key = str(number)
        if step == "take" and key not in index.blobs:
            place = index.place(size)
            if place is not None:
                index.blobs[key] = Blob(*place, size, ["me"])
                used[key] = place
        elif step == "give" and key in index.blobs:
            index.blobs[key].users.clear()
            used.pop(key, None)
        assert not index.problems()
        assert all(index.blobs[key].place == place for key, place in used.items())


def test_the_store_says_how_much_is_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = tiny_store(tmp_path / "store", "ab")
    (weights,) = {store.manifest(name).weights_bytes for name in "ab"}
    aligned = -(-weights // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    assert reserve_for(store, 1 << 40) == 2 * aligned
    manifest = msgspec.structs.replace(store.manifest("a"), name="copy")
    store.put_manifest(manifest)
    assert reserve_for(store, 1 << 40) == 2 * aligned, "a copy's weights are the same bytes"
    assert not caplog.records
    assert reserve_for(store, 10 * MIB) == int(8.5 * MIB)
    assert "not all models can be prepared" in caplog.text
    assert reserve_for(Store(tmp_path / "none")) == 0
    assert may_be_pinned() > 0
