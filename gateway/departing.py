"""Models that the controller wants to remove once this gateway has no request for them in flight. Pure.

New requests don't name them any more. To see whether old ones are left, all requests are looked at, now and
then and only while there is such a model: so that nothing has to be counted while there is none.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.messages.peers import ModelDown

LOOK_NS = 50_000_000
"""Between two looks."""


class Departing:
    """Says which of them the controller is to be told of; each at most once."""

    def __init__(self, holds: Callable[[str], bool]) -> None:
        """``holds``: whether a request for a model is in flight."""
        self._holds = holds
        self._names: dict[str, None] = {}
        self._look_ns = 0

    def model_down(self, now_ns: int, message: ModelDown) -> None:
        """Take note of a model that goes, at once or once it is drained."""
        if message.drain:
            if not self._names:
                self._look_ns = now_ns
            self._names[message.name] = None
        else:
            self.keep(message.name)

    def keep(self, name: str) -> None:
        """The model stays after all, or is gone already."""
        self._names.pop(name, None)

    def controller_lost(self) -> None:
        """Forget all: a controller that still wants to remove them says so again."""
        self._names.clear()

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next."""
        return self._look_ns if self._names else None

    def tick(self, now_ns: int) -> list[str]:
        """Return the models for which nothing is in flight any more."""
        if not self._names or now_ns < self._look_ns:
            return []
        self._look_ns = now_ns + LOOK_NS
        drained = [name for name in self._names if not self._holds(name)]
        for name in drained:
            del self._names[name]
        return drained
