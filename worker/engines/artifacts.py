"""Whether the store holds the artifact that the controller means, in files as they were compiled.

Hashing a file takes about as long as reading it, so a state that was found right is remembered by the file's
device, inode, length and time of modification; an altered file differs in one of them.
"""

from __future__ import annotations

import hashlib
import math
import os

import msgspec

from mainspring.compiler.artifact.manifest import Manifest
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.worker.engine import EngineError

State = tuple[int, int, int, int]
_CHUNK_BYTES = 4 << 20
_REMEMBERED = 65_536
"""Most states that are remembered as right; a forgotten one, the oldest, is hashed again if it returns."""


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
    )


def _flat(tensor: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(tensor, shape=(math.prod(tensor.shape),))


class Integrity:
    """Checks open files against the hashes in their manifests."""

    def __init__(self) -> None:
        self._right: dict[tuple[State, str], None] = {}

    def holds(self, file: int, expected: str) -> bool:
        """Whether `check` has found the file right in its present state; nothing is read."""
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
            raise EngineError(f"{path} was altered after it was compiled; {remedy}")
        if len(self._right) >= _REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[known] = None


def _state(file: int) -> State:
    found = os.fstat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
