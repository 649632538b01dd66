"""A state of the policy for each context, such as a user or a session (Clipper, section 5.3). Pure.

A context begins with the mean of the others' states (Velox, thesis section 2.5), and the state of the
application is that mean, or where there are no contexts its one state. What is kept is bounded in bytes and
in time since it was last used; what is dropped begins with the mean once more, if no store has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mainspring.selection.policy import Policy, State

CONTEXT_BYTES = 400
"""Bytes that a context takes beside its name and its numbers."""
NUMBER_BYTES = 32
MOST_CONTEXT_BYTES = 256
"""Bytes of a context's name in UTF-8."""


class Kept:
    """A context's state, with the version that a store compares before it writes another one."""

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
        self._judged = 0
        """Contexts whose states differ from what they began with: the mean is theirs."""
        self.shared = policy.init()
        """The mean of the states that had updates; without contexts the application's one state."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def state(self, now_ns: int, context: str | None) -> State:
        """Return the state of a context, or the shared one for None; nothing is kept for one that is new."""
        if context is None:
            return self._policy.completed(self.shared)
        kept = self._kept.get(context)
        if kept is None:
            return self._policy.completed(self.shared)
        kept.used_ns = now_ns
        self._kept.move_to_end(context)
        return self._policy.completed(kept.state)

    def update(self, now_ns: int, context: str | None, change: Callable[[State], State]) -> State:
        """Change the state of a context, or the shared one; return what it is then."""
        before = self.state(now_ns, context)
        after = change(before)
        if context is None:
            self.shared = after
            return after
        kept = self._kept.get(context)
        if kept is None:
            kept = self._kept[context] = Kept(before, now_ns)
            self.bytes += self._size(context, before)
        self._average(before if kept.version else None, after)
        kept.version += 1
        kept.state = after
        self.expire(now_ns)
        return after

    def restore(self, now_ns: int, context: str, state: State, version: int) -> None:
        """Take what a store has of a context; it counts for the mean as one that had updates."""
        self.forget(context)
        kept = self._kept[context] = Kept(self._policy.completed(state), now_ns, version)
        self.bytes += self._size(context, kept.state)
        self._average(None, kept.state)
        self.expire(now_ns)

    def version(self, context: str) -> int:
        """Return the updates that a context's state has had; 0 if it is not kept."""
        kept = self._kept.get(context)
        return 0 if kept is None else kept.version

    def adopt(self, policy: Policy) -> None:
        """Keep the states for a policy with the same numbers of other members.

        Members that are new to it enter each state with the mean of the others; those that left are dropped.
        """
        self._policy = policy
        self.bytes, judged = 0, []
        for context, kept in self._kept.items():
            kept.state = policy.completed(kept.state)
            self.bytes += self._size(context, kept.state)
            if kept.version:
                judged.append(kept.state)
        self.shared = policy.completed(self.shared)
        if judged:
            columns = {
                member: zip(*[state[member] for state in judged], strict=True) for member in self.shared
            }
            self.shared = {
                member: tuple([sum(column) / len(judged) for column in several])
                for member, several in columns.items()
            }

    def forget(self, context: str) -> bool:
        """Erase a context; return whether there was one. The mean is then that of the others."""
        kept = self._kept.pop(context, None)
        if kept is None:
            return False
        self.bytes -= self._size(context, kept.state)
        if kept.version:
            self._leave(kept.state)
        return True

    def expire(self, now_ns: int) -> None:
        """Drop what was not used for long, and what was used least recently beyond what may be kept."""
        while self._kept:
            context, kept = next(iter(self._kept.items()))
            if self.bytes <= self._state_bytes and now_ns - kept.used_ns <= self._idle_ns:
                return
            self.forget(context)

    def _average(self, before: State | None, after: State) -> None:
        """Have the mean follow a context's state; ``before`` is None where it did not count so far."""
        mean = self._policy.completed(self.shared)
        if before is None:
            self._judged += 1
            share = 1 / self._judged
            self.shared = {
                member: tuple(
                    old + share * (new - old) for old, new in zip(mean[member], after[member], strict=True)
                )
                for member in mean
            }
        else:
            share = 1 / self._judged
            self.shared = {
                member: tuple(
                    old + share * (new - was)
                    for old, new, was in zip(mean[member], after[member], before[member], strict=True)
                )
                for member in mean
            }

    def _leave(self, state: State) -> None:
        """Have the mean be that of the others, unless it was the last: then it stays."""
        mean, gone = self._policy.completed(self.shared), self._policy.completed(state)
        if self._judged > 1:
            share = 1 / (self._judged - 1)
            self.shared = {
                member: tuple(
                    old + share * (old - was) for old, was in zip(mean[member], gone[member], strict=True)
                )
                for member in mean
            }
        self._judged -= 1

    def _size(self, context: str, state: State) -> int:
        numbers = sum(len(each) for each in state.values())
        return CONTEXT_BYTES + len(context.encode()) + NUMBER_BYTES * numbers

    def validate(self) -> None:
        """Raise AssertionError if bytes, bounds or the mean are not what its states say."""
        assert self.bytes == sum(self._size(context, kept.state) for context, kept in self._kept.items())
        assert self.bytes <= self._state_bytes or not self._kept
        judged = [self._policy.completed(kept.state) for kept in self._kept.values() if kept.version]
        assert len(judged) == self._judged
        for member, numbers in self.shared.items() if judged else ():
            for place, number in enumerate(numbers):
                mean = sum(state[member][place] for state in judged) / len(judged)
                assert abs(mean - number) <= 1e-6 * max(1.0, abs(mean)), (member, mean, number)
