"""Events of workers and of the controller itself: the marks that outlast what is there now.

Instants are kept as Unix time, because two runs of a controller have no other clock in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from mainspring.console.view.actions import Action
from mainspring.console.view.series import SECOND_NS

SLOW_FACTOR = 3
"""Ratio to the predicted duration above which an action is slow, if it is also longer by `SLOW_NS`."""
SLOW_NS = 20_000_000
"""Least excess over the predicted duration of a slow action."""
PAUSE_NS = 10 * SECOND_NS
"""Least time between two marks that the same executor was slow."""
REMEMBERED = 1_000
"""Reasons of gateways that are remembered at least, of those that have ceased."""
NAMED = 5
"""Models that a line names of those that were added or removed within one second."""
GATEWAY_PAUSE_NS = 60 * SECOND_NS
"""Time without a refusal for a reason after which a gateway's next one for it is marked again."""
GONE, BACK, SILENT, STOPPING, DRAINED, RESUMED, SLOW, FAILED, CONTROLLER, ADDED, REMOVED, REFUSED = (
    "gone",
    "back",
    "silent",
    "stopping",
    "drained",
    "resumed",
    "slow",
    "failed",
    "controller",
    "added",
    "removed",
    "refused",
)


def _away(span_ns: int) -> str:
    """Return how long a worker was away, for a person."""
    return f"{span_ns / SECOND_NS:.1f} s" if span_ns >= SECOND_NS else f"{max(1, round(span_ns / 1e6))} ms"


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened."""

    unix_ns: int
    kind: str
    worker: str
    """Empty if it concerns the controller, a gateway, or models."""
    text: str
    models: list[str] = []
    """The models that were added or removed within the second; ``text`` is empty then."""

    @property
    def said(self) -> str:
        """Return the text that a person reads."""
        if not self.models:
            return self.text
        names, more = ", ".join(self.models[:NAMED]), len(self.models) - NAMED
        what = "model" if len(self.models) == 1 else "models"
        return f"{what} {self.kind}: {names}" + (f" and {more:,} more" if more > 0 else "")


class Happenings:
    """The newest of what happened, in the order of time."""

    def __init__(self, most: int) -> None:
        """Remember at most ``most``."""
        self._log: deque[Happening] = deque(maxlen=most)
        self._left_unix_ns: dict[str, int] = {}
        self._slow_unix_ns: dict[tuple[str, str], int] = {}
        self._refused_unix_ns: dict[tuple[str, str], int] = {}
        """Instant at which a gateway last refused requests for a reason, by gateway and reason."""
        self._run = 0
        self._second: dict[tuple[str, int], Happening] = {}
        """Happenings that name models, by kind and second of Unix time."""

    def newest(self) -> Iterator[Happening]:
        """Yield what happened, the newest first."""
        return reversed(self._log)

    def forget(self, keep_history: bool) -> None:
        """Forget which workers are away unless history is kept; what happened is remembered."""
        if not keep_history:
            self._left_unix_ns.clear()
            self._slow_unix_ns.clear()
            self._refused_unix_ns.clear()

    def run(self, unix_ns: int, run: int) -> None:
        """The stream is of this run of a controller from now on."""
        if self._run and run != self._run:
            self._add(Happening(unix_ns, CONTROLLER, "", "the controller started again"))
        self._run = run

    def contradicted(self, unix_ns: int, text: str) -> None:
        """Remember that a record contradicts what is known."""
        text = f"a record contradicts what is known here, so what is shown may be wrong ({text[:200]})"
        self._add(Happening(unix_ns, CONTROLLER, "", text))

    def left(self, unix_ns: int, worker: str, reason: str) -> None:
        """A worker is gone."""
        self._left_unix_ns[worker] = unix_ns
        self._add(Happening(unix_ns, GONE, worker, f"gone: {reason}" if reason else "gone"))

    def joined(self, unix_ns: int, worker: str) -> None:
        """A worker is there; that is remembered of one that was away."""
        left_unix_ns = self._left_unix_ns.pop(worker, None)
        if left_unix_ns is not None:
            self._add(Happening(unix_ns, BACK, worker, f"back after {_away(unix_ns - left_unix_ns)}"))

    def silent(self, unix_ns: int, worker: str) -> None:
        """Nothing has come from a worker for a while."""
        self._add(Happening(unix_ns, SILENT, worker, "gives no sign of life"))

    def turned_away(self, unix_ns: int, gateway: str, requests: dict[str, int]) -> None:
        """A gateway refused requests itself; that it begins to is remembered."""
        known = self._refused_unix_ns
        begun = [
            reason
            for reason in requests
            if unix_ns - known.get((gateway, reason), -GATEWAY_PAUSE_NS) >= GATEWAY_PAUSE_NS
        ]
        known.update({(gateway, reason): unix_ns for reason in requests})
        if len(known) > REMEMBERED:
            for key in [key for key, last in known.items() if unix_ns - last >= GATEWAY_PAUSE_NS]:
                del known[key]
        if begun:
            counts = ", ".join(f"{requests[each]:,} {each.replace('_', ' ')}" for each in sorted(begun))
            text = f"gateway {gateway} refuses requests before they reach the controller: {counts}"
            self._add(Happening(unix_ns, REFUSED, "", text))

    def stopping(self, unix_ns: int, worker: str) -> None:
        """A worker says that it begins nothing more."""
        self._add(Happening(unix_ns, STOPPING, worker, "stopping: it begins nothing more"))

    def drained(self, unix_ns: int, worker: str, who: str) -> None:
        """An operator had a worker drained."""
        self._add(Happening(unix_ns, DRAINED, worker, f"drained by {who}"))

    def resumed(self, unix_ns: int, worker: str, who: str) -> None:
        """An operator had a worker take work again."""
        self._add(Happening(unix_ns, RESUMED, worker, f"resumed by {who}"))

    def ran(self, unix_ns: int, worker: str, action: Action) -> None:
        """An action ended well; one that took far longer than predicted is remembered."""
        predicted_ns, took_ns = action.predicted_duration_ns, action.end_ns - action.begin_ns
        if took_ns <= SLOW_FACTOR * predicted_ns or took_ns - predicted_ns < SLOW_NS or not predicted_ns:
            return
        key = worker, action.kind
        if unix_ns - self._slow_unix_ns.get(key, 0) < PAUSE_NS:
            return
        self._slow_unix_ns[key] = unix_ns
        text = (
            f"slow: {action.kind} {action.id} of {action.model} took {took_ns / 1e6:.1f} ms, "
            f"predicted {predicted_ns / 1e6:.1f} ms"
        )
        self._add(Happening(unix_ns, SLOW, worker, text))

    def failed(self, unix_ns: int, worker: str, action: Action, *, left_out: bool) -> None:
        """A LOAD or PREPARE failed; ``left_out`` if the model gets no more of them on that worker."""
        why = f": {action.detail}" if action.detail else f": {action.status.replace('_', ' ')}"
        end = "; the model is left out there" if left_out else ""
        self._add(Happening(unix_ns, FAILED, worker, f"{action.kind} of {action.model} failed{why}{end}"))

    def model(self, unix_ns: int, kind: str, name: str) -> None:
        """A model was `ADDED` or `REMOVED`."""
        key = kind, unix_ns // SECOND_NS
        known = self._second.get(key)
        if known is None:
            known = self._second[key] = Happening(unix_ns, kind, "", "", [name])
            self._add(known)
            for old in list(self._second)[: -(self._log.maxlen or 1)]:
                del self._second[old]
        elif name not in known.models[:NAMED]:
            known.models.append(name)

    def _add(self, happening: Happening) -> None:
        """Put one into its place; a log that is played again repeats them."""
        later = []
        while self._log and self._log[-1].unix_ns > happening.unix_ns:
            later.append(self._log.pop())
        same = [each for each in reversed(self._log) if each.unix_ns == happening.unix_ns]
        if happening not in same and (self._log or len(later) < (self._log.maxlen or 0)):
            self._log.append(happening)
        self._log.extend(reversed(later))
