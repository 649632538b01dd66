"""The store's files as a worker uses them: of the right artifact, as they were compiled, or changed since.

Hashing a file takes about as long as reading it, so a state that was found right is remembered by the file's
device, inode, length and time of modification; an altered file differs in one of them.

The files of a model that a worker failed on are watched until they change and another try is worthwhile. The
PREPARE thread checks those files alone, a bounded number at a time, so that serving never waits for the file
system. The executors report failures and successes, the network thread takes changed models.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from mainspring.compiler.artifact.errors import StoreError
from mainspring.compiler.artifact.manifest import Manifest
from mainspring.compiler.artifact.store import Fingerprint, Store
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.targets import cannot_run
from mainspring.worker.engine import EngineError

State = tuple[int, int, int, int]
_CHUNK_BYTES = 4 << 20
_READ_BYTES = 16 << 20
"""Bytes of a file that are read and hashed at a time while it is read into memory."""
_REMEMBERED = 65_536
"""Most states that are remembered as right; a forgotten one, the oldest, is hashed again if it returns."""
INTERVAL_NS = 1_000_000_000
"""Time between two checks."""
LOOKED_AT = 256
"""Most models that one check covers; the next check continues with the others."""


def check_runs(model: ModelSpec, targets: Sequence[str]) -> None:
    """Raise `EngineError` unless a worker of these targets can run the artifact, as far as is known."""
    if why := cannot_run(model, targets):
        raise EngineError(why)


def stored(store: Store, model: ModelSpec) -> Manifest:
    """Return the manifest of a model's artifact for this worker's target, under the model's name.

    Raises `StoreError` if the store lacks it or it is damaged, `EngineError` if it is another artifact.
    """
    manifest = msgspec.structs.replace(store.manifest(model.stored_name), name=model.name)
    check_artifact(manifest, model)
    return manifest


def check_artifact(manifest: Manifest, model: ModelSpec) -> None:
    """Raise `EngineError` unless the manifest and the model are of one artifact."""
    compiled = {*model.batch_sizes} <= {*manifest.batch_sizes}
    if not compiled or _artifact(manifest.spec()) != _artifact(model):
        raise EngineError(
            f"the store holds another artifact named {model.name} than the controller asks for: "
            "give the controller and the workers the same store, or compile the model again"
        )


def _artifact(model: ModelSpec) -> ModelSpec:
    """Return what is equal in all specifications of one artifact.

    What clients call the model, the shapes in which they see its tensors, and which of its batch sizes may be
    used, are not part of that.
    """
    inputs, outputs = (tuple(map(_flat, tensors)) for tensors in (model.inputs, model.outputs))
    return msgspec.structs.replace(
        model,
        profiles={},
        workspace_bytes=0,
        served_as="",
        version=1,
        inputs=inputs,
        outputs=outputs,
        batch_sizes=(),
        unshared="",
        target="",
        stored_as="",
        others=(),
    )


def _flat(tensor: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(tensor, shape=(math.prod(tensor.shape),))


class Integrity:
    """Checks open files against the hashes in their manifests."""

    def __init__(self) -> None:
        self._right: dict[tuple[State, str], None] = {}

    def holds(self, file: int, expected: str) -> bool:
        """Return whether `check` has found the file right in its present state; nothing is read."""
        return (_state(file), expected) in self._right

    def check(self, file: int, expected: str, path: object, remedy: str) -> None:
        """Raise `EngineError`, with ``path`` and ``remedy``, unless the file's SHA-256 is ``expected``.

        Reads the whole file the first time, and again only after it was written to.
        """
        known = (_state(file), expected)
        if known in self._right:
            return
        digest = hashlib.sha256()
        offset = 0
        while chunk := os.pread(file, _CHUNK_BYTES, offset):
            digest.update(chunk)
            offset += len(chunk)
        if digest.hexdigest() != expected:
            raise altered(path, remedy)
        if len(self._right) >= _REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[known] = None


def read_weights(path: Path, expected: str, remedy: str, memory: memoryview) -> None:
    """Fill the memory from a file; raise `EngineError`, with ``remedy``, unless its SHA-256 is right."""
    digest, offset = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(part := memory[offset : offset + _READ_BYTES]):
            digest.update(part[:count])
            offset += count
    if offset < len(memory) or digest.hexdigest() != expected:
        raise altered(path, remedy)


def altered(path: object, remedy: str) -> EngineError:
    """Return the error for a file that is not what the manifest says."""
    return EngineError(f"{path} was altered after it was compiled; {remedy}")


def _state(file: int) -> State:
    found = os.fstat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _Waiting(NamedTuple):
    model: ModelSpec
    files: Fingerprint
    """State of the files when it failed, or when their change was last reported."""


def _never(_name: str, _now_ns: int) -> bool:
    """Leave it to the files."""
    return False


class StoreWatch:
    """Each method names the threads that may call it; a dictionary's single steps need no lock."""

    def __init__(self, store: Store, again: Callable[[str, int], bool] = _never) -> None:
        """``again`` says, by name and instant, whether another try is worthwhile though no file changed."""
        self._store = store
        self._again = again
        self._waiting: dict[str, _Waiting] = {}
        self._reported: dict[str, Fingerprint] = {}
        """Models that are about to be tried again, with their files when the change was reported."""
        self._changed: deque[ModelSpec] = deque()
        self._next_look_ns = 0

    def failed(self, model: ModelSpec) -> None:
        """PREPARE or LOAD thread: note a model that could not be prepared or loaded."""
        if model.name not in self._waiting:
            files = self._reported.pop(model.name, None) or self._store.fingerprint(model)
            self._waiting[model.name] = _Waiting(model, files)

    def worked(self, name: str) -> None:
        """PREPARE or LOAD thread: note a model that was prepared or loaded."""
        if self._waiting or self._reported:
            self._waiting.pop(name, None)
            self._reported.pop(name, None)

    def due(self, now_ns: int) -> bool:
        """Network thread: whether to call `look` now; true at most once in `INTERVAL_NS`."""
        if not self._waiting or now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + INTERVAL_NS
        return True

    def look(self) -> None:
        """PREPARE thread: check the files of the next models that failed."""
        for name in list(islice(self._waiting, LOOKED_AT)):
            if (waiting := self._waiting.pop(name, None)) is None:
                continue
            model, files = waiting
            now = self._store.fingerprint(model)
            found = self._read(model) if now != files else None
            if found is None and self._again(name, time.monotonic_ns()):
                found = model
            if found is None:
                self._waiting[name] = _Waiting(model, now)
            else:
                self._reported[name] = now
                self._changed.append(found)

    def changed(self) -> ModelSpec | None:
        """Network thread: return a model whose files have changed, as its manifest has it now, once."""
        return self._changed.popleft() if self._changed else None

    def _read(self, model: ModelSpec) -> ModelSpec | None:
        try:
            found = self._store.manifest(model.stored_name).spec()
        except StoreError:
            return None  # Another change may mend the manifest too.
        # Of its artifacts for other targets nothing is known but what it was told.
        return msgspec.structs.replace(found, name=model.name, stored_as=model.stored_as, others=model.others)
