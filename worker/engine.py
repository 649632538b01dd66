"""The protocol of a device: what the executors call.

One thread at a time calls each method, as named below; the threads run concurrently. A failure is raised as
any `Exception` and becomes the action's ENGINE_ERROR, or an INFER's BAD_VALUES if it is a `ValuesError`; the
engine must stay usable, or raise `DeviceLost`, which ends the worker.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mainspring.messages.actions import Infer, Load
from mainspring.messages.metrics import DeviceHealth
from mainspring.messages.model import ModelSpec
from mainspring.worker.core.jobs import Reservation

Bytes = npt.NDArray[np.uint8]
"""A one-dimensional array of bytes."""


class EngineError(Exception):
    """The device could not do what was requested; the text says why, and what would help."""


class DeviceLost(EngineError):
    """The device no longer works for this process: only a new process can use it again."""


class Engine(Protocol):
    """One device with its memory, all of which is allocated before the first request."""

    io: Bytes
    """IO memory on the host's side: `Slot` offsets count from its start."""

    def prepare(self, model: ModelSpec) -> None:
        """Make the model loadable, its executable opened and warmed.

        The PREPARE thread calls it, or the EXEC thread for what `OpensAlone.fetch` has left to do.
        """

    def release(self, name: str) -> None:
        """PREPARE thread: forget a prepared model that is not resident."""

    def load(self, action: Load) -> int:
        """LOAD thread: copy the weights into the action's pages; return the copy's duration in ns."""

    def unload(self, name: str) -> None:
        """LOAD thread: the model's pages may be overwritten from now on."""

    def execute(self, action: Infer, io: Reservation) -> int:
        """EXEC thread: run the batch from and to its slot; return the run's duration in ns."""

    def close(self) -> None:
        """Free everything; no other call is running or follows."""


class Transfers(Protocol):
    """Copies inputs to a device with memory of its own, and outputs back, concurrently with EXEC and LOAD.

    The network thread calls it (Clockwork, section 5.2: INPUT and OUTPUT). It raises nothing:
    `Engine.execute` raises what went wrong with an input, if it is given the same `Reservation` object.
    """

    def send(self, io: Reservation, start: int, size: int) -> None:
        """Begin to copy ``size`` bytes of IO memory, ``start`` bytes into the slot, to the device."""

    def receive(self, io: Reservation) -> str:
        """Wait until the outputs of an Infer that ended are in IO memory; return what failed, or ""."""


class SharedInputs(Protocol):
    """Memory of another process that a device copies inputs from; the network thread calls it.

    Copies end in the order in which they were begun. The memory may not change before they have.
    """

    begun: int
    """Copies that were begun so far."""

    def advance(self) -> bool:
        """Do a piece of what makes the memory ready, or after `close` undoes that; return whether more is
        left."""

    def covers(self, offset: int, size: int) -> bool:
        """Return whether the device can copy from these bytes now."""

    def send(self, io: Reservation, start: int, offset: int, size: int) -> None:
        """Begin to copy bytes that it `covers` to the device, ``start`` bytes into the slot.

        It fails as `Transfers.send` does.
        """

    def ended(self) -> int:
        """Return how many copies have ended, without waiting."""

    def close(self) -> None:
        """Wait for the copies that were begun; none follows."""


@runtime_checkable
class SharesInputs(Transfers, Protocol):
    """`Transfers` of a device that can copy inputs from memory of another process."""

    def share(self, memory: Bytes) -> SharedInputs:
        """Return what copies inputs from ``memory``, which is mapped to read."""


@runtime_checkable
class OpensAlone(Protocol):
    """An `Engine` whose device may do nothing else while it opens an executable."""

    def fetch(self, model: ModelSpec) -> bool:
        """PREPARE thread: do what `Engine.prepare` does, but open no executable; return whether all is done.

        If not, the EXEC thread calls `Engine.prepare`, which does what is left.
        """


class Staged(Protocol):
    """A batch that is ready to compute."""

    def run(self) -> int:
        """EXEC thread: as `Engine.execute`."""


@runtime_checkable
class Stages(Protocol):
    """An `Engine` that prepares a batch while another one computes: little is left between the two."""

    def stage(self, action: Infer, io: Reservation, running: Infer, ahead: Staged | None) -> Staged | None:
        """Do what `execute` does before it computes, while EXEC computes ``running``; None if that can't be.

        ``ahead`` is what this has returned for ``running``, or None if EXEC has called `execute` for it. What
        is returned is run after that, or never. One thread at a time calls this, and until it returns EXEC
        begins nothing but ``running``.
        """

    def make_spare(self, name: str) -> None:
        """PREPARE thread: do what `stage` lacked for this model, if it is still resident."""


class Ran(NamedTuple):
    """The time in which a device computed a batch, on the clock of `time.monotonic_ns`."""

    begin_ns: int
    end_ns: int
    device_ns: int
    """Duration on the device alone."""


class Given(Protocol):
    """A batch that a device has been given: nobody can take it back."""

    def wait(self) -> Ran:
        """EXEC thread: wait for its end, which is that of the oldest batch; raise as `Engine.execute`."""


@runtime_checkable
class Queues(Protocol):
    """An `Engine` whose device takes the next batch while it computes one, and goes on to it by itself."""

    def takes_ahead(self, action: Infer) -> bool:
        """Return whether the device takes a batch of this resident model while it computes another."""

    def give(self, action: Infer, io: Reservation) -> Given:
        """Give the device a batch, behind the one that it may compute; what fails, `Given.wait` raises.

        One thread at a time calls this. Two batches at most have been given and not waited for; the device
        `takes_ahead` the second one.
        """


@runtime_checkable
class Interrupts(Protocol):
    """An `Engine` that can end a run before it has computed its outputs."""

    def interrupt(self, action_id: int) -> None:
        """Have the INFER with this id end with `Interrupted`, soon, if EXEC computes it and it can be ended.

        Any thread may call it; another INFER, though it begins meanwhile, is left alone.
        """


@runtime_checkable
class OwnMemory(Protocol):
    """An `Engine` whose device has memory of its own, which the engine measures when it starts."""

    pages: int
    """Pages of weights memory."""
    device_kind: str
    """Kind of the device, by which it has one of a model's profiles."""
    transfers: Transfers


@runtime_checkable
class Targeted(Protocol):
    """An `Engine` that knows which artifacts its device runs."""

    targets: tuple[str, ...]
    """Same as `messages.peers.WorkerHello.targets`."""


@runtime_checkable
class Monitored(Protocol):
    """An `Engine` that watches its device."""

    def health(self) -> DeviceHealth:
        """Network thread: return what was seen last; raise `DeviceLost` if the device is lost."""


@runtime_checkable
class Awakened(Protocol):
    """An `Engine` whose device slows down while it has nothing to do."""

    def heartbeat(self) -> None:
        """EXEC thread: have the device do something that takes a few tens of microseconds, and wait."""


@runtime_checkable
class Noted(Protocol):
    """An `Engine` that knows what makes its device's timing unpredictable."""

    notes: tuple[str, ...]
    """Sentences for the operator about that."""


def wait_until(instant_ns: int, spin_ns: int) -> None:
    """Sleep until ``spin_ns`` before an instant of the monotonic clock and spin through the rest."""
    left_ns = instant_ns - time.monotonic_ns()
    if left_ns > spin_ns:
        time.sleep((left_ns - spin_ns) / 1e9)
    spin_until(instant_ns)


def spin_until(instant_ns: int) -> None:
    """Spin to an instant; other threads of the interpreter get their turns until the last microseconds."""
    clock = time.monotonic_ns
    while clock() < instant_ns - HARD_SPIN_NS:
        time.sleep(0)
    while clock() < instant_ns:
        pass


HARD_SPIN_NS = 15_000
"""The end of a spin keeps the interpreter's lock for this time: taking the lock back takes that long."""
