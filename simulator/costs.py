"""The cost of the live processes' own work, to be charged in virtual time.

A simulator makes a Python scheduler infinitely fast unless it charges for it. With a table the same run
always takes the same virtual time; `mainspring simulate --calibrate` measures one on this machine.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from mainspring.messages.actions import Sent
from mainspring.messages.choices import did_you_mean
from mainspring.messages.events import Event, Wakeup
from mainspring.simulator.checks import check_range, most_of


def _kinds(union: object) -> tuple[str, ...]:
    return tuple(sorted(str(each.__struct_config__.tag) for each in get_args(union) if each is not Wakeup))


EVENTS, COMMANDS = _kinds(Event), _kinds(Sent)
"""Kinds of what the scheduler is handed and of what comes out, as on the wire."""


class ControllerCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the controller's work. It takes up to ``burst_messages`` of the messages that wait, hands
    each to the scheduler, asks it for commands once, and sends them; meanwhile others wait."""

    receive_us: float = 0.0
    """Cost of each message, beside the scheduler's: socket, decoding, checks."""
    handle_us: dict[str, float] = {}
    """`Scheduler.handle` by kind of event, such as ``request_arrived``; kinds not named cost nothing."""
    schedule_us: float = 0.0
    """`Scheduler.schedule`, whatever comes of it."""
    command_us: dict[str, float] = {}
    """More of `Scheduler.schedule` for each command that comes out, by kind, such as ``infer``."""
    send_us: float = 0.0
    """Cost of each command, beside the scheduler's: encoding, socket."""
    log_us: float = 0.0
    """Cost of each event's and command's record in the event log, after the sending."""
    burst_messages: int = 16
    """Most messages of a turn, as in the controller's own configuration."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what no process could cost."""
        named = {name: getattr(self, name) for name in ("receive_us", "schedule_us", "send_us", "log_us")}
        for table in ("handle_us", "command_us"):
            named |= {f"{table}.{kind}": cost for kind, cost in getattr(self, table).items()}
        _check_costs(named)
        _refuse_unknown("handle_us", self.handle_us, EVENTS)
        _refuse_unknown("command_us", self.command_us, COMMANDS)
        check_range("burst_messages", self.burst_messages, least=1)


def _check_costs(costs: dict[str, float]) -> None:
    for name, value in costs.items():
        check_range(name, value, least=0, most=most_of("_us"))


def _refuse_unknown(table: str, costs: dict[str, float], known: tuple[str, ...]) -> None:
    for kind in costs:
        if kind not in known:
            hint = did_you_mean(kind, known, f"there are {', '.join(known)}")
            raise ValueError(f"{table} has no kind {kind!r}{hint}")


class ProcessCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The time that gateway and workers add to a request; each part is measured on a live system, or 0."""

    gateway_arrival_us: float = 0.0
    """Time that the gateway is busy with each request that comes."""
    gateway_reply_us: float = 0.0
    """Time that the gateway is busy with each reply."""
    gateway_dispatch_us: float = 0.0
    """Time that the gateway is busy with each request whose inputs it pushes to a worker."""
    worker_input_us: float = 0.0
    """Time from the last input's arrival at a worker until EXEC can begin."""
    worker_action_us: float = 0.0
    """Time that EXEC and LOAD take beyond the profile: from the instant they begin to that they report."""
    worker_result_us: float = 0.0
    """Time from an action's end until its result and its outputs leave the worker."""
    worker_turn_us: float = 0.0
    """Time from one action's end until its executor begins the next."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for what no process could cost."""
        _check_costs(msgspec.structs.asdict(self))


class CostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The cost in virtual time of the controller's own work."""

    mode: Literal["none", "measured", "table"] = "none"
    """``none``: it is infinitely fast. ``table``: as ``controller`` says. ``measured``: what the scheduler
    takes on this machine while it simulates, so that no two runs are the same."""
    controller: ControllerCost = ControllerCost()
