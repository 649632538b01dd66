"""The vocabulary between the worker's core and its drivers: executors, jobs, endings, places in IO memory.

Modules with Structs are not compiled: these stand apart, so that the core's other modules are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from mainspring.messages.actions import Infer, Load, Open, Prepare, Result
from mainspring.messages.codes import Status
from mainspring.messages.model import ModelSpec


class Executor(StrEnum):
    """One kind of work; a worker runs one job of each kind at a time, beside those of the other kinds."""

    EXEC = "exec"
    LOAD = "load"
    PREPARE = "prepare"


QUEUE_LIMITS = {Executor.EXEC: 4096, Executor.LOAD: 4096, Executor.PREPARE: 65536}
"""Actions that may wait for each executor; one more is refused with BAD_ACTION."""

Ending = tuple[Status, str]
"""The end of an action that has not run: its status and the reason, for a person."""


class Slot(msgspec.Struct, frozen=True):
    """A piece of IO memory that one INFER owns."""

    offset: int
    size: int


class SlotLayout(msgspec.Struct, frozen=True):
    """The offset of each tensor of a padded batch, in bytes from the start of its slot."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    size: int


class Reservation(msgspec.Struct, frozen=True):
    """The IO memory of a waiting or running Infer's inputs and outputs."""

    slot: Slot
    layout: SlotLayout


class Job(msgspec.Struct, frozen=True):
    """An action that has begun, with what the engine needs for it."""

    action: Infer | Load | Prepare | Open
    model: ModelSpec
    begin_ns: int
    io: Reservation | None = None
    """An Infer's; None for the others."""
    inputs_ns: int = 0
    """Instant at which an Infer's last input was in place."""


class Begun(NamedTuple):
    """A decision of `WorkerCore.begin`: a job to run, and results to send."""

    job: Job | None
    results: list[Result]
