"""A recorded run decided again: the same events to a fresh scheduler must bring the same commands out.

`telemetry.log` says why an event log holds all that this needs.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

from mainspring.messages.actions import (
    Command,
    Note,
    without_evidence,
)
from mainspring.messages.events import (
    Event,
    Wakeup,
)
from mainspring.scheduler.config import SchedulerConfig
from mainspring.scheduler.core import Scheduler
from mainspring.telemetry.entries import EVIDENCE, IN_PLACE, REFUSED_EARLY, SegmentHeader, line
from mainspring.telemetry.log import read_entries

CONTEXT_LINES = 12
"""Lines of the conversation that are told before the first difference."""


class LogError(ValueError):
    """A log can't be decided again; the text says why."""


class Difference(msgspec.Struct, frozen=True):
    """The first difference between a recorded run and its repetition."""

    command: int
    """Number of commands that were equal before it."""
    now_ns: int
    """The controller's clock."""
    recorded: str
    """Command that came out live; a text that says so if nothing did."""
    again: str
    before: tuple[str, ...]
    """The last lines of the conversation before it."""

    def story(self) -> str:
        """Return what a person needs to see."""
        lines = [f"after {self.command} equal commands, at {self.now_ns / 1e6:.3f} ms:"]
        lines += [f"    {each}" for each in self.before]
        return "\n".join([*lines, f"  recorded: {self.recorded}", f"  again:    {self.again}"])


class Redecision(msgspec.Struct, frozen=True):
    """The result of deciding a log again."""

    runs: int
    """Starts of a controller that the log holds from their beginning."""
    events: int
    commands: int
    """Commands that were compared."""
    difference: Difference | None
    passed_over: int = 0
    """Events of an older run whose beginning the log's bound had deleted."""


class _Run:
    """One run of a controller, decided again alongside the log."""

    def __init__(self, header: SegmentHeader) -> None:
        try:
            self._scheduler = Scheduler(configuration(header))
        except ValueError as error:
            raise LogError(str(error)) from None
        self._in_place = header.format >= IN_PLACE
        self._evident = header.format >= EVIDENCE
        self.expected: deque[Command] = deque()
        self.recent: deque[str] = deque(maxlen=CONTEXT_LINES)

    def take_event(self, now_ns: int, event: Event) -> None:
        """Give the scheduler an event; what it decides at a `Wakeup` is expected from the log next."""
        self._scheduler.handle(now_ns, event)
        commands: list[Command] = self._scheduler.taken() if self._in_place else []
        if isinstance(event, Wakeup):
            commands += self._scheduler.schedule(now_ns)
        else:
            self._note(now_ns, event)
        if not self._in_place:
            commands = [each for each in commands if not isinstance(each, Note)]
        if not self._evident:
            commands = list(map(without_evidence, commands))
        self.expected.extend(commands)

    def agrees(self, now_ns: int, command: Command) -> bool:
        """Return whether the log's command is the expected one; if so, go on to the one after it."""
        if not self.expected or self.expected[0] != command:
            return False
        self._note(now_ns, self.expected.popleft())
        return True

    def _note(self, now_ns: int, message: Event | Command) -> None:
        text = line(now_ns, message)
        if text is not None:
            self.recent.append(text)


def configuration(header: SegmentHeader) -> SchedulerConfig:
    """Return the scheduler's configuration of a run; raise `LogError` if there is none that is known."""
    try:
        recorded = dict(header.about["scheduler"])
        # Versions 1 to 4 refused nothing early; later ones said ``early``, ``last``, or nothing for a
        # policy's own way.
        refuse = recorded.pop("refuse", "early" if header.format >= REFUSED_EARLY else "last")
        if refuse != "early":
            recorded["refuse_wrongly"] = 0.0 if refuse == "last" else None
        return msgspec.convert(recorded, SchedulerConfig)
    except KeyError:
        raise LogError(
            "the log does not say how a scheduler was configured: it is not a controller's"
        ) from None
    except ValueError as error:
        raise LogError(f"the log has no configuration that this version knows: {error}") from None


def redecide(log: Path | str) -> Redecision:
    """Decide a log again up to the first difference, from the first run on that it holds from its beginning.

    Raises OSError if it can't be read, and `LogError` if it holds no such run.
    """
    run: _Run | None = None
    runs = events = commands = passed_over = 0
    for now_ns, entry in read_entries(log):
        if isinstance(entry, SegmentHeader):
            if entry.first_of_run:
                run, runs = _Run(entry), runs + 1
        elif run is None:
            passed_over += isinstance(entry, Event)
        elif isinstance(entry, Event):
            if run.expected:
                difference = _difference(run, commands, now_ns, None)
                return Redecision(runs, events, commands, difference, passed_over)
            events += 1
            run.take_event(now_ns, entry)
        elif run.agrees(now_ns, entry):
            commands += 1
        else:
            difference = _difference(run, commands, now_ns, entry)
            return Redecision(runs, events, commands, difference, passed_over)
    if run is None:
        raise LogError(
            lacks_start(log) if passed_over else f"{log} holds no event: it is not a log of a controller"
        )
    # The end of a log may be cut off between a call of the scheduler and its commands.
    return Redecision(runs, events, commands, None, passed_over)


def lacks_start(log: Path | str) -> str:
    """Return an error's sentence about a log that holds no run from its beginning."""
    return (
        f"{log} lacks the start of its run: its oldest segments were deleted to stay within "
        "event_log_max_bytes (set it higher), or it is a slice from later on; only a run that is logged from "
        "its start can be decided again"
    )


def _difference(run: _Run, commands: int, now_ns: int, recorded: Command | None) -> Difference:
    again = run.expected[0] if run.expected else None
    told = [
        "no more commands" if command is None else str(line(now_ns, command)).strip()
        for command in (recorded, again)
    ]
    if told[0] == told[1]:
        told = [f"{text} {command}" for text, command in zip(told, (recorded, again), strict=True)]
    return Difference(commands, now_ns, told[0], told[1], tuple(run.recent))
