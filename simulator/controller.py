"""The controller in virtual time: the unchanged scheduler behind an inbox, busy for as long as it costs.

Without a cost each event is taken in and decided on at its instant. With one, the controller is a server as
the live one is: a burst of what waits, one `Scheduler.schedule`, the commands leave when it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

from mainspring.cluster.validate import remember
from mainspring.messages.actions import Command
from mainspring.messages.events import Event, QueryArrived, RequestArrived, Wakeup
from mainspring.scheduler.core import Scheduler
from mainspring.simulator.costs import ControllerCost, CostSpec
from mainspring.simulator.environment import NEVER_NS

WAKEUP = Wakeup()

Record = Callable[[int, Event | Command], None]
"""Gets what an event log has: each event, a `Wakeup` for each call of ``schedule``, and each command."""


def kind_of(message: object) -> str:
    """Return a message's kind as it is on the wire, such as ``request_arrived``."""
    return str(type(message).__struct_config__.tag)  # type: ignore[attr-defined]


class SimulatedController:
    """Feeds the scheduler and passes its commands on."""

    def __init__(
        self,
        scheduler: Scheduler,
        send: Callable[[int, Command], None],
        cost: CostSpec | None = None,
        record: Record | None = None,
        validate: Callable[[], None] | None = None,
        validate_every: int = 0,
    ) -> None:
        """``send`` gets each command with the instant at which it leaves."""
        self.scheduler = scheduler
        self.due_ns = NEVER_NS
        """Instant of the next call of `turn`: something waits, or the scheduler wants to be woken."""
        self.busy_ns = 0
        """Time that it was busy for."""
        self.turns = 0
        """Calls of `Scheduler.schedule`."""
        self._send = send
        self._cost = None if cost is None or cost.mode == "none" else cost.controller
        self._measured = cost is not None and cost.mode == "measured"
        self._record = record
        self._validate_every = validate_every
        if validate is not None:
            remember(scheduler.cluster)
        self._validate = validate
        self.pieces: dict[int, list[RequestArrived]] = {}
        """The pieces of queries that are on their way, by the query."""
        self._inbox: deque[Event] = deque()
        self._free_ns = 0

    def receive(self, now_ns: int, event: Event) -> None:
        """Take an event in, now or when there is time."""
        if self._cost is not None:
            self._inbox.append(event)
            due_ns = max(now_ns, self._free_ns)
            self.due_ns = min(self.due_ns, due_ns)
            return
        record, scheduler = self._record, self.scheduler
        commands: list[Command] = []
        if event is not WAKEUP:
            commands = self._handled(now_ns, event)
        if record is not None:
            record(now_ns, WAKEUP)
        commands += self._written(now_ns, scheduler.schedule(now_ns))
        for command in commands:
            self._send(now_ns, command)
        self._turned(now_ns)

    def _handled(self, now_ns: int, event: Event) -> list[Command]:
        """Give the scheduler an event; behind a query that it admits, its pieces. Return its commands."""
        if self._record is not None:
            self._record(now_ns, event)
        self.scheduler.handle(now_ns, event)
        commands = self._written(now_ns, self.scheduler.taken())
        if type(event) is QueryArrived:
            for piece in self.pieces.pop(event.query_id, ()):
                if event.query_id in self.scheduler.cluster.queries:
                    commands += self._handled(now_ns, piece)
        return commands

    def _written(self, now_ns: int, commands: list[Command]) -> list[Command]:
        """Record commands, and return them."""
        if self._record is not None:
            for command in commands:
                self._record(now_ns, command)
        return commands

    def turn(self, now_ns: int) -> None:
        """Do what is due."""
        if self._cost is None:
            self.receive(now_ns, WAKEUP)
        else:
            self._charged_turn(now_ns, self._cost)

    def _turned(self, now_ns: int) -> None:
        """Note when the next turn is due."""
        wakeup_ns = self.scheduler.next_wakeup_ns()
        if wakeup_ns is None:
            self.due_ns = NEVER_NS
        else:
            self.due_ns = wakeup_ns if wakeup_ns > now_ns else now_ns
        self.turns += 1
        if self._validate is not None and self.turns % self._validate_every == 0:
            self._validate()

    def _charged_turn(self, now_ns: int, cost: ControllerCost) -> None:
        """Take a burst in, decide, send; every step takes its time."""
        record, inbox = self._record, self._inbox
        clock_us = 0.0
        entries = 0
        commands: list[Command] = []
        for _ in range(min(cost.burst_messages, len(inbox))):
            event = inbox.popleft()
            clock_us += cost.receive_us
            at_ns = now_ns + round(clock_us * 1e3)
            began_ns = perf_counter_ns() if self._measured else 0
            commands += self._handled(at_ns, event)
            if self._measured:
                clock_us += (perf_counter_ns() - began_ns) / 1e3
            else:
                clock_us += cost.handle_us.get(kind_of(event), 0.0)
            entries += 1
        at_ns = now_ns + round(clock_us * 1e3)
        if record is not None:
            record(at_ns, WAKEUP)
        began_ns = perf_counter_ns() if self._measured else 0
        commands += self._written(at_ns, self.scheduler.schedule(at_ns))
        clock_us += (perf_counter_ns() - began_ns) / 1e3 if self._measured else cost.schedule_us
        for command in commands:
            if not self._measured:
                clock_us += cost.command_us.get(kind_of(command), 0.0)
        for command in commands:
            clock_us += cost.send_us
            self._send(now_ns + round(clock_us * 1e3), command)
        clock_us += cost.log_us * (entries + len(commands) + 1)
        self._free_ns = now_ns + round(clock_us * 1e3)
        self.busy_ns += self._free_ns - now_ns
        self._turned(at_ns)
        if inbox or self.due_ns < self._free_ns:
            self.due_ns = self._free_ns
