"""One query of a graph on its way: what its flow begins becomes requests, and their outputs go into it. Pure.

Tensors stay where they are: what a worker sent is what the next step's worker is sent, unless some rows of it
take no part, or a model wants its rows elsewhere than in front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mainspring.gateway.core.effects import Accepted, Dispatched, Frame
from mainspring.gateway.core.queries import QueryFailed, cut
from mainspring.gateway.core.requests import Pending, instants
from mainspring.gateway.core.validation import BadRequest, Signature, check_request
from mainspring.gateway.graphs import lengths
from mainspring.gateway.graphs.checking import Graph
from mainspring.gateway.graphs.families import Members
from mainspring.gateway.graphs.flow import Array, Begin, Flow, FlowError
from mainspring.gateway.graphs.lengths import Expected, row_bytes
from mainspring.messages.clients import InferRequest, Learnt, StepTiming
from mainspring.messages.codes import Reason
from mainspring.messages.model import FOUND_BYTES, ModelSpec, TensorSpec
from mainspring.messages.peers import Output, Rejected, TensorHeader
from mainspring.messages.queries import Chosen, QueryStep

_REMEMBERED = 1_000
"""Shapes of what steps take, of which a graph remembers what models said to them."""


class _Outlook(NamedTuple):
    """What is expected of a step."""

    rows: int
    certain: bool
    """Whether nothing can take all rows from it any more but a step without which the query goes on."""


class GraphFlow:
    """What a request for a graph has come to; a `queries.Flow`."""

    def __init__(
        self,
        graph: Graph,
        models: Sequence[Signature],
        members: Sequence[Members | None],
        expected: Expected,
        request: Pending,
    ) -> None:
        """``models`` and ``members``: of each of the graph's steps, in their order; ``expected``: of the
        graph."""
        self._graph = graph
        self._models = models
        self._members = members
        self._chosen: dict[int, str] = {}
        """The member that the controller chose for each step of a family, by the scheduler's name."""
        self._expected = expected
        self._request = request
        self.headers: tuple[TensorHeader, ...] = ()
        """The outputs' shapes, once `outputs` was asked for."""
        self.learnt: Learnt | None = None
        rows = request.accepted.rows
        tensors = request.accepted.signature.at(request.accepted.sizes).spec.inputs
        arrays = [
            _array(frame, tensor.dtype, (rows, *tensor.shape))
            for tensor, frame in zip(tensors, request.frames, strict=True)
        ]
        self._flow = Flow(graph, rows, arrays)
        self._row_bytes = row_bytes(arrays)
        self._order: dict[int, npt.NDArray[np.intp]] = {}
        """The rows of each step that run in another order than the request's, by length."""
        self._laid: dict[tuple[int, str, int], tuple[Array, Array, Frame]] = {}
        """Inputs of steps as they were laid out, by the array's id."""
        self._open: dict[int, list[Pending]] = {}
        """The pieces of each step that has begun and not ended."""
        self.graph = graph.spec.name
        self.several = len(graph.steps) > 1
        self._began: dict[int, int] = {}
        """Rows of each step that has begun."""
        self.last: tuple[Dispatched, Output] | None = None
        """What the last outputs came by."""
        self._at_ns = request.arrived_ns
        """Instant at which it last went on."""
        self._times: dict[int, StepTiming] = {}
        """Of each step that has begun, as far as it is known."""
        self._fallen: set[int] = set()
        """The steps that no row takes part in, as far as `Expected` knows."""
        self._told: list[_Outlook] = []
        """What the controller was told."""

    @property
    def steps(self) -> tuple[QueryStep, ...]:
        """Return the query's steps: without rows those that have ended, with the request's those to come."""
        self._told = self._outlook()
        found = []
        for index, (step, expected) in enumerate(zip(self._graph.steps, self._told, strict=True)):
            pieces = self._open.get(index, [])
            left = sum([piece.accepted.rows for piece in pieces if piece.kept is None])
            members = self._members[index]
            found.append(
                QueryStep(
                    self._models[index].spec.name,
                    left if index in self._began else expected.rows,
                    self._sizes(index, pieces),
                    step.after,
                    required=not self._may_miss(index),
                    certain=expected.certain,
                    name=step.spec.name,
                    share=round(self._expected.shares.get(index, 1.0), 3),
                    members=() if members is None else members.names,
                    scores=() if members is None else members.scores,
                    at_least=0.0 if members is None else self._request.accepted.at_least,
                )
            )
        return tuple(found)

    def _sizes(self, step: int, pieces: Sequence[Pending]) -> tuple[int, ...]:
        """Return the sizes that a step has, in the mean of its pieces, or is expected to have."""
        given = _mean_sizes(pieces)
        if given is None:
            return self._expected.sizes(step, self._row_bytes)
        return self._expected.ceilings(step, given)

    def news(self) -> tuple[QueryStep, ...]:
        """Return the steps if the controller was told otherwise of some to come; empty if it was not."""
        settled = self._graph.settled and not self._flow.missing
        return () if settled or self._outlook() == self._told else self.steps

    def _outlook(self) -> list[_Outlook]:
        """Return what is expected of each step: of one that has begun what it began with."""
        found: list[_Outlook] = []
        for index, step in enumerate(self._graph.steps):
            if index in self._began or self._flow.knows(index):
                found.append(_Outlook(self._began.get(index, 0), True))
                continue
            before = [found[each] for each in step.after]
            alike = [found[at].rows for at in step.after if self._graph.steps[at].rows_of == step.rows_of]
            certain = step.condition is None and all(each.certain for each in before)
            rows = min([self._request.accepted.rows, *alike])
            if step.condition is not None or not alike:
                # It takes part of the rows, or has rows of its own.
                share = self._expected.shares.get(index, 1.0)
                rows = max(1, round(share * self._request.accepted.rows))
            found.append(_Outlook(rows, certain))
        return found

    def begin(self) -> list[Pending]:
        """Return the first pieces; raise `QueryFailed`, which says what is wrong and in which step."""
        return self._pieces(self._flow.begin)

    def ended(self, piece: Pending) -> list[Pending]:
        """Return the pieces that begin now that one has its outputs; raise as `begin`."""
        return self._step_ended(piece.step)

    def missed(self, piece: Pending, rejected: Rejected) -> list[Pending]:
        """Go on without the step of a piece; return the pieces that begin now; raise as `begin`."""
        if not self._may_miss(piece.step):
            detail = self._named(piece.step, rejected.detail)
            raise QueryFailed(rejected.reason, detail, rejected.earliest_finish_left_ns)
        if lacking := self._flow.lacking(piece.step):
            detail = f"{lacking}; {self._named(piece.step, rejected.detail)}"
            raise QueryFailed(rejected.reason, detail, rejected.earliest_finish_left_ns)
        return self._step_ended(piece.step)

    def _step_ended(self, step: int) -> list[Pending]:
        """Return the pieces that begin if a step has ended: with outputs, or without those of one piece."""
        pieces = self._open[step]
        parts = [each.kept for each in pieces if each.kept is not None]
        if len(parts) < len(pieces):
            return []
        del self._open[step]
        if not all(parts):
            return self._pieces(lambda: self._flow.missed(step))
        specs = [self._models[step].at(each.accepted.sizes).spec for each in pieces]
        order, arrays = self._order.pop(step, None), []
        for at in range(len(specs[0].outputs)):
            own = [
                _output(spec, spec.outputs[at], each.accepted.rows, part[at])
                for spec, each, part in zip(specs, pieces, parts, strict=True)
            ]
            if len({array.shape[1:] for array in own}) > 1:
                name = specs[0].outputs[at].name
                detail = f"its rows give {name!r} of unlike shapes, which can't be one tensor"
                raise QueryFailed(Reason.BAD_OUTPUT, self._named(step, detail))
            joined = own[0] if len(own) == 1 else np.concatenate(own)
            arrays.append(joined if order is None else joined[np.argsort(order)])
        return self._pieces(lambda: self._flow.ended(step, arrays))

    def took(self, now_ns: int, piece: Pending, by: Dispatched | None, output: Output | None) -> None:
        """Note when a piece ended and, if it has outputs, where its time went."""
        self._at_ns, arrived_ns = now_ns, self._request.arrived_ns
        begun = self._times[piece.step]
        if by is None or output is None:
            self._times[piece.step] = msgspec.structs.replace(begun, end_ns=now_ns - arrived_ns)
            return
        self.last = by, output
        began_ns = arrived_ns + begun.begin_ns
        sent_ns, _, begin_ns, end_ns = instants(now_ns, began_ns, by.at_ns, output)
        self._times[piece.step] = msgspec.structs.replace(
            begun,
            end_ns=now_ns - arrived_ns,
            queue_ns=sent_ns - began_ns,
            execute_ns=end_ns - begin_ns,
            batch_size=by.batch_size,
            worker=by.worker,
        )

    def chose(self, chosen: Chosen) -> None:
        """Note which member answers for a step; its pieces are that member's if they run again."""
        self._chosen[chosen.step] = chosen.model
        for piece in self._open.get(chosen.step, ()):
            piece.accepted = msgspec.structs.replace(piece.accepted, model=chosen.model)

    @property
    def best(self) -> bool:
        """Say whether no step was answered by a smaller member of a family than its best."""
        return all(self._model_of(index) in ("", each.written[0]) for index, each in self._families())

    def _families(self) -> list[tuple[int, Members]]:
        return [(index, each) for index, each in enumerate(self._members) if each is not None]

    def _model_of(self, step: int) -> str:
        """Return the member that answered for a step, as its family calls it; empty for no family's."""
        members = self._members[step]
        if members is None or step not in self._times:
            return ""
        name = self._chosen.get(step, members.names[0])
        return members.written[members.names.index(name)] if name in members.names else name

    def timing(self) -> tuple[StepTiming, ...]:
        """Return where the time went, step by step, once no piece is without an end."""
        found = []
        for index, step in enumerate(self._graph.steps):
            timing = self._times.get(index) or StepTiming(step.spec.name)
            missing, model = index in self._flow.missing, self._model_of(index)
            if missing or model:
                timing = msgspec.structs.replace(timing, missing=missing, model=model)
            found.append(timing)
        return tuple(found)

    def outputs(self) -> tuple[Frame, ...]:
        """Return every output, once no piece is without an end; raise as `begin`."""
        try:
            arrays = self._flow.answer()
        except FlowError as error:
            raise QueryFailed(Reason.BAD_OUTPUT, str(error)) from None
        self.headers = tuple(
            [
                TensorHeader(tensor.name, tensor.dtype, array.shape)
                for (tensor, _), array in zip(self._graph.outputs, arrays, strict=True)
            ]
        )
        return tuple([frame_of(array) for array in arrays])

    def _may_miss(self, step: int) -> bool:
        """Say whether the query goes on without a step."""
        return not self._graph.steps[step].spec.required or self._graph.spec.combine is not None

    def _name(self, step: int) -> str:
        return self._graph.steps[step].spec.name

    def _named(self, step: int, detail: str) -> str:
        return f"step {self._name(step)!r}: {detail}"

    def _pieces(self, go_on: Callable[[], list[Begin]]) -> list[Pending]:
        """Return the pieces of the steps that begin as the flow goes on."""
        try:
            begun = go_on()
        except FlowError as error:
            raise QueryFailed(Reason.BAD_OUTPUT, str(error)) from None
        found = []
        if self._graph.spec.combine is not None:
            begun = sorted(begun, key=lambda each: -self._graph.steps[each.step].spec.weight)
        for each in begun:
            self._open[each.step] = self._of_step(each)
            self._began[each.step] = each.rows
            begin_ns = self._at_ns - self._request.arrived_ns
            self._times[each.step] = StepTiming(self._name(each.step), each.rows, begin_ns=begin_ns)
            found += self._open[each.step]
        if not self._graph.settled:
            self._learn([each.step for each in begun])
        return found

    def _learn(self, begun: Sequence[int]) -> None:
        """Note how many rows those steps have that were decided just now."""
        fallen = [each for each in self._flow.skipped if each not in self._fallen]
        self._fallen.update(fallen)
        for step in (*begun, *fallen):
            self._expected.decided(step, self._began.get(step, 0), self._request.accepted.rows)

    def _of_step(self, begin: Begin) -> list[Pending]:
        """Return the pieces of one step: its rows, in batches that its model takes."""
        signature = self._models[begin.step]
        if begin.lengths is None:
            pieces = self._cut(begin.step, signature, begin.arrays, begin.rows)
        else:
            together = list(lengths.alike(begin.lengths, signature.piece_rows))
            self._order[begin.step] = np.concatenate(together)
            pieces = []
            for rows in together:
                own = [array[rows] for array in begin.arrays]
                own = lengths.cut(signature, own, int(begin.lengths[rows[-1]]))
                pieces += self._cut(begin.step, signature, own, len(rows))
        if signature.spec.symbols:
            self._expected.learn(begin.step, self._row_bytes, _mean_sizes(pieces) or ())
        return pieces

    def _cut(self, step: int, signature: Signature, given: Sequence[Array], count: int) -> list[Pending]:
        """Return the pieces of so many rows of a step, whose inputs are there."""
        arrays, frames = [], []
        for tensor, array in zip(signature.spec.inputs, given, strict=True):
            laid, frame = self._laid_once(signature.spec, tensor, array)
            arrays.append(laid)
            frames.append(frame)
        key = (step, count, *[array.shape for array in arrays])
        accepted = self._expected.accepted.get(key)
        if accepted is None:
            try:
                accepted = _accepted(signature, arrays, frames, min(count, signature.piece_rows), count)
            except BadRequest as error:
                raise QueryFailed(error.reason, self._named(step, error.detail)) from None
            accepted = msgspec.structs.replace(accepted, rows=count)
            if len(self._expected.accepted) >= _REMEMBERED:
                self._expected.accepted.clear()
            self._expected.accepted[key] = accepted
        model, priority = self._chosen.get(step, accepted.model), self._request.accepted.priority
        if (accepted.model, accepted.priority) != (model, priority):
            accepted = msgspec.structs.replace(accepted, model=model, priority=priority)
        return cut(self._request, accepted, tuple(frames), step)

    def _laid_once(self, spec: ModelSpec, tensor: TensorSpec, array: Array) -> tuple[Array, Frame]:
        """Return a step's input as its clients lay it out, and its bytes, once for all steps that take it."""
        key = (id(array), tensor.dtype, 0 if spec.whole else tensor.rows_axis)
        known = self._laid.get(key)
        if known is None:
            laid = _laid(spec, tensor, array)
            # The array is kept, too, since no other one may have its id meanwhile.
            known = self._laid[key] = array, laid, frame_of(laid)
        return known[1:]


def _mean_sizes(pieces: Sequence[Pending]) -> list[float] | None:
    """Return the mean size of each symbol of some pieces' rows; None without pieces."""
    rows = sum([piece.accepted.rows for piece in pieces])
    each = [[size * piece.accepted.rows for size in piece.accepted.sizes] for piece in pieces]
    return [sum(sizes) / rows for sizes in zip(*each, strict=True)] if rows else None


def _accepted(
    signature: Signature, arrays: Sequence[Array], frames: Sequence[Frame], first: int, rows: int
) -> Accepted:
    """Return what a model says to the first of a step's rows; raise `BadRequest`."""
    spec = signature.spec
    headers = []
    for tensor, array in zip(spec.inputs, arrays, strict=True):
        row = array.shape[: tensor.rows_axis] + array.shape[tensor.rows_axis + 1 :]
        shape = row if spec.whole else (*row[: tensor.rows_axis], first, *row[tensor.rows_axis :])
        headers.append(TensorHeader(tensor.name, tensor.dtype, shape))
    sizes = [len(frame) // rows * first for frame in frames]
    asked = InferRequest(0, spec.public_name, tuple(headers), None)
    return check_request(asked, sizes, lambda *_: signature, 0)


def _array(frame: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return a tensor's bytes as an array; of bfloat16 the bits."""
    return np.frombuffer(frame, "uint16" if dtype == "bfloat16" else dtype).reshape(shape)


def _output(spec: ModelSpec, tensor: TensorSpec, rows: int, frame: Any) -> Array:
    """Return an output of a piece with its rows in front."""
    if tensor.varies:
        shape, size = tensor.found(frame)
        return _array(memoryview(frame)[FOUND_BYTES:size], tensor.dtype, (1, *shape))
    if spec.whole or not tensor.rows_axis:
        return _array(frame, tensor.dtype, (rows, *tensor.shape))
    return np.moveaxis(_array(frame, tensor.dtype, tensor.with_rows(rows)), tensor.rows_axis, 0)


def _laid(spec: ModelSpec, tensor: TensorSpec, array: Array) -> Array:
    """Return a step's input as its model's clients lay it out."""
    if tensor.dtype != "bfloat16" and array.dtype != np.dtype(tensor.dtype):
        # A shorter text goes into a longer slot.
        array = array.astype(tensor.dtype)
    if tensor.rows_axis and not spec.whole:
        array = np.moveaxis(array, 0, tensor.rows_axis)
    return np.ascontiguousarray(array)


def frame_of(array: Array) -> Frame:
    """Return an array's bytes, without a copy where it has any."""
    array = np.ascontiguousarray(array)
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else b""  # type: ignore[arg-type]
