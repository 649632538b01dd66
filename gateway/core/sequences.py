"""Sequences of requests, whose state this gateway keeps from one to the next. Pure.

A sequence is begun by a request with ``start`` and ended by one with ``end``. Its requests stand in *line* in
the order in which they came; the first is submitted, with the state as further inputs, and the others wait
for their turns. Only outputs change the state: a request that ends without any leaves it as it was. After a
start that ends so there is none, nor that of the sequence of this id before: what follows must not go on with
something older.

The state is here alone, so it outlives workers and dies with the gateway. What it may take is set aside at
the start, so that no sequence fails in its middle for want of memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Sequence as Ordered
from typing import Final, NamedTuple

import msgspec

from mainspring.gateway.config import GatewayConfig, milliseconds
from mainspring.gateway.core.effects import Accepted, Frame, Turn
from mainspring.gateway.core.requests import Pending, Refusal, as_found
from mainspring.gateway.core.validation import BadRequest, Signature, open_axes, shorten
from mainspring.messages.codes import Reason
from mainspring.messages.durations import in_milliseconds
from mainspring.messages.model import ModelSpec, TensorSpec
from mainspring.messages.sequences import control_row, first_rows
from mainspring.messages.sequencing import State

_SPARE_TIMERS: Final = 1_024
"""Timers of dropped sequences that the heap may hold before it is rebuilt without them."""
_Key = tuple[str, int | str]
"""The scheduler's name of the model, and the sequence's id: 5 and "5" are two."""


class _Kept(NamedTuple):
    """One state tensor: its shape without rows, and its bytes."""

    shape: tuple[int, ...]
    frame: Frame


class OfModel(NamedTuple):
    """Counts of one model's sequences."""

    spec: ModelSpec
    """The model as it was when the first of them came."""
    numbers: Counter[str]
    """``live`` now, ``bytes`` that are set aside for them, and how many were ``begun``, ``ended``, ``idle``
    for too long and ``dropped``; and requests for ones that are ``unknown``."""


class _Sequence:
    """One sequence, from its start until it is ended, idle for too long or not to be gone on with."""

    __slots__ = (
        *("due_ns", "epoch", "idle_ns", "key", "kept", "kept_epoch", "line", "reserved", "rows", "spec"),
        "timed",
    )

    def __init__(self, key: _Key, idle_ns: int) -> None:
        self.key = key
        self.idle_ns = idle_ns
        self.due_ns: int | None = None
        """Instant at which it is dropped; None while requests are in line."""
        self.timed = False
        """True if it is among the timers, maybe for an earlier instant."""
        self.epoch = 0
        """Starts that have come: a request goes on with the state of the last one before it."""
        self.line: OrderedDict[int, Pending] = OrderedDict()
        """Requests without an answer, by serial; the first is the one whose turn it is."""
        self.kept: tuple[_Kept, ...] | None = None
        """The state that the last answered request left, in the order of the model's states; None if that
        request ended the sequence, or none was answered."""
        self.kept_epoch = 0
        self.rows = 0
        self.spec: ModelSpec | None = None
        """The model that ran when it was begun: the state is of no use to another."""
        self.reserved = 0

    @property
    def going(self) -> bool:
        """Return whether there is a state that a request could go on with."""
        return self.kept is not None and self.kept_epoch == self.epoch


class Sequences:
    """All sequences; see the module's docstring."""

    def __init__(self, config: GatewayConfig) -> None:
        self._most, self._most_bytes = config.max_sequences, config.max_sequence_bytes
        self._idle_ns = milliseconds(config.sequence_idle_ms)
        self._by_key: dict[_Key, _Sequence] = {}
        self._of: dict[int, tuple[_Sequence, int]] = {}
        """The sequence and epoch of each request in a line, by the request's serial."""
        self._timers: list[tuple[int, int, _Sequence]] = []
        """A heap: not later than each sequence without a request is due, a number against ties, and it."""
        self._next_timer = 0
        self._now_ns = 0
        """The last instant that was told: idle time counts from it."""
        self.bytes = 0
        """Bytes that are set aside for states."""
        self.counts: Counter[str] = Counter()
        """``sequences_begun``, and of these ``sequences_ended`` by a request, ``sequences_idle`` for too long
        and ``sequences_dropped`` because a start failed or the model was removed."""
        self.models: dict[str, OfModel] = {}
        """The same by the scheduler's name of the model, of models that are not removed."""
        self._removed: set[str] = set()
        """Models that are removed and have sequences whose requests are under way."""

    def __len__(self) -> int:
        return len(self._by_key)

    # --- a request comes ---

    def turned_away(self, request: Pending) -> None:
        """Note that a request is refused before it is in line: a start leaves nothing to go on with."""
        turn = _turn(request)
        if turn.start:
            self._close(request.accepted.model, turn.sequence, "sequences_dropped")

    def end(self, model: str, sequence: int | str) -> None:
        """Drop a sequence of a model, by the scheduler's name, after those requests that are in line."""
        self._close(model, sequence, "sequences_ended")

    def _close(self, model: str, name: int | str, why: str) -> None:
        sequence = self._by_key.get((model, name))
        if sequence is not None:
            sequence.epoch += 1
            if not sequence.line:
                self._drop(why, sequence)

    def refusal(self, request: Pending) -> Refusal | None:
        """Return why a request that has just come can't be in line, if it can't."""
        turn = _turn(request)
        sequence = self._by_key.get((request.accepted.model, turn.sequence))
        if not turn.start:
            return None if sequence is not None else self._unknown(request)
        if sequence is None and len(self._by_key) >= self._most:
            return Reason.OVERLOADED, f"{len(self._by_key)} sequences have a state here, the most allowed"
        more = _state_bytes(request.accepted) - (0 if sequence is None else sequence.reserved)
        if more > 0 and self.bytes + more > self._most_bytes:
            return (
                Reason.OVERLOADED,
                f"the states of sequences take {self.bytes:,} bytes and may take {self._most_bytes:,}; this "
                f"one needs {more:,}",
            )
        return None

    def join(self, now_ns: int, request: Pending) -> bool:
        """Put a request that is not refused in line; return whether it is its turn."""
        self._now_ns = max(self._now_ns, now_ns)
        turn = _turn(request)
        key = (request.accepted.model, turn.sequence)
        sequence = self._by_key.get(key)
        if sequence is None:
            sequencing = request.accepted.signature.spec.sequencing
            assert sequencing is not None
            own_ns = sequencing.idle_ns
            sequence = self._by_key[key] = _Sequence(key, self._idle_ns if own_ns is None else own_ns)
            self.counts["sequences_begun"] += 1
            self._of_model(request).update(begun=1, live=1)
        if turn.start:
            sequence.epoch += 1
            more = max(0, _state_bytes(request.accepted) - sequence.reserved)
            sequence.reserved += more
            self.bytes += more
            self._of_model(request)["bytes"] += more
        sequence.due_ns = None
        sequence.line[request.serial] = request
        self._of[request.serial] = sequence, sequence.epoch
        if len(sequence.line) > 1:
            request.follow()
        return not request.follows

    def begin(self, request: Pending) -> Refusal | None:
        """Give a request whose turn it is its state and controls, or return why it can't have them."""
        sequence, epoch = self._of[request.serial]
        turn, run = _turn(request), request.accepted.signature.run
        assert run is not request.accepted.signature, f"it has its state already: {request.story()}"
        kept = None
        if not turn.start:
            kept = sequence.kept
            if kept is None or sequence.kept_epoch != epoch or not _same(sequence.spec, run.spec):
                return self._unknown(request)
            if request.accepted.rows != sequence.rows:
                return (
                    Reason.BAD_INPUT,
                    f"sequence {_named(turn)} has {sequence.rows} rows and this request "
                    f"{request.accepted.rows}; all requests of a sequence have as many",
                )
        try:
            request.accepted, request.frames = _fed(request.accepted, request.frames, kept)
        except BadRequest as error:
            return error.reason, error.detail
        if request.follows:
            request.lead()
        return None

    # --- a request ends ---

    def take(self, now_ns: int, request: Pending, frames: Ordered[Frame]) -> None:
        """Keep the state that a request's outputs hold, all outputs in the order of the model's."""
        self._now_ns = max(self._now_ns, now_ns)
        sequence, epoch = self._of[request.serial]
        accepted = request.accepted
        signature = accepted.signature.at(accepted.sizes)
        sequencing = signature.spec.sequencing
        assert sequencing is not None
        places = [signature.outputs[state.output] for state in sequencing.states]
        specs, taken = [signature.spec.outputs[each] for each in places], [frames[each] for each in places]
        if signature.varies:
            specs, taken = as_found(specs, taken)
        # Copies: a frame may be a part of a much larger buffer, which it would keep alive.
        copies = [bytes(frame) for frame in taken]  # type: ignore[call-overload]
        sequence.kept = tuple([_Kept(spec.shape, copy) for spec, copy in zip(specs, copies, strict=True)])
        sequence.kept_epoch, sequence.rows, sequence.spec = epoch, accepted.rows, accepted.signature.spec
        if _turn(request).end:
            sequence.kept = None

    def leave(self, request: Pending) -> Pending | None:
        """Forget a request that has its reply; return the one whose turn has come by that, if one has."""
        if request.serial not in self._of:
            return None
        sequence, _ = self._of.pop(request.serial)
        was_first = next(iter(sequence.line)) == request.serial
        del sequence.line[request.serial]
        if sequence.line:
            return next(iter(sequence.line.values())) if was_first else None
        if sequence.going:
            sequence.due_ns = self._now_ns + sequence.idle_ns
            self._arm(sequence, sequence.due_ns)
        else:
            ended = sequence.kept is None and _turn(request).end
            if ended:
                self._drop("sequences_ended", sequence)
            else:
                self._drop("sequences_dropped", sequence)
        return None

    def told(self, request: Pending, reason: Reason, detail: str) -> str:
        """Return what a client is told whose request gets no outputs: how its sequence stands, too."""
        turn = request.accepted.turn
        if turn is None or reason is Reason.UNKNOWN_SEQUENCE:
            return detail
        if turn.start:
            return f"{detail}; sequence {_named(turn)} is not begun"
        return f"{detail}; the state of sequence {_named(turn)} is as before this request"

    # --- time, and models that go ---

    def next_wakeup_ns(self) -> int | None:
        """Return when `tick` is to be called next, if nothing else happens."""
        while self._timers:
            wake_ns, _, sequence = self._timers[0]
            if self._by_key.get(sequence.key) is sequence and sequence.due_ns == wake_ns:
                return wake_ns
            heapq.heappop(self._timers)
            sequence.timed = False
            if self._by_key.get(sequence.key) is sequence and sequence.due_ns is not None:
                self._arm(sequence, sequence.due_ns)
        return None

    def _arm(self, sequence: _Sequence, due_ns: int) -> None:
        """Have a sequence among the timers, once: at its present instant, or at an earlier one."""
        if sequence.timed:
            return
        sequence.timed = True
        self._next_timer += 1
        heapq.heappush(self._timers, (due_ns, self._next_timer, sequence))
        if len(self._timers) > 2 * len(self._by_key) + _SPARE_TIMERS:
            self._timers = [each for each in self._timers if self._by_key.get(each[2].key) is each[2]]
            heapq.heapify(self._timers)

    def tick(self, now_ns: int) -> None:
        """Drop sequences that have been without a request for too long."""
        self._now_ns = max(self._now_ns, now_ns)
        while (due_ns := self.next_wakeup_ns()) is not None and due_ns <= now_ns:
            *_, sequence = heapq.heappop(self._timers)
            self._drop("sequences_idle", sequence)

    def forget(self, model: str) -> None:
        """Drop the sequences of a model that is removed; those with requests are dropped after these."""
        for sequence in [each for each in self._by_key.values() if each.key[0] == model]:
            if sequence.line:
                sequence.kept = None
            else:
                self._drop("sequences_dropped", sequence)
        self._removed.add(model)
        self._tidy(model)

    def clear(self) -> None:
        """Forget all: no request has its turn any more."""
        self._of.clear()
        for sequence in list(self._by_key.values()):
            self._drop("sequences_dropped", sequence)

    def _drop(self, why: str, sequence: _Sequence) -> None:
        del self._by_key[sequence.key]
        self.bytes -= sequence.reserved
        self.counts[why] += 1
        of_model = self.models.get(sequence.key[0])
        if of_model is not None:
            how = why.removeprefix("sequences_")
            of_model.numbers.update({how: 1, "live": -1, "bytes": -sequence.reserved})
            self._tidy(sequence.key[0])

    def _tidy(self, model: str) -> None:
        """Forget the numbers of a model that is removed, once its last sequence has gone."""
        of_model = self.models.get(model)
        if model in self._removed and (of_model is None or not of_model.numbers["live"]):
            self._removed.discard(model)
            self.models.pop(model, None)

    def _of_model(self, request: Pending) -> Counter[str]:
        accepted = request.accepted
        self._removed.discard(accepted.model)
        found = self.models.get(accepted.model)
        if found is None:
            found = self.models[accepted.model] = OfModel(accepted.signature.spec, Counter())
        return found.numbers

    def _unknown(self, request: Pending) -> Refusal:
        self._of_model(request)["unknown"] += 1
        return _unknown(request)

    def validate(self, pending: dict[int, Pending]) -> None:
        """Check against all requests without an answer; raise AssertionError with the story of one."""
        assert len(self._by_key) <= self._most, f"{len(self._by_key)} sequences, {self._most} allowed"
        held = sum(each.reserved for each in self._by_key.values())
        assert held == self.bytes <= self._most_bytes, f"{held} bytes held, {self.bytes} counted"
        wanted = {serial for serial, each in pending.items() if each.accepted.turn is not None}
        assert wanted == self._of.keys(), f"in no line, or no more: {wanted ^ self._of.keys()}"
        for key, sequence in self._by_key.items():
            assert sequence.line or sequence.going, f"nothing is left of {key}"
            assert (sequence.due_ns is None) == bool(sequence.line), f"{key} is due at {sequence.due_ns}"
            for place, request in enumerate(sequence.line.values()):
                assert self._of[request.serial][0] is sequence, f"of another sequence: {request.story()}"
                assert request.follows == (place > 0), f"place {place} in line: {request.story()}"
        of_models = [each.numbers for each in self.models.values()]
        assert sum(each["live"] for each in of_models) == len(self._by_key), f"live: {self.models}"
        assert sum(each["bytes"] for each in of_models) == self.bytes, f"bytes: {self.models}"
        gone = sum(self.counts[f"sequences_{why}"] for why in ("ended", "idle", "dropped"))
        assert self.counts["sequences_begun"] == gone + len(self._by_key), f"sequences lost: {self.counts}"


# --- what a request is given ---


def _fed(
    accepted: Accepted, frames: tuple[Frame, ...], kept: tuple[_Kept, ...] | None
) -> tuple[Accepted, tuple[Frame, ...]]:
    """Return a request with all that runs: the state, at a start its first, and the controls.

    ``frames`` are in the order of the inputs that clients see. Raises `BadRequest`.
    """
    seen, run = accepted.signature, accepted.signature.run
    sequencing = run.spec.sequencing
    assert sequencing is not None
    found = {tensor.name: frame for tensor, frame in zip(seen.spec.inputs, frames, strict=True)}
    sizes = _Sizes(accepted)
    for index, state in enumerate(sequencing.states):
        tensor = run.spec.inputs[run.inputs[state.input]]
        given = _first(accepted, sizes, state, tensor) if kept is None else kept[index]
        sizes.note(tensor, given.shape)
        found[state.input] = given.frame
    turn = accepted.turn
    assert turn is not None
    for control in sequencing.controls:
        tensor = run.spec.inputs[run.inputs[control.input]]
        try:
            row = control_row(control, tensor, start=turn.start, end=turn.end, sequence=turn.sequence)
        except ValueError as error:
            raise BadRequest(Reason.BAD_INPUT, str(error)) from None
        found[control.input] = row * accepted.rows
    names = [seen.spec.outputs[place].name for place in accepted.output_order]
    fed = msgspec.structs.replace(
        accepted,
        signature=run,
        sizes=sizes.all(),
        frame_order=tuple(range(len(run.spec.inputs))),
        output_order=tuple([run.outputs[name] for name in names]),
    )
    return fed, tuple([found[name] for name in run.inputs])


def _first(accepted: Accepted, sizes: _Sizes, state: State, tensor: TensorSpec) -> _Kept:
    """Return the state of a sequence's first request."""
    dims = list(tensor.shape if state.dims is None else state.dims)
    if state.dims is None:
        for axis, index in open_axes(tensor):
            dims[axis] = sizes.of(index)
    shaped = TensorSpec(tensor.name, tensor.dtype, tuple(dims), rows_axis=tensor.rows_axis)
    return _Kept(shaped.shape, first_rows(state, shaped, accepted.rows))


class _Sizes:
    """The sizes of a model's symbols, of which a request's own inputs say some and its state the others."""

    def __init__(self, accepted: Accepted) -> None:
        self._spec = accepted.signature.run.spec
        given = {index for tensor in accepted.signature.spec.inputs for _, index in open_axes(tensor)}
        self._sizes = {index: accepted.sizes[index] for index in given}

    def of(self, index: int) -> int:
        """Return a symbol's size, the least if it has none yet."""
        return self._sizes.get(index, self._spec.symbols[index].least)

    def note(self, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
        """Take in a state's shape; raise `BadRequest` if it is not of the size that a symbol has."""
        for axis, index in open_axes(tensor):
            if self._sizes.setdefault(index, shape[axis]) != shape[axis]:
                raise BadRequest(
                    Reason.BAD_INPUT,
                    f"{self._spec.symbols[index].name} is {self._sizes[index]} in this request and "
                    f"{shape[axis]} in the state of its sequence (input {tensor.name!r}); it has one size",
                )

    def all(self) -> tuple[int, ...]:
        """Return the size of each symbol; raise `BadRequest` for one that the model does not take."""
        found = tuple([self.of(index) for index in range(len(self._spec.symbols))])
        if found:
            try:
                self._spec.bucket_of(found)
            except ValueError as error:
                raise BadRequest(Reason.BAD_INPUT, f"{error}, in the state of the sequence too") from None
        return found


def _state_bytes(accepted: Accepted) -> int:
    """Return what a request's sequence may hold: its states where open dimensions are at their limits."""
    run: Signature = accepted.signature.run
    sequencing = run.spec.sequencing
    assert sequencing is not None
    return accepted.rows * sum(
        max(run.input_row_bytes[run.inputs[each.input]], run.output_row_bytes[run.outputs[each.output]])
        for each in sequencing.states
    )


def _same(began: ModelSpec | None, now: ModelSpec) -> bool:
    """Say whether a state of what ran then is one of what runs now."""
    return began is not None and (began.artifact, began.sequencing) == (now.artifact, now.sequencing)


def _turn(request: Pending) -> Turn:
    assert request.accepted.turn is not None
    return request.accepted.turn


def _named(turn: Turn) -> str:
    return shorten(turn.sequence) if isinstance(turn.sequence, str) else str(turn.sequence)


def _unknown(request: Pending) -> Refusal:
    spec = request.accepted.signature.spec
    idle_ns = None if spec.sequencing is None else spec.sequencing.idle_ns
    after = "" if idle_ns is None else f" ({in_milliseconds(idle_ns)})"
    return (
        Reason.UNKNOWN_SEQUENCE,
        f"inference request for sequence {_named(_turn(request))} to model {spec.public_name!r} must specify "
        "the START flag on the first request of the sequence: this gateway has no state of it. It was not "
        f"begun here, has ended, was idle for too long{after}, or its model or the gateway was replaced; "
        "begin it again with sequence_start",
    )
