"""Parts of a client that belong to one process: made again after a fork, and never pickled.

A fork copies a client's memory, but neither its thread nor what other threads were about: whoever waits there
for a reply waits for ever, and a lock that another thread held stays locked. So what has threads, locks or
sockets is kept by the process that made it, and another one makes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from os import getpid
from typing import Any, Generic, Never, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value for each process, made where it is first asked for.

    What other processes made is never touched: not even to be closed, as the sockets in it are shared.
    """

    def __init__(self, make: Callable[[], T], discard: Callable[[T], object] = lambda _: None) -> None:
        """``discard`` is given what a thread made at the same time as another one, and nobody uses."""
        self._make = make
        self._discard = discard
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's; raises what making it raises."""
        own = getpid()
        found = self._made.get(own)
        if found is None:
            made = self._make()
            # Without a lock, which might be another thread's at the instant of a fork.
            found = self._made.setdefault(own, made)
            if found is not made:
                self._discard(made)
        return found

    def made(self) -> T | None:
        """Return this process's, None if it has none."""
        return self._made.get(getpid())


class OfOneProcess:
    """A class whose objects can't be pickled, with what to pass in their place."""

    _instead = "pass its address, and make a Client(address) in the other process"

    def __reduce_ex__(self, _protocol: Any) -> Never:
        raise TypeError(f"a {type(self).__name__} is of one process and can't be pickled: {self._instead}")
