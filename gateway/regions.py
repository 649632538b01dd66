"""Regions of system shared memory that clients of this host have registered, as Triton has them.

A region is a part of a file of a client's own in /dev/shm. Its bytes are read when a request comes and
written when its answer goes, with `pread` and `pwrite`. It is never mapped: a client that cuts its file short
would kill the process that reads behind its end.

A gateway may open more than its clients may, and a client could have it read or overwrite what is another's.
So a file counts only if it belongs to the very user who asks (`peer_users`), and a region is there only for
that user and the token that it was registered with. Of a file that is another's nothing is said, not even
whether there is one.

A region that is unregistered, or whose file is removed, stays what it is to the requests under way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from mainspring.gateway.config import TRITON, GatewayConfig
from mainspring.gateway.memory import Budget, Memory
from mainspring.gateway.oip.compression import BODY_KEY, TooLarge
from mainspring.gateway.oip.datatypes import Unfit
from mainspring.gateway.oip.errors import BAD_REQUEST, EXISTS, NOT_FOUND, OVERLOADED
from mainspring.gateway.oip.spans import RegionError, SharedInput, Span, no_room
from mainspring.gateway.oip.steps import Steps
from mainspring.gateway.peer_users import PeerUsers
from mainspring.messages.codes import Reason
from mainspring.transport.slab import LEAST_SHARED_BYTES
from mainspring.transport.tokens import Credential, Gate

FOLDER: Final = Path("/dev/shm")
_LONGEST_NAME: Final = 256
_LONGEST_KEY: Final = 255
"""Most characters of a file's name; the kernel's own limit."""
_SLICE_BYTES: Final = 1 << 19
"""Read or written before others are served."""


NO_CUDA: Final = (
    "CUDA shared memory is not served here: a GPU's memory is its worker's alone; use system shared memory, "
    "or send tensors as binary data"
)


class Owner(NamedTuple):
    """The client that a region is there for."""

    user: int
    token: bytes
    """Digest of the token that it was registered with; empty where none is needed."""


class RegionStatus(msgspec.Struct, frozen=True):
    """A region, as its client registered it."""

    name: str
    key: str
    offset: int
    byte_size: int


class _File:
    """A descriptor, closed when nothing has a use for it any more."""

    __slots__ = ("_counted", "number")

    def __init__(self, number: int, counted: list[int]) -> None:
        self.number = number
        self._counted = counted
        counted[0] += 1

    def __del__(self) -> None:
        os.close(self.number)
        self._counted[0] -= 1


class _Region(NamedTuple):
    """A region that is registered."""

    status: RegionStatus
    file: _File


class Part(NamedTuple):
    """A part of a region that a request names; it keeps the file open."""

    file: _File
    at: int
    """Offset in bytes from the file's beginning."""
    span: Span

    def read(self, into: Memory) -> Steps[Any]:
        """Return its bytes; raise `Unfit` if the file has become shorter."""
        size = self.span.size
        if size < LEAST_SHARED_BYTES:
            data = os.pread(self.file.number, size, self.at)
            if len(data) != size:
                raise self._cut()
            return data
        memory, done = into.take(size), 0
        while done < size:
            if done:
                yield
            piece = memory[done : min(done + _SLICE_BYTES, size)]
            count = os.preadv(self.file.number, (piece,), self.at + done)
            if not count:
                raise self._cut()
            done += count
        return memory

    def write(self, name: str, pieces: Sequence[Any]) -> Steps[None]:
        """Write an output's bytes; raise `Unfit` if there is no room for them."""
        wanted = sum(map(len, pieces))
        if wanted > self.span.size:
            raise no_room(name, self.span, wanted)
        try:
            if os.fstat(self.file.number).st_size < self.at + wanted:
                # To write there would make the file longer, at this process's expense.
                raise self._cut(Reason.BAD_OUTPUT)
            at, since = self.at, 0
            for piece in pieces:
                view = memoryview(piece).cast("B")
                while view:
                    if since >= _SLICE_BYTES:
                        yield
                        since = 0
                    count = os.pwrite(self.file.number, view[:_SLICE_BYTES], at)
                    at, since, view = at + count, since + count, view[count:]
        except OSError as error:
            raise Unfit(
                Reason.BAD_OUTPUT,
                f"output {name!r} can't be written to shared memory region {self.span.region!r}: "
                f"{error.strerror}",
            ) from None

    def _cut(self, reason: Reason = Reason.BAD_INPUT) -> Unfit:
        end = self.at + self.span.size
        return Unfit(
            reason,
            f"the file of shared memory region {self.span.region!r} has become shorter than the {end:,} "
            "bytes that the request makes use of",
        )


Parts = Mapping[Span, Part]


def not_shared(regions: Regions | None, instead: str) -> str:
    """Return why memory is not shared with a client, and what it can do ``instead``."""
    if regions is None:
        return f"shared memory is not served here (shared_memory in the table [gateway]); {instead}"
    return (
        "shared memory is served to programs of this host whose user the kernel tells, over the loopback, "
        f"and to no others; {instead}"
    )


class Regions:
    """All of a gateway; see the module's docstring. Used in the loop's thread only."""

    def __init__(
        self, config: GatewayConfig, gate: Gate, memory: Memory | None = None, folder: Path = FOLDER
    ) -> None:
        """``gate`` says which tokens are known; ``memory`` is where inputs are read to."""
        self._memory = Memory(0) if memory is None else memory
        self._most, self._most_bytes = config.max_shared_regions, config.max_shared_bytes
        self._triton = config.compatibility == TRITON
        self._gate = gate
        self._folder = folder
        self.users = PeerUsers()
        """Says who asks."""
        self._owned: dict[Owner, dict[str, _Region]] = {}
        self._bytes = 0
        self._files = [0]
        """Descriptors that are open, those of unregistered regions too."""
        self._reading = Budget(config.max_in_flight_bytes)

    def register(self, owner: Owner, name: str, key: str, offset: int, byte_size: int) -> None:
        """Make a part of a file known by a name; raise `RegionError`."""
        if not 0 < len(name) <= _LONGEST_NAME:
            raise RegionError(BAD_REQUEST, f"the name of a region has 1 to {_LONGEST_NAME} characters")
        if not (byte_size > 0 and offset >= 0 and offset + byte_size < 1 << 63):
            raise self._said(
                BAD_REQUEST,
                f"region {name!r} has offset {offset} and byte_size {byte_size}; the offset is 0 or more, "
                f"the size more than 0, and their sum at most {(1 << 63) - 1}",
                f"failed to register shared memory region '{name}': invalid args",
            )
        own = self._owned.get(owner, {})
        if name in own:
            raise self._said(
                EXISTS,
                f"you have registered a region {name!r} already: unregister it first, or take another name",
                f"shared memory region '{name}' already in manager",
            )
        self._check_room(byte_size)
        number = self._open(owner, key)
        file = _File(number, self._files)
        if os.fstat(number).st_size < offset + byte_size:
            raise self._said(
                BAD_REQUEST,
                f"region {name!r} would end at byte {offset + byte_size:,} of {key!r}, which is shorter",
                f"failed to register shared memory region '{name}': invalid args",
            )
        self._owned.setdefault(owner, own)[name] = _Region(RegionStatus(name, key, offset, byte_size), file)
        self._bytes += byte_size

    def unregister(self, owner: Owner, name: str = "") -> None:
        """Forget one of an owner's regions, or all; nothing happens if it is not there, as with Triton."""
        own = self._owned.get(owner, {})
        for each in [name] if name else list(own):
            region = own.pop(each, None)
            if region is not None:
                self._bytes -= region.status.byte_size
        if not own:
            self._owned.pop(owner, None)

    def status(self, owner: Owner, name: str = "") -> list[RegionStatus]:
        """Return one of an owner's regions, or all; raise `RegionError` if it is not there."""
        own = self._owned.get(owner, {})
        if not name:
            return [region.status for region in own.values()]
        return [self._region(own, name, "system shared memory region").status]

    def parts(self, owner: Owner, spans: Iterable[Span]) -> Parts:
        """Return where the bytes of these spans are; raise `RegionError`."""
        own = self._owned.get(owner, {})
        return {span: self._part(own, span) for span in spans}

    def filled(
        self, frames: Sequence[Any], parts: Parts, limit_bytes: int, key: str = BODY_KEY
    ) -> Steps[list[Any]]:
        """Return a request's inputs, with the bytes of those that are in shared memory.

        ``limit_bytes``: what these may have together, which ``key`` of the configuration says. Raises
        `Unfit`.
        """
        wanted = sum(frame.span.size for frame in frames if isinstance(frame, SharedInput))
        if wanted > limit_bytes:
            raise TooLarge("the inputs in shared memory", limit_bytes, key)
        if not self._reading.take(wanted):
            raise Unfit(
                Reason.OVERLOADED,
                f"inputs of {self._reading.held_bytes:,} bytes are being read from shared memory, the "
                f"request has {wanted:,}, and at most {self._reading.limit_bytes:,} are read at one time",
            )
        try:
            found = []
            for frame in frames:
                if isinstance(frame, SharedInput):
                    found.append(frame.content((yield from parts[frame.span].read(self._memory))))
                else:
                    found.append(frame)
            return found
        finally:
            self._reading.give(wanted)

    # --- inside ---

    def _check_room(self, byte_size: int) -> None:
        if self._files[0] >= self._most or self._bytes + byte_size > self._most_bytes:
            self._drop_unknown()
        if self._files[0] >= self._most:
            raise RegionError(
                OVERLOADED,
                f"as many regions are registered or in use as may be (max_shared_regions, {self._most:,}); "
                "unregister what is not needed",
                Reason.OVERLOADED,
            )
        if self._bytes + byte_size > self._most_bytes:
            raise RegionError(
                OVERLOADED,
                f"a region of {byte_size:,} bytes would go beyond what all may have together "
                f"(max_shared_bytes, {self._most_bytes:,}); unregister what is not needed",
                Reason.OVERLOADED,
            )

    def _drop_unknown(self) -> None:
        """Forget the regions of tokens that are not known any more."""
        for owner in list(self._owned):
            if owner.token and self._gate.known(Credential(owner.token)) is not None:
                self.unregister(owner)

    def _open(self, owner: Owner, key: str) -> int:
        """Return a descriptor of an owner's file; raise `RegionError`, which does not say why it can't be."""
        name, number = key.removeprefix("/"), -1
        if _is_file_name(name):
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                number = os.open(self._folder / name, flags)
                found = os.fstat(number)
                if (
                    stat.S_ISREG(found.st_mode)
                    and found.st_uid == owner.user
                    and found.st_dev == os.stat(self._folder).st_dev
                ):
                    return number
            except OSError:
                pass
        if number >= 0:
            os.close(number)
        raise self._said(
            BAD_REQUEST,
            f"{key[:300]!r} can't be opened: a key is '/' and the name of a file in {self._folder} that "
            "belongs to your user and that the gateway may read and write",
            f"Unable to open shared memory region: '{key[:300]}'",
        )

    def _region(self, own: Mapping[str, _Region], name: str, what: str) -> _Region:
        region = own.get(name)
        if region is None:
            shown = name[:_LONGEST_NAME]
            raise self._said(
                NOT_FOUND,
                f"you have registered no shared memory region {shown!r}",
                f"Unable to find {what}: '{shown}'",
            )
        return region

    def _part(self, own: Mapping[str, _Region], span: Span) -> Part:
        region = self._region(own, span.region, "shared memory region")
        status = region.status
        if span.offset + max(span.size, 1) > status.byte_size:
            beyond = "offset" if span.offset >= status.byte_size else "offset + byte size"
            raise self._said(
                BAD_REQUEST,
                f"shared memory region {status.name!r} has {status.byte_size:,} bytes; a tensor of "
                f"{span.size:,} at offset {span.offset:,} ends behind them",
                f"Invalid {beyond} for shared memory region: '{status.name}'",
            )
        return Part(region.file, status.offset + span.offset, span)

    def _said(self, status: tuple[int, str], detail: str, triton: str) -> RegionError:
        """Return an error in own words, behind Triton's where scripts look for them."""
        return RegionError(status, f"{triton}: {detail}" if self._triton else detail)


def _is_file_name(name: str) -> bool:
    """Say whether a text names a file of a folder, and nothing below or above it."""
    return 0 < len(name.encode()) <= _LONGEST_KEY and name not in (".", "..") and not {"/", "\0"} & set(name)
