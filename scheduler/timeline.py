"""When one executor of one worker will be free: its outstanding actions and their predicted ends.

Clockwork, section 5.3: "pending actions, which tracks submitted actions and estimates when each executor
will next be available". Every result re-times what is still outstanding.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mainspring.messages.actions import Infer, Load

Windowed = TypeVar("Windowed", Infer, Load)


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

    __slots__ = ("_slots", "free_ns")

    def __init__(self) -> None:
        self._slots: dict[int, Slot[Windowed]] = {}
        self.free_ns = 0
        """Predicted end of the last outstanding action, or the end of the last finished one."""

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
        slots = self._slots
        if not slots:
            return max(self.free_ns, soonest_ns)
        first = next(iter(slots.values()))
        overdue = now_ns - first.end_ns
        return max(self.free_ns + overdue if overdue > 0 else self.free_ns, soonest_ns)

    def add(self, action: Windowed) -> None:
        """Append an action that begins and lasts as it predicts."""
        slot = Slot(action, action.predicted_begin_ns, action.predicted_duration_ns)
        self._slots[action.action_id] = slot
        self.free_ns = slot.end_ns

    def finish(self, action_id: int, end_ns: int) -> Slot[Windowed] | None:
        """Take an action out at its end, and re-time those behind it; None if it is not outstanding."""
        slots = self._slots
        slot = slots.get(action_id)
        if slot is None:
            return None
        was_first = next(iter(slots)) == action_id
        del slots[action_id]
        self._retime(end_ns if was_first else None)
        return slot

    def _retime(self, first_begin_ns: int | None) -> None:
        """Predict the chain anew; the first action begins at ``first_begin_ns``, or as it was predicted."""
        previous = first_begin_ns
        for slot in self._slots.values():
            if previous is not None:
                slot.begin_ns = max(previous, slot.action.earliest_ns)
                slot.end_ns = slot.begin_ns + slot.duration_ns
            previous = slot.end_ns
        if previous is not None:
            self.free_ns = previous

    def validate(self, where: str) -> None:
        """Check that predicted ends are monotone and that ``free_ns`` is the last; raise AssertionError."""
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
