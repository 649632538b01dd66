"""The timeline of one executor of one worker: its outstanding actions and their predicted ends.

Clockwork, section 5.3: "pending actions, which tracks submitted actions and estimates when each executor
will next be available". Every result re-times what is still outstanding.
"""

from __future__ import annotations

from typing import Final, Generic

from mainspring.cluster.placements import Slot, Windowed
from mainspring.messages.actions import Executed, Infer

NEVER_NS: Final = (1 << 62) - 1
"""Later than every instant; the largest number that compiled code need not keep as an object."""


class Timeline(Generic[Windowed]):
    """The outstanding actions of one executor in the order in which it will begin them."""

    __slots__ = ("_first_end_ns", "_grace_ns", "_slots", "free_ns", "last_id")

    def __init__(self, grace_ns: int = 0) -> None:
        """``grace_ns`` is how long a result is on its way, for which its action is not overdue."""
        self._grace_ns = grace_ns
        self._slots: dict[int, Slot[Windowed]] = {}
        self.free_ns = 0
        """Predicted end of the last outstanding action, or the end of the last finished one."""
        self.last_id = 0
        """The last outstanding action; 0 if there is none."""
        self._first_end_ns = NEVER_NS
        """Predicted end of the first outstanding action."""

    def __len__(self) -> int:
        return len(self._slots)

    def actions(self) -> list[Windowed]:
        """Return the outstanding actions in order."""
        return [slot.action for slot in self._slots.values()]

    def slots(self) -> list[Slot[Windowed]]:
        """Return the outstanding actions with their predictions, in order."""
        return list(self._slots.values())

    def restore(self, slots: list[Slot[Windowed]], free_ns: int) -> None:
        """Have just these actions outstanding."""
        self._slots = {slot.action.action_id: slot for slot in slots}
        self._first_end_ns = slots[0].end_ns if slots else NEVER_NS
        self.free_ns = free_ns
        self.last_id = slots[-1].action.action_id if slots else 0

    def get(self, action_id: int) -> Slot[Windowed] | None:
        """Return the slot of an outstanding action."""
        return self._slots.get(action_id)

    def first(self) -> Slot[Windowed] | None:
        """Return the slot that the executor is at, or will begin next."""
        for slot in self._slots.values():
            return slot
        return None

    def available_ns(self, now_ns: int, soonest_ns: int) -> int:
        """Return when a new action could begin: after what is outstanding, and not before ``soonest_ns``.

        An action that should have ended by now pushes everything behind it back.
        """
        free_ns = self.free_ns
        if now_ns > self._first_end_ns:
            free_ns += self.pushed_ns(now_ns)
        return free_ns if free_ns > soonest_ns else soonest_ns

    def overdue_ns(self, now_ns: int) -> int:
        """Return for how long the result of the first outstanding action has been due; 0 if it is not."""
        overdue_ns = now_ns - self._first_end_ns - self._grace_ns
        return overdue_ns if overdue_ns > 0 else 0

    def pushed_ns(self, now_ns: int) -> int:
        """Return how much later than predicted the first outstanding action, and all behind it, will end.

        One that is overdue is expected to take as long again as it is overdue: most that are a little late
        end soon, and what is very late has met something that lasts.
        """
        late_ns = now_ns - self._first_end_ns
        return late_ns + self.overdue_ns(now_ns) if late_ns > 0 else 0

    def pushed_beyond_ns(self, wait_ns: int) -> int:
        """Return from when on a new action would have to wait for longer than ``wait_ns`` if no result comes.

        `NEVER_NS` if nothing is outstanding.
        """
        if not self._slots:
            return NEVER_NS
        behind_ns = self.free_ns - self._first_end_ns
        return self._first_end_ns + self._grace_ns + max(0, wait_ns - behind_ns) + 1

    def overruns(self, now_ns: int) -> bool:
        """Return whether the first outstanding action should have ended; only its result says when."""
        return now_ns > self._first_end_ns

    def add(self, action: Windowed) -> Slot[Windowed]:
        """Append an action that begins and lasts as it predicts."""
        slot = Slot(action, action.predicted_begin_ns, action.predicted_duration_ns)
        if not self._slots:
            self._first_end_ns = slot.end_ns
        self.last_id = action.action_id
        self._slots[self.last_id] = slot
        self.free_ns = slot.end_ns
        return slot

    def reserve(self, until_ns: int) -> None:
        """Have no new action expected to begin before an instant, unless some are outstanding."""
        if not self._slots:
            self.free_ns = max(self.free_ns, until_ns)

    def release(self, at_ns: int) -> None:
        """End what `reserve` began; what was expected to begin later is left as it is."""
        if not self._slots:
            self.free_ns = min(self.free_ns, at_ns)

    def finish(self, action_id: int, end_ns: int) -> Slot[Windowed] | None:
        """Take an action out at its end, and re-time those behind it; None if it is not outstanding."""
        slots = self._slots
        slot = slots.get(action_id)
        if slot is None:
            return None
        if len(slots) == 1:
            slots.clear()
            self._first_end_ns = NEVER_NS
            self.free_ns = end_ns
            self.last_id = 0
            return slot
        was_first = self.first() is slot
        del slots[action_id]
        self._retime(end_ns if was_first else None)
        if action_id == self.last_id:
            self.last_id = next(reversed(slots), 0)
        return slot

    def _retime(self, first_begin_ns: int | None) -> None:
        """Predict the chain again; the first action begins at ``first_begin_ns``, or as it was predicted.

        The chain must not be empty.
        """
        previous = first_begin_ns
        first_end_ns = None
        for slot in self._slots.values():
            if previous is not None:
                slot.begin_ns = previous if previous > slot.ready_ns else slot.ready_ns
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
        last_id = next(reversed(self._slots), 0)
        assert self.last_id == last_id, f"{where}: the last is {last_id}, not {self.last_id}"
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


class ExecTimeline(Timeline[Executed]):
    """The timeline of EXEC, and of the way that inputs take to it: one batch's behind the other's."""

    __slots__ = ("inputs_came_ns", "inputs_free_ns")

    def __init__(self, grace_ns: int = 0) -> None:
        super().__init__(grace_ns)
        self.inputs_free_ns = 0
        """Predicted instant at which the inputs of all that is outstanding are in place."""
        self.inputs_came_ns = 0
        """Instant at which the connection was last seen free: inputs had arrived, or were waited for in
        vain."""

    def inputs_at_ns(self, soonest_ns: int, transfer_ns: int) -> int:
        """Return when the inputs of a batch that is sent now would be in place."""
        free_ns = self.inputs_free_ns
        return (free_ns if free_ns > soonest_ns else soonest_ns) + transfer_ns

    def send(self, action: Infer, soonest_ns: int, transfer_ns: int) -> Slot[Executed]:
        """Append an action and its inputs, which could be there at ``soonest_ns`` if they had no size."""
        slot = self.add(action)
        slot.soonest_ns = soonest_ns
        slot.transfer_ns = transfer_ns
        slot.ready_ns = self.inputs_free_ns = self.inputs_at_ns(soonest_ns, transfer_ns)
        return slot

    def finish(self, action_id: int, end_ns: int, inputs_ns: int = 0) -> Slot[Executed] | None:
        """Take an action out, as `Timeline.finish`; ``inputs_ns`` is when its inputs were in place, or 0."""
        if self.inputs_free_ns > end_ns:
            slot = self.get(action_id)
            if slot is not None and isinstance(slot.action, Infer):
                self._retime_inputs(action_id, inputs_ns or end_ns)
        return super().finish(action_id, end_ns)

    def transferred_ns(self, slot: Slot[Executed], until_ns: int) -> int:
        """Return how long a finished action's inputs kept the way busy, up to an instant.

        To be asked once for each action, in the order of their ends.
        """
        since_ns = max(slot.soonest_ns, self.inputs_came_ns)
        self.inputs_came_ns = max(self.inputs_came_ns, until_ns)
        return until_ns - since_ns if until_ns > since_ns else 0

    def _retime_inputs(self, action_id: int, free_ns: int) -> None:
        """Predict again when the inputs behind an action's will be in place, which had the way until then."""
        behind = False
        for slot in self._slots.values():
            if behind and isinstance(slot.action, Infer):
                slot.ready_ns = free_ns = max(free_ns, slot.soonest_ns) + slot.transfer_ns
            behind = behind or slot.action.action_id == action_id
        if behind:
            self.inputs_free_ns = free_ns
