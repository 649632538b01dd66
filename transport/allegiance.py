"""The one of several controllers that a process obeys: that of the highest epoch that welcomed it. Pure.

A lease only agrees who is to lead (`controller.lease`). That a controller which has lost it without knowing,
because it was stopped or cut off, does no harm any more rests on this rule alone.
"""

from __future__ import annotations


class Allegiance:
    """The highest epoch that has welcomed a process, and which controller has it, by its index."""

    def __init__(self) -> None:
        self.epoch = 0
        """The highest epoch so far; 0 before any."""
        self.leader: int | None = None
        """Index of the controller of that epoch; None before any."""

    def follows(self, controller: int, epoch: int) -> bool:
        """Take in that a controller leads in an epoch; return whether it is the one to obey from now on."""
        if epoch < self.epoch or (epoch == self.epoch and self.leader not in (None, controller)):
            return False
        self.epoch, self.leader = epoch, controller
        return True

    def validate(self) -> None:
        """Check what is always so; raise AssertionError."""
        assert self.epoch >= 0, f"epoch {self.epoch}"
        assert self.leader is not None or self.epoch == 0, f"epoch {self.epoch} is of no controller"
