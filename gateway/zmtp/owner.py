"""What a `ZmtpListener` needs of those who use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mainspring.gateway.uploads import Upload
from mainspring.gateway.zmtp.receiver import Message


class Owner(Protocol):
    """Whose clients these are."""

    def gone(self, name: bytes) -> None:
        """A connection is over."""

    def violated(self, why: str) -> Sequence[bytes]:
        """A peer broke the protocol: return the message that it is told."""

    def busy(self, name: bytes) -> bool:
        """Whether a connection waits for answers."""

    def large_message(self, name: bytes, message: Message) -> None:
        """A message has come whose frames were read by turns."""


class Turns(Protocol):
    """Who lets connections with large frames read by turns."""

    def wait(self, upload: Upload) -> None:
        """Call `Upload.read_slice` when it is this one's turn."""
