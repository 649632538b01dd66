"""What a store lacks is fetched once for a host, is what was compiled, and goes again for want of room."""

from __future__ import annotations

import errno
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mainspring.compiler.artifact.manifest import Source as Origin
from mainspring.compiler.artifact.store import Store
from mainspring.compiler.pipeline import compile_model
from mainspring.compiler.zoo import build
from mainspring.messages.model import ModelSpec
from mainspring.worker import fetching
from mainspring.worker.engine import EngineError
from mainspring.worker.fetching import AGAIN_MOST_NS, AGAIN_NS, Fetcher
from mainspring.worker.sources import Anywhere, Folder, Source, SourceError, source_of

NAMES = ("a", "b", "c")


class Watched(Folder):
    """A folder that notes what is read, and can be made to fail or to lie."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_from: list[tuple[str, int]] = []
        self.fails_after = -1
        """Bytes of one read, after which it fails; -1 for never."""
        self.adds: list[str] = []

    def listing(self, folder: str) -> list[str]:
        return [*super().listing(folder), *self.adds]

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        self.read_from.append((path, offset))
        given = 0
        for chunk in super().read(path, offset):
            if 0 <= self.fails_after < given + len(chunk):
                yield chunk[: self.fails_after - given]
                raise SourceError(f"{path}: the network is down")
            given += len(chunk)
            yield chunk


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a store with three models of one architecture."""
    store = Store(tmp_path_factory.mktemp("origin") / "store")
    for seed, name in enumerate(NAMES, 1):
        compile_model(
            build("digits", seed), name, store, (1,), Origin("zoo", "digits", seed=seed), quick=True
        )
    return store.root


@pytest.fixture
def origin(compiled: Path, tmp_path: Path) -> Watched:
    shutil.copytree(compiled, tmp_path / "origin")
    return Watched(tmp_path / "origin")


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(tmp_path / "local")


def spec(compiled: Path, name: str = "a") -> ModelSpec:
    return Store(compiled).manifest(name).spec()


def fetcher(local: Store, source: Source, **bounds: int) -> Fetcher:
    return Fetcher(local, source, threading.Event(), **bounds)


def artifact_bytes(store: Store) -> int:
    """Return what the store's weights and executables have."""
    files = [*store.root.glob("weights/*"), *store.root.glob("executables/*/*")]
    return sum(path.stat().st_size for path in files)


def weights_bytes(compiled: Path) -> int:
    return Store(compiled).manifest("a").weights_bytes


def test_an_empty_store_gets_what_is_asked_for_and_reads_it_once(
    compiled: Path, origin: Watched, local: Store
) -> None:
    fetch = fetcher(local, origin)
    fetch.fetch(spec(compiled))
    local.verify("a")
    assert local.names() == ["a"]
    assert local.manifest("a") == Store(compiled).manifest("a")
    read = len(origin.read_from)
    fetch.fetch(spec(compiled))
    fetcher(local, origin).fetch(spec(compiled))
    assert len(origin.read_from) == read
    fetch.fetch(spec(compiled, "b"))
    assert [path for path, _ in origin.read_from[read:] if path.startswith("executables/")] == [], (
        "it is shared"
    )


def test_workers_of_a_host_fetch_a_model_once(compiled: Path, origin: Watched, local: Store) -> None:
    together = threading.Barrier(4)

    def run() -> None:
        one = fetcher(local, origin)
        together.wait()
        one.fetch(spec(compiled))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    local.verify("a")
    assert len(origin.read_from) == len(set(origin.read_from))


def test_an_interrupted_fetch_goes_on_where_it_ended(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    third = weights_bytes(compiled) // 3
    origin.fails_after = third + 1
    fetch = fetcher(local, origin)
    manifest = Folder(compiled)
    monkeypatch.setattr(origin, "read", _only_weights_fail(origin, manifest))
    fetch.fetch(spec(compiled))
    local.verify("a")
    offsets = [offset for path, offset in origin.read_from if path.startswith("weights/")]
    assert offsets == [0, third + 1, 2 * (third + 1)]


def test_what_comes_is_hashed_as_it_comes_and_what_came_before_is_read_once(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    monkeypatch.setattr(fetching, "_CHUNK_BYTES", 1000)
    read = Counter[str]()
    monkeypatch.setattr(fetching, "hash_of_file", lambda path, _: read.update([str(path)]))
    monkeypatch.setattr(origin, "read", _only_weights_fail(origin, Folder(compiled)))
    origin.fails_after = weights_bytes(compiled) // 5
    model = spec(compiled)
    with pytest.raises(EngineError, match="the network is down"):
        fetcher(local, origin).fetch(model)
    origin.fails_after = -1
    fetcher(local, origin).fetch(model)
    local.verify("a")
    offsets = [offset for path, offset in origin.read_from if path.startswith("weights/")]
    assert offsets == [place * (weights_bytes(compiled) // 5) for place in range(4)]
    assert not read


def test_a_beginning_that_was_altered_meanwhile_is_found(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    monkeypatch.setattr(origin, "read", _only_weights_fail(origin, Folder(compiled)))
    origin.fails_after = weights_bytes(compiled) // 5
    model = spec(compiled)
    with pytest.raises(EngineError, match="the network is down"):
        fetcher(local, origin).fetch(model)
    (aside,) = (local.root / ".fetching").iterdir()
    aside.write_bytes(b"?" + aside.read_bytes()[1:])
    origin.fails_after = -1
    with pytest.raises(EngineError, match="was altered there or on the way, and nothing of it is kept"):
        fetcher(local, origin).fetch(model)
    fetcher(local, origin).fetch(model)
    local.verify("a")


def _only_weights_fail(origin: Watched, whole: Folder) -> object:
    reads = origin.read
    return lambda path, offset: (reads if path.startswith("weights/") else whole.read)(path, offset)


def test_a_source_that_fails_again_and_again_is_told_and_tried_later(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr("mainspring.worker.fetching.time.monotonic_ns", lambda: now.ns)
    origin.fails_after = 0
    fetch = fetcher(local, origin)
    wait_ns = AGAIN_NS
    for _ in range(12):
        with pytest.raises(EngineError, match="the network is down"):
            fetch.fetch(spec(compiled))
        assert not fetch.worth_trying("a", now.ns + wait_ns - 1)
        assert fetch.worth_trying("a", now.ns + wait_ns)
        assert not fetch.worth_trying("a", now.ns + wait_ns), "once for each failure"
        now.ns += wait_ns
        wait_ns = min(2 * wait_ns, AGAIN_MOST_NS)
    origin.fails_after = -1
    fetch.fetch(spec(compiled))
    assert not fetch.worth_trying("a", now.ns + AGAIN_MOST_NS * 9)


@pytest.mark.parametrize("pattern", ["weights/{}.bin", "executables/{}/graph.onnx"])
def test_wrong_bytes_are_refused_and_not_kept(
    pattern: str, compiled: Path, origin: Watched, local: Store, tmp_path: Path
) -> None:
    model = spec(compiled)
    digest = model.weights_hash if "weights" in pattern else model.executable
    path = tmp_path / "origin" / pattern.format(digest)
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with pytest.raises(EngineError, match="was altered there or on the way, and nothing of it is kept"):
        fetcher(local, origin).fetch(model)
    assert local.names() == []
    path.write_bytes(right)
    fetcher(local, origin).fetch(model)
    local.verify("a")


def test_a_source_that_gives_more_than_there_is_is_cut(
    compiled: Path, origin: Watched, local: Store, tmp_path: Path
) -> None:
    model = spec(compiled)
    with (tmp_path / "origin" / "weights" / f"{model.weights_hash}.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(EngineError, match=r"gives more than \d+ bytes"):
        fetcher(local, origin).fetch(model)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", ".hidden", "a/b", ""])
def test_names_that_no_store_has_are_refused(
    name: str, compiled: Path, origin: Watched, local: Store
) -> None:
    origin.adds = [name]
    with pytest.raises(EngineError, match="which a store does not"):
        fetcher(local, origin).fetch(spec(compiled))
    assert local.names() == []


def test_another_artifact_of_the_name_is_refused(
    compiled: Path, origin: Watched, local: Store, tmp_path: Path
) -> None:
    asked = spec(compiled)
    shutil.copy(tmp_path / "origin/models/b/manifest.json", tmp_path / "origin/models/a/manifest.json")
    with pytest.raises(EngineError, match="another artifact named a than the controller asks for"):
        fetcher(local, origin).fetch(asked)


def test_a_source_without_the_model_or_without_anything_is_named(
    compiled: Path, local: Store, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=f"{tmp_path}/nowhere/models/a/manifest.json: No such file"):
        fetcher(local, Folder(tmp_path / "nowhere")).fetch(spec(compiled))


def test_a_full_disk_is_said(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "to_disk", full)
    with pytest.raises(EngineError, match=f"can't store a in {local.root}: No space left on device"):
        fetcher(local, origin).fetch(spec(compiled))


def test_what_was_not_needed_for_longest_goes_and_what_is_prepared_stays(
    compiled: Path, origin: Watched, local: Store
) -> None:
    room = fetcher(local, origin)
    for name in ("a", "b"):
        room.fetch(spec(compiled, name))
    bounded = fetcher(local, origin, most_bytes=artifact_bytes(local))
    with pytest.raises(EngineError, match=r"are in use: store_max_bytes is"):
        bounded.fetch(spec(compiled, "c"))
    assert local.names() == ["a", "b"]
    room.released("b")
    room.fetch(spec(compiled, "a"))
    bounded.fetch(spec(compiled, "c"))
    assert local.names() == ["a", "c"]
    for name in local.names():
        local.verify(name)
    room.released("a")
    bounded.released("c")
    bounded.fetch(spec(compiled, "b"))
    assert local.names() == ["b", "c"], "a was needed before c was"


def test_a_bounded_rate_waits_for_as_long_as_the_bytes_take(
    compiled: Path, origin: Watched, local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr("mainspring.worker.fetching.time.monotonic_ns", lambda: now.ns)
    slow = fetcher(local, origin, bytes_per_s=1000)

    def wait(seconds: float) -> None:
        now.ns += round(seconds * 1e9)

    monkeypatch.setattr(slow, "_wait", wait)
    slow.fetch(spec(compiled))
    assert now.ns == pytest.approx(artifact_bytes(local) * 1e6, rel=0.01)


def test_a_stopping_worker_does_not_wait_for_a_fetch(compiled: Path, origin: Watched, local: Store) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(EngineError, match="the worker stops"):
        Fetcher(local, origin, stop).fetch(spec(compiled))


def test_fsspec_s_file_systems_are_read(compiled: Path, local: Store) -> None:
    pytest.importorskip("fsspec")
    source = source_of(f"file://{compiled}")
    assert isinstance(source, Anywhere)
    fetcher(local, source).fetch(spec(compiled))
    local.verify("a")


@pytest.mark.parametrize("where", ["nonsense://host/path", "http://", "http://host/?query"])
def test_an_address_that_nothing_reads_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match=r"can't be read|is not the address of a store"):
        source_of(where)
