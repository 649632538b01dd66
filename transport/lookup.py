"""A host's name on its way to an address: asked for in a thread, for that may take many seconds.

The operating system's resolver knows no way to ask that does not wait. One thread is at work for each lookup,
and a link has one at a time, so there are as many as there are links to hosts by name that can't be found.
"""

from __future__ import annotations

import os
import threading

from mainspring.transport.addresses import Address, Target, resolve


class Lookup:
    """Asks for an address; ``fd`` is readable once there is an answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._closed = False
        self._found: Target | OSError | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name="lookup", daemon=True).start()

    def result(self) -> Target:
        """Return the answer, once there is one; raise OSError if there is no such host."""
        assert self._found is not None, f"{self._address} is still being looked up"
        if isinstance(self._found, OSError):
            raise self._found
        return self._found

    def close(self) -> None:
        """Want no answer any more; the thread ends when the resolver does."""
        with self._lock:
            self._closed = True
            os.close(self.fd)

    def _run(self) -> None:
        try:
            found: Target | OSError = resolve(self._address)
        except OSError as error:
            found = error
        with self._lock:
            # Its number may be another file's by now.
            if not self._closed:
                self._found = found
                os.eventfd_write(self.fd, 1)
