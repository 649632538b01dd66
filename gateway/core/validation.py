"""A request against the signature of the model it names, before the controller hears of it. Pure.

Each refusal names what was wrong and what would be right. Values are not looked at: NaN is a number like
any other. The front ends for other protocols build the same `InferRequest` and pass through here.
"""

from __future__ import annotations

import difflib
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from mypy_extensions import mypyc_attr

from mainspring.gateway.core.effects import Accepted, Turn
from mainspring.gateway.core.queries import at_least_fault, too_many_rows, unsplit_because
from mainspring.messages.clients import InferRequest
from mainspring.messages.codes import Reason
from mainspring.messages.durations import LONGEST_NS, in_milliseconds
from mainspring.messages.model import ModelSpec, TensorSpec, is_dtype, slot_bytes
from mainspring.messages.peers import TensorHeader
from mainspring.messages.queries import piece_rows
from mainspring.messages.sequences import check_sequencing

_LONGEST_NUMBER = 24
"""Characters, as in ``-2.2250738585072014e-308``."""
_LONGEST_CHARACTER = 6
"""Characters of the longest escape, such as ``\\u0001``."""
_AROUND = 3
"""A comma, and quotes."""
_REMEMBERED = 256
"""Signatures of fixed shapes that are kept of a model with symbols."""
_LONGEST_ID_BYTES = 128
_ID_LIMIT = 1 << 64
_NEIGHBOURS = 64
"""Names on either side of an unknown one, in order, that a suggestion is sought among: comparing with
thousands of names would take tens of milliseconds of every other client's time."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BadRequest(Exception):
    """A request that can't be served as it is: why, and what would be right."""

    def __init__(self, reason: Reason, detail: str, again_ns: int | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.again_ns = reason, detail, again_ns


class Signature:
    """A model's inputs and outputs, made ready for many checks.

    Raises ValueError, TypeError or IndexError if the spec itself makes no sense.
    """

    def __init__(self, spec: ModelSpec, most_rows: int = 0) -> None:
        """``most_rows``: of a request that may be cut into pieces, if that is more than a batch has."""
        for tensor in (*spec.inputs, *spec.outputs):
            if not is_dtype(tensor.dtype):
                raise ValueError(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}")
        self.spec = spec
        self.graph: Any = None
        """Of a graph of models, how it is run (`graphs.served.ServedGraph`)."""
        self.best_score: float | None = None
        """Of a graph with steps of families, the highest score that requests may ask for."""
        self.run = self
        """The signature of what runs: of a model with sequences, another one than clients see."""
        self.max_rows = spec.max_rows
        self.piece_rows = piece_rows(spec)
        self.unsplit = unsplit_because(spec)
        self.most_rows = spec.max_rows if self.unsplit else max(spec.max_rows, most_rows)
        self.whole = spec.whole
        self.varies = any(tensor.varies for tensor in spec.outputs)
        """True if the shape of an output is known only after a run."""
        self.inputs = {tensor.name: index for index, tensor in enumerate(spec.inputs)}
        self.outputs = {tensor.name: index for index, tensor in enumerate(spec.outputs)}
        self.input_row_bytes = tuple(tensor.row_bytes for tensor in spec.inputs)
        self.output_row_bytes = tuple(tensor.row_bytes for tensor in spec.outputs)
        self.answer_row_bytes = sum(self.output_row_bytes)
        """Bytes of one row of all outputs together, as they come from a worker."""
        self.text_row_bytes = sum(map(_text_bytes, spec.outputs))
        """Bytes that such a row has at most as JSON."""
        self.every_output = tuple(range(len(spec.outputs)))
        self.rows_axes = {tensor.name: tensor.rows_axis for tensor in spec.outputs if tensor.rows_axis}
        """The axis of the rows, by name, of each output whose rows are not in front."""
        self.relations = [
            (index, dim)
            for index, tensor in enumerate(spec.inputs)
            for dim in tensor.open
            if dim.symbol is None
        ]
        """Dimensions of inputs that follow from the sizes of symbols, each with the input's index."""
        self.defaults = {each.name: each for each in spec.inputs if each.default is not None}
        """Inputs that a request may leave out."""
        self._fixed: dict[tuple[int, ...], Signature] = {}
        if len(self.inputs) < len(spec.inputs) or len(self.outputs) < len(spec.outputs):
            raise ValueError("two of its inputs, or two of its outputs, have one name")

    def at(self, sizes: tuple[int, ...]) -> Signature:
        """Return the signature of fixed shapes that a request has, for the size of each symbol."""
        if not sizes:
            return self
        fixed = self._fixed.get(sizes)
        if fixed is None:
            inputs, outputs = (
                tuple([tensor.at(sizes) for tensor in tensors])
                for tensors in (self.spec.inputs, self.spec.outputs)
            )
            spec = msgspec.structs.replace(self.spec, inputs=inputs, outputs=outputs, symbols=())
            if len(self._fixed) >= _REMEMBERED:
                self._fixed.clear()
            fixed = self._fixed[sizes] = Signature(spec, self.most_rows)
        return fixed


def signature_of(spec: ModelSpec, most_rows: int = 0) -> Signature:
    """Return what clients see of a model; raise as `Signature`."""
    full = Signature(spec, most_rows)
    if spec.sequencing is None:
        return full
    check_sequencing(spec)
    kept_inputs, kept_outputs = spec.sequencing.kept_inputs, spec.sequencing.kept_outputs
    seen = Signature(
        msgspec.structs.replace(
            spec,
            inputs=tuple([each for each in spec.inputs if each.name not in kept_inputs]),
            outputs=tuple([each for each in spec.outputs if each.name not in kept_outputs]),
        )
    )
    seen.run = full
    return seen


def _text_bytes(tensor: TensorSpec) -> int:
    """Return the bytes that a row has at most as JSON."""
    slot = slot_bytes(tensor.dtype)
    longest = _LONGEST_NUMBER if slot is None else _LONGEST_CHARACTER * slot
    return math.prod(tensor.shape) * (longest + _AROUND)


def is_outdated(accepted: Accepted, signatures: Mapping[str, Signature]) -> bool:
    """Say whether the model has other tensors by now than when the request was taken.

    No worker could run it then; and the controller, which knows no shapes, would try until its deadline.
    """
    known = signatures.get(accepted.model)
    if known is None:
        return False
    then, now = accepted.signature.run, known.run
    if now is then:
        return False
    return (now.spec.inputs, now.spec.outputs) != (then.spec.inputs, then.spec.outputs)


Resolve = Callable[[str, int | None], Signature]
"""A function from a model's name and version to its signature; it raises `BadRequest` (`Catalog.resolve`)."""


def check_request(
    request: InferRequest, frame_bytes: Sequence[int], resolve: Resolve, max_slo_ns: int
) -> Accepted:
    """Return the request as the request table takes it; raise `BadRequest`.

    ``frame_bytes`` are the sizes of the tensors' frames that came with it.
    """
    signature = resolve(request.model, request.version)
    _check_slo(request.slo_ns, max_slo_ns)
    if request.priority < 0:
        detail = f"the priority is {request.priority}: 1 is the highest, more is lower, 0 is none"
        raise BadRequest(Reason.BAD_INPUT, detail)
    if wrong := request.at_least and at_least_fault(request.at_least, signature.best_score, request.model):
        raise BadRequest(Reason.BAD_INPUT, wrong)
    if request.context and (signature.graph is None or signature.graph.application is None):
        raise BadRequest(Reason.BAD_INPUT, f"a context is for applications; {request.model!r} is none")
    order = _order_inputs(request, signature)
    sizes = _sizes(request, signature, order) if signature.spec.symbols else ()
    fixed = signature.at(sizes)
    rows = _check_shapes(request, fixed, order)
    _check_bytes(request, fixed, frame_bytes, rows)
    return Accepted(
        model=signature.spec.name,
        rows=rows,
        slo_ns=request.slo_ns,
        frame_order=order,
        traceparent=request.traceparent,
        output_order=_order_outputs(request, signature),
        signature=signature,
        priority=request.priority,
        back_ns=request.back_ns,
        late_outputs=request.late_outputs,
        sizes=sizes,
        turn=None if signature.spec.sequencing is None else _turn(request),
        at_least=request.at_least,
        context=request.context,
    )


def _turn(request: InferRequest) -> Turn:
    """Return where in its sequence a request is, for a model that has sequences."""
    given = request.sequence_id
    if not given:
        raise BadRequest(
            Reason.BAD_INPUT,
            f"inference request to model {request.model!r} must specify a non-zero or non-empty correlation "
            "ID: its requests come in sequences; send a sequence_id with each, sequence_start with the first "
            "and sequence_end with the last",
        )
    if isinstance(given, str):
        if len(given.encode()) > _LONGEST_ID_BYTES:
            raise BadRequest(
                Reason.BAD_INPUT,
                f"the sequence_id has {len(given.encode()):,} bytes; it may have {_LONGEST_ID_BYTES}",
            )
    elif not 0 < given < _ID_LIMIT:
        raise BadRequest(
            Reason.BAD_INPUT, f"the sequence_id is {given}; a number is from 1 to {_ID_LIMIT - 1}"
        )
    return Turn(given, request.sequence_start, request.sequence_end)


def nearest(name: str, known: Mapping[str, object]) -> list[str]:
    """Return up to three known names like ``name``, the likest first."""
    names = sorted(known)
    if len(names) > 2 * _NEIGHBOURS:
        at = bisect_left(names, name)
        names = names[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
    return difflib.get_close_matches(name[:200], names, n=3)


def shorten(text: str) -> str:
    """Return ``text`` quoted, and cut to what fits a sentence."""
    return repr(text) if len(text) <= 100 else repr(text[:100]) + "..."


def _check_slo(slo_ns: int | None, max_slo_ns: int) -> None:
    if slo_ns is None or 0 < slo_ns <= max_slo_ns:
        return
    wrong = "not positive" if slo_ns <= 0 else "absurdly long"
    given = in_milliseconds(slo_ns) if slo_ns < LONGEST_NS // 2 else "over a hundred years"
    raise BadRequest(
        Reason.BAD_SLO,
        f"an SLO of {given} is {wrong}; give more than 0 and at most "
        f"{in_milliseconds(max_slo_ns)}, or none for best effort",
    )


def _order_inputs(request: InferRequest, signature: Signature) -> tuple[int, ...]:
    """Return for each input of the model which of the request's tensors it is."""
    places: dict[str, int] = {}
    for place, header in enumerate(request.inputs):
        name = header.name
        if name not in signature.inputs:
            raise BadRequest(
                Reason.BAD_INPUT, f"there is no input {shorten(name)}; {_takes(request, signature)}"
            )
        if name in places:
            raise BadRequest(
                Reason.BAD_INPUT, f"input {name!r} was given twice; {_takes(request, signature)}"
            )
        places[name] = place
    if len(places) < len(signature.inputs):
        missing = [name for name in signature.inputs if name not in places]
        raise BadRequest(
            Reason.BAD_INPUT,
            f"input{'s' * (len(missing) > 1)} {_list(missing)} missing; {_takes(request, signature)}",
        )
    return tuple([places[name] for name in signature.inputs])


def _takes(request: InferRequest, signature: Signature) -> str:
    return f"model {request.model!r} takes {_list(signature.inputs)}"


def _sizes(request: InferRequest, signature: Signature, order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of each of the model's symbols, as the inputs' shapes have it."""
    spec, named = signature.spec, [(0, "")] * len(signature.spec.symbols)
    for tensor, place in zip(spec.inputs, order, strict=True):
        header = request.inputs[place]
        for axis, index in open_axes(tensor):
            at = spec.client_axis(tensor, axis)
            if at >= len(header.shape):
                raise BadRequest(Reason.BAD_INPUT, _wrong_shape(request.model, header, spec, tensor))
            size, (known, first) = header.shape[at], named[index]
            if first and size != known:
                raise BadRequest(
                    Reason.BAD_INPUT,
                    f"{spec.symbols[index].name} is {size} in input {header.name!r} and {known} in input "
                    f"{first!r}; it has one size in a request",
                )
            named[index] = size, header.name
    sizes = tuple([size for size, _ in named])
    if signature.run is not signature:
        # Others are a state's alone: it has its own sizes, which are known when the request's turn comes.
        sizes = tuple([size or each.least for size, each in zip(sizes, spec.symbols, strict=True)])
    try:
        spec.bucket_of(sizes)
    except ValueError as error:
        raise BadRequest(Reason.BAD_INPUT, f"{error} (model {request.model!r})") from None
    _check_relations(request, signature, order, sizes)
    return sizes


def open_axes(tensor: TensorSpec) -> list[tuple[int, int]]:
    """Return the axes of an input that are the size of a symbol, each with the symbol's index."""
    return [(dim.axis, symbol) for dim in tensor.open if (symbol := dim.symbol) is not None]


def _check_relations(
    request: InferRequest, signature: Signature, order: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Check the dimensions that follow from the sizes of symbols."""
    spec = signature.spec
    for index, dim in signature.relations:
        header = request.inputs[order[index]]
        at, wanted = spec.client_axis(spec.inputs[index], dim.axis), dim.of(sizes)
        if at < len(header.shape) and header.shape[at] != wanted:
            names = [symbol.name for symbol in spec.symbols]
            given = [
                f"{names[each]} {sizes[each]}" for each in sorted({term.symbol for term in dim.every_term})
            ]
            raise BadRequest(
                Reason.BAD_INPUT,
                f"dimension {at} of input {header.name!r} is {header.shape[at]}; it has to be "
                f"{dim.written(names)}, which is {wanted} with {' and '.join(given)}",
            )


def _check_shapes(request: InferRequest, signature: Signature, order: tuple[int, ...]) -> int:
    """Return the request's rows; what is run whole is one."""
    rows = 1 if signature.whole else None
    for tensor, place in zip(signature.spec.inputs, order, strict=True):
        header = request.inputs[place]
        if header.dtype != tensor.dtype:
            raise BadRequest(
                Reason.BAD_INPUT,
                f"input {tensor.name!r} has dtype {header.dtype[:40]}; "
                f"model {request.model!r} takes {tensor.dtype}",
            )
        if signature.whole:
            if not _fits_whole(header.shape, tensor):
                raise BadRequest(Reason.BAD_INPUT, _wrong_whole(request.model, header, tensor))
            continue
        given = _given_rows(tensor, header.shape)
        if given < 1:
            raise BadRequest(Reason.BAD_INPUT, _wrong_shape(request.model, header, signature.spec, tensor))
        if rows is None:
            rows = given
        elif given != rows:
            raise BadRequest(Reason.BAD_INPUT, _other_rows(signature, order, request, tensor, given, rows))
    if rows is None:
        # A model without inputs runs one row.
        rows = 1
    if rows > (most := signature.most_rows):
        raise BadRequest(Reason.TOO_MANY_ROWS, too_many_rows(request.model, rows, most, signature.unsplit))
    return rows


def rows_of(signature: Signature, tensor: TensorSpec, shape: tuple[int, ...]) -> int:
    """Return the rows of an input of this shape; 0 if a request can't have it."""
    if tensor.open:
        tensor = _fitted(signature, tensor, shape)
    if signature.whole:
        return int(_fits_whole(shape, tensor))
    rows = _given_rows(tensor, shape)
    return rows if 1 <= rows <= signature.most_rows else 0


def header_rows(signature: Signature, headers: Sequence[TensorHeader]) -> int:
    """Return how many rows the first of a request's inputs says, which no check has seen; 1 if it can't."""
    if signature.whole or not headers:
        return 1
    index, shape = signature.inputs.get(headers[0].name), headers[0].shape
    axis = 0 if index is None else signature.spec.inputs[index].rows_axis
    return shape[axis] if axis < len(shape) else 1


def _given_rows(tensor: TensorSpec, shape: tuple[int, ...]) -> int:
    """Return the rows of a tensor of fixed shape; 0 or less if it can't be the model's."""
    if len(shape) != len(tensor.shape) + 1:
        return 0
    axis = tensor.rows_axis
    row = shape[:axis] + shape[axis + 1 :] if axis else shape[1:]
    return shape[axis] if row == tensor.shape else 0


def _other_rows(
    signature: Signature,
    order: tuple[int, ...],
    request: InferRequest,
    tensor: TensorSpec,
    given: int,
    rows: int,
) -> str:
    first = signature.spec.inputs[0]
    detail = f"input {tensor.name!r} has {given} rows and input {request.inputs[order[0]].name!r} has {rows}"
    if first.rows_axis == tensor.rows_axis == 0:
        return f"{detail}; all inputs of a request have the same first axis"
    return (
        f"{detail}; all inputs of a request have the same number of rows, axis {tensor.rows_axis} of "
        f"{tensor.name!r} and axis {first.rows_axis} of {first.name!r}"
    )


def _fits_whole(shape: tuple[int, ...], tensor: TensorSpec) -> bool:
    """Say whether an input of a model without rows may have a shape.

    Clients without arrays of no axes send a scalar as one element.
    """
    return shape == tensor.shape or (not tensor.shape and shape == (1,))


def _fitted(signature: Signature, tensor: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Return a tensor with a shape's sizes at its open axes, where the model takes these."""
    fitted = list(tensor.shape)
    for dim in tensor.open:
        axis, symbol = dim.axis, None if dim.symbol is None else signature.spec.symbols[dim.symbol]
        # What follows from several sizes is compared with these once they are known.
        least, most = (1, tensor.shape[axis]) if symbol is None else (symbol.least, symbol.limit)
        at = signature.spec.client_axis(tensor, axis)
        if at < len(shape) and least <= shape[at] <= most:
            fitted[axis] = shape[at]
    return TensorSpec(tensor.name, tensor.dtype, tuple(fitted), rows_axis=tensor.rows_axis)


def shapes_of(signature: Signature, headers: Sequence[TensorHeader]) -> Signature:
    """Return the signature of fixed shapes that a request with these inputs has, if they are as the model
    takes them; else the model's own, which has the largest."""
    spec = signature.spec
    if not spec.symbols:
        return signature
    sizes = [0] * len(spec.symbols)
    for header in headers:
        index = signature.inputs.get(header.name)
        for axis, symbol in [] if index is None else open_axes(spec.inputs[index]):
            at = spec.client_axis(spec.inputs[index or 0], axis)
            if at < len(header.shape):
                sizes[symbol] = header.shape[at]
    try:
        spec.bucket_of(tuple(sizes))
    except ValueError:
        return signature
    return signature.at(tuple(sizes))


def _wrong_whole(model: str, header: TensorHeader, tensor: TensorSpec) -> str:
    return (
        f"input {tensor.name!r} has shape {list(header.shape[:8])}; model {model!r} takes just "
        f"{list(tensor.shape)}, without an axis for rows"
    )


def _wrong_shape(model: str, header: TensorHeader, spec: ModelSpec, tensor: TensorSpec) -> str:
    given = list(header.shape[:8])
    symbols = [symbol.name for symbol in spec.symbols]
    names = {dim.axis: dim.written(symbols) for dim in tensor.open}
    dims = [names.get(axis, str(size)) for axis, size in enumerate(tensor.shape)]
    if not spec.whole:
        dims.insert(tensor.rows_axis, "rows")
    detail = f"input {tensor.name!r} has shape {given}; model {model!r} takes [{', '.join(dims)}]"
    if header.shape == tensor.shape and not spec.whole:
        where = f"as axis {tensor.rows_axis}" if tensor.rows_axis else "in front"
        return f"{detail}: put the rows' axis {where}, for one row {list(tensor.with_rows(1))}"
    if len(header.shape) > tensor.rows_axis and header.shape[tensor.rows_axis] < 1:
        return f"{detail} with at least one row"
    return detail


def _check_bytes(request: InferRequest, signature: Signature, frame_bytes: Sequence[int], rows: int) -> None:
    if len(frame_bytes) != len(request.inputs):
        raise BadRequest(
            Reason.BAD_INPUT,
            f"{len(frame_bytes)} frames came for {len(request.inputs)} inputs; send one frame for each input",
        )
    for header, size in zip(request.inputs, frame_bytes, strict=True):
        wanted = rows * signature.input_row_bytes[signature.inputs[header.name]]
        if size != wanted:
            raise BadRequest(
                Reason.BAD_INPUT,
                f"input {header.name!r} came with {size:,} bytes; dtype {header.dtype} and shape "
                f"{list(header.shape)} make {wanted:,}",
            )


def _order_outputs(request: InferRequest, signature: Signature) -> tuple[int, ...]:
    if request.outputs is None:
        return signature.every_output
    gives = f"model {request.model!r} gives {_list(signature.outputs)}"
    for name in request.outputs:
        if name not in signature.outputs:
            raise BadRequest(Reason.BAD_OUTPUT, f"there is no output {shorten(name)}; {gives}")
    if len(set(request.outputs)) != len(request.outputs):
        raise BadRequest(Reason.BAD_OUTPUT, f"an output was asked for twice; {gives}")
    return tuple(signature.outputs[name] for name in request.outputs)


def _list(names: Mapping[str, int] | Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
