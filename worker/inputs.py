"""Tensors in transit through a worker: from frames into IO memory, from IO memory into frames.

Only the network thread uses this file. An `Input` may come before its Infer, because they come over different
sockets: such inputs are held, bounded in number, bytes and age.

Tensors with `TensorSpec.rows_axis` are copied between the layout of IO memory, rows in front, and the
client's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from mainspring.messages.actions import Infer, Result
from mainspring.messages.model import ModelSpec, TensorSpec, item_bytes
from mainspring.messages.peers import OutputTimes, Place
from mainspring.worker.core.jobs import Reservation
from mainspring.worker.core.window_queue import RecentIds
from mainspring.worker.engine import Bytes, SharedInputs, Transfers

Frames = Sequence[Any]
"""Tensors' bytes, each as bytes, or a memoryview or an array of bytes."""


class HeldInput(msgspec.Struct, frozen=True):
    """One request's inputs; ``frames`` None if it was withdrawn."""

    sender: bytes
    frames: Frames | None
    since_ns: int
    size: int
    places: tuple[Place | None, ...] = ()
    """Places of the ``frames`` that lie in the sender's memory; empty if none does."""
    fault: str = ""
    """Reason why its inputs are unusable, if that is known already; empty otherwise."""
    shared: SharedInputs | None = None
    """Copier to the device from the sender's memory; None if there is none."""


class _Batch:
    """An accepted Infer, and which gateway gets which of its outputs."""

    def __init__(self, action: Infer, model: ModelSpec, io: Reservation) -> None:
        self.action = action
        self.inputs = [tensor.at(action.sizes) for tensor in model.inputs]
        self.outputs = [tensor.at(action.sizes) for tensor in model.outputs]
        self.moves = any(tensor.rows_axis for tensor in model.outputs)
        """True if clients have the rows of an output elsewhere than in front."""
        self.io = io
        self.senders: dict[int, bytes | None] = {}
        """The sender of each request's inputs; None if the request was withdrawn."""
        self.cold = frozenset(compress(action.request_ids, action.cold))
        """Requests that found the model resident nowhere."""
        self.placed: dict[int, tuple[int, int]] = {}
        """Duration of the copy of each request's inputs, and the instant at which it ended."""
        self.spoiled: set[int] = set()
        """Requests whose inputs turned out to be unusable after they were placed."""
        self.pad = model.pad
        self.own: dict[int, tuple[list[TensorSpec], list[TensorSpec]]] = {}
        """Inputs and outputs of each request that is smaller than the batch."""
        for request_id, sizes in zip(action.request_ids, action.request_sizes, strict=False):
            if sizes != action.sizes:
                self.own[request_id] = (
                    [tensor.at(sizes) for tensor in model.inputs],
                    [tensor.at(sizes) for tensor in model.outputs],
                )
        self.rows: dict[int, tuple[int, int]] = {}
        start = 0
        for request_id, count in zip(action.request_ids, action.rows, strict=True):
            self.rows[request_id] = (start, start + count)
            start += count
        self.used = start


class Inputs:
    """Batches that wait for inputs or outputs, and inputs that wait for their batch."""

    def __init__(
        self, memory: Bytes, limit: int, limit_bytes: int, age_ns: int, transfers: Transfers | None = None
    ) -> None:
        """``transfers`` belongs to a device that can't read ``memory`` itself."""
        self._memory = memory
        self.transfers = transfers
        """Copier to and from the device; None if that reads IO memory itself."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._age_ns = age_ns
        self._batches: dict[int, _Batch] = {}
        self._ended = RecentIds()
        self._early: OrderedDict[tuple[int, int], HeldInput] = OrderedDict()
        self._early_bytes = 0

    def open(self, action: Infer, model: ModelSpec, io: Reservation) -> list[tuple[int, HeldInput]]:
        """Open the batch of an accepted Infer: zero its padding; return the inputs that came before it."""
        batch = _Batch(action, model, io)
        self._batches[action.action_id] = batch
        self._zero(batch, batch.used, action.batch_size)
        found = []
        for request_id in action.request_ids:
            held = self._early.pop((action.action_id, request_id), None)
            if held is not None:
                self._early_bytes -= held.size
                found.append((request_id, held))
        return found

    def place(self, action_id: int, request_id: int, arrived: HeldInput) -> str:
        """Copy a request's inputs to their rows, or zero them; return what is wrong with them, or ""."""
        batch = self._batches[action_id]
        first, end = batch.rows[request_id]
        if arrived.fault:
            return arrived.fault
        if arrived.frames is None:
            self._zero(batch, first, end)
            batch.senders[request_id] = None
            return ""
        wanted = batch.own[request_id][0] if request_id in batch.own else batch.inputs
        fault = _fault(wanted, arrived.frames, end - first)
        if fault:
            return fault
        places = arrived.places or (None,) * len(wanted)
        placed = zip(batch.inputs, wanted, batch.io.layout.inputs, arrived.frames, places, strict=True)
        for tensor, own, start, frame, place in placed:
            truths = tensor.dtype == "bool"
            as_it_is = own.shape == tensor.shape and (not own.rows_axis or end - first == 1) and not truths
            shared = _copies(arrived, place) if as_it_is else None
            if shared is not None and place is not None:
                shared.send(batch.io, start + first * tensor.row_bytes, place.offset, place.size)
            elif tensor.row_bytes:
                rows = self._rows(batch, tensor, start, first, end)
                if own.shape != tensor.shape:
                    _pad(rows, tensor, own, frame, batch.pad[tensor.name])
                elif tensor.rows_axis:
                    to_rows(rows, tensor, frame)
                else:
                    rows[:] = np.frombuffer(frame, np.uint8)
                if truths:
                    # Engines take other bytes than 0 and 1 for neither.
                    np.not_equal(rows, 0, out=rows)
                if self.transfers is not None:
                    self._send(self.transfers, batch, tensor, start, first, end)
        batch.senders[request_id] = arrived.sender
        return ""

    def placed(self, action_id: int, request_id: int, begin_ns: int, end_ns: int) -> None:
        """Note when a request's inputs were copied to their rows."""
        self._batches[action_id].placed[request_id] = end_ns - begin_ns, end_ns

    def spoil(self, action_id: int, request_id: int) -> None:
        """Note that what was placed for a request is unusable: its outputs are not to be sent."""
        batch = self._batches.get(action_id)
        if batch is not None:
            batch.spoiled.add(request_id)

    def spoiled(self, action_id: int, request_id: int) -> bool:
        """Return whether `spoil` was called for a request of an action that goes on."""
        batch = self._batches.get(action_id)
        return batch is not None and request_id in batch.spoiled

    def expects(self, action_id: int, request_id: int) -> bool:
        """Return whether a batch waits for this request's inputs."""
        batch = self._batches.get(action_id)
        return batch is not None and request_id in batch.rows and request_id not in batch.senders

    def hold(self, action_id: int, request_id: int, held: HeldInput) -> int:
        """Keep inputs whose action has not come; return how many inputs were dropped.

        The oldest are dropped to make room. Inputs of an ended action, of an action that does not name the
        request, and repeated ones are dropped as unusable.
        """
        key = (action_id, request_id)
        if action_id in self._batches or action_id in self._ended or key in self._early:
            return 1
        if held.size > self._limit_bytes:
            return 1
        self._early[key] = held
        self._early_bytes += held.size
        dropped = 0
        while len(self._early) > self._limit or self._early_bytes > self._limit_bytes:
            self._drop_oldest()
            dropped += 1
        return dropped

    def expire(self, now_ns: int) -> int:
        """Drop held inputs that are too old; return how many."""
        dropped = 0
        while self._early and next(iter(self._early.values())).since_ns < now_ns - self._age_ns:
            self._drop_oldest()
            dropped += 1
        return dropped

    def close(self, action_id: int) -> None:
        """Forget an action that has ended."""
        self._batches.pop(action_id, None)
        self._ended.add(action_id)

    def refuse(self, action_id: int) -> None:
        """Note a refused action; an accepted action of the same id goes on."""
        if action_id not in self._batches:
            self._ended.add(action_id)

    def clear(self) -> None:
        """Forget everything: the controller that chose these ids is gone."""
        self._batches.clear()
        self._early.clear()
        self._early_bytes = 0
        self._ended = RecentIds()

    def outputs(self, action_id: int) -> Iterator[tuple[int, bytes, list[memoryview]]]:
        """Yield for each request not withdrawn: its id, its sender, its outputs as views of IO memory."""
        batch = self._batches.get(action_id)
        if batch is None:
            return
        for request_id, sender in batch.senders.items():
            if sender is None:
                continue
            first, end = batch.rows[request_id]
            found = [
                self._rows(batch, tensor, start, first, end)
                for tensor, start in zip(batch.outputs, batch.io.layout.outputs, strict=True)
            ]
            if request_id in batch.own:
                cut = zip(found, batch.outputs, batch.own[request_id][1], strict=True)
                found = [_cut(rows, tensor, own) for rows, tensor, own in cut]
            if batch.moves:
                shaped = batch.own[request_id][1] if request_id in batch.own else batch.outputs
                found = [from_rows(rows, each) for rows, each in zip(found, shaped, strict=True)]
            frames = zip(batch.outputs, found, strict=True)
            yield request_id, sender, [_found(tensor, rows.data) for tensor, rows in frames]

    def times(
        self, now_ns: int, result: Result, request_id: int, loads: Mapping[str, tuple[int, int]]
    ) -> OutputTimes | None:
        """Return where a request's time went as its outputs leave; None if none of its inputs were placed.

        ``loads``: begin and end of the last LOAD of each resident model.
        """
        batch = self._batches.get(result.action_id)
        placed = None if batch is None else batch.placed.get(request_id)
        if batch is None or placed is None:
            return None
        input_ns, placed_ns = placed
        wait_ns, output_ns = max(0, result.begin_ns - placed_ns), now_ns - result.end_ns
        load = loads.get(batch.action.model) if request_id in batch.cold else None
        if load is None:
            return OutputTimes(input_ns, wait_ns, output_ns)
        begin_ns, end_ns = load
        return OutputTimes(input_ns, wait_ns, output_ns, end_ns - begin_ns, result.begin_ns - end_ns)

    def received(self, io: Reservation) -> str:
        """Wait until the outputs of an Infer that ended are in IO memory; return what failed, or ""."""
        return "" if self.transfers is None else self.transfers.receive(io)

    def _rows(self, batch: _Batch, tensor: TensorSpec, start: int, first: int, end: int) -> Bytes:
        base = batch.io.slot.offset + start
        return self._memory[base + first * tensor.row_bytes : base + end * tensor.row_bytes]

    def _zero(self, batch: _Batch, first: int, end: int) -> None:
        if first < end:
            for tensor, start in zip(batch.inputs, batch.io.layout.inputs, strict=True):
                self._rows(batch, tensor, start, first, end)[:] = 0
                if self.transfers is not None:
                    self._send(self.transfers, batch, tensor, start, first, end)

    def _send(
        self, transfers: Transfers, batch: _Batch, tensor: TensorSpec, start: int, first: int, end: int
    ) -> None:
        if tensor.row_bytes:
            transfers.send(batch.io, start + first * tensor.row_bytes, (end - first) * tensor.row_bytes)

    def _drop_oldest(self) -> None:
        _, held = self._early.popitem(last=False)
        self._early_bytes -= held.size


def _found(tensor: TensorSpec, rows: memoryview) -> memoryview:
    """Return the part of an output's memory that was written."""
    return rows[: tensor.found(rows)[1]] if tensor.varies else rows


def _copies(arrived: HeldInput, place: Place | None) -> SharedInputs | None:
    """Return what copies an input from the sender's own memory to the device, if that can be."""
    shared = arrived.shared
    if shared is None or place is None or place.client or not shared.covers(place.offset, place.size):
        return None
    return shared


def _fault(tensors: Sequence[TensorSpec], frames: Frames, rows: int) -> str:
    if len(frames) != len(tensors):
        return f"{len(frames)} frames came, the model has {len(tensors)} inputs"
    for tensor, frame in zip(tensors, frames, strict=True):
        expected = rows * tensor.row_bytes
        if len(frame) != expected:
            return f"{tensor.name} has {len(frame)} bytes, {rows} rows have {expected}"
    return ""


def _pad(rows: Bytes, tensor: TensorSpec, own: TensorSpec, frame: Any, value: float) -> None:
    """Copy rows of a request's own shape to the beginning of the batch's in each dimension; pad the rest."""
    into = _elements(rows, tensor)
    into[...] = np.full(1, value, tensor.dtype).view(np.uint8)
    if own.row_bytes:
        given = np.frombuffer(frame, np.uint8).reshape(*own.with_rows(len(into)), -1)
        into[_within(own)] = np.moveaxis(given, own.rows_axis, 0) if own.rows_axis else given


def _cut(rows: Bytes, tensor: TensorSpec, own: TensorSpec) -> Bytes:
    """Return a copy of what a request's own shape has of the batch's rows; the rows where it is equal."""
    if own.shape == tensor.shape or not tensor.row_bytes:
        return rows
    return np.ascontiguousarray(_elements(rows, tensor)[_within(own)]).reshape(-1)


def _within(own: TensorSpec) -> tuple[slice, ...]:
    return (slice(None), *map(slice, own.shape))


def _elements(rows: Bytes, tensor: TensorSpec) -> Bytes:
    """Return rows as an array of their elements' bytes: ``[rows, *shape, bytes of an element]``."""
    count = rows.size // tensor.row_bytes
    return rows.reshape(count, *tensor.shape, -1)


_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Types that numpy copies by the element; whatever the numbers are, their bytes stay as they are."""


def to_rows(rows: Bytes, tensor: TensorSpec, frame: Any) -> None:
    """Copy a client's tensor to its rows in IO memory, where a row has the tensor's shape."""
    count = rows.size // tensor.row_bytes
    given = np.frombuffer(frame, _item(tensor)).reshape(tensor.with_rows(count))
    rows.view(_item(tensor)).reshape(count, *tensor.shape)[...] = np.moveaxis(given, tensor.rows_axis, 0)


def from_rows(rows: Bytes, tensor: TensorSpec) -> Bytes:
    """Return the tensor that a client gets of rows in IO memory: these themselves, where it is the same."""
    if rows.size <= tensor.row_bytes:
        return rows
    found = rows.view(_item(tensor)).reshape(-1, *tensor.shape)
    return np.ascontiguousarray(np.moveaxis(found, 0, tensor.rows_axis)).reshape(-1).view(np.uint8)


def _item(tensor: TensorSpec) -> np.dtype[Any]:
    size = item_bytes(tensor.dtype)
    return _UNSIGNED.get(size) or np.dtype((np.void, size))
