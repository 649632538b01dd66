"""A file on its way into a store: kept aside, and hashed as it comes, so that it is not read again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

from mainspring.compiler.artifact.store import to_disk

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
