"""``[transport]``: what a process's listeners allow strangers to cost."""

from __future__ import annotations

import msgspec


class TransportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Handshakes of TLS and CURVE that each listener begins. Raises ValueError on a value that can't work.

    Each costs about a millisecond of a core before it is known who asks; a connection beyond these numbers is
    closed unread, and who belongs here tries again.
    """

    handshakes_at_once: int = 256
    """Handshakes that one host may begin at once: more than its processes and clients together."""
    handshakes_per_s: int = 32
    """Handshakes that a host may begin in each second after that."""
    all_handshakes_at_once: int = 1024
    """Handshakes that all hosts together may begin at once."""
    all_handshakes_per_s: int = 128
    """Handshakes that all hosts together may begin in each second after that."""

    def __post_init__(self) -> None:
        """Check the values."""
        for field in self.__struct_fields__:
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be at least 1")
        for one in ("handshakes_at_once", "handshakes_per_s"):
            of_one, of_all = getattr(self, one), getattr(self, f"all_{one}")
            if of_all < of_one:
                raise ValueError(f"all_{one} is {of_all}, below {one}, which is {of_one}")
