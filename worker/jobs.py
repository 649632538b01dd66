"""The words between the worker's core and its drivers: executors, jobs, what `WorkerCore.begin` returns."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from mainspring.messages.actions import Infer, Load, Prepare, Result
from mainspring.messages.model import ModelSpec
from mainspring.worker.slots import Slot, SlotLayout


class Executor(StrEnum):
    """What a worker does one at a time of, beside the others."""

    EXEC = "exec"
    LOAD = "load"
    PREPARE = "prepare"


QUEUE_LIMITS = {Executor.EXEC: 4096, Executor.LOAD: 4096, Executor.PREPARE: 65536}
"""Actions that may wait for each executor; one more is refused with BAD_ACTION."""


class Reservation(msgspec.Struct, frozen=True):
    """Where a waiting or running Infer's inputs and outputs lie in IO memory."""

    slot: Slot
    layout: SlotLayout


class Job(msgspec.Struct, frozen=True):
    """An action that has begun, with what the engine needs for it."""

    action: Infer | Load | Prepare
    model: ModelSpec
    begin_ns: int
    io: Reservation | None = None
    """An Infer's; None for the others."""
    inputs_ns: int = 0
    """When an Infer's last input was in place."""


class Begun(NamedTuple):
    """What `WorkerCore.begin` decided: a job to run, and results to send."""

    job: Job | None
    results: list[Result]
