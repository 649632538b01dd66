"""Brings what PREPARE needs into this host's store, from where the cluster keeps its artifacts.

All workers of a host share one store folder: what one has fetched the others find, under a lock of the host.
What is fetched lies aside until its hash is right, and is renamed into place; what an interruption leaves is
gone on with. A store that may have so many bytes only gives up what was not needed for the longest time, and
nothing that a worker of this host has prepared.

A file that comes is kept aside, and hashed as it comes, so that it is not read again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import ENTRY_FILES, Manifest
from mainspring.compiler.artifact.python_folder import UNPACKED
from mainspring.compiler.artifact.store import Store, check_name, hash_of_file, move, to_disk
from mainspring.messages.model import ModelSpec
from mainspring.worker.engine import EngineError
from mainspring.worker.sources import Source, SourceError

_LOGGER = logging.getLogger(__name__)
_LOCK = ".fetching.lock"
_ASIDE = ".fetching"
_NEEDED = "needed"
"""The file beside a manifest whose lock says that a worker has the model prepared, its time since when."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MOST_MANIFEST_BYTES = 64 << 20
MOST_FILE_BYTES = 4 << 30
"""Most bytes of one file of an executable, whose length no manifest says."""
MOST_FILES = 4096
"""Most files of one executable: its graph, or plans with a kernel for each node and batch size."""
TRIES = 3
"""Most attempts at one file, each from where the last one ended."""
_PAUSE_S = 0.5
_LOCK_POLL_S = 0.1
AGAIN_NS = 5_000_000_000
AGAIN_MOST_NS = 300_000_000_000
"""Longest time after a failure until another try is worthwhile: it begins with `AGAIN_NS` and doubles."""


class Fetcher:
    """Fetches for one worker. The PREPARE thread calls it."""

    def __init__(
        self,
        store: Store,
        source: Source,
        stop: threading.Event,
        *,
        most_bytes: int = 0,
        bytes_per_s: int = 0,
    ) -> None:
        """``most_bytes`` bounds the store's weights and executables, ``bytes_per_s`` what is read of the
        source; 0 bounds neither. ``stop`` ends a fetch that goes on."""
        self._store = store
        self._source = source
        self._stop = stop
        self._most_bytes = most_bytes
        self._bytes_per_s = bytes_per_s
        self._held: dict[str, int] = {}
        """File descriptors, whose locks keep what this worker has prepared."""
        self._failed: dict[str, tuple[int, int]] = {}
        """Instant of the next try of each model that failed, and the wait after that, both in ns."""

    def fetch(self, model: ModelSpec) -> None:
        """Bring a model's files into the store, unless they are there.

        Raises `EngineError` that says what is missing where.
        """
        try:
            check_name(model.stored_name)
            if not self._has(model):
                with self._alone():
                    if not self._has(model):
                        self._bring(model)
            self._hold(model)
        except (SourceError, StoreError) as error:
            raise self._note(model.name, EngineError(str(error))) from None
        except OSError as error:
            why = f"can't store {model.name} in {self._store.root}: {error.strerror or error}"
            raise self._note(model.name, EngineError(why)) from None
        except EngineError as error:
            raise self._note(model.name, error) from None
        self._failed.pop(model.name, None)

    def released(self, name: str) -> None:
        """Let a model's files go, once the engine has released it."""
        if (held := self._held.pop(name, None)) is not None:
            os.close(held)

    def worth_trying(self, name: str, now_ns: int) -> bool:
        """Return whether enough time has passed since the last failed fetch; true once for each failure."""
        at_ns, pause_ns = self._failed.get(name, (now_ns + 1, 0))
        if now_ns < at_ns:
            return False
        self._failed[name] = (now_ns + AGAIN_MOST_NS, pause_ns)
        return True

    def _note(self, name: str, error: EngineError) -> EngineError:
        _, pause_ns = self._failed.get(name, (0, AGAIN_NS))
        now_ns = time.monotonic_ns()
        self._failed[name] = (now_ns + pause_ns, min(2 * pause_ns, AGAIN_MOST_NS))
        return error

    def _has(self, model: ModelSpec) -> bool:
        """Return whether the store holds the artifact that the controller asks for."""
        try:
            manifest = self._store.manifest(model.stored_name)
            same = (manifest.executable, manifest.weights_hash) == (model.executable, model.weights_hash)
            if not same:
                return False
            self._store.weights_path(manifest)
            self._store.executable_info(manifest)
        except StoreError:
            return False
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the host's other workers from fetching and from making room."""
        self._store.root.mkdir(parents=True, exist_ok=True)
        file = os.open(self._store.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(file, fcntl.LOCK_EX):
                self._wait(_LOCK_POLL_S)
            yield
        finally:
            os.close(file)

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise EngineError("the worker stops")

    def _bring(self, model: ModelSpec) -> None:
        began_ns = time.monotonic_ns()
        manifest = self._manifest(model)
        executable = f"executables/{manifest.executable}"
        names = self._source.listing(executable)
        entry = ENTRY_FILES[manifest.engine]
        wrong = [each for each in names if not _NAME.fullmatch(each)]
        if wrong or len(names) > MOST_FILES or not {entry, "info.json"} <= set(names):
            lists = f"{wrong[0]!r}" if wrong else f"{len(names)} files, not {entry} and info.json among them"
            raise EngineError(f"{self._source.name} lists {lists} in {executable}, which a store does not")
        self._make_room(manifest)
        weights = f"weights/{manifest.weights_hash}.bin"
        self._bring_file(weights, manifest.weights_hash, manifest.weights_bytes)
        for name in sorted(names, key=lambda each: each == "info.json"):
            self._bring_file(
                f"{executable}/{name}", manifest.executable if name == entry else "", MOST_FILE_BYTES
            )
        self._store.executable_info(manifest)
        self._store.put_manifest(manifest)
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        _LOGGER.warning("fetched %s from %s in %.1f s", model.name, self._source.name, took_s)

    def _manifest(self, model: ModelSpec) -> Manifest:
        path = f"models/{model.stored_name}/manifest.json"
        content = bytearray()
        for chunk in self._source.read(path, 0):
            content += chunk
            if len(content) > MOST_MANIFEST_BYTES:
                raise EngineError(
                    f"{self._source.name} has a manifest of more than {MOST_MANIFEST_BYTES} bytes"
                )
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineError(f"{path} of {self._source.name} is damaged ({error})") from None
        if problems := manifest.problems():
            raise EngineError(f"{path} of {self._source.name} is damaged: {problems[0]}")
        found = (manifest.name, manifest.executable, manifest.weights_hash)
        if found != (model.stored_name, model.executable, model.weights_hash):
            raise EngineError(
                f"{self._source.name} holds another artifact named {model.name} than the controller asks "
                "for: have it serve the store that the controller reads"
            )
        return manifest

    def _bring_file(self, path: str, expected: str, most_bytes: int) -> None:
        """Fetch one file, unless it is there; ``expected`` is its SHA-256, "" for one that no hash is known
        of."""
        target = self._store.root / path
        if target.exists() and (not expected or hash_of_file(target, "") == expected):
            return
        aside = self._store.root / _ASIDE / path.replace("/", "-")
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        with Arriving(aside, hashed=bool(expected)) as arriving:
            for attempt in range(TRIES):
                try:
                    self._read(path, arriving, most_bytes)
                    break
                except SourceError:
                    if attempt == TRIES - 1:
                        raise
                    self._wait(_PAUSE_S * 2**attempt)
            arriving.to_disk()
        found = arriving.hexdigest() if expected else ""
        if found != expected:
            aside.unlink()
            raise EngineError(
                f"what {self._source.name} gives for {path} has the SHA-256 {found}: it was altered there or "
                "on the way, and nothing of it is kept"
            )
        move(aside, target)

    def _read(self, path: str, arriving: Arriving, most_bytes: int) -> None:
        """Read a file, from where an interruption left it."""
        due_ns = time.monotonic_ns()
        for chunk in self._source.read(path, arriving.length):
            if arriving.length + len(chunk) > most_bytes:
                arriving.discard()
                raise EngineError(
                    f"{self._source.name} gives more than {most_bytes} bytes for {path}: it was altered"
                )
            arriving.add(chunk)
            if self._bytes_per_s:
                due_ns += len(chunk) * 1_000_000_000 // self._bytes_per_s
            self._wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9) if self._bytes_per_s else 0.0)

    def _hold(self, model: ModelSpec) -> None:
        """Say that the model is needed, from now until it is released."""
        name = model.name
        if name not in self._held:
            path = self._store.root / "models" / model.stored_name / _NEEDED
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._held[name] = file
            while not _locked(file, fcntl.LOCK_SH):
                self._wait(_LOCK_POLL_S)
        os.utime(self._held[name])

    def _make_room(self, manifest: Manifest) -> None:
        """Drop what was not needed for the longest time until the weights fit."""
        if not self._most_bytes:
            return
        store = self._store
        needed = manifest.weights_bytes
        have = sum(_bytes_below(store.root / each) for each in ("weights", "executables", UNPACKED))
        if have + needed <= self._most_bytes:
            return
        names = [each for each in store.names() if each != manifest.name]
        for name in sorted(names, key=lambda each: _last_needed(store.root / "models" / each)):
            if have + needed <= self._most_bytes:
                return
            have -= self._drop(name, manifest)
        if have + needed > self._most_bytes:
            raise EngineError(
                f"{manifest.name} has {needed:,} bytes of weights, and the {have:,} that the store "
                f"{store.root} holds are in use: store_max_bytes is {self._most_bytes:,}; give it more"
            )

    def _drop(self, name: str, keep: Manifest) -> int:
        """Remove a model that no worker of this host has prepared; return the bytes that became free."""
        store = self._store
        folder = store.root / "models" / name
        file = os.open(folder / _NEEDED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(file, fcntl.LOCK_EX):
                return 0
            gone = store.manifest(name)
            store.remove(name)
        except StoreError as error:
            _LOGGER.warning("not dropped from the store: %s", error)
            return 0
        finally:
            os.close(file)
        left = [keep, *store.manifests()] if store.names() else [keep]
        unused: list[Path] = []
        if all(each.weights_hash != gone.weights_hash for each in left):
            unused.append(store.root / "weights" / f"{gone.weights_hash}.bin")
        if all(each.executable != gone.executable for each in left):
            folders = (store.root / each / gone.executable for each in ("executables", UNPACKED))
            unused += (path for folder in folders for path in folder.rglob("*") if path.is_file())
        freed = sum(path.stat().st_size for path in unused if path.exists())
        for path in unused:
            path.unlink(missing_ok=True)
        if not any(each.executable == gone.executable for each in left):
            shutil.rmtree(store.root / UNPACKED / gone.executable, ignore_errors=True)
        _LOGGER.warning("dropped %s from the store: it was not needed for longest", name)
        return freed


def _locked(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
    return True


def _last_needed(folder: Path) -> float:
    for name in (_NEEDED, "manifest.json"):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


_CHUNK_BYTES = 1 << 20


class Arriving:
    """The part of one file that has come so far; a context that closes it and leaves it where it is."""

    def __init__(self, path: Path, *, hashed: bool) -> None:
        """Go on with what an interruption left at ``path``; ``hashed``: `hexdigest` will be asked for.

        What is there is read once for that. Raises OSError.
        """
        self.length = 0
        """Bytes that are there."""
        self._digest = hashlib.sha256() if hashed else None
        self._file = path.open("a+b")
        try:
            self._go_on()
        except OSError:
            self._file.close()
            raise

    def __enter__(self) -> Arriving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, chunk: bytes) -> None:
        """Keep the next bytes; raise OSError if there is no room for them."""
        self._file.write(chunk)
        self.length += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)

    def discard(self) -> None:
        """Keep nothing of it."""
        self._file.truncate(0)
        self.length = 0
        if self._digest is not None:
            self._digest = hashlib.sha256()

    def to_disk(self) -> None:
        """Have the disk hold what is there; raise OSError if it can't."""
        to_disk(self._file)

    def hexdigest(self) -> str:
        """Return the SHA-256 of what is there."""
        assert self._digest is not None, "it was not hashed as it came"
        return self._digest.hexdigest()

    def _go_on(self) -> None:
        if self._digest is None:
            self.length = self._file.seek(0, 2)
            return
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK_BYTES):
            self._digest.update(chunk)
            self.length += len(chunk)
