"""The result of a request: its outputs, where its time went, and both as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from numpy.typing import NDArray

from mainspring.client.durations import format_duration
from mainspring.messages import clients

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
    return Timing(
        total_ns=timing.total_ns,
        queue_ns=timing.queue_ns,
        execute_ns=timing.execute_ns,
        left_ns=timing.left_ns,
        batch_size=timing.batch_size,
        cold_start=timing.cold_start,
        worker=timing.worker,
        cached=timing.cached,
        receive_ns=timing.receive_ns,
        input_ns=timing.input_ns,
        load_ns=timing.load_ns,
        wait_ns=timing.wait_ns,
        output_ns=timing.output_ns,
        elapsed_ns=elapsed_ns,
        slo_ns=slo_ns,
    )


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
    return ", ".join(parts)


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
