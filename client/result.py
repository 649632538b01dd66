"""The result of a request: its outputs, where its time went, and both as people read them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mainspring.client.deadlines import format_duration
from mainspring.client.errors import MainspringError, kind_of
from mainspring.messages import clients
from mainspring.messages.clients import InferReply
from mainspring.messages.model import array_dtype, slot_bytes, too_long
from mainspring.messages.peers import TensorHeader

_MOST_VALUES = 4
_MOST_OUTPUTS = 16


class Timing(clients.Timing, frozen=True):
    """The parts of a request's time, on the gateway's clock and on the caller's."""

    elapsed_ns: int = 0
    """Time from the call of `infer` or `submit` to its result, on the caller's clock, which an SLO bounds."""
    slo_ns: int | None = None
    """The SLO that the caller gave; None for best effort."""

    @property
    def late(self) -> bool:
        """Return whether the outputs came after the SLO, on the caller's clock; never for best effort."""
        return self.slo_ns is not None and self.elapsed_ns > self.slo_ns

    @property
    def elapsed_ms(self) -> float:
        """``elapsed_ns`` in milliseconds."""
        return self.elapsed_ns / 1e6

    @property
    def total_ms(self) -> float:
        """``total_ns`` in milliseconds: the gateway's part of ``elapsed_ms``."""
        return self.total_ns / 1e6

    @property
    def queue_ms(self) -> float:
        """``queue_ns`` in milliseconds."""
        return self.queue_ns / 1e6

    @property
    def execute_ms(self) -> float:
        """``execute_ns`` in milliseconds."""
        return self.execute_ns / 1e6

    @property
    def load_ms(self) -> float:
        """``load_ns`` in milliseconds."""
        return self.load_ns / 1e6

    @property
    def left_ms(self) -> float | None:
        """``left_ns`` in milliseconds; None for best effort."""
        return None if self.left_ns is None else self.left_ns / 1e6


class InferResult(dict[str, NDArray[Any]]):
    """A request's outputs by name, and beside them ``timing``: where the request's time went.

    The arrays are views of the bytes as they were received and therefore read-only; take ``.copy()`` of
    one to write to it. Rows are along the axis that the model has them on.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], timing: Timing) -> None:
        super().__init__(outputs)
        self.timing = timing

    @property
    def late(self) -> bool:
        """Return whether it came after its SLO, counted from the call on the caller's clock."""
        return self.timing.late

    def __repr__(self) -> str:
        return text_of(self, self.timing)

    def _repr_html_(self) -> str:
        return html_of(self, self.timing)


def seen_by_caller(timing: clients.Timing, elapsed_ns: int, slo_ns: int | None) -> Timing:
    """Return the gateway's timing with the caller's own."""
    return Timing(**msgspec.structs.asdict(timing), elapsed_ns=elapsed_ns, slo_ns=slo_ns)


def text_of(outputs: Mapping[str, NDArray[Any]], timing: Timing) -> str:
    """Return a line for each output and one for the timing."""
    lines = [f"  {name!r}: {kind} {values}" for name, kind, values in _rows(outputs)]
    return "\n".join(["InferResult(", *lines, f"  {text_of_timing(timing)}", ")"])


def html_of(outputs: Mapping[str, NDArray[Any]], timing: Timing) -> str:
    """Return the same as a table."""
    head = "<tr><th>output</th><th>type</th><th>first values</th></tr>"
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in _rows(outputs)
    )
    return f"<table>{head}{rows}</table><p>{escape(text_of_timing(timing))}</p>"


def text_of_timing(timing: Timing) -> str:
    """Return a sentence about where the time went."""
    parts = [f"{format_duration(timing.elapsed_ns)} from call to result"]
    if timing.slo_ns is not None:
        left_ns = timing.slo_ns - timing.elapsed_ns
        word = "late" if left_ns < 0 else "left"
        parts.append(f"{format_duration(abs(left_ns))} {word} of {format_duration(timing.slo_ns)}")
    parts.append(f"gateway {format_duration(timing.total_ns)}")
    if timing.cached:
        parts.append("outputs from the cache")
    else:
        if timing.load_ns:
            parts.append(f"load {format_duration(timing.load_ns)}")
        parts.append(f"execution {format_duration(timing.execute_ns)} in a batch of {timing.batch_size}")
        parts.append(f"{'cold start' if timing.cold_start else 'warm'} on {timing.worker}")
    parts += [_of_step(step) for step in timing.steps]
    return ", ".join(parts)


def _of_step(step: clients.StepTiming) -> str:
    if step.missing:
        return f"{step.name}: missing"
    if not step.rows:
        return f"{step.name}: skipped"
    return (
        f"{step.name}: {format_duration(step.end_ns - step.begin_ns)} for {step.rows} rows on {step.worker}"
    )


def _rows(outputs: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, str]]:
    shown = [(name, f"{array.dtype}{list(array.shape)}", _values(array)) for name, array in outputs.items()]
    if len(shown) > _MOST_OUTPUTS:
        rest = len(shown) - _MOST_OUTPUTS
        shown = [*shown[:_MOST_OUTPUTS], ("...", f"{rest} more", "")]
    return shown


def _values(array: NDArray[Any]) -> str:
    first = array.reshape(-1)[:_MOST_VALUES]
    values = [f"{value:.4g}" if array.dtype.kind == "f" else _cut(repr(value.item())) for value in first]
    return f"[{', '.join(values)}{', ...' if array.size > len(first) else ''}]"


def _cut(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:24]}..."


_LITTLE_ENDIAN = sys.byteorder == "little"
_NOT_NUMBERS = "OSUMm"
"""numpy's kinds that hold no numbers: objects, bytes, text, dates."""


def to_tensors(
    inputs: Mapping[str, ArrayLike], dtypes: Mapping[str, str] = MappingProxyType({})
) -> tuple[tuple[TensorHeader, ...], list[memoryview]]:
    """Return headers and frames for a request's inputs.

    Takes arrays and everything that `numpy.asarray` accepts; Python lists and numbers, and texts, become the
    type that ``dtypes`` says for their input; numbers of an input without one what numpy makes of them. What
    is contiguous and little-endian already is not copied. Raises TypeError for anything else.
    """
    check_mapping(inputs)
    headers, frames = [], []
    for name, value in inputs.items():
        if name in dtypes and is_plain(value):
            array = np.ascontiguousarray(cast_plain(name, value, dtypes[name]))
        else:
            array = to_array(name, value)
        dtype = array.dtype.str[1:] if array.dtype.kind == "S" else array.dtype.name
        headers.append(TensorHeader(name, dtype, array.shape))
        frames.append(array.reshape(-1).view(np.uint8).data)
    return tuple(headers), frames


def check_mapping(inputs: Mapping[str, ArrayLike]) -> None:
    """Raise TypeError if a request's inputs are not a mapping from names."""
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs is {kind_of(inputs)}; pass a dict from input name to array, like {{'data': x}}"
        )
    for name in inputs:
        if not isinstance(name, str):
            raise TypeError(f"input name {name!r} is {kind_of(name)}; pass a str")


def to_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return ``value`` as a contiguous little-endian array of at least one axis; raise TypeError."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if array.dtype.kind in _NOT_NUMBERS or array.dtype.names is not None:
        raise TypeError(
            f"input {name!r} is {kind_of(value)} that makes an array of {array.dtype}; "
            "pass a numpy array of numbers, or texts to a model that takes them"
        )
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not _LITTLE_ENDIAN):
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array)


def from_reply(reply: InferReply, frames: list[Any], elapsed_ns: int, slo_ns: int | None) -> InferResult:
    """Return the outputs as arrays over the frames' own memory, read-only; raise `MainspringError`.

    ``elapsed_ns`` is the time since the call, ``slo_ns`` what the caller gave.
    """
    try:
        outputs = {
            header.name: _from_frame(header, frame)
            for header, frame in zip(reply.outputs, frames, strict=True)
        }
    except (ValueError, TypeError) as error:
        raise MainspringError(
            f"the gateway's reply can't be read ({error}); is it of this version?"
        ) from None
    return InferResult(outputs, seen_by_caller(reply.timing, elapsed_ns, slo_ns))


def _from_frame(header: TensorHeader, frame: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(frame, dtype=array_dtype(header.dtype)).reshape(header.shape)
    if not array.flags.aligned:
        # Small frames lie anywhere in the receive buffer; some libraries take aligned arrays only.
        array = array.copy()
    array.flags.writeable = False
    return array


_NUMBERS = "biuf"
_TEXTS = "OSU"
_BFLOAT16 = "bfloat16"


def is_plain(value: object) -> bool:
    """Return whether a value has no tensor type of its own: a Python list, tuple or number, or texts."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in _TEXTS
    return isinstance(value, list | tuple | bool | int | float | str | bytes)


def cast_plain(name: str, value: object, dtype: str) -> NDArray[Any]:
    """Return Python numbers or texts, in lists or alone, as an array of ``dtype``.

    Real numbers are rounded to the nearest one of the type; whole numbers and truth values must be kept as
    they are. Texts are written in UTF-8. Raises TypeError if they don't fit.
    """
    slot = slot_bytes(dtype)
    if slot is not None:
        return _to_slots(name, value, slot)
    wanted = array_dtype(dtype)
    try:
        given = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"input {name!r} can't be made an array ({error}); pass a numpy array") from None
    if given.size == 0 and given.dtype == np.float64:
        return given.astype(wanted)
    if wanted.name == _BFLOAT16:
        # What numpy can compare with, if not as exact as the other.
        return cast_plain(name, value, "float32").astype(wanted)
    if given.dtype.kind not in _NUMBERS or wanted.kind not in _NUMBERS:
        raise TypeError(
            f"input {name!r} is {kind_of(value)} that makes an array of {given.dtype}, and the model "
            f"takes {dtype}; pass a numpy array of numbers"
        )
    with np.errstate(all="ignore"):
        cast = given.astype(wanted)
        kept = _kept(given, cast)
    if kept is not True:
        raise TypeError(
            f"input {name!r} holds {kept}, which {dtype}, the model's type, can't hold; "
            f"pass numbers that it can, or a numpy array of {dtype}"
        )
    return cast


def _to_slots(name: str, value: object, slot: int) -> NDArray[Any]:
    """Return texts, of Python's or numpy's, in slots of ``slot`` bytes."""
    try:
        # Numpy's own texts end before their last zeros, which is where the slots' end, too.
        texts = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, object)
    except ValueError as error:
        raise TypeError(
            f"input {name!r} can't be made an array ({error}); pass lists of one length"
        ) from None
    contents = []
    for each in texts.reshape(-1).tolist():
        if not isinstance(each, str | bytes):
            raise TypeError(f"input {name!r} holds {kind_of(each)}; the model takes texts: str or bytes")
        content = each.encode() if isinstance(each, str) else each
        if len(content) > slot or content.endswith(b"\0"):
            wrong = "ends with a zero byte, which shorter ones are filled with; send it without"
            wrong = too_long(len(content), slot) if len(content) > slot else wrong
            raise TypeError(f"a text of input {name!r} {wrong}")
        contents.append(content)
    return np.array(contents, f"S{slot}").reshape(texts.shape)


def _kept(given: NDArray[Any], cast: NDArray[Any]) -> Any:
    """Return True if an array holds what it is to, else the first number that it does not hold."""
    if cast.dtype.kind == "f":
        # Beyond the largest number of the type; a whole number beyond what it counts in ones.
        lost = np.isfinite(given) & ~np.isfinite(cast)
        if given.dtype.kind in "iu":
            lost |= cast.astype(np.float64) != given
    elif given.dtype.kind == "f":
        lost = ~np.isfinite(given) | (cast.astype(np.float64) != given)
    else:
        lost = cast.astype(object) != given.astype(object)
    lost = np.asarray(lost)
    return given[lost].reshape(-1)[0] if lost.any() else True
