"""An index of weights in the host memory that the workers of one machine share, and of their users. Pure.

Memory is allocated in *segments*, each a file without a name that its *holders* have open; a *blob* is the
bytes of one weights file. An unused blob stays until its room is needed, so that a model that comes back
finds its weights in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

ALIGNMENT_BYTES = 4096


class Place(NamedTuple):
    """The position of a blob."""

    segment: int
    offset: int


class Blob(msgspec.Struct):
    """A weights file in memory."""

    segment: int
    offset: int
    size: int
    users: list[str]
    """Holders that have models with these weights prepared."""
    ready: bool = True
    """True if the bytes are there; until then the only user is the holder that writes them."""

    @property
    def place(self) -> Place:
        """Return the blob's position."""
        return Place(self.segment, self.offset)

    @property
    def end(self) -> int:
        """The first aligned byte behind the blob."""
        return self.offset + -(-self.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Segment(msgspec.Struct, frozen=True):
    """A piece of shared memory."""

    size: int
    inode: int
    """The inode of its file, to recognise it."""


class Holder(msgspec.Struct):
    """A worker."""

    pid: int
    started: int
    """Instant at which the process started, in the kernel's ticks: another process may get the same pid
    later."""
    files: dict[int, int]
    """The process's file descriptor of each segment, by the segment's number."""


class Index(msgspec.Struct):
    """The facts that all holders share about the memory."""

    holders: dict[str, Holder] = {}
    segments: list[Segment] = []
    blobs: dict[str, Blob] = {}

    def remove_holder(self, key: str) -> None:
        """Forget a holder that ended, and the segments that no other holder has: their memory is freed."""
        self.holders.pop(key, None)
        for name, blob in list(self.blobs.items()):
            if key in blob.users:
                blob.users.remove(key)
                if not blob.ready:
                    del self.blobs[name]
        if not self.holders:
            self.segments.clear()
        for number in range(len(self.segments)):
            if not any(number in holder.files for holder in self.holders.values()):
                self.segments[number] = Segment(0, 0)
        self.blobs = {name: blob for name, blob in self.blobs.items() if self._is_there(blob)}

    def place(self, size: int) -> Place | None:
        """Return the first room for a blob, forgetting unused blobs if necessary; None if there is none."""
        found = self._room(size)
        if found is not None:
            return found
        # The oldest first, and no more than necessary.
        for key in [key for key, blob in self.blobs.items() if not blob.users]:
            del self.blobs[key]
            found = self._room(size)
            if found is not None:
                return found
        return None

    def problems(self) -> list[str]:
        """Return contradictions: blobs outside their segment, overlapping blobs, users that hold nothing."""
        found = []
        for number, segment in enumerate(self.segments):
            cursor = 0
            for key, blob in self._in_order(number):
                if blob.offset < cursor or blob.offset + blob.size > segment.size:
                    found.append(f"blob {key} at {blob.offset} of segment {number}")
                cursor = blob.end
        for key, blob in self.blobs.items():
            if not 0 <= blob.segment < len(self.segments):
                found.append(f"blob {key} in segment {blob.segment}")
            found += [f"blob {key} of {user}" for user in blob.users if user not in self.holders]
        return found

    def _is_there(self, blob: Blob) -> bool:
        return blob.segment < len(self.segments) and self.segments[blob.segment].size > 0

    def _room(self, size: int) -> Place | None:
        for number, segment in enumerate(self.segments):
            cursor = 0
            for _, blob in self._in_order(number):
                if blob.offset - cursor >= size:
                    break
                cursor = blob.end
            if segment.size - cursor >= size and self._fits(number, cursor, size):
                return Place(number, cursor)
        return None

    def _fits(self, segment: int, offset: int, size: int) -> bool:
        return all(
            blob.end <= offset or blob.offset >= offset + size
            for blob in self.blobs.values()
            if blob.segment == segment
        )

    def _in_order(self, segment: int) -> list[tuple[str, Blob]]:
        inside = [(key, blob) for key, blob in self.blobs.items() if blob.segment == segment]
        return sorted(inside, key=lambda item: item[1].offset)
