"""A state of the policy for each context, such as a user or a session (Clipper, section 5.3). Pure.

A context begins with the mean of the others' states (Velox, thesis section 2.5). Requests without a context
have a state of their own once there was feedback for them, and that mean before. What is kept is bounded in
bytes and in time since it was last used; what is dropped begins with the mean once more, unless there is a
store: then a `Journal` (`stores/journal.py`) watches what changes, and reads again what was dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from mainspring.selection.policy import Policy, State

CONTEXT_BYTES = 400
"""Bytes that a context takes beside its name and its numbers."""
NUMBER_BYTES = 32
MOST_CONTEXT_BYTES = 256
"""Bytes of a context's name in UTF-8."""


class Watcher(Protocol):
    """Hears what becomes of states; None stands for that of requests without a context."""

    def used(self, now_ns: int, context: str | None) -> State | None:
        """Hear that a state is used; return the one that memory dropped and no store has yet."""

    def changing(self, now_ns: int, context: str | None, before: State, *, new: bool) -> None:
        """Hear, before it is, that a state is changed; ``new``: it was not kept."""

    def dropped(self, context: str, state: State) -> None:
        """Hear that memory drops a state."""

    def forget(self, context: str) -> None:
        """Hear that a context is to be erased."""


class Kept:
    """The state of a context."""

    __slots__ = ("state", "used_ns", "version")

    def __init__(self, state: State, used_ns: int, version: int = 0) -> None:
        self.state = state
        self.used_ns = used_ns
        self.version = version
        """Updates that it has had; 0 where it is what it began with."""


class Contexts:
    """The states of an application's contexts."""

    def __init__(self, policy: Policy, state_bytes: int, idle_ns: int) -> None:
        """Keep states in at most ``state_bytes``, each for ``idle_ns`` after its last use."""
        self._policy = policy
        self._state_bytes = state_bytes
        self._idle_ns = idle_ns
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        """The states by context, in the order of their last use."""
        self.watcher: Watcher | None = None
        self.own: State | None = None
        """The state of requests without a context; None before there was feedback for them."""
        self.sums: State = {}
        """The sums of the states of all contexts that had updates, also of those that only a store has."""
        self.count = 0.0
        """Number of these."""
        self._mean: State | None = policy.init()
        """Their mean; None where it is to be recomputed."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def mean(self) -> State:
        """Return the mean of the contexts' states: what a new one begins with."""
        if self._mean is None:
            self._mean = {
                member: tuple([each / self.count for each in sums]) for member, sums in self.sums.items()
            }
        return self._policy.completed(self._mean)

    @property
    def shared(self) -> State:
        """Return the state of requests without a context."""
        return self.mean if self.own is None else self.own

    def state(self, now_ns: int, context: str | None) -> State:
        """Return the state of a context, or the shared one for None; nothing is kept for one that is new."""
        left = None if self.watcher is None else self.watcher.used(now_ns, context)
        if context is None:
            return self.shared
        kept = self._kept.get(context)
        if kept is None and left is not None:
            kept = self.put(now_ns, context, left)
        if kept is None:
            return self.mean
        kept.used_ns = now_ns
        self._kept.move_to_end(context)
        return self._policy.completed(kept.state)

    def update(self, now_ns: int, context: str | None, change: Callable[[State], State]) -> State:
        """Change the state of a context, or the shared one; return what it is then."""
        before = self.state(now_ns, context)
        after = change(before)
        kept = None if context is None else self._kept.get(context)
        new = self.own is None if context is None else kept is None or not kept.version
        if self.watcher is not None:
            self.watcher.changing(now_ns, context, before, new=new)
        if context is None:
            self.own = after
            return after
        if kept is None:
            kept = self._kept[context] = Kept(before, now_ns)
            self.bytes += self._size(context, before)
        if new:
            self.add(after, 1)
        else:
            self._shift(before, after)
        kept.version += 1
        kept.state = after
        self.expire(now_ns)
        return after

    def add(self, state: State, sign: int) -> None:
        """Take a context's state into the mean (1), or out of it (-1): that of the last one stays."""
        if self.count + sign <= 0:
            self._mean = self.mean
            self.sums, self.count = {}, 0.0
            return
        self.sums = {
            member: tuple([one + sign * each for one, each in zip(self.sums[member], numbers, strict=True)])
            if self.sums
            else numbers
            for member, numbers in state.items()
        }
        self.count += sign
        self._mean = None

    def _shift(self, before: State, after: State) -> None:
        """Have the mean follow a context's state that is in it."""
        self.sums = {
            member: tuple(
                [whole + to - at for whole, at, to in zip(sums, before[member], after[member], strict=True)]
            )
            for member, sums in self.sums.items()
        }
        self._mean = None

    def total(self, sums: State, count: float) -> None:
        """Take what a store has of the sums, with what is not in it yet."""
        if count <= 0:
            self._mean = self.mean
            self.sums, self.count = {}, 0.0
        else:
            self.sums, self.count, self._mean = sums, count, None

    def peek(self, context: str | None) -> State | None:
        """Return a state that is kept; it does not count as used."""
        if context is None:
            return self.own
        kept = self._kept.get(context)
        return None if kept is None else kept.state

    def put(self, now_ns: int, context: str, state: State, version: int = 1) -> Kept:
        """Keep what a store has of a context, which is in the sums already."""
        kept = self._kept.get(context)
        if kept is not None:
            kept.state = self._policy.completed(state)
            return kept
        kept = self._kept[context] = Kept(self._policy.completed(state), now_ns, version)
        self.bytes += self._size(context, kept.state)
        self.expire(now_ns)
        return kept

    def version(self, context: str) -> int:
        """Return the updates that a context's state has had here; 0 if it is not kept."""
        kept = self._kept.get(context)
        return 0 if kept is None else kept.version

    def adopt(self, policy: Policy) -> None:
        """Keep the states for a policy with the same numbers of other members.

        Members that are new to it enter each state with the mean of the others; those that left are dropped.
        """
        mean = policy.completed(self.mean)
        self._policy = policy
        self.bytes, judged = 0, list[State]()
        for context, kept in self._kept.items():
            kept.state = policy.completed(kept.state)
            self.bytes += self._size(context, kept.state)
            if kept.version:
                judged.append(kept.state)
        self._mean = mean
        if self.own is not None:
            self.own = policy.completed(self.own)
        if self.count:
            # A store has contexts that are not here: to them, a new member has the numbers of the mean.
            each = judged if self.watcher is None else [mean]
            scale = 1.0 if self.watcher is None else self.count
            self.sums = {
                member: tuple(
                    [scale * sum(column) for column in zip(*[one[member] for one in each], strict=True)]
                )
                for member in mean
            }
            self._mean = None

    def forget(self, context: str) -> bool:
        """Erase a context; return whether there was one. The mean is then that of the others."""
        if self.watcher is not None:
            self.watcher.forget(context)
            return self.remove(context) is not None
        kept = self.remove(context)
        if kept is not None and kept.version:
            self.add(kept.state, -1)
        return kept is not None

    def remove(self, context: str) -> Kept | None:
        """Keep a context no more; the mean stays."""
        kept = self._kept.pop(context, None)
        if kept is not None:
            self.bytes -= self._size(context, kept.state)
        return kept

    def expire(self, now_ns: int) -> None:
        """Drop what was not used for long, and what was used least recently beyond what may be kept."""
        while self._kept:
            context, kept = next(iter(self._kept.items()))
            if self.bytes <= self._state_bytes and now_ns - kept.used_ns <= self._idle_ns:
                return
            if self.watcher is None:
                self.forget(context)
            else:
                self.remove(context)
                self.watcher.dropped(context, kept.state)

    def _size(self, context: str, state: State) -> int:
        numbers = sum(len(each) for each in state.values())
        return CONTEXT_BYTES + len(context.encode()) + NUMBER_BYTES * numbers

    def validate(self) -> None:
        """Raise AssertionError if bytes, bounds or, without a store, the mean are not what its states say."""
        assert self.bytes == sum(self._size(context, kept.state) for context, kept in self._kept.items())
        assert self.bytes <= self._state_bytes or not self._kept
        if self.watcher is not None:
            return
        judged = [self._policy.completed(kept.state) for kept in self._kept.values() if kept.version]
        assert len(judged) == self.count
        for member, numbers in self.mean.items() if judged else ():
            for place, number in enumerate(numbers):
                mean = sum(state[member][place] for state in judged) / len(judged)
                assert abs(mean - number) <= 1e-6 * max(1.0, abs(mean)), (member, mean, number)
