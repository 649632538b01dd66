"""When one executor of one worker will be free: its outstanding actions and their predicted ends.

Clockwork, section 5.3: "pending actions, which tracks submitted actions and estimates when each executor
will next be available". Every result re-times what is still outstanding.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mainspring.messages.actions import Infer, Load

Windowed = TypeVar("Windowed", Infer, Load)

NEVER_NS = 1 << 62
"""Later than every instant."""


class Slot(Generic[Windowed]):
    """One outstanding action with its current prediction."""

    __slots__ = ("action", "begin_ns", "duration_ns", "end_ns")

    def __init__(self, action: Windowed, begin_ns: int, duration_ns: int) -> None:
        self.action: Windowed = action
        self.begin_ns = begin_ns
        self.duration_ns = duration_ns
        self.end_ns = begin_ns + duration_ns


class Timeline(Generic[Windowed]):
    """The outstanding actions of one executor in the order in which it will begin them."""

    __slots__ = ("_first_end_ns", "_slots", "free_ns")

    def __init__(self) -> None:
        self._slots: dict[int, Slot[Windowed]] = {}
        self.free_ns = 0
        """Predicted end of the last outstanding action, or the end of the last finished one."""
        self._first_end_ns = NEVER_NS
        """Predicted end of the first outstanding action."""

    def __len__(self) -> int:
        return len(self._slots)

    def actions(self) -> list[Windowed]:
        """Return the outstanding actions in order."""
        return [slot.action for slot in self._slots.values()]

    def get(self, action_id: int) -> Slot[Windowed] | None:
        """Return the slot of an outstanding action."""
        return self._slots.get(action_id)

    def first(self) -> Slot[Windowed] | None:
        """Return the slot that the executor is at, or will begin next."""
        return next(iter(self._slots.values()), None)

    def available_ns(self, now_ns: int, soonest_ns: int) -> int:
        """Return when a new action could begin: after what is outstanding, and not before ``soonest_ns``.

        An action that should have ended by now pushes everything behind it back.
        """
        free_ns = self.free_ns
        if now_ns > self._first_end_ns:
            free_ns += now_ns - self._first_end_ns
        return free_ns if free_ns > soonest_ns else soonest_ns

    def add(self, action: Windowed) -> Slot[Windowed]:
        """Append an action that begins and lasts as it predicts."""
        slot = Slot(action, action.predicted_begin_ns, action.predicted_duration_ns)
        if not self._slots:
            self._first_end_ns = slot.end_ns
        self._slots[action.action_id] = slot
        self.free_ns = slot.end_ns
        return slot

    def finish(self, action_id: int, end_ns: int) -> Slot[Windowed] | None:
        """Take an action out at its end, and re-time those behind it; None if it is not outstanding."""
        slots = self._slots
        slot = slots.get(action_id)
        if slot is None:
            return None
        was_first = next(iter(slots)) == action_id
        del slots[action_id]
        if slots:
            self._retime(end_ns if was_first else None)
        else:
            self._first_end_ns = NEVER_NS
            self.free_ns = end_ns
        return slot

    def _retime(self, first_begin_ns: int | None) -> None:
        """Predict the chain anew; the first action begins at ``first_begin_ns``, or as it was predicted.

        The chain must not be empty.
        """
        previous = first_begin_ns
        first_end_ns = None
        for slot in self._slots.values():
            if previous is not None:
                slot.begin_ns = max(previous, slot.action.earliest_ns)
                slot.end_ns = slot.begin_ns + slot.duration_ns
            previous = slot.end_ns
            if first_end_ns is None:
                first_end_ns = previous
        assert previous is not None
        assert first_end_ns is not None
        self.free_ns = previous
        self._first_end_ns = first_end_ns

    def validate(self, where: str) -> None:
        """Check that predicted ends are monotone and that ``free_ns`` is the last; raise AssertionError."""
        first_end_ns = next((slot.end_ns for slot in self._slots.values()), NEVER_NS)
        assert first_end_ns == self._first_end_ns, (
            f"{where}: the first ends at {first_end_ns}, not {self._first_end_ns}"
        )
        previous = None
        for slot in self._slots.values():
            assert previous is None or slot.begin_ns >= previous, (
                f"{where}: {slot.action} is predicted to begin at {slot.begin_ns}, "
                f"before its predecessor ends at {previous}"
            )
            previous = slot.end_ns
        assert previous is None or previous == self.free_ns, (
            f"{where}: free at {self.free_ns}, not {previous}"
        )
