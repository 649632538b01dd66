"""The state of a cluster as its event stream tells it, with some minutes of history."""

from __future__ import annotations

from mainspring.console.view.limits import Limits


class View:
    """A reducer: `take` every record in the order of the stream, ask `console.queries` at any time.

    It copes with a stream whose beginning is missing (actions of workers and models that were never told
    of are learnt as they come) and with a record that comes twice in a row. It never raises on a record,
    whatever the record says. Not safe for several threads at once.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Begin with nothing known; ``limits`` bound what is remembered."""
        self.limits = limits or Limits()
        self.now_ns = 0
        """The instant up to which the view is true: of the latest record."""
        self.first_ns = 0
        """The earliest instant of which something is remembered; 0 before the first record."""
        self.policy = ""
        """The scheduler's policy; empty while no header has said."""
        self.run = 0
        """Which run of a controller this is of (`SegmentHeader.run`); 0 while no header has said."""

    def take(self, now_ns: int, entry: object) -> None:
        """Take one record in: an event, a command, a `SegmentHeader`, or what only pictures have.

        A `Wakeup` says that nothing happened up to its instant; what is no such record is passed over. A
        header of another run than before does what ``reset(keep_history=False)`` does.
        """
        raise NotImplementedError

    def reset(self, *, keep_history: bool) -> None:
        """A picture of how things stand begins (`messages.observing`): forget how they stood.

        Workers, models and requests that wait are forgotten until the picture tells of them again; what is
        over is remembered with ``keep_history``, and forgotten without.
        """
        raise NotImplementedError

    def unix_ns(self, now_ns: int) -> int:
        """Return an instant of the controller's clock as Unix time; 0 while that is not known."""
        raise NotImplementedError
