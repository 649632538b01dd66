"""Weights in pinned host memory, once for all workers of a machine (Clockwork, section 5.2).

The first worker that prepares a model reads its weights file and checks the hash; the other workers find the
bytes in memory, or wait for them. Each process pins each segment once, when it maps it: neither PREPARE nor
LOAD pins anything while there is room. The workers' index is a file beside a lock, in a folder that only
their user can write; the lock is held for a moment at a time, never while weights are read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.store import Store
from mainspring.worker.engine import EngineError
from mainspring.worker.engines.cuda.driver import Driver
from mainspring.worker.engines.cuda.shared_memory import SharedSegment, make_segment, open_segment, started
from mainspring.worker.engines.cuda.weights_index import ALIGNMENT_BYTES, Blob, Holder, Index, Place, Segment
from mainspring.worker.limits import read_limits

LOG = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
"""Size of a segment that is made because the others are full; a larger model gets a larger one.

CUDA may let nothing else begin while it pins memory, at the 1 to 2 GB/s that are reported."""
DOUBLED_AFTER = 64
"""Segments after which the next are twice as large, up to `LARGEST_GROWTH_BYTES`: each is an open file."""
LARGEST_GROWTH_BYTES = 1 << 30
LARGEST_SEGMENT_BYTES = 64 << 30
"""The reserve is made of segments of at most this size: NVIDIA's driver 580 can't pin 512 GiB in one call."""
WRITER_POLL_S = 0.05
"""Time between two checks whether another worker has read the weights that this one waits for."""
LONG_WAIT_S = 60.0
"""Time after which this worker says whom it waits for. It waits on: a disk that hangs for one hangs for
all."""
MOST_OF_AVAILABLE = 0.85
"""Share of the available memory that may be pinned: other processes can't use pinned memory, and the page
cache of the weights' files needs some."""
_NUMBERS = itertools.count(1)

Fill = Callable[[memoryview], None]


class HostWeights:
    """This worker's view of the shared weights; the PREPARE thread calls it."""

    def __init__(self, driver: Driver, store: Path, reserve_bytes: int, folder: Path | None = None) -> None:
        """Share with all workers on ``store``; all of them together have ``reserve_bytes`` from the start."""
        self._driver = driver
        self._folder = folder or default_folder(store)
        self._segments: dict[int, SharedSegment] = {}
        self._taken: Counter[str] = Counter()
        self._writing = ""
        """The blob that is being written."""
        pid = os.getpid()
        self._holder = Holder(pid, started(pid) or 0, {})
        self._key = f"{pid}-{self._holder.started}-{next(_NUMBERS)}"
        try:
            with self._agreed() as index:
                index.holders[self._key] = self._holder
                self._reserve(index, reserve_bytes - sum(segment.size for segment in index.segments))
                for number in range(len(index.segments)):
                    self._segment(index, number)
        except BaseException:
            self.close()
            raise

    def take(self, key: str, size: int, fill: Fill) -> int:
        """Return the address of the bytes called ``key``; for the first caller, ``fill`` writes them.

        If ``fill`` raises, the error is passed on and nothing is kept. `give_back` follows once for each
        call.
        """
        long_s = time.monotonic() + LONG_WAIT_S
        while True:
            with self._agreed() as index:
                blob = index.blobs.get(key)
                writes = blob is None
                if blob is None:
                    # Entered once its segment is there: others would wait for a blob that nobody writes.
                    place = self._place(index, size)
                    segment = self._segment(index, place.segment)
                    blob = index.blobs[key] = Blob(place.segment, place.offset, size, [], ready=False)
                elif blob.ready:
                    segment = self._segment(index, blob.segment)
                if writes or blob.ready:
                    if self._key not in blob.users:
                        blob.users.append(self._key)
                    break
            if time.monotonic() >= long_s:
                long_s = math.inf
                LOG.warning(
                    "weights %s are waited for, which another worker reads (process %s): if its disk hangs, "
                    "stop it",
                    key[:12],
                    ", ".join(user.partition("-")[0] for user in blob.users),
                )
            # A worker that dies while it writes is forgotten by the next look.
            time.sleep(WRITER_POLL_S)
        if writes:
            self._write(key, segment, blob, fill)
        self._taken[key] += 1
        return segment.address + blob.offset

    def give_back(self, key: str) -> None:
        """Undo one `take` of these bytes."""
        self._taken[key] -= 1
        if self._taken[key] > 0:
            return
        del self._taken[key]
        with self._agreed() as index:
            blob = index.blobs.get(key)
            if blob is not None and self._key in blob.users:
                blob.users.remove(self._key)

    def close(self) -> None:
        """Leave the workers' index and unmap the memory."""
        with contextlib.suppress(OSError, EngineError), self._agreed() as index:
            index.remove_holder(self._key)
        for segment in self._segments.values():
            self._unpin(segment)
        self._segments.clear()

    def _write(self, key: str, segment: SharedSegment, blob: Blob, fill: Fill) -> None:
        """Write the bytes of a new blob, while other workers go on; forget the blob if that fails."""
        part = segment.part(blob.offset, blob.size)
        self._writing = key
        try:
            fill(part)
        except BaseException:
            self._writing = ""
            with contextlib.suppress(OSError, EngineError), self._agreed():
                pass  # That forgets it. If it can't be written now, the next time does.
            raise
        finally:
            part.release()
        try:
            with self._agreed() as index:
                found = index.blobs.get(key)
                if found is not None:
                    found.ready = True
        finally:
            self._writing = ""

    def _place(self, index: Index, size: int) -> Place:
        """Return room for a new blob; make a segment if there is none."""
        place = index.place(size)
        if place is None:
            LOG.info("host memory for weights grows: it had no room for %d MiB", size >> 20)
            growth = min(SEGMENT_BYTES << len(index.segments) // DOUBLED_AFTER, LARGEST_GROWTH_BYTES)
            self._grow(index, max(size, min(growth, may_be_pinned())))
            place = index.place(size)
            assert place is not None, "a new segment has room"
        return place

    def _reserve(self, index: Index, size: int) -> None:
        """Make segments of ``size`` bytes together, none of them too large to be pinned."""
        if size > 0:
            _check_room(size)
        while size > 0:
            self._grow(index, min(size, LARGEST_SEGMENT_BYTES))
            size -= LARGEST_SEGMENT_BYTES

    def _grow(self, index: Index, size: int) -> None:
        _check_room(size)
        segment = make_segment(size)
        number = len(index.segments)
        self._pin(number, segment)
        index.segments.append(Segment(segment.size, segment.inode))

    def _segment(self, index: Index, number: int) -> SharedSegment:
        """Return a segment; a new one is opened through another worker's open files."""
        known = self._segments.get(number)
        if known is not None:
            return known
        inode = index.segments[number].inode
        for holder in index.holders.values():
            if number in holder.files:
                segment = open_segment(holder.pid, holder.files[number], inode)
                if segment is not None:
                    self._pin(number, segment)
                    return segment
        raise EngineError(
            "the workers' shared weights can't be opened: run all workers of a machine as one user and in "
            f"one container, or give them different copies of the store (they agree in {self._folder})"
        )

    def _pin(self, number: int, segment: SharedSegment) -> None:
        try:
            self._driver.register_host(segment.address, segment.size)
        except Exception as error:
            segment.close()
            raise EngineError(
                f"{segment.size >> 20} MiB of host memory for weights can't be pinned "
                f"({self._driver.explain(error)}); set [worker] host_weights_bytes lower, or add memory"
            ) from error
        self._segments[number] = segment
        self._holder.files[number] = segment.file

    def _unpin(self, segment: SharedSegment) -> None:
        with contextlib.suppress(RuntimeError):
            self._driver.unregister_host(segment.address)
        segment.close()

    @contextlib.contextmanager
    def _agreed(self) -> Iterator[Index]:
        """Hold the lock and the workers' index; write the index back afterwards."""
        _make_own(self._folder.parent)
        _make_own(self._folder)
        with (self._folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self._folder / "index.json"
            index = _read(path)
            for key in [key for key, holder in index.holders.items() if not _lifecycles(holder)]:
                index.remove_holder(key)
            self._forget_unwritten(index)
            entered = len(index.segments)
            try:
                yield index
            except BaseException:
                # A segment may have been made meanwhile.
                with contextlib.suppress(EngineError):
                    self._write_index(index, path, entered)
                raise
            self._write_index(index, path, entered)

    def _forget_unwritten(self, index: Index) -> None:
        """Forget blobs that this worker no longer writes: the index could not be written when that ended."""
        for key, blob in list(index.blobs.items()):
            if not blob.ready and self._key in blob.users and key != self._writing:
                del index.blobs[key]

    def _write_index(self, index: Index, path: Path, entered: int) -> None:
        """Replace the workers' index as a whole; raise `EngineError` if that can't be done.

        The file names ``entered`` segments; those that this worker made since are given back then.
        """
        if self._key in index.holders:
            index.holders[self._key] = self._holder
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(msgspec.json.encode(index))
            temporary.replace(path)
        except OSError as error:
            # Another worker gives their numbers to its own.
            for number in [number for number in self._segments if number >= entered]:
                self._unpin(self._segments.pop(number))
                del self._holder.files[number]
            raise EngineError(
                f"{path} can't be written ({error.strerror}), where workers agree on their shared weights; "
                "make room there, or set TMPDIR"
            ) from error


def _check_room(size: int) -> None:
    """Raise `EngineError` if the host has no room for ``size`` bytes more."""
    most = may_be_pinned()
    if size > most:
        # The kernel would not refuse it now, but kill a process later.
        raise EngineError(
            f"the host has room for {most >> 20} MiB of weights more, and {size >> 20} MiB are wanted: "
            "serve fewer models, add memory, or set [worker] host_weights_bytes lower"
        )


def default_folder(store: Path) -> Path:
    """Return the folder of the workers' index: this user's, for each store and boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    name = hashlib.sha256(f"{boot} {store.resolve()}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"mainspring-{os.getuid()}" / f"weights-{name}"


def _make_own(folder: Path) -> None:
    """Make a folder for this user alone; raise `EngineError` if another user's folder is there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise EngineError(f"{folder} can't be made ({error.strerror}); workers agree there") from error
    if found.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
        raise EngineError(f"{folder} is not this user's own folder; remove it, or set TMPDIR")


def _lifecycles(holder: Holder) -> bool:
    return started(holder.pid) == holder.started


def _read(path: Path) -> Index:
    try:
        index = msgspec.json.decode(path.read_bytes(), type=Index)
    except FileNotFoundError:
        return Index()
    except (OSError, msgspec.MsgspecError) as error:
        raise EngineError(f"{path} is damaged ({error}); stop the workers and remove it") from error
    problems = index.problems()
    if problems:
        raise EngineError(f"{path} is damaged ({problems[0]}); stop the workers and remove it")
    return index


def reserve_for(store: Store, available_bytes: int | None = None) -> int:
    """Return the bytes of all distinct weights in the store, or what may be pinned if that is less."""
    sizes: dict[str, int] = {}
    try:
        for manifest in store.manifests():
            aligned = -(-manifest.weights_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            sizes[manifest.weights_hash] = aligned
    except StoreError as error:
        # The store may be empty yet; PREPARE refuses a model that can't be read.
        LOG.info("host memory for weights grows as models come: %s", error)
    wanted = sum(sizes.values())
    most = may_be_pinned(available_bytes)
    if wanted > most:
        LOG.warning(
            "the store's weights take %d MiB, and of the host's memory %d MiB can be pinned: not all models "
            "can be prepared",
            wanted >> 20,
            most >> 20,
        )
    return min(wanted, most)


def may_be_pinned(available_bytes: int | None = None) -> int:
    """Return how much of the host's memory may still be pinned; None asks Linux what is available."""
    there = _available() if available_bytes is None else available_bytes
    return int(there * MOST_OF_AVAILABLE) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def _available() -> int:
    """Return the bytes that Linux can provide without swapping and within the limits of control groups, huge
    pages that are kept for it included."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    )
    number = {name: int(text.split()[0]) for name, text in fields.items()}
    huge_pages = number.get("HugePages_Free", 0) - number.get("HugePages_Rsvd", 0)
    available, room = 1024 * number.get("MemAvailable", 0), read_limits().room
    if room is not None:
        available = min(available, room.left_bytes)
    return available + huge_pages * 1024 * number.get("Hugepagesize", 0)
