"""All copies between host and device: INPUT, OUTPUT and LOAD (Clockwork, section 5.2).

Both IO memories have the same layout: an offset in one means the same tensor in the other. Each request's
inputs go to the device as soon as they come, from IO memory or from where a gateway of this host has written
them (`shared_inputs`); EXEC's stream waits on the device for the last of them. Outputs come back after EXEC
on a stream of their own, while the next EXEC may run.

LOAD copies weights from pinned host memory to pages, in chunks. A device does the copies of one direction one
after the other, in the order in which it was given them. So LOAD gives it at most `IN_FLIGHT` chunks at a
time: an INPUT that comes meanwhile waits for those, not for a whole model. Two chunks keep the bus busy,
because the next one is there when one ends.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mainspring.messages.model import PAGE_BYTES
from mainspring.worker.core.jobs import Reservation, SlotLayout
from mainspring.worker.engine import Bytes
from mainspring.worker.engines.cuda.driver import Copy, Driver
from mainspring.worker.engines.cuda.memory import DeviceMemory
from mainspring.worker.engines.cuda.shared_inputs import PinnedInputs

LOG = logging.getLogger(__name__)

EVENTS = 1024
"""Events for each direction, used in turn. A wait for an event that was used again meanwhile lasts until a
later copy of the same stream: longer than needed, but never too short."""
IN_FLIGHT = 2
"""Most chunks that the device has been given and has not finished."""


def inputs_bytes(layout: SlotLayout) -> int:
    """Return how many bytes of a slot the inputs take; they precede the outputs."""
    return layout.outputs[0] if layout.outputs else layout.size


class IoCopies:
    """`mainspring.worker.engine.Transfers` of a GPU, and EXEC's side of the same copies."""

    def __init__(self, driver: Driver, host: int, device: int) -> None:
        """``host`` and ``device`` are the addresses of the two IO memories."""
        self._driver = driver
        self._host = host
        self._device = device
        self._inputs = driver.stream(urgent=True)
        self._outputs = driver.stream(urgent=True)
        self._sent_events = [driver.event() for _ in range(EVENTS)]
        self._came_events = [driver.event() for _ in range(EVENTS)]
        self._sent_count = 0
        self._came_count = 0
        self._sent: dict[int, int] = {}
        """Event of the last copy to each slot, by the slot's offset."""
        self._came: dict[int, int] = {}
        self._failed: dict[int, tuple[Reservation, Exception]] = {}
        """Batch whose input could not be copied, and why, by the slot's offset."""
        self._shared: list[PinnedInputs] = []

    def send(self, io: Reservation, start: int, size: int) -> None:
        """Begin to copy ``size`` bytes, ``start`` bytes into the slot; a failure is this batch's to raise."""
        try:
            self._driver.attach()
            self._send(io, start, size)
        except Exception as error:
            LOG.warning("an input could not be copied to the device: %s", error)
            self._failed[io.slot.offset] = io, error

    def share(self, memory: Bytes) -> PinnedInputs:
        """See `mainspring.worker.engine.SharesInputs`."""
        made = PinnedInputs(self._driver, memory, self._begin_shared)
        self._shared = [each for each in self._shared if each.advances]
        self._shared.append(made)
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for an operator on memory that the device can't copy from."""
        return tuple(each.note for each in self._shared if each.note)

    def close(self) -> None:
        """Release memory of others; no copy follows."""
        for each in self._shared:
            each.close()
            while each.advance():
                pass

    def receive(self, io: Reservation) -> str:
        """Wait until the slot's outputs are on the host; return what failed, or ""."""
        event = self._came.pop(io.slot.offset, None)
        if event is None:
            return ""
        try:
            self._driver.attach()
            self._driver.synchronize(event)
        except Exception as error:
            return str(self._driver.explain(error))
        return ""

    def address(self, io: Reservation) -> int:
        """Return where the slot is on the device."""
        return self._device + io.slot.offset

    def await_inputs(self, io: Reservation, stream: int) -> None:
        """EXEC thread: have the stream wait for the slot's inputs; send them now if none were sent.

        Raises what failed when they were sent.
        """
        owner, error = self._failed.pop(io.slot.offset, (None, None))
        # One whose batch never came to EXEC is no fault of the slot's next batch.
        if error is not None and owner is io:
            raise error
        if io.slot.offset not in self._sent:
            self._send(io, 0, inputs_bytes(io.layout))
        self._driver.wait(stream, self._sent.pop(io.slot.offset))

    def begin_outputs(self, io: Reservation, ended: int) -> None:
        """EXEC thread: copy the slot's outputs to the host once the event ``ended`` has happened."""
        start = inputs_bytes(io.layout)
        size = io.layout.size - start
        self._driver.wait(self._outputs, ended)
        if size:
            offset = io.slot.offset + start
            self._driver.copy(self._host + offset, self._device + offset, size, Copy.TO_HOST, self._outputs)
        event = self._came_events[self._came_count % EVENTS]
        self._came_count += 1
        self._driver.record(event, self._outputs)
        self._came[io.slot.offset] = event

    def _begin_shared(self, io: Reservation, start: int, parts: list[tuple[int, int]]) -> int | None:
        """Begin to copy parts of memory of others to the slot; return the event behind them.

        A failure is this batch's to raise, and None.
        """
        try:
            self._driver.attach()
            return self._copy(io, start, parts)
        except Exception as error:
            LOG.warning("an input could not be copied to the device: %s", error)
            self._failed[io.slot.offset] = io, error
            return None

    def _send(self, io: Reservation, start: int, size: int) -> None:
        parts = [(self._host + io.slot.offset + start, size)] if size else []
        self._copy(io, start, parts)

    def _copy(self, io: Reservation, start: int, parts: list[tuple[int, int]]) -> int:
        """Copy host memory, as addresses and sizes, to the slot from ``start`` on; return the event."""
        target = self._device + io.slot.offset + start
        for source, size in parts:
            self._driver.copy(target, source, size, Copy.TO_DEVICE, self._inputs)
            target += size
        event = self._sent_events[self._sent_count % EVENTS]
        self._sent_count += 1
        self._driver.record(event, self._inputs)
        self._sent[io.slot.offset] = event
        return event


class Chunk(NamedTuple):
    """A piece of a copy."""

    target: int
    source: int
    size: int


def chunks(source: int, size: int, pages: Sequence[int], chunk_bytes: int) -> Iterator[Chunk]:
    """Yield the pieces of a weights file of ``size`` bytes; ``pages`` are addresses, in the file's order.

    No piece crosses a page boundary of the file, since pages that are adjacent in the file need not be on the
    device.
    """
    for position, page in enumerate(pages):
        begin = position * PAGE_BYTES
        for offset in range(0, min(PAGE_BYTES, size - begin), chunk_bytes):
            length = min(chunk_bytes, PAGE_BYTES - offset, size - begin - offset)
            yield Chunk(page + offset, source + begin + offset, length)


class Loader:
    """Copies weights, one model at a time; the LOAD thread calls it."""

    def __init__(self, driver: Driver, memory: DeviceMemory, chunk_bytes: int) -> None:
        self._driver = driver
        self._memory = memory
        self._chunk_bytes = chunk_bytes
        self._stream = driver.stream()
        # LOAD spins while it waits: a late interrupt would leave the bus idle.
        self._done = [driver.event() for _ in range(IN_FLIGHT)]
        self._begin, self._end = driver.event(timed=True), driver.event(timed=True)

    def copy(self, source: int, size: int, pages: Sequence[int], meanwhile: Iterable[None] = ()) -> int:
        """Copy a weights file at the host's address ``source`` to pages by number; return the ns it took.

        A step of ``meanwhile`` is taken whenever the device has chunks to copy, so that the bus does not wait
        for it; all are taken before the end. Whatever is raised, no copy is under way any more.
        """
        driver, stream = self._driver, self._stream
        driver.record(self._begin, stream)
        addresses = [self._memory.page(page) for page in pages]
        try:
            self._copy(chunks(source, size, addresses, self._chunk_bytes), iter(meanwhile))
        except BaseException:
            with contextlib.suppress(Exception):
                # What is under way has to end before the pages are another model's.
                driver.record(self._end, stream)
                driver.synchronize(self._end)
            raise
        driver.record(self._end, stream)
        driver.synchronize(self._end)
        return driver.elapsed_ns(self._begin, self._end)

    def _copy(self, pieces: Iterator[Chunk], steps: Iterator[None]) -> None:
        numbered = enumerate(pieces)
        for number, chunk in itertools.islice(numbered, IN_FLIGHT):
            self._give(number, chunk)
        for number, chunk in numbered:
            next(steps, None)
            self._driver.synchronize(self._done[number % IN_FLIGHT])
            self._give(number, chunk)
        for _ in steps:
            pass

    def _give(self, number: int, chunk: Chunk) -> None:
        self._driver.copy(chunk.target, chunk.source, chunk.size, Copy.TO_DEVICE, self._stream)
        self._driver.record(self._done[number % IN_FLIGHT], self._stream)
