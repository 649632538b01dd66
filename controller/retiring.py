"""Models that are to be removed once no gateway has a request for them in flight. Pure.

What a gateway sends goes the same way as its `Drained`, so all of its requests have arrived before it; and
what it holds it submits anew to a controller that forgot it, before it says `Drained` again.
"""

from __future__ import annotations

from collections.abc import Iterable


class Retiring:
    """For each such model, the gateways, by number, that have yet to say that they hold none."""

    def __init__(self) -> None:
        self._awaited: dict[str, set[int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._awaited

    def __len__(self) -> int:
        return len(self._awaited)

    def names(self) -> list[str]:
        """Return the models, in the order in which they were retired."""
        return list(self._awaited)

    def begin(self, name: str, gateways: Iterable[int]) -> bool:
        """Wait for these gateways; return whether there is none to wait for, and the model can go."""
        awaited = self._awaited[name] = set(gateways)
        return not awaited and self.end(name)

    def joined(self, gateway: int) -> list[str]:
        """Wait for one more gateway; return the models that it is to be told of."""
        for awaited in self._awaited.values():
            awaited.add(gateway)
        return list(self._awaited)

    def drained(self, name: str, gateway: int) -> bool:
        """Wait for this gateway no longer; return whether it was the last one, and the model can go."""
        awaited = self._awaited.get(name)
        if awaited is None:
            return False
        awaited.discard(gateway)
        return not awaited and self.end(name)

    def left(self, gateway: int) -> list[str]:
        """Forget a gateway that is gone; return the models that can go now."""
        return [name for name in list(self._awaited) if self.drained(name, gateway)]

    def end(self, name: str) -> bool:
        """Forget the model, because it goes or because it stays after all; return True."""
        self._awaited.pop(name, None)
        return True
